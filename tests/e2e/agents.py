"""The agent under test: a process of this suite, or the one that a DaemonSet runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound
from cpupool.enforce.apply import bring
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.root import HostRoot
from tests.e2e.cluster import PATIENCE_S, kubectl, read
from tests.e2e.node import processes
from tests.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

POOL_FILE: Final = "poolconfig-e2e.yaml"
_NAMESPACE: Final = "cpupool"
_CONFIG_MAP: Final = "cpu-pooler-configmap"


class HostAgent:
    """An agent on this machine that reaches the API server through `kubectl proxy`.

    Args:
        node: its node's name.
        machine: where the node's file system is.
        cgroup_root: the kubelet's.
        folder: for the pool file.
    """

    def __init__(self, node: str, machine: Path, cgroup_root: str, folder: Path) -> None:
        self._mount = Mount(folder)
        root = HostRoot.under(machine)
        self._tree = CgroupFS(root.cgroup, cgroup_root)
        self._before = {one.path: one.cpus for one in self._tree.containers() if one.cpus}
        self._opened = ExitStack()
        for kept in (root.run, root.state):
            if not kept.exists():
                self._opened.callback(shutil.rmtree, kept, ignore_errors=True)
        proxy = self._opened.enter_context(
            subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
        )
        self._opened.callback(proxy.terminate)
        address = proxy.stdout.readline().split()[-1] if proxy.stdout else ""
        self._command = [
            *(sys.executable, "-m", "cpupool", "agent", "--node-name", node),
            *("--api-server", f"http://{address}", "--config", str(folder), "--metrics-port", "0"),
            *("--host-root", str(machine), "--cgroup-root", cgroup_root),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, text: str) -> None:
        """Put a pool file in the place of the last one."""
        self._mount.show(e2e=text)

    def start(self) -> None:
        """Start the agent if it does not run; what it logs is shown when a test fails."""
        if self._process is None:
            self._process = subprocess.Popen(self._command)
        assert self._process.poll() is None, "the agent ended by itself"

    def started(self) -> AbstractSet[int]:
        """Return the agent's process, which is a child of this one."""
        return {self._process.pid} if self._process else frozenset()

    def kill(self) -> None:
        """End the agent without a warning."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End everything, and leave the node and its other containers as they were."""
        self._end(signal.SIGTERM)
        self._opened.close()
        for path, cpus in self._before.items():
            with suppress(CgroupNotFound):
                bring(self._tree, path, CPUSet.parse(cpus))

    def _end(self, number: int) -> None:
        if self._process:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None


class DeployedAgent:
    """The agent of the DaemonSet in `daemonsets/`; no other pool file of its may match this node.

    Args:
        node: its node's name.
        machine: where the node's file system is.
        cgroup_root: the kubelet's.
    """

    def __init__(self, node: str, machine: Path, cgroup_root: str) -> None:
        self._node = node
        self._root = HostRoot.under(machine)
        self._tree = CgroupFS(self._root.cgroup, cgroup_root)

    def configure(self, text: str | None) -> None:
        """Put a pool file in the place of the last one; None takes it out."""
        patch = json.dumps({"data": {POOL_FILE: text}})
        kubectl("-n", _NAMESPACE, "patch", "configmap", _CONFIG_MAP, "--type=merge", "-p", patch)

    def start(self) -> None:
        """Leave it to the DaemonSet."""

    def started(self) -> AbstractSet[int]:
        """Return no process: none is a child of this one."""
        return frozenset()

    def kill(self) -> None:
        """End the agent without a warning."""
        for process in self._processes():
            os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """Take the suite's pool file out."""
        self.configure(None)

    def _processes(self) -> Iterator[int]:
        pods = read(
            *("-n", _NAMESPACE, "pods", "-l", "app.kubernetes.io/component=agent"),
            *("--field-selector", f"spec.nodeName={self._node}"),
        )["items"]
        agents = {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0] for pod in pods}
        for found in self._tree.containers():
            status = agents.get(found.pod)
            if status and status["containerID"].endswith(found.id):
                yield from processes(self._root, found.path)
