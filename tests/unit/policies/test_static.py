from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, NotEnoughCPUs, SMTAlignmentError
from cpupool.policies.hints import TopologyHint, TopologyPolicy
from cpupool.policies.layout import Layout, Place
from cpupool.policies.static import NodeState, Owner, StaticOptions, StaticPolicy
from tests.machines import MACHINES

# Two sockets, a NUMA node each: CPUs 0-7 with siblings 16-23, and 8-15 with 24-31.
TELCO = Layout.of_topology(MACHINES["telco_2s_2n_16c32t"].topology())
# Two sockets with two NUMA nodes each, a node with two L3 caches: CPUs 0-3 with 32-35, 4-7 with ...
EPYC = Layout.of_topology(MACHINES["epyc_like"].topology())
RESERVED = CPUSet.parse("0,16")
WEB, INIT, DB = Owner("pod-1", "web"), Owner("pod-1", "init"), Owner("pod-2", "db")


def policy(**options: bool) -> StaticPolicy:
    return StaticPolicy.of(TELCO, StaticOptions(**options), RESERVED)


def cpus(state: NodeState, owner: Owner) -> str:
    return str(state.assigned[owner])


def test_a_container_gets_cores_of_its_own_and_leaves_the_rest_shared() -> None:
    plain = policy()

    state, taken = plain.allocate(plain.start(), WEB, 4)

    assert str(taken.cpus) == cpus(state, WEB) == "1-2,17-18"
    assert str(state.shared) == "0,3-16,19-31"


def test_a_container_that_comes_back_keeps_its_cpus() -> None:
    plain = policy()
    state, first = plain.allocate(plain.start(), WEB, 4)

    again, taken = plain.allocate(state, WEB, 4)

    assert taken == first
    assert again == state


def test_a_container_that_goes_gives_its_cpus_back() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), WEB, 4)

    assert plain.remove(state, WEB).shared == TELCO.cpus
    assert plain.remove(plain.start(), WEB) == plain.start()


def test_the_chosen_nodes_are_used_first_and_the_others_for_the_rest() -> None:
    plain = policy()

    near, _ = plain.allocate(plain.start(), WEB, 4, nodes=[1])
    beyond, _ = plain.allocate(plain.start(), WEB, 18, nodes=[1])

    assert cpus(near, WEB) == "8-9,24-25"
    assert cpus(beyond, WEB) == "1,8-15,17,24-31"


def test_app_containers_take_over_what_init_containers_leave() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), INIT, 4, init=True)

    state, _ = plain.allocate(state, WEB, 2)
    assert cpus(state, INIT) == "1-2,17-18"
    assert cpus(state, WEB) == "1,17"

    # The init container ends: what the app container has taken over stays with it.
    assert str(plain.remove(state, INIT).shared) == "0,2-16,18-31"


def test_a_removal_frees_what_only_another_pods_container_has_too() -> None:
    """The kubelet gives a CPU twice on uneven machines; each pod then gives back its own."""
    plain = policy()
    state = NodeState(TELCO.cpus - CPUSet.of(1), {WEB: CPUSet.of(1), DB: CPUSet.of(1)})

    assert plain.remove(state, WEB) == NodeState(TELCO.cpus, {DB: CPUSet.of(1)})


def test_no_other_pod_takes_over_and_afterwards_nobody_does() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), INIT, 4, init=True)

    state, _ = plain.allocate(state, DB, 2)
    assert cpus(state, DB) == "3,19"

    state, _ = plain.allocate(state, WEB, 2)
    assert cpus(state, WEB) == "4,20"


def test_each_pod_takes_over_from_its_own_init_containers() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), INIT, 4, init=True)
    state, _ = plain.allocate(state, Owner("pod-2", "init"), 4, init=True)

    state, _ = plain.allocate(state, DB, 4)

    assert cpus(state, DB) == "3-4,19-20"


def test_what_an_app_container_has_is_not_taken_over() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), INIT, 4)

    state, _ = plain.allocate(state, WEB, 2)

    assert cpus(state, WEB) == "3,19"


def test_hints_say_where_a_container_could_go() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), WEB, 14, nodes=[0])

    assert plain.hints(state, DB, 4).hints == (
        TopologyHint(frozenset({1}), preferred=True),
        TopologyHint(frozenset({0, 1}), preferred=False),
    )


def test_hints_for_a_container_that_has_its_cpus_say_where_they_are() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), WEB, 4, nodes=[1])

    assert plain.hints(state, WEB, 4).hints[0] == TopologyHint(frozenset({1}), preferred=True)
    assert plain.hints(state, WEB, 2).hints == ()


def test_hints_cover_what_an_init_container_leaves() -> None:
    plain = policy()
    state, _ = plain.allocate(plain.start(), INIT, 4, init=True, nodes=[1])

    assert all(1 in (hint.nodes or ()) for hint in plain.hints(state, WEB, 2).hints)
    assert plain.hints(state, WEB, 16).hints[0] == TopologyHint(frozenset({1}), preferred=True)
    assert any(1 not in (hint.nodes or ()) for hint in plain.hints(state, DB, 2).hints)


def test_more_than_is_free_is_refused_with_the_numbers() -> None:
    plain = policy()

    with pytest.raises(NotEnoughCPUs) as raised:
        plain.allocate(plain.start(), WEB, 31)

    assert (raised.value.requested, raised.value.available) == (31, 30)


