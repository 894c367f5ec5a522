"""The rules that keep pools apart, alone and on a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.config import pool_rules
from cpupool.core import default_pool
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import Problem, Severity
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.withheld import Withheld
from tests.machines import MACHINES

MACHINE = MACHINES["telco_2s_2n_16c32t"]
TELCO = MACHINE.topology()
"""CPUs 0-31; the sibling of each CPU n below 16 is n + 16."""
SMT4 = MACHINES["smt4"].topology()
"""CPUs 0-31; four in a row are one core."""


def node(**cpus: str) -> NodePools:
    """Collect pools by name; `_` in a name stands for itself."""
    return NodePools.of(*(Pool.named(name, listed) for name, listed in cpus.items()))


def said(problems: tuple[Problem, ...]) -> list[str]:
    return [str(problem) for problem in problems]


def test_sound_pools_have_no_problems() -> None:
    sound = node(default="0-1,16-17", shared="2,18", exclusive_a="3-7", exclusive_b="8-15")
    assert pool_rules.validate(sound, TELCO) == ()
    assert pool_rules.validate(NodePools(), TELCO) == ()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            node(shared="", default="0"),
            "pools.shared.cpus: the pool has no CPUs; list some, or remove the pool",
            id="an empty pool",
        ),
        pytest.param(
            node(default="0", system="1-2"),
            "pools.system.cpus: default (0) is already the default pool, and any name without the"
            " prefix exclusive or shared is one (1-2); merge the two, or give this one a prefix",
            id="two default pools",
        ),
        pytest.param(
            node(exclusive="3-8,12", shared="9-12", default="0"),
            "pools.exclusive.cpus: CPUs 12 are also in shared; an exclusive CPU may be in one pool"
            " only: remove them from one of the two",
            id="an exclusive CPU in a shared pool",
        ),
        pytest.param(
            node(exclusive_a="3-5", exclusive_b="5-6", default="0"),
            "pools.exclusive_a.cpus: CPUs 5 are also in exclusive_b; an exclusive CPU may be in"
            " one pool only: remove them from one of the two",
            id="an exclusive CPU in two exclusive pools",
        ),
        pytest.param(
            node(default="0-3", exclusive="3"),
            "pools.exclusive.cpus: CPUs 3 are also in default; an exclusive CPU may be in one pool"
            " only: remove them from one of the two",
            id="an exclusive CPU in the default pool",
        ),
        pytest.param(
            node(default="0-3", shared="3-4"),
            "warning: pools.default.cpus: CPUs 3 are also in shared: both pools run on them; keep"
            " them in one pool unless sharing is meant",
            id="a shared and the default pool overlap",
        ),
        pytest.param(
            NodePools.of(Pool.named("exclusive-a", "1"), Pool.named("exclusive_a", "2")),
            "pools.exclusive_a: its variable CPUPOOL_CPUS_EXCLUSIVE_A is also that of exclusive-a;"
            " rename one of the two pools",
            id="two pools with one variable",
        ),
    ],
)
def test_pools_that_cannot_stand_together_are_reported_without_a_machine(
    found: NodePools, expected: str
) -> None:
    assert said(pool_rules.validate(found, None)) == [expected]


def test_a_second_default_pool_is_reported_beside_one_without_cpus() -> None:
    _, second = said(pool_rules.validate(node(default="", system="1-2"), None))

    assert second == (
        "pools.system.cpus: default is already the default pool, and any name without the prefix"
        " exclusive or shared is one (1-2); merge the two, or give this one a prefix"
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            node(default="0", exclusive="2,30-33"),
            "pools.exclusive.cpus: this machine has no CPUs 32-33; it has 0-31; remove them, or use"
            " this file for a machine that has them",
            id="CPUs that the machine does not have",
        ),
        pytest.param(
            node(default="0", exclusive="2-3,19"),
            "pools.exclusive.cpus: CPUs 3,19 are threads of one core, and an exclusive pool lists"
            " cores; list only 3; hyperThreadingPolicy: multiThreaded adds its siblings",
            id="both siblings in one exclusive pool",
        ),
        pytest.param(
            node(default="0-1,18", exclusive="2-3"),
            "pools.exclusive.cpus: CPUs 18 in default are siblings of its CPUs 2 on the same"
            " cores; remove 18 from default, or 2 from exclusive",
            id="a sibling in the default pool",
        ),
        pytest.param(
            node(default="0", exclusive_a="2-3", exclusive_b="18-20"),
            "pools.exclusive_a.cpus: CPUs 18-19 in exclusive_b are siblings of its CPUs 2-3 on the"
            " same cores; remove 18-19 from exclusive_b, or 2-3 from exclusive_a",
            id="siblings in two exclusive pools",
        ),
        pytest.param(
            node(exclusive="0-14", shared="15,31"),
            "warning: pools: no default pool is configured and the pools take every CPU;"
            " containers without a request stay where they are: add a pool named default",
            id="nothing is left for a default pool",
        ),
    ],
)
def test_pools_that_do_not_fit_the_machine_are_reported(found: NodePools, expected: str) -> None:
    absent_or_sibling = pool_rules.validate(found, TELCO)
    assert said(absent_or_sibling) == [expected]


def test_every_core_of_more_threads_is_reported_once() -> None:
    told = pool_rules.validate(node(default="8", exclusive="0-1,3-5"), SMT4)
    assert [str(problem.cpus) for problem in told] == ["0-1,3", "4-5"]


def test_two_threads_of_one_core_in_two_exclusive_pools_are_reported_whichever_lists_more() -> None:
    told = pool_rules.validate(node(default="8", exclusive_a="0", exclusive_b="1"), SMT4)
    assert [str(problem.cpus) for problem in told] == ["0-1"]


def test_an_offline_cpu_is_a_warning() -> None:
    told = pool_rules.validate(
        node(default="0", exclusive="2-3"), MACHINE.having_lost(CPUSet.of(3))
    )
    assert said(told) == [
        (
            "warning: pools.exclusive.cpus: CPUs 3 are offline; no container gets them until they"
            " are switched on"
        )
    ]


def test_a_cpu_that_another_cgroup_keeps_is_a_warning_that_names_the_cgroup() -> None:
    kept = Withheld(CPUSet.of(3, 9), "/dpdk.service", "isolated")
    topology = replace(MACHINE.having_lost(CPUSet.of(3, 4, 9)), withheld=(kept,))

    told = pool_rules.validate(node(default="0", exclusive="2-4"), topology)

    assert said(told) == [
        (
            "warning: pools.exclusive.cpus: CPUs 3 are for cgroup /dpdk.service alone"
            " (cpuset.cpus.partition: isolated); write member into cpuset.cpus.partition of"
            " /dpdk.service (systemd: remove CPUSetPartition=)"
        ),
        (
            "warning: pools.exclusive.cpus: CPUs 4 are offline; no container gets them until they"
            " are switched on"
        ),
    ]


def test_the_sibling_of_an_offline_cpu_is_remembered() -> None:
    topology = MACHINE.having_lost(CPUSet.of(2))
    told = pool_rules.validate(node(default="0,18", exclusive="2"), topology)
    assert [(str(one.cpus), one.severity) for one in told] == [
        ("2,18", Severity.ERROR),
        ("2", Severity.WARNING),
    ]


def test_problems_come_in_the_order_of_the_pools() -> None:
    told = pool_rules.validate(node(shared="40", exclusive="41", default="", other="42"), TELCO)
    assert [problem.pool for problem in told] == [
        "default",
        "exclusive",
        "other",
        "other",
        "shared",
    ]


def test_a_problem_names_its_pool_and_cpus() -> None:
    (told,) = pool_rules.validate(node(exclusive="3-8,12", shared="9-12", default="0"), None)
    assert (told.pool, told.cpus, told.severity) == ("exclusive", CPUSet.of(12), Severity.ERROR)


def test_a_shared_pool_ends_where_the_kubelet_takes_no_more() -> None:
    assert pool_rules.validate(node(shared="0-225"), None) == ()
    assert said(pool_rules.validate(node(shared="0-226"), None)) == [
        (
            "pools.shared.cpus: its 227 CPUs make a device list of 4201890 bytes, and the kubelet"
            " takes"
            " 4194304; split it into two shared pools"
        )
    ]
    assert pool_rules.validate(node(exclusive="0-226"), None) == ()


def mixed(limit: int = 256, /, of: str = "shared_mixed", **cpus: str) -> NodePools:
    """Collect pools as `node` does, and let OpenShift's resource stand for one of them."""
    return replace(node(**cpus), mixed=MixedCPUs(of, limit))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            mixed(default="0", shared_mixed="1", exclusive="2-3"), id="beside an exclusive pool"
        ),
        pytest.param(mixed(shared_mixed="1"), id="beside the kubelet's static CPU manager"),
        pytest.param(mixed(226_600, shared_mixed="1"), id="as many as the kubelet takes"),
    ],
)
def test_openshifts_resource_can_stand_for_a_shared_pool(found: NodePools) -> None:
    assert pool_rules.validate(found, None) == pool_rules.validate(found, TELCO) == ()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            mixed(of="exclusive", shared_a="1", shared_b="0", exclusive="2"),
            "mixedCPUs.pool: 'exclusive' is no shared pool of this file; name shared_a or shared_b",
            id="a pool of another kind",
        ),
        pytest.param(
            mixed(exclusive="2"),
            "mixedCPUs.pool: 'shared_mixed' is no shared pool of this file; add a shared pool and"
            " name it",
            id="no shared pool at all",
        ),
        pytest.param(
            mixed(226_601, shared_mixed="1", exclusive="2"),
            "mixedCPUs.containersLimit: 226601 containers make a device list of 4194309 bytes, and"
            " the kubelet takes 4194304; a node runs some hundred containers: write no more than it"
            " has room for",
            id="more than the kubelet takes",
        ),
        pytest.param(
            NodePools.of(
                Pool.named("enable-shared-cpus", "1"), mixed=MixedCPUs("enable-shared-cpus")
            ),
            "pools.enable-shared-cpus: this is the name of OpenShift's resource, which mixedCPUs"
            " switches on; rename the pool",
            id="a pool of its name",
        ),
        pytest.param(
            mixed(default="0", shared_mixed="1"),
            "warning: pools.default: without an exclusive pool the kubelet's static CPU manager"
            " gives out CPUs, and places the containers of a default pool itself; remove this"
            " pool: a node with that CPU manager refuses this file",
            id="a default pool that the kubelet would write against",
        ),
    ],
)
def test_openshifts_resource_that_cannot_be_offered_is_reported(
    found: NodePools, expected: str
) -> None:
    assert said(pool_rules.validate(found, None)) == [expected]


