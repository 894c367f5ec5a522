"""Pools and the rules that keep them apart, alone and on a machine."""

from __future__ import annotations

import pytest

from cpupool.core import pools
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, Problem, Severity
from cpupool.core.pools import HyperThreadingPolicy, NodePools, Pool, PoolKind
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("exclusive", PoolKind.EXCLUSIVE),
        ("exclusive-pool", PoolKind.EXCLUSIVE),
        ("exclusive_caas", PoolKind.EXCLUSIVE),
        ("sharedpool", PoolKind.SHARED),
        ("default", PoolKind.DEFAULT),
        ("Exclusive", PoolKind.DEFAULT),
        ("my-exclusive", PoolKind.DEFAULT),
    ],
)
def test_the_prefix_of_its_name_makes_a_pools_kind(name: str, kind: PoolKind) -> None:
    assert PoolKind.of_name(name) is kind
    assert Pool.named(name, "1").kind is kind


def test_a_pool_is_made_from_text() -> None:
    pool = Pool.named("exclusive-a", "2-3", multi_threaded=True)
    assert str(pool.cpus) == "2-3"
    assert pool.hyper_threading is HyperThreadingPolicy.MULTI_THREADED
    with pytest.raises(CPUSetParseError):
        Pool.named("exclusive-a", "2-x")


def test_an_exclusive_pool_reaches_whole_cores_and_others_do_not() -> None:
    assert str(Pool.named("exclusive", "2-3").reach(TELCO)) == "2-3,18-19"
    assert str(Pool.named("shared", "2-3").reach(TELCO)) == "2-3"


def test_multi_threaded_grants_the_siblings_along() -> None:
    asked = CPUSet.of(2)
    assert str(Pool.named("exclusive", "2-3").granted(asked, TELCO)) == "2"
    multi = Pool.named("exclusive", "2-3", multi_threaded=True)
    assert str(multi.granted(asked, TELCO)) == "2,18"


def test_a_nodes_pools_are_found_by_name_and_kind() -> None:
    made = node(shared="4", default="0", exclusive_b="2", exclusive_a="1")
    assert [pool.name for pool in made] == ["default", "exclusive_a", "exclusive_b", "shared"]
    assert made.by_name("shared") == Pool.named("shared", "4")
    assert made.by_name("shar") is None
    assert [pool.name for pool in made.of_kind(PoolKind.EXCLUSIVE)] == [
        "exclusive_a",
        "exclusive_b",
    ]
    assert [pool.name for pool in made.advertised] == ["exclusive_a", "exclusive_b", "shared"]


def test_the_default_pool_is_the_one_configured() -> None:
    assert str(node(default="0-1", exclusive="2").default_cpus(TELCO)) == "0-1"


def test_without_a_default_pool_it_is_what_no_pool_takes() -> None:
    left = node(exclusive="2-15", shared="0").default_cpus(TELCO)
    assert str(left) == "1,16-17"


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        ("a", True),
        ("exclusive-pool_1.2", True),
        ("E" * 63, True),
        ("E" * 64, False),
        ("", False),
        ("-a", False),
        ("a.", False),
        ("a b", False),
        ("a/b", False),
        ("a\n", False),
        ("\u00e9", False),
    ],
)
def test_a_pools_name_must_fit_into_a_resource(name: str, usable: bool) -> None:
    assert pools.is_name(name) is usable


def test_sound_pools_have_no_problems() -> None:
    sound = node(default="0-1,16-17", shared="2,18", exclusive_a="3-7", exclusive_b="8-15")
    assert pools.validate(sound, TELCO) == ()
    assert pools.validate(NodePools(), TELCO) == ()


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
def test_pools_that_cannot_stand_together_are_told_without_a_machine(
    found: NodePools, expected: str
) -> None:
    assert said(pools.validate(found, None)) == [expected]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            node(default="0", exclusive="2,30-33"),
            "pools.exclusive.cpus: this machine has no CPUs 32-33; it has 0-31; remove them from"
            " the pool",
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
def test_pools_that_do_not_fit_the_machine_are_told(found: NodePools, expected: str) -> None:
    absent_or_sibling = pools.validate(found, TELCO)
    assert said(absent_or_sibling) == [expected]


def test_every_core_of_more_threads_is_told_once() -> None:
    told = pools.validate(node(default="8", exclusive="0-1,3-5"), SMT4)
    assert [str(problem.cpus) for problem in told] == ["0-1,3", "4-5"]


def test_two_threads_of_one_core_in_two_exclusive_pools_are_told_whoever_lists_more() -> None:
    told = pools.validate(node(default="8", exclusive_a="0", exclusive_b="1"), SMT4)
    assert [str(problem.cpus) for problem in told] == ["0-1"]


def test_an_offline_cpu_is_a_warning() -> None:
    told = pools.validate(node(default="0", exclusive="2-3"), MACHINE.having_lost(CPUSet.of(3)))
    assert said(told) == [
        (
            "warning: pools.exclusive.cpus: CPUs 3 are offline; nobody gets them until they are"
            " switched on"
        )
    ]


def test_the_sibling_of_an_offline_cpu_is_remembered() -> None:
    topology = MACHINE.having_lost(CPUSet.of(2))
    told = pools.validate(node(default="0,18", exclusive="2"), topology)
    assert [(str(one.cpus), one.severity) for one in told] == [
        ("2,18", Severity.ERROR),
        ("2", Severity.WARNING),
    ]


def test_problems_come_in_the_order_of_the_pools() -> None:
    told = pools.validate(node(shared="40", exclusive="41", default="", other="42"), TELCO)
    assert [problem.pool for problem in told] == [
        "default",
        "exclusive",
        "other",
        "other",
        "shared",
    ]


def test_a_problem_names_its_pool_and_cpus() -> None:
    (told,) = pools.validate(node(exclusive="3-8,12", shared="9-12", default="0"), None)
    assert (told.pool, told.cpus, told.severity) == ("exclusive", CPUSet.of(12), Severity.ERROR)


@pytest.mark.parametrize("cpus", [0, 1, 2, 10, 11, 100, 101])
def test_a_shared_pools_device_list_is_sized_to_the_byte(cpus: int) -> None:
    # Device{ID, "Healthy"} in ListAndWatchResponse: 2 + (2 + id) + (2 + 7) bytes.
    expected = sum(13 + len(str(number)) for number in range(1000 * cpus))
    assert pools.device_list_bytes(cpus) == expected


def test_a_shared_pool_ends_where_the_kubelet_takes_no_more() -> None:
    assert pools.validate(node(shared="0-225"), None) == ()
    assert said(pools.validate(node(shared="0-226"), None)) == [
        (
            "pools.shared.cpus: its 227 CPUs make a device list of 4201890 bytes, and the kubelet"
            " takes"
            " 4194304; split it into two shared pools"
        )
    ]
    assert pools.validate(node(exclusive="0-226"), None) == ()
