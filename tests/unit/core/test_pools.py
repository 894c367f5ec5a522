from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core import pools
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Advertised, advertised
from cpupool.core.errors import CPUSetParseError
from cpupool.core.names import ENABLE_SHARED_CPUS
from cpupool.core.pools import HyperThreadingPolicy, MixedCPUs, NodePools, Pool, PoolKind
from tests.machines import MACHINES

MACHINE = MACHINES["telco_2s_2n_16c32t"]
TELCO = MACHINE.topology()
"""CPUs 0-31; the sibling of each CPU n below 16 is n + 16."""


def node(**cpus: str) -> NodePools:
    """Collect pools by name; `_` in a name stands for itself."""
    return NodePools.of(*(Pool.named(name, listed) for name, listed in cpus.items()))


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
    assert [one.name for one in advertised(made)] == ["exclusive_a", "exclusive_b", "shared"]


def test_openshifts_resource_comes_with_a_pools_cpus_while_it_is_on() -> None:
    off = node(shared="4", default="0", exclusive="1")
    on = replace(off, mixed=MixedCPUs("shared", 3))
    assert off.behind(ENABLE_SHARED_CPUS) is None
    assert on.behind(ENABLE_SHARED_CPUS) == Pool.named("shared", "4")
    resource = Advertised(ENABLE_SHARED_CPUS, Pool.named("shared", "4"), units=3)
    assert advertised(on) == (*advertised(off), resource)
    assert list(on) == list(off)
    # Pools are looked at before the rules have had their say.
    (lost,) = advertised(NodePools.of(mixed=MixedCPUs("shared")))
    assert not lost.pool.cpus


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
