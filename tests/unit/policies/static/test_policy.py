from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpupool.core.cpu_manager import (
    STATIC,
    CPUManager,
    StaticOptions,
    SystemPods,
    TopologyHint,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, NotEnoughCPUs, SMTAlignmentError
from cpupool.core.grants import Grants
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerKind
from cpupool.manager.manager import Manager
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.layout import Layout, Place
from cpupool.policies.static.policy import StaticPolicy
from cpupool.policies.view import DEFAULT, SYSTEM, NodeView
from tests import builders
from tests.machines import MACHINES, Machine

# Two sockets, a NUMA node each: CPUs 0-7 with siblings 16-23, and 8-15 with 24-31.
TELCO = Layout.of_topology(MACHINES["telco_2s_2n_16c32t"].topology())
# Two sockets with two NUMA nodes each, a node with two L3 caches: CPUs 0-3 with 32-35, 4-7 with ...
EPYC = Layout.of_topology(MACHINES["epyc_like"].topology())
RESERVED = CPUSet.parse("0,16")


def policy(**options: bool) -> StaticPolicy:
    return StaticPolicy.of(TELCO, StaticOptions(**options), RESERVED)


def view(chooses: StaticPolicy, taken: str = "") -> NodeView:
    """Make a node where another pod has taken CPUs."""
    grant = builders.chosen("other", "main", CPUSet.parse(taken))
    return builders.view(chooses.layout.cpus, Grants().adding([grant]))


def request(
    chooses: StaticPolicy,
    count: int,
    *,
    taken: str = "",
    reusable: str = "",
    has: str = "",
    nodes: tuple[int, ...] | None = None,
) -> ChoiceRequest:
    return ChoiceRequest(
        POLICY_CPUS,
        count,
        chooses.available(view(chooses, taken)),
        CPUSet.parse(reusable),
        has=CPUSet.parse(has),
        nodes=None if nodes is None else frozenset(nodes),
    )


def chosen(chooses: StaticPolicy, count: int, taken: str = "", **asked: Any) -> str:
    """Return what is chosen; the arguments are those of `request`."""
    choice = chooses.choose(view(chooses, taken), request(chooses, count, taken=taken, **asked))
    return str(choice.cpus)


def shared(chooses: StaticPolicy, taken: str = "") -> str:
    return str(chooses.extents(view(chooses, taken))[DEFAULT])


def test_a_container_gets_cores_of_its_own_and_leaves_the_rest_shared() -> None:
    assert chosen(policy(), 4) == "1-2,17-18"
    assert shared(policy(), "1-2,17-18") == "0,3-16,19-31"


def test_a_container_that_comes_back_keeps_its_cpus() -> None:
    assert chosen(policy(), 4, has="5-6,21-22") == "5-6,21-22"


def test_only_whole_cpus_are_wanted() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, cpu=2000),
        builders.container("main", cpu=1000),
        builders.container("half", cpu=1500),
        builders.container("none"),
    )
    assert policy().requests(pod) == {"init": 2, "main": 1}


@pytest.mark.parametrize("numbered", [False, True])
def test_the_cpus_of_system_pods_are_a_set_of_their_own(*, numbered: bool) -> None:
    machine = MACHINES["telco_2s_2n_16c32t"].topology()
    pods = SystemPods(("kube-system",), CPUSet.parse("0-1,16"))
    manager = CPUManager("static", 2 if numbered else CPUSet.of(2, 18), system_pods=pods)
    pools = NodePools.of(cpu_manager=manager)
    made = StaticPolicy.of_pools(pools, machine)
    everything = NodeView(machine, pools, machine.online)
    # A number takes none of them, and a whole core before the rest of one.
    assert str(made.reserved) == "2,18"
    assert made.available(everything) == machine.online - CPUSet.parse("0-2,16,18")
    assert made.extents(everything) == {
        DEFAULT: machine.online - pods.cpus,
        SYSTEM: pods.cpus,
    }
    taken = replace(everything, barred=CPUSet.of(1))
    assert made.extents(taken)[SYSTEM] == CPUSet.of(0, 16)
    strict = replace(made, options=StaticOptions(strict_cpu_reservation=True))
    assert strict.extents(everything)[DEFAULT] == machine.online - CPUSet.parse("0-2,16,18")


