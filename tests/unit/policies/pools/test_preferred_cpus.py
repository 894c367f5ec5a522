from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs, SMTAlignmentError
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import Pool
from cpupool.policies.pools.preferred_cpus import prefer
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.base import Choice

# Two sockets, a NUMA node each: CPUs 0-7 with siblings 16-23, and 8-15 with 24-31.
TELCO = MACHINES["telco_2s_2n_16c32t"].topology()
# Two sockets of two NUMA nodes of two L3 caches of four cores: 0-3, 4-7, ..., siblings 32 higher.
EPYC = MACHINES["epyc_like"].topology()
FULL = CPUBindPolicy.FULL_PHYSICAL_CORES
SPREAD = CPUBindPolicy.SPREAD_ACROSS_CORES


def choose(
    free: str,
    count: int,
    *,
    of: str = "0-15",
    required: str = "",
    held: str = "",
    policy: PoolPolicy | None = None,
    topology: CPUTopology = TELCO,
) -> Choice:
    pool = replace(Pool.named("exclusive_a", of), policy=policy or PoolPolicy())
    return prefer(
        pool,
        topology,
        CPUSet.parse(free),
        count,
        required=CPUSet.parse(required),
        held=CPUSet.parse(held),
    )


@pytest.mark.parametrize(
    ("free", "required", "count", "chosen"),
    [
        pytest.param("2-5,8-11", "", 2, "2-3", id="one node where it fits"),
        pytest.param("2-7,8-9", "", 2, "8-9", id="the fullest node that takes it"),
        pytest.param("2-4,8-11", "", 4, "8-11", id="a node that takes it whole before two"),
        pytest.param("2-4,8-11", "", 5, "2-4,8-9", id="of two nodes the fuller is used up"),
        pytest.param("2-5,8-11", "9", 2, "8-9", id="beside a CPU that must be included"),
        pytest.param("2-3,8-11", "2", 4, "2-3,8-9", id="beyond a node that is used up"),
        pytest.param("2-3", "3", 1, "3", id="only what must be included"),
        pytest.param("2-3", "", 0, "", id="nothing when nothing is asked"),
        pytest.param("2-3,99", "", 1, "99", id="a CPU that the machine does not know"),
        pytest.param("2-3,99", "", 3, "2-3,99", id="and everything with it"),
    ],
)
def test_whole_nodes_are_taken_before_one_is_split(
    free: str, required: str, count: int, chosen: str
) -> None:
    choice = choose(free, count, required=required)

    assert (str(choice.cpus), choice.proven) == (chosen, True)


@pytest.mark.parametrize("count", range(1, 9))
def test_a_request_that_a_node_can_take_touches_one_node_only(count: int) -> None:
    chosen = choose(str(EPYC.online), count, of="0-31", topology=EPYC).cpus

    assert len(chosen) == count
    assert len({EPYC.node_of(cpu) for cpu in chosen}) == 1


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        pytest.param("0-7", 4, "0-3", id="one cache where it fits"),
        pytest.param("0-3,5-7", 3, "5-7", id="the fullest cache that takes it"),
        pytest.param("0-7,8-11", 4, "8-11", id="the node that is left full comes first"),
        pytest.param("1-3,4-5,24-31", 5, "1-5", id="both caches of a node before another node's"),
        pytest.param("0-7,16-19", 9, "0-7,16", id="no more caches than it needs"),
    ],
)
def test_caches_are_kept_whole(free: str, count: int, chosen: str) -> None:
    assert str(choose(free, count, of="0-31", topology=EPYC).cpus) == chosen


def test_caches_do_not_matter_where_the_pool_says_so() -> None:
    policy = PoolPolicy(align_by_uncore_cache=False)

    chosen = choose("0-3,5-7", 3, of="0-31", topology=EPYC, policy=policy).cpus

    assert str(chosen) == "0-2"


def test_nodes_near_each_other_come_before_a_better_fit() -> None:
    near = {0: (10, 12, 32, 32), 1: (12, 10, 32, 32), 2: (32, 32, 10, 12), 3: (32, 32, 12, 10)}
    free = "0-6,8-14,16-18"

    nearest = choose(free, 10, of="0-31", topology=replace(EPYC, distances=near)).cpus
    fitting = choose(free, 10, of="0-31", topology=replace(EPYC, distances={})).cpus

    assert {EPYC.node_of(cpu) for cpu in nearest} == {0, 1}
    assert {EPYC.node_of(cpu) for cpu in fitting} == {0, 2}


