from __future__ import annotations

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.pools import NodePools
from tests import builders
from tests.setters import EVERYTHING, MACHINE, POOLS, Node, ids, owner_on_2


def test_a_static_cpu_manager_is_refused_until_it_is_gone() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.source.static_cpus = CPUSet.parse("2-5")

    report = node.setter.sweep()
    node.setter.sweep()

    was_ready = node.setter.ready
    assert node.cpus("owner") == EVERYTHING
    assert (
        "static CPU manager, which gives out CPUs 2-5: set cpuManagerPolicy" in report.waiting_for
    )
    (line,) = node.health.ready().lines
    assert line.startswith(f"cpusetter: failing: waiting for {report.waiting_for}")
    assert node.measured("cpupool_cpu_manager_conflict") == 1
    assert [reason for reason, _ in node.events.nodes] == ["KubeletCPUManagerStatic"]

    node.source.static_cpus = CPUSet()
    node.setter.kubelet_changed()
    node.setter.sweep()

    assert node.cpus("owner") == "2"
    assert (was_ready, node.setter.ready) == (False, True)
    assert node.health.ready().ok
    assert node.measured("cpupool_cpu_manager_conflict") == 0


def test_a_kubelet_that_turns_static_ends_the_writing_and_is_blamed_for_what_it_wrote() -> None:
    node = owner_on_2()
    node.source.failing["cpu manager"] = RemoteProtocolError("the kubelet starts")
    node.setter.kubelet_changed()
    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    node.setter.sweep()
    assert node.cpus("owner") == "2", "an unanswered question stops nobody"

    del node.source.failing["cpu manager"]
    node.source.static_cpus = CPUSet.parse("2-5")
    node.now_s += 0.1
    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    node.setter.sweep()
    assert node.cpus("owner") == "5"
    assert not node.setter.ready

    node.source.static_cpus = CPUSet()
    node.setter.kubelet_changed()
    node.setter.sweep()
    assert node.cpus("owner") == "2"
    assert node.measured('cpupool_repairs_total{reason="kubelet-static"}') == 1
    assert len(node.events.nodes) == 1

    node.kernel.write(node.path("owner"), CPUSet.parse("5"))
    node.setter.sweep()
    assert node.measured('cpupool_repairs_total{reason="kubelet-static"}') == 1, "it is gone"
    node.source.static_cpus = CPUSet.parse("2-5")
    node.setter.kubelet_changed()
    node.setter.sweep()
    assert len(node.events.nodes) == 2


def test_pools_that_come_back_to_a_static_cpu_manager_are_not_offered() -> None:
    node = Node()
    node.source.static_cpus = CPUSet.parse("2-5")
    ready = []
    for pools in (POOLS, NodePools(), POOLS):
        node.manager.reconfigure(pools, MACHINE.topology())
        node.setter.sweep()
        ready.append(node.setter.ready)
    assert ready == [False, True, False]


def test_a_kubelet_that_never_tells_of_its_cpu_manager_is_not_waited_for_for_ever() -> None:
    node = Node()
    node.run("plain")
    node.source.failing["cpu manager"] = RemoteProtocolError("unknown method")

    assert node.setter.sweep().waiting_for == "the kubelet's answer about its CPU manager"
    assert node.cpus("plain") == EVERYTHING
    node.now_s += 3
    assert node.setter.sweep().waiting_for == ""
    assert node.cpus("plain") == "1"


def test_a_node_without_pools_is_healthy_whatever_its_kubelet_does() -> None:
    node = Node()
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.source.static_cpus = CPUSet.parse("2-5")
    node.setter.sweep()

    assert node.health.ready().ok
    assert node.events.nodes == []


def test_pools_that_have_come_since_the_last_sweep_end_a_readiness_until_the_next() -> None:
    """Containers may own CPUs of them that an earlier agent chose, and that no sweep has seen."""
    node = Node()
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.setter.sweep()
    found = [(node.setter.informed, node.setter.ready)]
    node.manager.reconfigure(POOLS, MACHINE.topology())
    found.append((node.setter.informed, node.setter.ready))
    node.setter.sweep()
    found.append((node.setter.informed, node.setter.ready))
    assert found == [(True, True), (False, False), (True, True)]
