"""A node whose containers are run by a real containerd, and whose agent is a real process.

The kubelet is a stand-in: `cpupool.local.kubelet` speaks to device plugins and to clients of
podresources over real sockets, and `Node` makes the CRI calls in the kubelet's order, with its
labels, annotations and cgroup parents. So is the API server (`tests.apiserver`), which hears of a
container's id when it runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import EXCLUSIVE_CPUS, Names
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.sysfs import Sysfs
from cpupool.kube import views
from cpupool.local.kubelet import EmbeddedKubelet
from cpupool.local.pods import HostedPod
from cpupool.local.runtime import Instance, pod_cgroup
from cpupool.manager import status_json
from tests.apiserver import FakeAPIServer
from tests.containerd import records
from tests.containerd.cri_client import CRIClient
from tests.containerd.pods import CONTAINER, Hosted, Kind, Layout
from tests.mounts import Mount
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.containerd.records import Record
    from tests.containerd.runtime import ContainerdHost

T = TypeVar("T")
R = TypeVar("R")

NAME: Final = "node-a"
BURST: Final = 10
LOOK_US: Final = 1000
_POOLS: Final = "pools"
_CONNECTED: Final = re.compile(r'time="([^"]+)" .*msg="plugin [^ ]+ connected')
"""What containerd says once it has told a plugin of everything that runs (nri: adaptation.go)."""
_STARTS: Final = re.compile(r'time="([^"]+)" .*msg="starting containerd"')


class Node:
    """One node. Make it with `node`; any thread may start and delete pods.

    Args:
        host: its runtime.
        cri: calls that runtime.
        kubelet: the stand-in.
        api: the API server, which knows this node only.

    Attributes:
        tree: its cgroups.
        layouts: the pools that fit this machine.
        layout: those in force.
    """

    def __init__(
        self, host: ContainerdHost, cri: CRIClient, kubelet: EmbeddedKubelet, api: FakeAPIServer
    ) -> None:
        self.host = host
        self.cri = cri
        self.kubelet = kubelet
        self.api = api
        self.tree = CgroupFS(host.root.cgroup, host.cgroup_root)
        self.layouts = Layout.of(Sysfs.at(host.root.sysfs).topology())
        self._config = Mount(host.folder / _POOLS)
        self._agent_log = host.folder / "agent.log"
        self._lock = threading.Lock()
        self._pods: dict[str, Hosted] = {}
        self.configure(self.layouts[0])

    def configure(self, layout: Layout) -> None:
        """Write the pool file."""
        self.layout = layout
        self._config.show(test=layout.pools)

    # -- the agent -------------------------------------------------------------------------------

    @contextmanager
    def agent(
        self,
        way: str,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: str = "cpupool",
        connects: bool = True,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run an agent until the block ends; it is ready when that begins.

        Args:
            way: as for its `--enforcement`.
            options: others of its own.
            environment: variables of its own.
            program: the module that is run.
            connects: it connects to NRI before it counts as ready.
        """
        command = [
            # It ends with this process, too.
            *("setpriv", "--pdeathsig", "KILL"),
            *(sys.executable, "-m", program, "agent", "--node-name", NAME, "--enforcement", way),
            *("--host-root", str(self.host.folder), "--cgroup-root", self.host.cgroup_root),
            *("--config", str(self._config.folder), "--api-server", self.api.url),
            *("--metrics-port", "0", *options),
        ]
        connections = self.connections()
        for resource in self.layout.resources:
            # That of an agent before tells nothing of this one.
            eventually(partial(self._offers, resource, False), f"{resource} has gone")
        with self._agent_log.open("ab") as log:
            process = subprocess.Popen(
                command, stderr=log, env={**os.environ, **(environment or {})}
            )
        try:
            for resource in self.layout.resources:
                self._await(process, partial(self._offers, resource, True))
            if way == "nri" and connects:
                self._await(process, lambda: self.connections() > connections)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            finally:
                process.kill()

    def connections(self) -> int:
        """Count how often a plugin has connected to the runtime."""
        return len(_CONNECTED.findall(self.host.log))

    def connected_after_s(self) -> float:
        """Give the time from the runtime's last start to the last connection of a plugin."""
        last = (pattern.findall(self.host.log)[-1] for pattern in (_STARTS, _CONNECTED))
        started, connected = map(datetime.fromisoformat, last)
        return (connected - started).total_seconds()

    def log(self) -> str:
        """Give what the agents have written; nothing before the first of them starts."""
        return self._agent_log.read_text() if self._agent_log.exists() else ""

    # -- pods ------------------------------------------------------------------------------------

    def admit(
        self,
        kind: Kind,
        look_us: int = LOOK_US,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        uid: str = "",
    ) -> Hosted:
        """Take a pod that the scheduler has bound to this node, and give it its devices."""
        uid = uid or str(uuid.uuid4())
        manifest = kind.manifest(f"{kind.value}-{uid[:8]}", annotations, labels)
        one = Hosted(HostedPod(views.created(manifest, uid), Names()), kind, look_us)
        with self._lock:
            self._pods[uid] = one
        self.publish()
        self.kubelet.admit(one.pod)
        return one

    def launch(self, one: Hosted) -> None:
        """Start a pod's sandbox and its container."""
        self.start_sandbox(one)
        self.start(one)

    def start_sandbox(self, one: Hosted) -> None:
        """Start a pod's sandbox."""
        self.host.make_cgroup(pod_cgroup(one.pod))
        logs = self.host.folder / "logs" / one.pod.uid
        logs.mkdir(parents=True)
        one.sandbox = self.cri.run_sandbox(one.sandbox_config(self.host.cgroup_root, logs))

    def run(self, kind: Kind, look_us: int = LOOK_US, *, stays: bool = False) -> Hosted:
        """Admit and start a pod, whose program may end by SIGKILL only."""
        one = self.admit(kind, look_us)
        one.stays = stays
        self.launch(one)
        return one

    def burst(self, look_us: int = LOOK_US) -> list[Hosted]:
        """Start ten pods of all kinds at once."""
        return at_once(partial(self.run, look_us=look_us), self.layout.mixed(BURST))

    def restart(self, one: Hosted) -> None:
        """End a pod's container and start it again, as the kubelet does with one that failed."""
        self.cri.stop(one.container)
        one.hosted.ended(CONTAINER, 0)
        self.publish()
        one.attempt += 1
        self.start(one)

    def ask_to_end(self, one: Hosted, grace_s: float) -> None:
        """Let the API server tell that a pod is to be deleted."""
        over = datetime.fromtimestamp(time.time() + grace_s, UTC)
        body = one.hosted.body
        deletion = {"deletionTimestamp": over.strftime("%Y-%m-%dT%H:%M:%SZ")}
        one.hosted.take({**body, "metadata": {**body["metadata"], **deletion}})
        self.publish()

    def remove(self, one: Hosted) -> None:
        """Delete a pod."""
        self.end(one)
        self.forget(one)

    def end(self, one: Hosted) -> None:
        """End a pod's containers; the kubelet may give its devices to others from here on."""
        if one.sandbox:
            self.cri.remove_sandbox(one.sandbox)
        self.kubelet.remove_pod(one.pod.uid)

    def forget(self, one: Hosted) -> None:
        """Remove the cgroup of a pod that has ended, and let the API server list it no more."""
        self.host.remove_cgroup(pod_cgroup(one.pod))
        with self._lock:
            del self._pods[one.pod.uid]
        self.publish()

    def publish(self) -> None:
        """Let the API server tell what the kubelet knows of each pod."""
        with self._lock:
            self.api.set_pods(dict(one.hosted.body) for one in self._pods.values())

    def clear(self) -> None:
        """Delete every pod."""
        at_once(self.remove, list(self._pods.values()))

    # -- what is seen ----------------------------------------------------------------------------

    def path(self, one: Hosted) -> str:
        """Give a container's cgroup as `tree` takes it."""
        return f"{self.host.cgroup_root[1:]}/{pod_cgroup(one.pod)}/{one.container}"

    def spec(self, one: Hosted) -> dict[str, Any]:
        """Read the OCI spec from which the runtime has made a container."""
        tasks = self.host.root.runtime / "containerd/io.containerd.runtime.v2.task/k8s.io"
        spec: dict[str, Any] = json.loads((tasks / one.container / "config.json").read_bytes())
        return spec

    def record(self, one: Hosted) -> Record:
        """Wait for a container's first instruction, and give what its program has told."""
        return records.record(self.host.folder / "logs" / one.pod.uid / one.log)

    def expected(self, one: Hosted) -> CPUSet:
        """Give the CPUs on which a container belongs; of an exclusive one, those it was told."""
        if one.kind in {Kind.SHARED, Kind.DEFAULT}:
            return self.layout.shared if one.kind is Kind.SHARED else self.layout.default
        told = CPUSet.parse(self.record(one).environment[EXCLUSIVE_CPUS])
        assert told <= (self.layout.default if self.layout.cpu_manager else self.layout.exclusive)
        return told

    def astray(self, pods: Iterable[Hosted]) -> list[str]:
        """Tell of the containers that have ever run on other CPUs than their own."""
        return [
            f"{one.pod.name} belongs on {self.expected(one)}: {self.record(one).sightings}"
            for one in pods
            if not self.record(one).always(self.expected(one))
        ]

    def await_right(self, pods: Iterable[Hosted]) -> None:
        """Wait until every container is on its own CPUs, and the agent has seen it there."""
        for one in pods:
            eventually(partial(self._is_right, one), partial(self._wrong, one))

    def _is_right(self, one: Hosted) -> bool:
        return self._is_seen(one) and self.record(one).wrong_ns(self.expected(one)) is not None

    def _is_seen(self, one: Hosted) -> bool:
        if not self.host.root.status.exists():
            return False
        status = status_json.from_json(json.loads(self.host.root.status.read_text()))
        return any(
            (seen.name, seen.found) == (f"default/{one.pod.name}/{CONTAINER}", str(seen.wanted))
            for seen in status.containers
        )

    def _wrong(self, one: Hosted) -> str:
        return "\n".join([*self.astray([one]), self.log()])

    def start(self, one: Hosted) -> None:
        """Create and start a pod's container; a start that is refused raises `grpc.RpcError`."""
        options = self.kubelet.run_options(ContainerRef(one.pod.uid, CONTAINER))
        logs = self.host.folder / "logs" / one.pod.uid
        within = one.sandbox_config(self.host.cgroup_root, logs)

        def created() -> bool:
            one.called_ns = time.monotonic_ns()
            try:
                one.container = self.cri.create(one.sandbox, one.container_config(options), within)
            except grpc.RpcError as error:
                one.refused.append(str(error.details()))
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    # The runtime that has ended may have kept the container, and with it its name.
                    # The kubelet finds it in the next runtime's list, and gives the next number.
                    one.attempt += 1
                return False
            return True

        # The kubelet tries again, too.
        eventually(created, lambda: f"{one.pod.name} is refused: {one.refused[-1]}")
        self.cri.start(one.container)
        cgroup = f"{pod_cgroup(one.pod)}/{one.container}"
        instance = Instance(ContainerID(one.container), 0, cgroup, options.environment)
        one.hosted.started(CONTAINER, instance, options.annotations)
        self.publish()

    def _offers(self, resource: str, some: bool) -> bool:
        return bool(self.kubelet.listing(resource).allocatable) == some

    def _await(self, agent: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
        eventually(lambda: agent.poll() is not None or ready(), self.log)
        assert agent.poll() is None, self.log()


def at_once(call: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """Call for every value in a thread of its own, ten at a time."""
    with ThreadPoolExecutor(BURST) as pool:
        return list(pool.map(call, values))


@contextmanager
def node(host: ContainerdHost, api: FakeAPIServer | None = None) -> Iterator[Node]:
    """Make a node on a running containerd; at the end there are no pods and no kubelet.

    Args:
        host: the containerd.
        api: not yet entered; None for a plain one.
    """
    with (
        api or FakeAPIServer(NAME) as served,
        EmbeddedKubelet(host.root.kubelet, Names()) as kubelet,
        CRIClient(host.socket) as cri,
    ):
        made = Node(host, cri, kubelet, served)
        try:
            yield made
        finally:
            made.clear()
    for left in (host.folder / _POOLS, host.root.kubelet, host.root.run, host.root.state):
        shutil.rmtree(left, ignore_errors=True)