@pytest.mark.parametrize(
    ("reserved", "count", "available"),
    [
        pytest.param("0,16", 3, None, id="half a core"),
        pytest.param("0,16", 32, 30, id="more whole cores than there are"),
        pytest.param("0,17", 30, 28, id="a core with a reserved sibling is not whole"),
    ],
)
def test_whole_cores_only(reserved: str, count: int, available: int | None) -> None:
    whole = replace(policy(full_pcpus_only=True), reserved=CPUSet.parse(reserved))

    with pytest.raises(SMTAlignmentError) as raised:
        whole.allocate(whole.start(), WEB, count)

    assert (raised.value.requested, raised.value.available) == (count, available)
    assert raised.value.cpus_per_core == 2


def test_whole_cores_are_counted_without_those_that_could_be_taken_over() -> None:
    whole = policy(full_pcpus_only=True)
    state, _ = whole.allocate(whole.start(), INIT, 30, init=True)

    with pytest.raises(SMTAlignmentError):
        whole.allocate(state, WEB, 2)


def test_a_request_for_several_nodes_is_split_evenly() -> None:
    packed, _ = policy().allocate(policy().start(), WEB, 20)
    even = policy(distribute_cpus_across_numa=True, full_pcpus_only=True)

    state, _ = even.allocate(even.start(), WEB, 20)
    uneven, _ = even.allocate(even.start(), WEB, 18)

    assert cpus(packed, WEB) == "1-2,8-15,17-18,24-31"
    assert cpus(state, WEB) == "1-5,8-12,17-21,24-28"
    assert cpus(uneven, WEB) == "1-4,8-12,17-20,24-28"  # nine whole cores


def test_each_cpu_lies_on_a_core_of_its_own_where_that_is_wanted() -> None:
    spread = policy(distribute_cpus_across_cores=True)

    state, _ = spread.allocate(spread.start(), WEB, 4)

    assert cpus(state, WEB) == "1-4"


def test_the_fewest_caches_are_used_where_that_is_wanted() -> None:
    plain = StaticPolicy.of(EPYC, StaticOptions(), CPUSet.parse("0,32"))
    aligned = replace(plain, options=StaticOptions(prefer_align_cpus_by_uncorecache=True))

    split, _ = plain.allocate(plain.start(), WEB, 8)
    whole, _ = aligned.allocate(aligned.start(), WEB, 8)

    assert cpus(split, WEB) == "1-4,33-36"
    assert cpus(whole, WEB) == "4-7,36-39"


def test_all_nodes_of_a_socket_are_near_where_that_is_wanted() -> None:
    plain = StaticPolicy.of(EPYC, StaticOptions(), CPUSet())
    by_socket = replace(plain, options=StaticOptions(align_by_socket=True))

    busy, _ = plain.allocate(plain.start(), DB, 24, nodes=[0, 1])
    within_node, _ = plain.allocate(busy, WEB, 20, nodes=[3])
    within_socket, _ = by_socket.allocate(busy, WEB, 20, nodes=[3])

    assert cpus(within_node, WEB) == "12-13,24-31,44-45,56-63"
    assert cpus(within_socket, WEB) == "16-25,48-57"
    assert {
        hint.nodes for hint in by_socket.hints(plain.start(), DB, 4).hints if hint.preferred
    } == {frozenset(nodes) for nodes in ([0], [1], [2], [3], [0, 1], [2, 3])}


def test_a_strict_reservation_keeps_the_shared_pool_away() -> None:
    assert policy().start().shared == TELCO.cpus
    assert policy(strict_cpu_reservation=True).start().shared == TELCO.cpus - RESERVED


def test_a_number_of_cpus_can_be_reserved_without_saying_which() -> None:
    assert str(StaticPolicy.of(TELCO, StaticOptions(), 3).reserved) == "0-1,16"


def test_options_are_read_as_the_kubelet_reads_them() -> None:
    read = StaticOptions.parse({"full-pcpus-only": "true", "align-by-socket": "F"})

    assert read == StaticOptions(full_pcpus_only=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"full-cores": "true"}, "full-cores: the static policy has no such option"),
        ({"full-pcpus-only": "yes"}, "full-pcpus-only: 'yes' is not a truth value"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StaticOptions.parse(options)


CORES, NUMA = "distribute_cpus_across_cores", "distribute_cpus_across_numa"
UNCORE = "prefer_align_cpus_by_uncorecache"


@pytest.mark.parametrize(
    "options", [("full_pcpus_only", CORES), (NUMA, CORES), (UNCORE, CORES), (UNCORE, NUMA)]
)
def test_options_that_contradict_each_other_are_refused(options: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="contradict each other") as raised:
        policy(**dict.fromkeys(options, True))

    assert len(raised.value.problems) == 1


def test_sockets_are_no_units_where_a_single_node_is_demanded() -> None:
    options = StaticOptions(align_by_socket=True)

    with pytest.raises(ConfigError, match="single NUMA node"):
        StaticPolicy.of(TELCO, options, RESERVED, TopologyPolicy.SINGLE_NUMA_NODE)


def test_sockets_are_no_units_where_a_numa_node_is_larger() -> None:
    machine = Layout.of({0: Place(0, 0, 0, 0), 1: Place(1, 1, 0, 1)})

    with pytest.raises(ConfigError, match="2 sockets and only 1 NUMA node"):
        StaticPolicy.of(machine, StaticOptions(align_by_socket=True), CPUSet())


def test_reserved_cpus_are_on_the_machine() -> None:
    with pytest.raises(ConfigError, match="CPUs 40-41 are not on this machine"):
        StaticPolicy.of(TELCO, StaticOptions(), CPUSet.parse("0,40-41"))
    with pytest.raises(NotEnoughCPUs):
        StaticPolicy.of(TELCO, StaticOptions(), 33)
