"""An agent writes extended resources into its Node's status alone, on a real API server.

The nodes are only objects, so any cluster will do: a test plays the kubelet.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.workloads import NodeAmount
from cpupool.kube import views
from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.kube.node_status import NodeStatusObject
from cpupool.kube.resources import NODES
from cpupool.wire import node_status
from tests.e2e.cluster import kubectl, missing, patiently, read
from tests.e2e.paper import agent_pod, manifests, needs_named_nodes, paper_node, present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.kube.client import APIServer
    from tests.e2e.paper import PaperNode

if missing(node=False):
    pytest.skip(
        f"no {' and no '.join(missing(node=False))}: needs a cluster", allow_module_level=True
    )

pytestmark = pytest.mark.timeout(900)
BANDWIDTH, GPU = "resource.katalyst.kubewharf.io/net_bandwidth", "example.com/gpu"
NATIVE = ("cpu", "memory", "pods", "hugepages-2Mi", "ephemeral-storage", "a.kubernetes.io/b")
OTHERS_NODE = "only the status of its own node"
Body = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def rights() -> Iterator[None]:
    with present(body for folder in ("agent", "node-resources") for body in manifests(folder)):
        yield


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PaperNode, PaperNode]]:
    """Two nodes, each with the pod of its agent, once the policy is in force."""
    folder = tmp_path_factory.mktemp("tokens")
    with paper_node(folder) as one, paper_node(folder) as other, agent_pod(one), agent_pod(other):
        needs_named_nodes(one.agent())
        stranger = NodeStatusObject(other.agent(), one.name)

        def refusal() -> str:
            return refused(lambda: stranger.apply(one.uid, {}))

        patiently(lambda: OTHERS_NODE in refusal(), refusal)
        yield one, other


def refused(write: Callable[[], object]) -> str:
    """Return why a write is refused; empty if it is not."""
    try:
        write()
    except APIError as refusal:
        return str(refusal)
    return ""


def body(node: PaperNode) -> Body:
    return dict(read("node", node.name, "--show-managed-fields"))


def present_in(node: PaperNode) -> Mapping[str, NodeAmount]:
    return views.node(body(node)).resources


def kubelet(node: PaperNode, **lists: Mapping[str, str | None]) -> None:
    """Change the status as the kubelet does."""
    patch = json.dumps({"status": lists})
    kubectl(
        *("patch", "node", node.name, "--subresource=status", "--type=strategic"),
        *("--field-manager=kubelet", "-p", patch),
    )


def merge(server: APIServer, node: PaperNode, change: Body, subresource: str = "status") -> str:
    target = NODES.object(node.name, subresource=subresource)
    return refused(lambda: APIConnection(server).merge_patch(target, change))


def test_resources_are_written_changed_and_removed(nodes: tuple[PaperNode, PaperNode]) -> None:
    node, _ = nodes
    kubelet(node, capacity={"cpu": "8", GPU: "2"}, allocatable={"cpu": "7", GPU: "2"})
    sink = NodeStatusObject(node.agent(), node.name)

    sink.apply(node.uid, {BANDWIDTH: 9000, "example.com/a": 3})
    assert body(node)["status"]["capacity"][BANDWIDTH] == "9k"
    assert present_in(node) == {
        BANDWIDTH: NodeAmount(9000, 9000, ours=True),
        "example.com/a": NodeAmount(3, 3, ours=True),
        GPU: NodeAmount(2, 2),
    }

    before = body(node)["metadata"]["resourceVersion"]
    sink.apply(node.uid, {BANDWIDTH: 9000, "example.com/a": 3})
    assert body(node)["metadata"]["resourceVersion"] == before

    sink.apply(node.uid, {BANDWIDTH: 4500})
    assert present_in(node).keys() == {BANDWIDTH, GPU}
    sink.apply(node.uid, {})
    assert present_in(node) == {GPU: NodeAmount(2, 2)}
    status = body(node)["status"]
    assert (status["capacity"]["cpu"], status["allocatable"]["cpu"]) == ("8", "7")
    managers = {entry["manager"] for entry in body(node)["metadata"]["managedFields"]}
    assert node_status.MANAGER not in managers


def test_what_the_kubelet_has_zeroed_is_written_and_removed_again(
    nodes: tuple[PaperNode, PaperNode],
) -> None:
    node, _ = nodes
    sink = NodeStatusObject(node.agent(), node.name)
    sink.apply(node.uid, {BANDWIDTH: 9000})

    kubelet(node, capacity={BANDWIDTH: "0"}, allocatable={BANDWIDTH: "0"})
    assert present_in(node) == {BANDWIDTH: NodeAmount(0, 0)}
    sink.apply(node.uid, {BANDWIDTH: 9000})
    assert present_in(node) == {BANDWIDTH: NodeAmount(9000, 9000, ours=True)}

    # The kubelet makes the allocatable amount of a resource without a device plugin its capacity.
    kubelet(node, allocatable={BANDWIDTH: "9k"})
    sink.apply(node.uid, {})
    assert present_in(node) == {}


def test_a_successor_of_the_node_is_not_written(nodes: tuple[PaperNode, PaperNode]) -> None:
    node, _ = nodes
    sink = NodeStatusObject(node.agent(), node.name)

    with pytest.raises(APIError) as refusal:
        sink.apply("3b241101-e2bb-4255-8caf-4136c566a962", {BANDWIDTH: 9000})

    assert refusal.value.status == 422
    assert "field is immutable" in str(refusal.value)
    assert present_in(node) == {}


def test_a_node_that_is_gone_is_not_made(nodes: tuple[PaperNode, PaperNode]) -> None:
    node, _ = nodes
    sink = NodeStatusObject(node.agent(), node.name)
    kubectl("delete", "node", node.name)

    assert "404 NotFound" in refused(lambda: sink.apply(node.uid, {BANDWIDTH: 1}))
    assert not kubectl("get", "node", node.name, "--ignore-not-found")


def test_an_agent_writes_no_other_node(nodes: tuple[PaperNode, PaperNode]) -> None:
    one, other = nodes
    sink = NodeStatusObject(other.agent(), one.name)

    assert OTHERS_NODE in refused(lambda: sink.apply(one.uid, {BANDWIDTH: 9000}))
    assert present_in(one) == {}


def test_an_agent_writes_no_resource_of_kubernetes(nodes: tuple[PaperNode, PaperNode]) -> None:
    node, _ = nodes
    server = node.agent()
    words = {
        "capacity": "the capacity of extended",
        "allocatable": "what pods can have of extended",
    }
    kubelet(node, capacity=dict.fromkeys(NATIVE, "1"), allocatable=dict.fromkeys(NATIVE, "1"))

    for part, why in words.items():
        for name in NATIVE:
            assert why in merge(server, node, {"status": {part: {name: "2"}}})
            assert why in merge(server, node, {"status": {part: {name: None}}})
        for name in ("hugepages-1Gi", "b.kubernetes.io/c"):
            assert why in merge(server, node, {"status": {part: {name: "2"}}})
    NodeStatusObject(server, node.name).apply(node.uid, {BANDWIDTH: 9000})

    capacity = body(node)["status"]["capacity"]
    assert {name: capacity[name] for name in NATIVE} == dict.fromkeys(NATIVE, "1")


def test_an_agent_writes_nothing_else_of_its_node(nodes: tuple[PaperNode, PaperNode]) -> None:
    node, _ = nodes
    server = node.agent()
    conditions = [{"type": "Ready", "status": "True"}]
    for status in ({"conditions": conditions}, {"phase": "Running"}):
        assert "only capacity and allocatable" in merge(server, node, {"status": status})
    texts = {"a": "b"}
    for metadata in ({"labels": texts}, {"annotations": texts}, {"finalizers": ["a.example/b"]}):
        assert "the metadata of a node" in merge(server, node, {"metadata": metadata})
    assert "403" in merge(server, node, {"spec": {"unschedulable": True}}, subresource="")