def test_a_core_with_a_cpu_of_system_pods_is_never_whole() -> None:
    machine = MACHINES["telco_2s_2n_16c32t"].topology()
    manager = CPUManager(
        "static",
        CPUSet.of(0, 16),
        StaticOptions(full_pcpus_only=True),
        system_pods=SystemPods(("kube-system",), CPUSet.of(1)),
    )
    pools = NodePools.of(cpu_manager=manager)
    made = StaticPolicy.of_pools(pools, machine)
    free = made.available(NodeView(machine, pools, machine.online))
    assert free == machine.online - CPUSet.parse("0-1,16-17")


def test_the_chosen_nodes_are_used_first_and_the_others_for_the_rest() -> None:
    assert chosen(policy(), 4, nodes=(1,)) == "8-9,24-25"
    assert chosen(policy(), 18, nodes=(1,)) == "1,8-15,17,24-31"


def test_app_containers_take_over_what_init_containers_leave() -> None:
    assert chosen(policy(), 2, taken="1-2,17-18", reusable="1-2,17-18") == "1,17"


def test_hints_say_where_a_container_could_go() -> None:
    asked = request(policy(), 4, taken="1-7,17-23")
    assert policy().hints(asked).hints == (
        TopologyHint(frozenset({1}), preferred=True),
        TopologyHint(frozenset({0, 1}), preferred=False),
    )


def test_hints_for_a_container_that_has_its_cpus_say_where_they_are() -> None:
    where = policy().hints(request(policy(), 4, has="8-9,24-25")).hints
    assert where[0] == TopologyHint(frozenset({1}), preferred=True)
    assert policy().hints(request(policy(), 2, has="8-9,24-25")).hints == ()


def test_hints_cover_what_an_init_container_leaves() -> None:
    left = "8-9,24-25"
    hints = {
        count: policy().hints(request(policy(), count, taken=left, reusable=left)).hints
        for count in (2, 16)
    }
    assert all(1 in (hint.nodes or ()) for hint in hints[2])
    assert hints[16][0] == TopologyHint(frozenset({1}), preferred=True)
    others = policy().hints(request(policy(), 2, taken=left)).hints
    assert any(1 not in (hint.nodes or ()) for hint in others)


def test_more_than_is_free_is_refused_with_the_numbers() -> None:
    with pytest.raises(NotEnoughCPUs) as raised:
        chosen(policy(), 31)

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
        chosen(whole, count)

    assert (raised.value.requested, raised.value.available) == (count, available)
    assert raised.value.cpus_per_core == 2


def test_whole_cores_are_counted_without_those_that_could_be_taken_over() -> None:
    everything = "1-15,17-31"

    with pytest.raises(SMTAlignmentError):
        chosen(policy(full_pcpus_only=True), 2, taken=everything, reusable=everything)


def test_a_request_for_several_nodes_is_split_evenly() -> None:
    even = policy(distribute_cpus_across_numa=True, full_pcpus_only=True)

    assert chosen(policy(), 20) == "1-2,8-15,17-18,24-31"
    assert chosen(even, 20) == "1-5,8-12,17-21,24-28"
    assert chosen(even, 18) == "1-4,8-12,17-20,24-28"  # nine whole cores


def test_each_cpu_lies_on_a_core_of_its_own_where_that_is_wanted() -> None:
    assert chosen(policy(distribute_cpus_across_cores=True), 4) == "1-4"


def test_the_fewest_caches_are_used_where_that_is_wanted() -> None:
    plain = StaticPolicy.of(EPYC, StaticOptions(), CPUSet.parse("0,32"))
    aligned = replace(plain, options=StaticOptions(prefer_align_cpus_by_uncorecache=True))

    assert chosen(plain, 8) == "1-4,33-36"
    assert chosen(aligned, 8) == "4-7,36-39"


