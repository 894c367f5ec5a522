"""Which hints plugins are asked for before they allocate."""

from __future__ import annotations

import threading
from dataclasses import replace

from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.cpu_manager import CPUManager, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.policies.qrm.policy import QRM
from tests.unit.manager.plugged import container, pod, pools
from tests.unit.qrm.test_resource_manager import FULL, Node, answer, asked, first_node
from tests.waiting import DEADLINE_S


def test_hints_come_first_and_their_merger_goes_with_the_request(node: Node) -> None:
    node.stop()
    node.start(pools(topology=TopologyPolicy.RESTRICTED))
    plugin = node.plugin(with_topology_alignment=True)
    plugin.answers("GetTopologyHints", first_node("cpu"))
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    (request,) = plugin.asked["Allocate"]
    hint = api.ResourceRequest.FromString(request).hint
    assert (list(hint.nodes), hint.preferred) == ([0], True)


def test_with_the_scope_pod_the_hints_of_all_containers_are_merged(node: Node) -> None:
    node.stop()
    manager = CPUManager(
        QRM, CPUSet.of(0), topology_policy=TopologyPolicy.RESTRICTED, topology_scope=Scope.POD
    )
    node.start(NodePools.of(Pool.named("default", "0-7"), cpu_manager=manager))
    plugin = node.plugin(with_topology_alignment=True)
    serves = {"one": [[0], [1]], "two": []}

    def hints(request: bytes) -> bytes:
        listed = serves[api.ResourceRequest.FromString(request).container_name]
        nodes = [api.TopologyHint(nodes=each, preferred=True) for each in listed]
        entry = api.HintsEntry(key="cpu", value=api.ListOfTopologyHints(hints=nodes))
        return api.ResourceHintsResponse(resource_hints=[entry]).SerializeToString()

    plugin.replies["GetTopologyHints"] = hints
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a", container("one"), container("two")))
    node.until(lambda: "no NUMA nodes" in str(node.manager.snapshot().facts.plugins.refusals))
    for _ in range(3):
        node.role.step()
    assert asked(plugin, "GetTopologyHints") == ["a", "a"]
    assert not plugin.asked["Allocate"]

    # Both are asked anew.
    serves["two"] = [[1]]
    node.now_s += 1.5
    node.until(lambda: len(plugin.asked["Allocate"]) == 2)
    requests = [api.ResourceRequest.FromString(each) for each in plugin.asked["Allocate"]]
    assert [(each.container_name, list(each.hint.nodes)) for each in requests] == [
        ("one", [1]),
        ("two", [1]),
    ]


def test_a_refused_hint_is_no_node(node: Node) -> None:
    node.stop()
    node.start(pools(topology=TopologyPolicy.RESTRICTED))
    plugin = node.plugin(with_topology_alignment=True)
    plugin.answers("GetTopologyHints", FULL)
    node.run(pod("a"))
    node.until(node.refusal)
    assert "no NUMA nodes" in node.refusal()
    assert "no CPU is left" in node.refusal()
    assert not plugin.asked["Allocate"]


def test_a_plugin_in_the_place_of_another_is_asked_for_hints_of_its_own(node: Node) -> None:
    node.stop()
    node.start(pools(topology=TopologyPolicy.RESTRICTED))
    goes_on = threading.Event()
    plugin = node.plugin(with_topology_alignment=True)
    plugin.answers("GetTopologyHints", first_node("cpu"))
    plugin.replies["Allocate"] = lambda _request: (goes_on.wait(DEADLINE_S), b"")[1]
    try:
        node.run(pod("a"))
        node.until(lambda: plugin.asked["Allocate"])
        other = node.plugin(name="other", with_topology_alignment=True)
        second = api.ListOfTopologyHints(hints=[api.TopologyHint(nodes=[1], preferred=True)])
        hints = api.ResourceHintsResponse(resource_hints=[api.HintsEntry(key="cpu", value=second)])
        other.answers("GetTopologyHints", hints)
        other.answers("Allocate", answer("1-2"))
        node.until(lambda: node.cpus() == "1-2")
    finally:
        goes_on.set()
    (request,) = other.asked["Allocate"]
    assert list(api.ResourceRequest.FromString(request).hint.nodes) == [1]


def refused(node: Node) -> None:
    """Let a plugin have no NUMA node for a pod."""
    node.stop()
    node.start(pools(topology=TopologyPolicy.RESTRICTED))
    plugin = node.plugin(with_topology_alignment=True)
    plugin.answers("GetTopologyHints", FULL)
    node.run(pod("a"))
    node.until(node.refusal)


def test_a_refused_pod_that_is_gone_is_forgotten_and_wakes_nobody(node: Node) -> None:
    refused(node)
    node.run()
    node.now_s += 10.0
    assert node.role.step() > 0.0
    assert node.refusal() == ""


def test_a_refused_pod_that_ends_wakes_nobody(node: Node) -> None:
    refused(node)
    node.run(replace(pod("a"), ending=True))
    node.now_s += 10.0
    assert node.role.step() > 0.0