def test_the_emptiest_node_and_cache_are_taken_where_pods_are_to_lie_apart() -> None:
    policy = PoolPolicy(numa=NUMAPolicy.LEAST_ALLOCATED)

    first = choose("1-7,8-15", 2, policy=policy).cpus
    second = choose("1-7,10-15", 2, policy=policy).cpus

    assert (str(first), str(second)) == ("8-9", "1-2")


def test_the_fullest_node_is_taken_where_allocated_cpus_are_to_be_together() -> None:
    policy = PoolPolicy(numa=NUMAPolicy.MOST_ALLOCATED)

    assert str(choose("1-7,8-15", 2, policy=policy).cpus) == "1-2"


def test_distributed_cpus_are_as_many_on_each_node() -> None:
    policy = PoolPolicy(numa=NUMAPolicy.DISTRIBUTED)

    assert str(choose("0-7,8-15", 4, policy=policy).cpus) == "0-3"
    choice = choose("0-7,8-15", 10, policy=policy)
    assert str(choice.cpus) == "0-4,8-12"
    assert choice.steps[-1].why == (
        "evenly over the fewest NUMA nodes that allow it: 5 on 0, 5 on 1"
    )


def test_one_node_that_has_it_all_is_enough_in_a_pool_that_lies_mostly_there() -> None:
    policy = PoolPolicy(numa=NUMAPolicy.DISTRIBUTED)

    assert str(choose("0-10", 7, of="0-10", policy=policy).cpus) == "0-6"


@pytest.mark.parametrize(
    ("free", "required", "count", "chosen", "shares"),
    [
        pytest.param("0-15", "0-3", 10, "0-4,8-12", "5 on 0, 5 on 1", id="on both nodes"),
        pytest.param("0-15", "0-4", 9, "0-4,8-11", "5 on 0, 4 on 1", id="one more where it is"),
        pytest.param("0-15", "15", 4, "8-10,15", "4 on 1", id="on its own node"),
        pytest.param("0-15", "0,8", 2, "0,8", "1 on 0, 1 on 1", id="on the nodes of both"),
    ],
)
def test_distributed_cpus_are_even_with_those_that_must_be_included(
    free: str, required: str, count: int, chosen: str, shares: str
) -> None:
    policy = PoolPolicy(numa=NUMAPolicy.DISTRIBUTED)

    choice = choose(free, count, required=required, policy=policy)

    assert str(choice.cpus) == chosen
    assert choice.steps[-1].why.endswith(f": {shares}")


@pytest.mark.parametrize(
    ("free", "required", "count", "chosen"),
    [("0-6,8,16", "", 8, "0-6,8"), ("0-7,8-11", "0-3,8", 5, "0-3,8")],
)
def test_what_no_nodes_can_share_lies_on_the_fewest(
    free: str, required: str, count: int, chosen: str
) -> None:
    policy = PoolPolicy(numa=NUMAPolicy.DISTRIBUTED)

    choice = choose(free, count, of="0-31", required=required, topology=EPYC, policy=policy)

    assert str(choice.cpus) == chosen
    assert "no NUMA nodes can share that evenly" in [step.why for step in choice.steps]


def test_a_distribution_that_is_not_quite_even_says_so() -> None:
    policy = PoolPolicy(numa=NUMAPolicy.DISTRIBUTED)

    choice = choose("0,8,16,24-26", 5, of="0-31", topology=EPYC, policy=policy)

    assert choice.steps[-1].why == (
        "evenly, the rest where the most are free, over the fewest NUMA nodes that allow it:"
        " 1 on 0, 1 on 1, 3 on 3"
    )


@pytest.mark.parametrize(
    ("numa", "free", "chosen"),
    [
        (NUMAPolicy.PACKED, "0-3,8-15", "0-1,8-15"),
        (NUMAPolicy.MOST_ALLOCATED, "0-3,8-15", "0-3,8-13"),
        (NUMAPolicy.LEAST_ALLOCATED, "0-5,8-14", "0-2,8-14"),
    ],
)
def test_of_several_nodes_the_policy_says_which_is_used_up(
    numa: NUMAPolicy, free: str, chosen: str
) -> None:
    assert str(choose(free, 10, policy=PoolPolicy(numa=numa)).cpus) == chosen