STATIC = CPUManager("static", reserved=1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            node(default="0-3", shared="3-4"),
            "pools.default.cpus: CPUs 3 are also in shared, and the policy static of cpuManager"
            " gives out the default pool's CPUs; remove them from one of the two",
            id="the default pool and a shared pool overlap",
        ),
        pytest.param(
            node(default="0-3", exclusive="3-4"),
            "pools.exclusive.cpus: CPUs 3 are also in default; an exclusive CPU may be in one pool"
            " only: remove them from one of the two",
            id="the default pool and an exclusive pool overlap",
        ),
        pytest.param(
            node(default="0-1", shared_a="3-4", shared_b="4"),
            "warning: pools.shared_a.cpus: CPUs 4 are also in shared_b: both pools run on them;"
            " keep them in one pool unless sharing is meant",
            id="two shared pools overlap",
        ),
        pytest.param(
            mixed(shared_mixed="1"),
            "mixedCPUs: with shared pools alone the kubelet's static CPU manager gives out the"
            " other CPUs, and so does the policy static of cpuManager; list the CPUs of cpuManager"
            " in a pool named default, or remove cpuManager",
            id="a file for the kubelet's static CPU manager",
        ),
    ],
)
def test_what_a_cpu_manager_policy_does_not_stand_beside_is_reported(
    found: NodePools, expected: str
) -> None:
    assert said(pool_rules.validate(replace(found, cpu_manager=STATIC), None)) == [expected]


