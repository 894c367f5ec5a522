from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.workloads import NodeAmount
from cpupool.kube import views
from cpupool.kube.client import APIError, APIServer
from cpupool.kube.node_status import NodeStatusObject
from tests.apiserver import FakeAPIServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NODE = "node-a"
PATH = f"/api/v1/nodes/{NODE}"
UID = f"{NODE}-uid"
NIC, GPU = "example.com/nic", "example.com/gpu"


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer(NODE) as fake:
        yield fake


def present(server: FakeAPIServer) -> Mapping[str, NodeAmount]:
    return views.node(server.kept(PATH)).resources


def sink(server: FakeAPIServer) -> NodeStatusObject:
    return NodeStatusObject(APIServer.at(server.url), NODE)


def test_resources_are_set_changed_and_removed_and_others_stay(server: FakeAPIServer) -> None:
    amounts = {"cpu": "8", GPU: "2"}
    server.change_as("kubelet", PATH, {"status": {"capacity": amounts, "allocatable": amounts}})
    node = sink(server)
    node.apply(UID, {NIC: 7, "example.com/a": 1})
    node.apply(UID, {NIC: 8})
    assert present(server) == {GPU: NodeAmount(2, 2), NIC: NodeAmount(8, 8, ours=True)}
    node.apply(UID, {})
    assert present(server) == {GPU: NodeAmount(2, 2)}
    assert server.kept(PATH)["status"]["capacity"]["cpu"] == "8"
    assert server.verbs() == {("patch", "nodes/status")}


def test_what_the_kubelet_has_zeroed_is_taken(server: FakeAPIServer) -> None:
    node = sink(server)
    node.apply(UID, {NIC: 7})
    zero = {NIC: "0"}
    server.change_as("kubelet", PATH, {"status": {"capacity": zero, "allocatable": zero}})
    assert present(server) == {NIC: NodeAmount(0, 0)}
    node.apply(UID, {NIC: 7})
    assert present(server) == {NIC: NodeAmount(7, 7, ours=True)}


def test_a_successor_of_the_node_is_not_changed(server: FakeAPIServer) -> None:
    with pytest.raises(APIError) as refused:
        sink(server).apply("another-uid", {NIC: 7})
    assert refused.value.status == 422
    assert present(server) == {}


def test_an_interrupt_ends_every_request(server: FakeAPIServer) -> None:
    node = sink(server)
    node.interrupt()
    with pytest.raises(APIError):
        node.apply(UID, {NIC: 7})
    assert server.requests == []