def test_the_fullest_node_is_that_with_the_fewest_free_cpus_behind_whatever_cache() -> None:
    policy = PoolPolicy(numa=NUMAPolicy.MOST_ALLOCATED)

    # Node 0 has five free CPUs and node 1 four; three caches of 4, 4 and 1 are left.
    choice = choose("0-3,4,8-11", 6, of="0-31", topology=EPYC, policy=policy)

    assert str(choice.cpus) == "0-1,8-11"


def test_distributed_whole_cores_are_not_divided() -> None:
    policy = PoolPolicy(bind=FULL, numa=NUMAPolicy.DISTRIBUTED)

    chosen = choose("0-31", 20, of="0-31", policy=policy).cpus

    assert str(chosen) == "0-4,8-12,16-20,24-28"


def test_whole_cores_are_handed_out_where_they_are_promised() -> None:
    policy = PoolPolicy(bind=FULL)

    choice = choose("0,1-2,17-18,8-11,24-27", 4, of="0-31", policy=policy)

    assert str(choice.cpus) == "1-2,17-18"
    assert str(choice.steps[1].left) == "1-2,8-11,17-18,24-27"


def test_a_core_that_the_pod_has_a_thread_of_already_is_completed() -> None:
    policy = PoolPolicy(bind=FULL)

    for required in ("2", "18", "2,18"):
        chosen = choose("1-3,17-19", 4, of="0-31", required=required, policy=policy).cpus
        assert str(chosen) == "1-2,17-18"


def test_of_more_begun_cores_than_fit_none_is_completed() -> None:
    policy = PoolPolicy(bind=FULL)

    assert str(choose("1-3,17-19", 2, of="0-31", required="1-2", policy=policy).cpus) == "1-2"


@pytest.mark.parametrize(
    ("free", "count", "available"),
    [("0-3,16-19", 3, None), ("0-3,16,24-31", 4, 2)],
)
def test_a_request_that_whole_cores_cannot_serve_is_refused(
    free: str, count: int, available: int | None
) -> None:
    with pytest.raises(SMTAlignmentError) as caught:
        choose(free, count, of="0-31", policy=PoolPolicy(bind=FULL))

    error = caught.value
    assert (error.requested, error.cpus_per_core, error.available) == (count, 2, available)


def test_spread_cpus_lie_on_cores_of_their_own() -> None:
    policy = PoolPolicy(bind=SPREAD)

    assert str(choose("0-7,16-23", 4, of="0-31", policy=policy).cpus) == "0-3"
    assert str(choose("0-1,16-17,8-15,24-31", 3, of="0-31", policy=policy).cpus) == "0-1,16"
    packed_ids = MACHINES["laptop_4c8t"].topology()  # siblings have ids in a row
    assert str(choose("0-7", 4, of="0-7", topology=packed_ids, policy=policy).cpus) == "0,2,4,6"


def test_no_thread_lies_beside_one_that_must_be_included_while_other_cores_are_free() -> None:
    policy = PoolPolicy(bind=SPREAD)
    laptop, smt4 = MACHINES["laptop_4c8t"].topology(), MACHINES["smt4"].topology()

    def chosen(free: str, count: int, required: str, topology: CPUTopology) -> str:
        of = str(topology.online)
        choice = choose(free, count, of=of, required=required, topology=topology, policy=policy)
        return str(choice.cpus)

    assert chosen("0-7", 3, "0", laptop) == "0,2,4"
    assert chosen("0-3", 3, "0", laptop) == "0-2"
    assert chosen("0-7", 4, "0-1", smt4) == "0-1,4-5"
    # As few free CPUs as a core has threads.
    assert chosen("0-1,4", 2, "", smt4) == "0,4"


def test_spread_cpus_follow_the_emptiest_node_where_that_is_wanted() -> None:
    policy = PoolPolicy(bind=SPREAD, numa=NUMAPolicy.LEAST_ALLOCATED)

    assert str(choose("1-7,8-15", 2, of="0-31", policy=policy).cpus) == "8-9"


def test_a_core_that_another_pod_is_on_is_left_alone() -> None:
    policy = PoolPolicy(bind=SPREAD, exclusive=ExclusivePolicy.PHYSICAL_CORE)

    choice = choose("2-7,16-23", 2, of="0-31", held="0-1", policy=policy)

    assert str(choice.cpus) == "2-3"
    assert str(choice.steps[1].left) == "2-7,18-23"


def test_too_few_cores_without_another_pod_are_taken_first() -> None:
    policy = PoolPolicy(bind=SPREAD, exclusive=ExclusivePolicy.PHYSICAL_CORE)

    choice = choose("16-17,23", 2, of="0-31", held="0-1", policy=policy)

    assert str(choice.cpus) == "16,23"
    assert choice.steps[1].why == "only 1 are on cores that no other pod is on: it has to share one"