@pytest.mark.parametrize(
    "found", [mixed(default="0-1", shared_mixed="2"), mixed(shared_mixed="2", exclusive="3")]
)
def test_openshifts_resource_is_lawful_beside_a_cpu_manager_policy(found: NodePools) -> None:
    assert pool_rules.validate(replace(found, cpu_manager=STATIC), None) == ()


@pytest.mark.parametrize(
    ("found", "suits"),
    [
        (mixed(shared_mixed="1"), True),
        (mixed(shared_mixed="1", shared_b="2"), True),
        (mixed(shared_mixed="1", default="0"), False),
        (mixed(shared_mixed="1", exclusive="2"), False),
        (node(shared_mixed="1"), False),
        (NodePools(), False),
    ],
)
def test_pools_suit_a_static_kubelet_where_all_that_they_place_is_shared(
    found: NodePools, *, suits: bool
) -> None:
    assert pool_rules.suits_static_kubelet(found) is suits


SPREAD = PoolPolicy(bind=CPUBindPolicy.SPREAD_ACROSS_CORES)
WHOLE = PoolPolicy(bind=CPUBindPolicy.FULL_PHYSICAL_CORES)


def choosing(policy: PoolPolicy, cpus: str = "2-3,18-19", *, multi: bool = False) -> NodePools:
    """Make a node with one exclusive pool of this policy, beside the default pool."""
    pool = replace(Pool.named("exclusive", cpus, multi_threaded=multi), policy=policy)
    return NodePools.of(pool, Pool.named("default", "0"))


