from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import NotEnoughDevices, UnavailableDevices
from cpupool.core.pools import NodePools, Pool
from tests import builders
from tests.unit.manager.laptop import MACHINE, cpus_of, health, manager

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from cpupool.manager.manager import Manager


class TestDraining:
    """A pod holds CPU 4 of exclusive_a, and the pool shrinks to CPU 2."""

    SHRUNK = NodePools.of(Pool.named("exclusive_a", "2"), Pool.named("default", "0-1,4-5"))
    GONE = NodePools.of(Pool.named("default", "0-7"))

    def shrunk(self, pools: NodePools = SHRUNK) -> tuple[Manager, Pod]:
        node = manager()
        holder = builders.pod("holder", builders.container(exclusive_a=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="4"))
        node.reconfigure(pools, MACHINE.topology())
        return node, holder

    def test_the_device_stays_listed_and_healthy_until_the_pod_ends(self) -> None:
        node, _ = self.shrunk()
        assert health(node, "exclusive_a") == {"2": True, "4": True}
        assert cpus_of(node, "holder") == "4"
        assert cpus_of(node, "plain") == "0-1"

        node.observe(pods=[])
        assert health(node, "exclusive_a") == {"2": True}
        assert cpus_of(node, "plain") == "0-1,4-5"

    def test_no_other_gets_it(self) -> None:
        node, _ = self.shrunk()
        assert node.preferred("exclusive_a", ["2", "4"], [], 1) == ("2",)
        with pytest.raises(NotEnoughDevices):
            node.preferred("exclusive_a", ["2", "4"], [], 2)
        with pytest.raises(UnavailableDevices, match="have left the pool"):
            node.allocate("exclusive_a", ["4"])

    def test_a_plugin_stays_for_a_pool_that_is_gone_while_a_pod_holds_its_devices(self) -> None:
        node, _ = self.shrunk(self.GONE)
        assert [pool.name for pool in node.advertised()] == ["exclusive_a"]
        assert health(node, "exclusive_a") == {"4": True}

        node.observe(pods=[])
        assert node.advertised() == ()

    def test_a_restarted_agent_lists_it_as_soon_as_the_devices_are_known(self) -> None:
        node = manager(self.GONE)
        holder = builders.pod("holder", builders.container(exclusive_a=1))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, exclusive_a="4"))
        assert health(node, "exclusive_a") == {"4": True}

    def test_the_held_milli_cpus_of_a_shared_pool_stay(self) -> None:
        node = manager(NodePools.of(Pool.named("shared_a", "0-1")))
        holder = builders.pod("holder", builders.container(shared_a=2))
        node.observe(pods=[holder])
        node.accept(builders.given(holder, shared_a="1998,1999"))
        node.reconfigure(NodePools.of(Pool.named("shared_a", "0")), MACHINE.topology())

        ids = health(node, "shared_a")
        assert len(ids) == 1000
        assert {"0", "997", "1998", "1999"} <= ids.keys()
        assert cpus_of(node, "holder") == "0"