def test_a_node_that_another_pod_is_on_is_left_alone() -> None:
    policy = PoolPolicy(exclusive=ExclusivePolicy.NUMA_NODE)

    assert str(choose("1-7,8-15", 2, held="0", policy=policy).cpus) == "8-9"


def test_what_cannot_be_alone_shares() -> None:
    policy = PoolPolicy(exclusive=ExclusivePolicy.NUMA_NODE)

    choice = choose("1-7,9-15", 2, held="0,8", policy=policy)

    assert str(choice.cpus) == "1-2"
    assert choice.steps[1].why == (
        "only 0 are on NUMA nodes that no other pod is on: it has to share one"
    )


def test_reserved_cpus_make_no_core_that_is_not_whole() -> None:
    policy = PoolPolicy(bind=FULL, reserved=CPUSet.parse("0,16"))

    assert str(choose("1-2,17-18", 2, of="0-31", policy=policy).cpus) == "1,17"


def test_too_few_cpus_are_reported_with_numbers() -> None:
    with pytest.raises(NotEnoughCPUs) as caught:
        choose("2-3", 5)

    assert (caught.value.requested, caught.value.available) == (5, 2)


def test_every_rule_tells_what_it_left() -> None:
    choice = choose("0-3,5-7,8-15", 3, of="0-31", topology=EPYC, required="5")

    assert [(step.rule, step.why, str(step.left)) for step in choice.steps] == [
        ("free", "15 of the pool's 32 CPUs can be chosen", "0-3,5-15"),
        ("must include", "the kubelet gives the pod 5 again", "0-3,5-15"),
        ("numaPolicy", "NUMA node 0: the fullest that takes 3, of 2 with free CPUs", "0-3,5-7"),
        (
            "alignByUncoreCache",
            "uncore cache 1: the fullest that takes 3, of 2 with free CPUs",
            "5-7",
        ),
        ("order", "whole cores before single threads, from where the fewest are free", "5-7"),
    ]


def test_what_must_be_included_is_not_taken_for_what_the_rules_find() -> None:
    policy = PoolPolicy(bind=FULL, exclusive=ExclusivePolicy.NUMA_NODE)

    choice = choose("1,9,10,25,26,99", 4, of="0-31", required="1,99", held="0", policy=policy)

    assert [step.why for step in choice.steps] == [
        "5 of the pool's 32 CPUs can be chosen, and 1 that it has no longer",
        "the kubelet gives the pod 1,99 again",
        "4 are on cores that are free as a whole, 2 must be included",
        "5 are on NUMA nodes that no other pod is on",
        "NUMA nodes unknown, 0, 1: the fewest that take 4, of 3 with free CPUs",
        "uncore caches unknown, 0, 1: the fewest that take 4, of 3 with free CPUs",
        "whole cores before single threads, from where the fewest are free",
    ]
    forced = choose("0-15", 2, required="0,8").steps[2].why
    assert forced == (
        "NUMA nodes 0, 1: those with the CPUs that must be included, which take 2,"
        " of 2 with free CPUs"
    )


def test_cpus_without_a_cache_are_not_said_to_have_one() -> None:
    arm = MACHINES["arm_no_smt"].topology()
    hybrid = MACHINES["hybrid"].topology()
    low_power = replace(
        hybrid,
        cpus={
            cpu: replace(info, l3=info.l3 if cpu < 8 else None) for cpu, info in hybrid.cpus.items()
        },
    )

    without = choose("0-15", 2, topology=arm)
    some = choose("0,2,8-9", 2, of="0,2,8-15", required="9", topology=low_power)

    assert [step.rule for step in without.steps] == ["free", "numaPolicy", "order"]
    assert some.steps[-2].why == "uncore cache none: the fullest that takes 2, of 2 with free CPUs"


def test_a_choice_among_too_many_sets_of_nodes_says_so() -> None:
    many = replace(
        EPYC,
        nodes={node: CPUSet.of(node) for node in range(32)},
        distances={
            node: tuple(10 + abs(node - other) for other in range(32)) for node in range(32)
        },
        l3=(),
        cpus={cpu: replace(EPYC.cpus[cpu], node=cpu % 32, l3=None) for cpu in CPUSet.parse("0-31")},
    )

    choice = choose("0-31", 5, of="0-31", topology=many)

    assert (len(choice.cpus), choice.proven) == (5, False)