@pytest.mark.parametrize(
    "policy",
    [
        PoolPolicy(numa=NUMAPolicy.DISTRIBUTED, align_by_uncore_cache=False),
        replace(WHOLE, numa=NUMAPolicy.DISTRIBUTED),
        replace(WHOLE, align_by_uncore_cache=True, reserved=CPUSet.of(2, 18)),
        replace(SPREAD, numa=NUMAPolicy.LEAST_ALLOCATED, reserved=CPUSet.of(2)),
        replace(SPREAD, exclusive=ExclusivePolicy.PHYSICAL_CORE, align_by_uncore_cache=False),
    ],
)
def test_lawful_policies_have_no_problems(policy: PoolPolicy) -> None:
    assert pool_rules.validate(choosing(policy), None) == ()
    cpus = "2-3,18-19" if policy.bind else "2-3"
    assert pool_rules.validate(choosing(policy, cpus), TELCO) == ()


@pytest.mark.parametrize("numa", NUMAPolicy)
def test_a_multi_threaded_pool_may_have_every_policy_for_numa_nodes(numa: NUMAPolicy) -> None:
    policy = PoolPolicy(numa=numa, exclusive=ExclusivePolicy.NUMA_NODE, reserved=CPUSet.of(3))
    assert pool_rules.validate(choosing(policy, "2-3", multi=True), TELCO) == ()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            choosing(replace(SPREAD, numa=NUMAPolicy.DISTRIBUTED)),
            "pools.exclusive.numaPolicy: with cpuBindPolicy: spreadAcrossCores CPUs are dealt out"
            " over cores, not nodes; remove one of the two",
            id="distributed and spread",
        ),
        pytest.param(
            choosing(PoolPolicy(numa=NUMAPolicy.DISTRIBUTED, align_by_uncore_cache=True)),
            "pools.exclusive.alignByUncoreCache: with numaPolicy: distributed CPUs are far apart,"
            " not behind one cache; remove one of the two",
            id="aligned and distributed",
        ),
        pytest.param(
            choosing(replace(SPREAD, align_by_uncore_cache=True)),
            "pools.exclusive.alignByUncoreCache: with cpuBindPolicy: spreadAcrossCores CPUs are far"
            " apart, not behind one cache; remove one of the two",
            id="aligned and spread",
        ),
        pytest.param(
            choosing(SPREAD, "2-3", multi=True),
            "pools.exclusive.cpuBindPolicy: multiThreaded pools hand out whole cores, so there are"
            " no threads to spread; remove one of the two",
            id="multiThreaded and spread",
        ),
        pytest.param(
            choosing(WHOLE, "2-3", multi=True),
            "pools.exclusive.cpuBindPolicy: multiThreaded pools hand out whole cores already;"
            " remove one of the two",
            id="multiThreaded and whole cores",
        ),
        pytest.param(
            choosing(replace(WHOLE, exclusive=ExclusivePolicy.PHYSICAL_CORE)),
            "warning: pools.exclusive.exclusivePolicy: only with cpuBindPolicy: spreadAcrossCores"
            " do pods ever share a core; remove it",
            id="a core of one's own where everybody has one",
        ),
        pytest.param(
            choosing(PoolPolicy(reserved=CPUSet.of(1, 2, 4))),
            "pools.exclusive.reserved: CPUs 1,4 are not among the pool's own, 2-3,18-19; remove"
            " them here, or add them to its cpus",
            id="reserved CPUs of nobody",
        ),
        pytest.param(
            choosing(PoolPolicy(reserved=CPUSet.parse("2-3,18-19"))),
            "pools.exclusive.reserved: no CPU of the pool is left to give out; reserve fewer",
            id="everything reserved",
        ),
    ],
)
def test_policies_that_contradict_themselves_are_reported_without_a_machine(
    found: NodePools, expected: str
) -> None:
    assert said(pool_rules.validate(found, None)) == [expected]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            choosing(WHOLE, "2-4,18"),
            "pools.exclusive.cpus: the pool lacks CPUs 19-20, siblings of its own: their cores are"
            " never whole; add 19-20, or list one CPU per core and use hyperThreadingPolicy:"
            " multiThreaded in place of cpuBindPolicy",
            id="cores that are not listed with all their threads",
        ),
        pytest.param(
            choosing(replace(WHOLE, reserved=CPUSet.of(2))),
            "pools.exclusive.reserved: CPUs 18 are siblings of reserved ones, and their cores are"
            " never whole; reserve 18 too, or reserve none of their cores",
            id="half a core reserved",
        ),
    ],
)
def test_cores_that_are_never_whole_are_reported(found: NodePools, expected: str) -> None:
    assert said(pool_rules.validate(found, TELCO)) == [expected]
    assert pool_rules.validate(found, None) == ()


