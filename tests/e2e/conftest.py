"""A cluster, this machine as its node, and the agent on it; or one line that says what is missing.

Variables: KUBECONFIG, and CPUPOOL_E2E_...
    NODE             this machine's name in the cluster, where its boot id does not tell
    HOST_ROOT        where the node's file system is, if not at /
    IMAGE            an image with a shell and `sleep`
    AGENT            `daemonset` where one is deployed; else the suite starts its own
    KUBELET_RESTART  a shell command, where systemd does not run the kubelet
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from tests.e2e.agents import DeployedAgent, HostAgent
from tests.e2e.cluster import kubectl, read
from tests.e2e.node import Layout, RealNode
from tests.guard import unmarked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@pytest.fixture(scope="session")
def cluster_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """The node with an agent and a namespace of its own, which go when the session ends."""
    body = _this_node()
    name, host = body["metadata"]["name"], body["metadata"]["labels"]["kubernetes.io/hostname"]
    machine = Path(_setting("HOST_ROOT", "/"))
    root = HostRoot.under(machine)
    configuration = json.loads(kubectl("get", "--raw", f"/api/v1/nodes/{name}/proxy/configz"))
    cgroup_root = configuration["kubeletconfig"].get("cgroupRoot", "")
    topology = Sysfs.at(root.sysfs).topology()
    if len(topology.cores) < 2:
        pytest.skip("needs a node with two cores")
    with ExitStack() as opened:
        agent = (
            DeployedAgent(name, machine, cgroup_root)
            if _setting("AGENT", "") == "daemonset"
            else HostAgent(name, machine, cgroup_root, tmp_path_factory.mktemp("pools"))
        )
        opened.callback(agent.close)
        namespace = kubectl(
            *("create", "-f", "-", "-o", "jsonpath={.metadata.name}"),
            given={
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"generateName": "cpupool-e2e-"},
            },
        )
        opened.callback(kubectl, "delete", "namespace", namespace, "--wait=false")
        yield RealNode(
            name=name,
            host=host,
            namespace=namespace,
            image=_setting("IMAGE", "busybox:1.36"),
            root=root,
            tree=CgroupFS(root.cgroup, cgroup_root),
            layout=Layout.of(topology),
            topology=topology,
            agent=agent,
        )


@pytest.fixture
def lasting(request: pytest.FixtureRequest) -> Callable[[], AbstractSet[int]]:
    """Return what finds the agent, where a test has one: it goes on from test to test."""
    if "cluster_node" not in request.fixturenames:
        return frozenset
    node: RealNode = request.getfixturevalue("cluster_node")
    return node.agent.started


@pytest.fixture
def node(cluster_node: RealNode) -> Iterator[RealNode]:
    """The node without pods of the tests, with the usual pools in force."""
    layout = cluster_node.layout
    cluster_node.configure(layout.pools())
    cluster_node.agent.start()
    cluster_node.await_devices(
        exclusive_e2e=len(layout.exclusive), shared_e2e=1000 * len(layout.shared)
    )
    yield cluster_node
    cluster_node.delete()


@pytest.fixture
def restart_kubelet(cluster_node: RealNode) -> Callable[[], object]:
    """Return what restarts the kubelet, which outlives the tests."""
    command = _setting("KUBELET_RESTART", "")
    if not command:
        running = ["systemctl", "is-active", "--quiet", "kubelet"]
        if not shutil.which("systemctl") or subprocess.run(running, check=False).returncode:
            pytest.skip("CPUPOOL_E2E_KUBELET_RESTART does not say how to restart the kubelet")
        command = "systemctl restart kubelet"
    return lambda: subprocess.run(["sh", "-c", command], env=unmarked(), check=True)


def _setting(name: str, default: str) -> str:
    return os.environ.get(f"CPUPOOL_E2E_{name}", default)


def _this_node() -> Any:
    named = _setting("NODE", "")
    boot_id = _BOOT_ID.read_text().strip()
    here = {
        body["metadata"]["name"]: body
        for body in read("nodes")["items"]
        if body["status"]["nodeInfo"]["bootID"] == boot_id
    }
    meant = [name for name in here if named in ("", name)]
    if len(meant) != 1:
        names = ", ".join(here) or "none"
        given = f"CPUPOOL_E2E_NODE: {named or 'not set'}"
        pytest.skip(f"nodes of the cluster with this machine's boot id: {names}; {given}")
    return here[meant[0]]
