from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.manager import Manager
from tests import builders
from tests.setters import EVERYTHING, MACHINE, Node, ids, owner_on_2

if TYPE_CHECKING:
    import pytest


OWNER = "kubepods/podowner-uid"
OTHER = "kubepods/podother-uid"


def test_with_the_default_pool_offline_its_containers_go_where_no_pool_is() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.kernel.online -= CPUSet.of(1)
    node.manager.update_topology(MACHINE.without("1").topology())

    node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("plain")) == ("2", "6-7")


def test_a_container_without_any_cpu_to_go_to_stays_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.manager.reconfigure(
        NodePools.of(Pool.named("exclusive_a", "2,4,6"), Pool.named("default", "0-1")),
        MACHINE.topology(),
    )
    node.run("owner", builders.container(exclusive_a=3))
    node.run("plain")
    node.source.live = {"owner": {"exclusive_a": ids("2", "4", "6")}}
    node.manager.update_topology(MACHINE.without("0-1").topology())

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("plain")) == ("2,4,6", EVERYTHING)
    assert caplog.text.count("no CPU of its pool is online and free") == 1


def stray() -> Node:
    """Take the only CPU of `owner` offline, so that its processes are in its pod's cgroup."""
    node = owner_on_2()
    node.run("other", builders.container(exclusive_a=1))
    node.source.saved["other"] = {"exclusive_a": ids("4")}
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(2))
    node.manager.update_topology(MACHINE.without("2").topology())
    return node


def test_processes_that_the_kernel_moves_into_their_pod_keep_off_the_cpus_of_others() -> None:
    node = stray()
    node.setter.sweep()
    assert (node.cpus("owner"), str(node.kernel.effective(OWNER))) == ("1", "1")
    assert (node.cpus("other"), str(node.kernel.effective(OTHER))) == ("4", "0-1,3-7")
    assert node.measured('cpupool_containers_confined{cause="offline"}') == 2

    node.kernel.online = CPUSet.parse(EVERYTHING)
    node.manager.update_topology(MACHINE.topology())
    node.setter.sweep()
    assert (node.cpus("owner"), str(node.kernel.effective(OWNER))) == ("2", "1-2")
    node.kernel.write(OWNER, CPUSet.parse("0-2"))
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "1-2"

    (moved,) = (told for _, reason, told in node.events.pods if reason == "CPUProcessesMoved")
    assert moved.endswith("restart that container once its CPUs are online")


def test_processes_that_the_kernel_has_moved_leave_the_cpus_of_others_first() -> None:
    node = stray()
    written = len(node.kernel.writes)
    node.setter.sweep()
    assert [write.path for write in node.kernel.writes[written:]] == [OWNER, node.path("owner")]


def test_a_cpu_that_the_kernel_refuses_may_be_offline_without_anybody_knowing() -> None:
    node = stray()
    node.manager.update_topology(MACHINE.topology())
    node.setter.sweep()
    # Of the container, and of its pod's cgroup.
    assert node.refusals == 2

    node.manager.update_topology(MACHINE.without("2").topology())
    node.setter.sweep()
    assert (node.cpus("owner"), node.refusals) == ("1", 2)


def test_on_v1_a_runtime_can_create_a_container_on_a_cpu_that_came_back() -> None:
    node = owner_on_2()
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(2, 6))
    node.manager.update_topology(MACHINE.without("2,6").topology())
    node.setter.sweep()

    node.kernel.online = CPUSet.parse(EVERYTHING)
    node.manager.update_topology(MACHINE.topology())
    node.setter.sweep()

    # Above pods there is room for any of them, and in a pod for what is its own.
    assert str(node.kernel.effective("kubepods")) == EVERYTHING
    node.kernel.make(f"{OWNER}/again", "2")


def test_a_pod_with_moved_processes_has_room_for_each_of_its_containers_to_start() -> None:
    node = Node()
    later = builders.container("later", running=False, shared_a=100)
    node.run("owner", builders.container(exclusive_a=1), later)
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(2))
    node.manager.update_topology(MACHINE.without("2").topology())
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "0-1"

    node.kernel.online = CPUSet.parse(EVERYTHING)
    node.manager.update_topology(MACHINE.topology())
    again = builders.container(running=False, exclusive_a=1)
    node.source.listed = [builders.pod("owner", again, later)]
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "0-2"


def test_a_pod_with_moved_processes_has_room_for_the_shared_cpus_that_a_container_keeps() -> None:
    node = Node(manager=Manager(Names(), moves_pinned=False))
    node.run(
        "owner", builders.container(exclusive_a=1, shared_a=100), builders.container("sidecar")
    )
    node.source.saved = {"owner": {"exclusive_a": ids("2"), "shared_a": ids("7")}}
    node.setter.sweep()
    after = (("exclusive_a", "2,4"), ("shared_a", "7"), ("shared_b", "0"), ("default", "1"))
    pools = NodePools.of(*(Pool.named(name, cpus) for name, cpus in after))
    node.manager.reconfigure(pools, MACHINE.topology())
    node.kernel.switch_off(CPUSet.of(1))
    node.manager.update_topology(MACHINE.without("1").topology())
    node.setter.sweep()
    assert (node.cpus("owner"), node.cpus("owner", "sidecar")) == ("0,2", "6")
    assert str(node.kernel.effective(OWNER)) == "0,2,6-7"


def test_processes_moved_into_a_pod_that_no_api_server_stay_in_the_default_pool() -> None:
    node = Node()
    node.run("stranger", listed=False)
    node.setter.sweep()
    node.kernel.switch_off(CPUSet.of(1))
    node.manager.update_topology(MACHINE.without("1").topology())
    node.setter.sweep()
    assert node.cpus("stranger") == str(node.kernel.effective("kubepods/podstranger-uid"))
    assert node.events.pods == []


def test_a_pods_own_cgroup_is_no_business_of_the_runtimes() -> None:
    node = stray()
    node.setter.sweep()
    node.cri.here = node.cri.silent = True
    node.kernel.write(OWNER, CPUSet.parse("0-1"))
    node.setter.sweep()
    assert str(node.kernel.effective(OWNER)) == "1"