def test_all_nodes_of_a_socket_are_near_where_that_is_wanted() -> None:
    plain = StaticPolicy.of(EPYC, StaticOptions(), CPUSet())
    by_socket = replace(plain, options=StaticOptions(align_by_socket=True))
    busy = chosen(plain, 24, nodes=(0, 1))

    assert chosen(plain, 20, taken=busy, nodes=(3,)) == "12-13,24-31,44-45,56-63"
    assert chosen(by_socket, 20, taken=busy, nodes=(3,)) == "16-25,48-57"
    assert {
        hint.nodes for hint in by_socket.hints(request(by_socket, 4)).hints if hint.preferred
    } == {frozenset(nodes) for nodes in ([0], [1], [2], [3], [0, 1], [2, 3])}


def test_a_strict_reservation_keeps_the_shared_pool_away() -> None:
    assert shared(policy()) == str(TELCO.cpus)
    assert shared(policy(strict_cpu_reservation=True)) == str(TELCO.cpus - RESERVED)


def test_a_number_of_cpus_can_be_reserved_without_saying_which() -> None:
    assert str(StaticPolicy.of(TELCO, StaticOptions(), 3).reserved) == "0-1,16"


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
    with pytest.raises(ConfigError, match="CPUs 40-41 are not among 0-31"):
        StaticPolicy.of(TELCO, StaticOptions(), CPUSet.parse("0,40-41"))
    with pytest.raises(ConfigError, match="33 CPUs are more than the 32 CPUs"):
        StaticPolicy.of(TELCO, StaticOptions(), 33)


def test_whole_cores_need_a_default_pool_with_all_their_threads() -> None:
    # The sibling of CPU 1 is missing; that of CPU 2 is offline, and tears no core.
    default = Pool.named("default", "0-2,16")
    options = StaticOptions(full_pcpus_only=True)
    pools = NodePools.of(default, cpu_manager=CPUManager(STATIC, options=options))
    machine = MACHINES["telco_2s_2n_16c32t"].having_lost(CPUSet.of(18))

    with pytest.raises(ConfigError, match="lacks CPUs 17, siblings of its own") as raised:
        StaticPolicy.of_pools(pools, machine)

    (problem,) = raised.value.problems
    assert problem.path == "cpuManager.options.full-pcpus-only"
    assert problem.cpus == CPUSet.of(17)
    assert problem.remedy == "add 17 to the default pool, or turn the option off"
    torn = replace(pools, cpu_manager=CPUManager(STATIC))
    assert StaticPolicy.of_pools(torn, machine).layout.cpus == CPUSet.parse("0-2,16")


class Counted:
    """A node that reserves three CPUs by their number."""

    def __init__(self, offline: str = "") -> None:
        self.machine = MACHINES["laptop_4c8t"]
        self.pools = NodePools.of(cpu_manager=CPUManager(STATIC, reserved=3))
        self.node = Manager()
        self.node.reconfigure(self.pools, self.machine.without(offline).topology())
        self.node.adopt(())

    def lose(self, offline: str) -> None:
        self.node.update_topology(self.machine.without(offline).topology())

    def run(self, *counts: int) -> None:
        pods = [
            builders.pod(f"web-{number}", builders.container(f"main-{number}", cpu=1000 * count))
            for number, count in enumerate(counts)
        ]
        self.node.observe(pods=pods, idle=frozenset() if pods else self.uids())

    def uids(self) -> frozenset[str]:
        return frozenset(self.node.snapshot().resolution.view.chosen)

    @property
    def owned(self) -> CPUSet:
        return self.node.snapshot().resolution.grants.cpus

    @property
    def kept(self) -> str:
        facts, resolution = self.node.snapshot()
        return str(resolution.view.free - facts.policy.available(resolution.view))


@pytest.mark.parametrize(
    ("offline", "kept"), [("0-1", "2-4"), ("2-3", "0-1,4"), ("4-7", "0-2"), ("1", "0,2-3")]
)
def test_a_number_reserves_running_cpus_whenever_others_went_offline(
    offline: str, kept: str
) -> None:
    it = Counted()
    assert it.kept == "0-2"
    it.lose(offline)
    assert it.kept == Counted(offline).kept == kept
    it.lose("")
    assert it.kept == "0-2"
    # An edit of the number counts.
    edited = replace(it.pools, cpu_manager=CPUManager(STATIC, reserved=2))
    it.node.reconfigure(edited, it.machine.topology())
    assert it.kept == "0-1"


