from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.errors import (
    AllocationError,
    NoDevicesRequested,
    NotEnoughDevices,
    UnavailableDevices,
    UnknownDevices,
)
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from tests import builders
from tests.unit.manager.laptop import manager


class TestAllocate:
    def test_a_single_threaded_pool_gives_the_cpu_alone(self) -> None:
        answer = manager().allocate("exclusive_a", ["4", "2"])

        assert answer.environment == {
            "EXCLUSIVE_CPUS": "2,4",
            "CPUPOOL_CPUS_EXCLUSIVE_A": "2,4",
        }
        assert answer.annotations == {"nokia.k8s.io/allocated.exclusive_a": "2,4"}

    def test_a_multi_threaded_pool_gives_the_sibling_with_it(self) -> None:
        answer = manager().allocate("exclusive_b", ["6"])

        assert answer.environment["EXCLUSIVE_CPUS"] == "6-7"
        assert answer.annotations == {"nokia.k8s.io/allocated.exclusive_b": "6"}

    def test_a_shared_pool_gives_all_its_cpus_and_notes_the_ids_as_ranges(self) -> None:
        answer = manager().allocate("shared_a", [str(number) for number in range(300, 0, -1)])

        assert answer.environment == {"SHARED_CPUS": "0", "CPUPOOL_CPUS_SHARED_A": "0"}
        assert answer.annotations == {"nokia.k8s.io/allocated.shared_a": "1-300"}

    @pytest.mark.parametrize(
        ("pool", "ids", "error"),
        [
            pytest.param("exclusive_a", [], NoDevicesRequested, id="no ids"),
            pytest.param("exclusive_a", ["2", "6"], UnknownDevices, id="ids of another pool"),
            pytest.param("exclusive_a", ["02"], UnknownDevices, id="an odd spelling"),
            pytest.param("shared_a", ["1000"], UnknownDevices, id="beyond the last milli-CPU"),
            pytest.param("exclusive_a", ["2", "2"], AllocationError, id="the same twice"),
            pytest.param("default", ["1"], AllocationError, id="the default pool"),
            pytest.param("nobody", ["1"], AllocationError, id="no such pool"),
        ],
    )
    def test_what_cannot_be_served_is_refused(
        self, pool: str, ids: list[str], error: type[AllocationError]
    ) -> None:
        with pytest.raises(error):
            manager().allocate(pool, ids)

    def test_an_offline_cpu_is_refused(self) -> None:
        with pytest.raises(UnavailableDevices, match="4"):
            manager(offline="4").allocate("exclusive_a", ["2", "4"])


class TestPreferred:
    def test_what_must_be_included_is(self) -> None:
        assert manager().preferred("exclusive_a", ["2", "4"], ["4"], 1) == ("4",)

    @pytest.mark.parametrize(
        ("must", "size"), [([], 3), (["2", "4"], 1)], ids=["too few", "more forced than wanted"]
    )
    def test_an_impossible_size_is_refused(self, must: list[str], size: int) -> None:
        with pytest.raises(NotEnoughDevices):
            manager().preferred("exclusive_a", ["2", "4"], must, size)

    def test_it_knows_which_cpus_other_pods_hold(self) -> None:
        policy = PoolPolicy(
            CPUBindPolicy.SPREAD_ACROSS_CORES, exclusive=ExclusivePolicy.PHYSICAL_CORE
        )
        node = manager(NodePools.of(replace(Pool.named("exclusive_a", "2-5"), policy=policy)))
        holder = builders.pod("holder", builders.container(exclusive_a=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="2"))

        assert node.preferred("exclusive_a", ["3", "4", "5"], [], 1) == ("4",)
        # The kubelet has seen it end already.
        assert node.preferred("exclusive_a", ["2", "3", "4", "5"], [], 1) == ("2",)

    def test_it_knows_what_was_just_promised(self) -> None:
        policy = PoolPolicy(
            CPUBindPolicy.SPREAD_ACROSS_CORES, exclusive=ExclusivePolicy.PHYSICAL_CORE
        )
        node = manager(NodePools.of(replace(Pool.named("exclusive_a", "2-5"), policy=policy)))
        node.allocate("exclusive_a", ["2"])

        assert node.preferred("exclusive_a", ["3", "4", "5"], [], 1) == ("4",)

    def test_the_last_choice_of_each_cpu_is_kept(self) -> None:
        node = manager(NodePools.of(Pool.named("exclusive_a", "2,4,6")))
        for free in (["2", "4"], ["4", "6"]):
            node.preferred("exclusive_a", free, [], 2)

        kept = node.choices()

        assert {(pool, cpu): str(one.cpus) for (pool, cpu), one in kept.items()} == {
            ("exclusive_a", 2): "2,4",
            ("exclusive_a", 4): "4,6",
            ("exclusive_a", 6): "4,6",
        }
        assert str(kept["exclusive_a", 2].steps[0].left) == "2,4"

    def test_a_choice_is_forgotten_with_the_pod_that_it_was_for(self) -> None:
        node = manager(NodePools.of(Pool.named("exclusive_a", "2,4,6")))
        node.preferred("exclusive_a", ["2", "4"], [], 2)
        node.allocate("exclusive_a", ["2", "6"])
        holder = builders.pod("holder", builders.container(exclusive_a=2))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="2,6"))
        assert {cpu for _, cpu in node.choices()} == {2, 4}

        node.observe(pods=[])
        assert {cpu for _, cpu in node.choices()} == {4}
