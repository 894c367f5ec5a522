from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import UnavailableDevices
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from tests import builders
from tests.unit.manager.laptop import MACHINE, cpus_of, health, manager

if TYPE_CHECKING:
    from cpupool.manager.manager import Manager


class TestPolicies:
    """Pools whose siblings are devices, on cores 2-3 and 4-5."""

    SPREAD = PoolPolicy(CPUBindPolicy.SPREAD_ACROSS_CORES)
    MULTI = NodePools.of(Pool.named("exclusive_a", "2,4", multi_threaded=True))
    SINGLE = NodePools.of(Pool.named("exclusive_a", "2,4"))
    OTHER = NodePools.of(Pool.named("exclusive_a", "3,4"))
    THREADS = NodePools.of(replace(Pool.named("exclusive_a", "2-5"), policy=SPREAD))

    def node(self, pools: NodePools, *ids: str) -> Manager:
        node = manager(pools)
        for one in ids:
            told = node.allocate("exclusive_a", [one]).environment["EXCLUSIVE_CPUS"]
            holder = builders.pod(f"holder-{one}", builders.container(exclusive_a=1))
            node.observe(pods=[*(node.snapshot().facts.pods or ()), holder])
            node.accept(builders.given(holder, announced=told, exclusive_a=one))
        return node

    def test_two_pods_may_have_the_threads_of_a_core(self) -> None:
        node = self.node(self.THREADS, "2", "3")

        assert (cpus_of(node, "holder-2"), cpus_of(node, "holder-3")) == ("2", "3")
        assert health(node, "exclusive_a") == dict.fromkeys(("2", "3", "4", "5"), True)
        assert cpus_of(node, "plain") == "0-1,6-7"

    def test_they_keep_them_over_an_edit_and_a_restart(self) -> None:
        node = self.node(self.THREADS, "2", "3")
        facts = node.snapshot().facts
        node.reconfigure(self.SINGLE, MACHINE.topology())
        successor = manager(self.SINGLE)
        successor.observe(pods=facts.pods or ())
        successor.accept(facts.devices)

        for one in (node, successor):
            assert (cpus_of(one, "holder-2"), cpus_of(one, "holder-3")) == ("2", "3")
            assert health(one, "exclusive_a") == {"2": True, "3": True, "4": True}

    def test_a_sibling_that_came_along_is_no_pools_device_after_an_edit(self) -> None:
        node = self.node(self.MULTI, "2")
        node.reconfigure(self.THREADS, MACHINE.topology())

        assert cpus_of(node, "holder-2") == "2-3"
        assert health(node, "exclusive_a") == {"2": True, "3": False, "4": True, "5": True}
        with pytest.raises(UnavailableDevices, match="3"):
            node.allocate("exclusive_a", ["3"])
        node.observe(pods=[])
        assert health(node, "exclusive_a")["3"]

    def test_a_sibling_that_was_promised_is_no_pools_device_after_an_edit(self) -> None:
        node = manager(self.MULTI)
        node.allocate("exclusive_a", ["2"])
        node.reconfigure(self.THREADS, MACHINE.topology())
        assert not health(node, "exclusive_a")["3"]

    def test_an_idle_sibling_stays_idle_when_the_pool_lists_it_in_place_of_the_cpu(self) -> None:
        node = self.node(self.SINGLE, "2")
        node.reconfigure(self.OTHER, MACHINE.topology())
        assert health(node, "exclusive_a") == {"2": True, "3": False, "4": True}

    @pytest.mark.parametrize("edits", [(), (OTHER,), (OTHER, SINGLE), (MULTI, SINGLE)])
    def test_no_record_gives_a_sibling_to_somebody_else(self, edits: tuple[NodePools, ...]) -> None:
        """Of a pool that lists one CPU per core, before and after edits and a restart."""
        node = self.node(self.SINGLE, "2")
        thief = builders.pod("thief", builders.container(exclusive_a=1))
        node.observe(pods=[thief, *(node.snapshot().facts.pods or ())])
        node.accept(builders.given(thief, exclusive_a="3"))
        for pools in edits:
            node.reconfigure(pools, MACHINE.topology())
        facts = node.snapshot().facts
        successor = manager(facts.pools)
        successor.observe(pods=facts.pods or ())
        successor.accept(facts.devices)

        for one in (node, successor):
            assert cpus_of(one, "holder-2") == "2"
            assert cpus_of(one, "thief") == "0-1,6-7"

    def test_a_device_that_becomes_reserved_drains(self) -> None:
        node = self.node(self.THREADS, "2")
        policy = replace(self.SPREAD, reserved=CPUSet.of(2, 3))
        reserving = replace(Pool.named("exclusive_a", "2-5"), policy=policy)
        change = node.reconfigure(NodePools.of(reserving), MACHINE.topology())

        assert change.resized == ("exclusive_a",)
        assert cpus_of(node, "holder-2") == "2"
        assert health(node, "exclusive_a") == {"2": True, "4": True, "5": True}
        assert cpus_of(node, "plain") == "0-1,6-7"
        node.observe(pods=[])
        assert health(node, "exclusive_a") == {"4": True, "5": True}
        assert cpus_of(node, "plain") == "0-1,6-7"


def test_the_cpus_of_a_claim_that_the_machine_lacks_are_without_an_owner() -> None:
    node = manager()
    pod = builders.pod("p", builders.container(exclusive_a=1))
    node.observe(pods=[pod])
    node.accept(builders.given(pod, exclusive_a="77,garbage"))

    assert builders.owned(node) == {}
    assert cpus_of(node, "p") == "1"
    assert CPUSet.parse("2,4") <= node.snapshot().facts.topology.online