def test_an_owner_keeps_a_cpu_that_the_number_names_once_others_return() -> None:
    it = Counted("0-1")
    it.run(3)
    assert (it.kept, str(it.owned)) == ("2-4", "5-7")
    it.lose("2-3")
    # CPUs 0-1 and 4 are the choice, and free.
    assert (it.kept, str(it.owned)) == ("0-1,4", "5-7")
    it.lose("0-1,4")
    # Only CPUs 2-3 are free: no CPU of an owner is reserved before its pod ends.
    assert (it.kept, str(it.owned)) == ("2-3", "5-7")
    it.run()
    assert it.kept == "2-3,5"


def test_free_cpus_stand_in_for_reserved_ones_with_an_owner() -> None:
    it = Counted("0")
    it.run(1)
    assert (it.kept, str(it.owned)) == ("1-3", "4")
    it.lose("1-3")
    # CPUs 0 and 4-5 are the choice, and CPU 4 has an owner.
    assert (it.kept, str(it.owned)) == ("0,5-6", "4")
    it.lose("")
    assert (it.kept, str(it.owned)) == ("0-2", "4")


@pytest.mark.parametrize("later", [False, True])
def test_a_core_without_one_of_its_threads_is_no_whole_core(later: bool) -> None:
    machine = Machine(cores=8, threads=2)
    options = StaticOptions(full_pcpus_only=True)
    node = Manager()
    pools = NodePools.of(cpu_manager=CPUManager(STATIC, CPUSet.of(0, 8), options))
    node.reconfigure(pools, machine.without("" if later else "9").topology())
    node.adopt(())
    node.update_topology(machine.without("9").topology())
    pods = [
        builders.pod(f"web-{number}", builders.container(f"main-{number}", cpu=1000 * count))
        for number, count in enumerate((3, 2, 12))
    ]
    node.observe(pods=pods[:2])
    view = node.snapshot().resolution.view
    assert {uid: str(grant.cpus) for uid, grant in view.chosen.items()} == {"web-1-uid": "2,10"}
    assert view.refused["web-0-uid"].error.as_kubelet == (
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    )
    # Five cores are left, and CPU 1.
    node.observe(pods=pods)
    error = node.snapshot().resolution.view.refused["web-2-uid"].error
    assert isinstance(error, SMTAlignmentError)
    assert (error.requested, error.available) == (12, 10)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param("8-15", "8-15", id="from the start"),
        pytest.param("", "8-15", id="later"),
    ],
)
def test_a_pod_lies_on_as_many_nodes_as_without_the_offline_cpus(first: str, then: str) -> None:
    machine = Machine(sockets=2, cores=4, threads=2)
    manager = CPUManager(STATIC, 1, topology_policy=TopologyPolicy.RESTRICTED)
    node = Manager()
    node.reconfigure(NodePools.of(cpu_manager=manager), machine.without(first).topology())
    node.adopt(())
    node.update_topology(machine.without(then).topology())
    pod = builders.pod("web", builders.container("main", cpu=6000))
    node.observe(pods=[pod], device_nodes={pod.cgroup_uid: {}})
    view = node.snapshot().resolution.view
    assert view.refused == {}
    assert str(view.chosen["web-uid"].cpus) == "1-2,4-7"


def test_an_owner_with_an_offline_cpu_lies_where_the_others_are() -> None:
    machine = Machine(sockets=2, cores=4, threads=2)
    chooses = StaticPolicy.of(
        Layout.of_topology(machine.without("4").topology()), StaticOptions(), CPUSet()
    )
    has = CPUSet.parse("4-5,12-13")
    hints = chooses.hints(ChoiceRequest(POLICY_CPUS, 4, CPUSet(), has=has)).hints
    assert hints[0] == TopologyHint(frozenset({1}), preferred=True)


def test_what_an_init_container_leaves_offline_is_not_chosen() -> None:
    chooses = StaticPolicy.of(
        Layout.of_topology(MACHINES["laptop_4c8t"].without("2").topology()),
        StaticOptions(),
        CPUSet(),
    )
    request = ChoiceRequest(POLICY_CPUS, 2, CPUSet.parse("4-7"), CPUSet.parse("2-3"))
    choice = chooses.choose(builders.view(chooses.layout.cpus, Grants()), request)
    assert choice.cpus <= chooses.layout.cpus
