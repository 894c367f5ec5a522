"""In-place resizes under the policy dynamic, by a real kubelet and its runtime."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from cpupool.core.cgroups import Writer
from cpupool.manager import status_json
from tests.e2e.cluster import kubectl, missing, patiently, read, told

if TYPE_CHECKING:
    from cpupool.core.cpuset import CPUSet
    from tests.e2e.node import RealNode

if missing():
    pytest.skip(
        f"no {' and no '.join(missing())}: needs a cluster with this machine as a node",
        allow_module_level=True,
    )

pytestmark = pytest.mark.timeout(900)
DYNAMIC: Final = "cpuManager: {policy: dynamic, reserved: 1, maxNoticeSeconds: 5}"
OWNER: Final = {"cpu": 1, "memory": 64 << 20}
RESIZES: Final = (1, 33)
"""The first version of Kubernetes that resizes a pod in place without a feature gate."""


@pytest.fixture
def dynamic(node: RealNode) -> RealNode:
    """Give the node with one pool, from which the policy dynamic takes the CPUs of owners."""
    if len(node.topology.online) < 3:
        pytest.skip("needs a node with three CPUs")
    version = read("node", node.name)["status"]["nodeInfo"]["kubeletVersion"]
    if tuple(map(int, version.lstrip("v").split(".")[:2])) < RESIZES:
        pytest.skip(f"the kubelet {version} resizes no pod in place")
    settings = json.loads(kubectl("get", "--raw", f"/api/v1/nodes/{node.name}/proxy/configz"))
    if (manager := settings["kubeletconfig"].get("cpuManagerPolicy", "none")) != "none":
        pytest.skip(f"the kubelet has a CPU manager of its own: {manager}")
    if not node.root.nri_socket.exists():
        pytest.skip(f"the container runtime has no NRI: no {node.root.nri_socket}")
    node.configure({"default": node.topology.online}, DYNAMIC)
    node.await_devices(exclusive_e2e=0, shared_e2e=0)
    patiently(lambda: writer(node) is Writer.NRI, lambda: writer(node))
    return node


def writer(node: RealNode) -> Writer:
    """Give the way in which containers that start now get their CPUs."""
    return status_json.from_json(json.loads(node.root.status.read_text())).enforcement


def await_own(node: RealNode, pod: str, count: int) -> CPUSet:
    """Wait until a container has so many CPUs of its own, and has read which."""

    def own() -> CPUSet:
        return node.tree.effective(node.path(pod))

    def right() -> bool:
        has, content = own(), node.own_folder(pod)
        return len(has) == count and content["cpus"] == content["assigned"] == str(has)

    patiently(right, lambda: f"{count} CPUs: {own()}, {node.own_folder(pod)}, {node.resizing(pod)}")
    return own()


def test_a_container_grows_and_shrinks_in_place(dynamic: RealNode) -> None:
    node, online = dynamic, dynamic.topology.online
    node.run("owner", main=OWNER)
    node.run("plain", main={})
    before, first = node.instance("owner"), await_own(node, "owner", 1)
    assert node.own_cpus("owner") == first
    node.await_cpus("plain", main=online - first)

    node.resize("owner", "2")
    grown = await_own(node, "owner", 2)
    assert first < grown
    node.await_cpus("owner", main=grown)
    node.await_cpus("plain", main=online - grown)

    node.resize("owner", "1")
    patiently(
        lambda: node.own_folder("owner")["assigned"] == str(first), lambda: node.own_folder("owner")
    )
    assert await_own(node, "owner", 1) == first
    node.await_cpus("plain", main=online - first)
    assert node.instance("owner") == before, "it has not started again"
    assert not node.resizing("owner")


def test_a_resize_that_cannot_be_is_reported_and_can_be_taken_back(dynamic: RealNode) -> None:
    node = dynamic
    node.run("owner", main=OWNER)
    first = await_own(node, "owner", 1)

    node.resize("owner", "1500m")
    patiently(
        lambda: "request whole CPUs" in node.resizing("owner"), lambda: node.resizing("owner")
    )
    patiently(
        lambda: told("Pod", "owner", "CPUResizeRefused"),
        lambda: told("Pod", "owner", "CPUResizeRefused"),
    )
    assert await_own(node, "owner", 1) == first

    node.resize("owner", "1")
    patiently(lambda: not node.resizing("owner"), lambda: node.resizing("owner"))
    assert await_own(node, "owner", 1) == first


def test_a_resize_while_the_agent_is_away_is_carried_out_when_it_is_back(
    dynamic: RealNode,
) -> None:
    node = dynamic
    node.run("owner", main=OWNER)
    first = await_own(node, "owner", 1)
    node.agent.kill()
    node.resize("owner", "2")
    node.agent.start()
    assert first < await_own(node, "owner", 2)