def test_cores_of_fewer_threads_than_others_are_reported_where_whole_ones_are_promised() -> None:
    hybrid = MACHINES["hybrid"].topology()  # four cores of two threads, eight of one

    told = pool_rules.validate(choosing(WHOLE, "2-5,8-9"), hybrid)

    assert [one.severity for one in told] == [Severity.WARNING]
    assert str(told[0]) == (
        "warning: pools.exclusive.cpus: CPUs 8-9 are on cores of fewer threads than the 2 of the"
        " others; no container gets them: list them in a pool of their own, or switch their"
        " siblings on"
    )
    assert pool_rules.validate(choosing(WHOLE, "8-9"), hybrid) == ()


def test_the_siblings_of_an_offline_cpu_make_its_core_whole() -> None:
    told = pool_rules.validate(choosing(WHOLE), MACHINE.having_lost(CPUSet.of(2)))
    assert [one.severity for one in told] == [Severity.WARNING]
    told = pool_rules.validate(choosing(WHOLE, "3,18-19"), MACHINE.having_lost(CPUSet.of(2)))
    assert [str(one.cpus) for one in told] == ["2,18"]


def test_a_pool_that_spreads_may_list_some_threads_if_no_other_lists_the_rest() -> None:
    spreading = replace(Pool.named("exclusive", "2-3,18"), policy=SPREAD)
    lawful = NodePools.of(spreading, Pool.named("default", "0"))
    assert pool_rules.validate(lawful, TELCO) == ()
    assert str(spreading.reach(TELCO)) == "2-3,18-19"
    sibling = NodePools.of(spreading, Pool.named("default", "0,19"))
    assert said(pool_rules.validate(sibling, TELCO)) == [
        (
            "pools.exclusive.cpus: CPUs 19 in default are siblings of its CPUs 3 on the same cores;"
            " remove 19 from default, or 3 from exclusive"
        )
    ]


def test_reserved_cpus_are_the_pools_own_and_not_given() -> None:
    pool = replace(Pool.named("exclusive", "2-4"), policy=PoolPolicy(reserved=CPUSet.of(3)))
    assert str(pool.offered) == "2,4"
    assert str(pool.reach(TELCO)) == "2-4,18-20"
    assert str(default_pool.declared(NodePools.of(pool), TELCO)) == "0-1,5-17,21-31"
    overlapping = NodePools.of(pool, Pool.named("shared", "3"))
    (told,) = said(pool_rules.validate(overlapping, None))
    assert "CPUs 3 are also in shared" in told
