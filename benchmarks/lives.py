"""What the lives of pods cost the agent, and what rest costs beside pods that sleep.

    python -m benchmarks.lives [--pods 1000] [--each-minute 45] [--lives 3] [--kinds]
    python -m benchmarks.lives --asleep 120 [--rest 300]

Pods of one container come and go, every other one of a shared pool, in a real containerd, with the
kubelet's calls of CRI in its order and at its pace: it sees a start or an end up to a second later.
The agent follows an API server over TLS, which sends the lines that a real one sends for a pod,
with all that the agent does not read. What is measured begins after some pods, and is printed for
one pod: CPU time and wake-ups by thread, sweeps, and with --kinds CPU time by the kind of work. The
memory is that of the kernel at some numbers of pods; the end is exit code 1 if it has grown by more
than `GROWTH_MIB` since the hundredth.

Where KUBECONFIG names a cluster, the pods are that cluster's and run on this node, and so is the
agent: `--agent PID` names its process, and `--metrics URL` its metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import trustme

from benchmarks import watched
from benchmarks.processes import AS_IN_THE_IMAGE
from benchmarks.rest import free_port
from benchmarks.rows import written
from tests.apiserver import FakeAPIServer
from tests.containerd import node as nodes
from tests.containerd.pods import CONTAINER, Kind
from tests.containerd.runtime import ContainerdHost
from tests.e2e.cluster import NAMES, kubectl, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from benchmarks.rows import Row
    from tests.containerd.pods import Hosted

P = TypeVar("P")

GROWTH_MIB: Final = 1.0
_FIRST: Final = 100
"""What a first pod brings into memory is there by then."""
_WARM: Final = 10
_LOOKS: Final = {_FIRST, 200, 500}
_SHARERS: Final = 5
"""A shared pool of one CPU has ten places."""
_AT_ONCE: Final = 16
"""More pods do not live at one time."""
_SETTLES_S: Final = 5.0
_PROBES: Final = ("/readyz", "/readyz", "/readyz", "/readyz", "/healthz")
_PROBES_EACH_S: Final = 4.0
_LOOK_US: Final = 1_000_000
_SEEN_S: Final = 0.5
"""How long after a container's start or end the kubelet sees it, on average: it looks each second
(PLEG)."""
_COLLECTED_S: Final = 1.0
"""After how long somebody deletes a pod that has succeeded."""
_WOKEN: Final = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_SWEEPS: Final = re.compile(r"^cpupool_sweep_duration_seconds_count (\S+)", re.MULTILINE)
_CONDITIONS: Final = (
    "PodScheduled",
    "Initialized",
    "PodReadyToStartContainers",
    "ContainersReady",
    "Ready",
)


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has used since its start.

    Attributes:
        cpu_s: CPU time, ended threads included.
        threads_s: name of a thread → CPU time.
        switches: name of a thread → how often it gave up a CPU to wait.
        sweeps: how often the agent has swept.
        resident_mib: its memory.
    """

    cpu_s: float
    threads_s: Mapping[str, float]
    switches: Mapping[str, float]
    sweeps: float
    resident_mib: float

    @classmethod
    def of(cls, pid: int, metrics: str) -> Use:
        """Read it from the kernel, and the sweeps from the agent's metrics."""
        process = Path(f"/proc/{pid}")
        threads_s: defaultdict[str, float] = defaultdict(float)
        switches: defaultdict[str, float] = defaultdict(float)
        for task in (process / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                name = (task / "comm").read_text().strip()
                threads_s[name] += int((task / "schedstat").read_text().split()[0]) / 1e9
                found = _WOKEN.search((task / "status").read_text())
                switches[name] += int(found[1]) if found else 0
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        pages = int((process / "statm").read_text().split()[1])
        return cls(
            (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            threads_s,
            switches,
            float(found[1]) if (found := _SWEEPS.search(_get(metrics, "/metrics"))) else 0.0,
            pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        )

    def since(self, before: Use) -> Use:
        """Return what has been used since then; the memory is that of now."""
        return Use(
            self.cpu_s - before.cpu_s,
            _differences(self.threads_s, before.threads_s),
            _differences(self.switches, before.switches),
            self.sweeps - before.sweeps,
            self.resident_mib,
        )


def _differences(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: count - before.get(name, 0.0) for name, count in now.items()}


class Place(Protocol[P]):
    """Where pods live beside an agent."""

    pid: int
    metrics: str

    def begin(self, name: str, *, shared: bool) -> P:
        """Start a pod, and return what `end` takes."""
        ...

    def end(self, pod: P) -> None:
        """End a pod, and let everybody forget it."""
        ...


class TalkativeAPIServer(FakeAPIServer):
    """An API server whose pods have what real ones have, and as many changes."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(nodes.NAME, tls=tls)
        self.steps: Counter[str] = Counter()
        self.unseen: set[str] = set()
        self._told: dict[str, dict[str, Any]] = {}

    def set_pods(self, bodies: Iterable[dict[str, Any]]) -> None:
        """Set the pods, each with its conditions and with those who have written it.

        A pod in `unseen` stays as it was: the kubelet has not looked yet.
        """
        told = {}
        for body in bodies:
            uid = body["metadata"]["uid"]
            unseen = self._told.get(uid) if uid in self.unseen else None
            told[uid] = unseen or _filled(body, self.steps[uid])
        self._told = told
        super().set_pods(told.values())
        # No client asks for an old version.
        with self._lock:
            del self._objects.history[:-1000]


def _filled(body: dict[str, Any], step: int) -> dict[str, Any]:
    """Return a pod as an API server sends it, after so many of its conditions have come true."""
    metadata, spec, status = body["metadata"], body["spec"], body["status"]
    conditions = [
        {
            "type": kind,
            "status": "True" if number < step else "False",
            "lastProbeTime": None,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
        for number, kind in enumerate(_CONDITIONS)
    ]
    fields: dict[str, Any] = {
        f"f:{name}": {"f:key": {}, ".": {}} for name in (*_CONDITIONS, *spec, *status)
    }
    managers = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": fields, "f:spec": fields, "f:status": fields},
        }
        for manager in ("kube-controller-manager", "kube-scheduler", "kubelet")
    ]
    mount = {
        "name": "kube-api-access",
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    return {
        **body,
        "metadata": {
            **metadata,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generateName": "lives-",
            "managedFields": managers,
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "lives"}],
        },
        "spec": {
            **spec,
            "containers": [
                {**one, "volumeMounts": [mount], "terminationMessagePath": "/dev/termination-log"}
                for one in spec["containers"]
            ],
            "volumes": [{"name": "kube-api-access", "projected": {"sources": [{}, {}, {}]}}],
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                for key in ("not-ready", "unreachable")
            ],
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
        },
        "status": {
            **status,
            "conditions": conditions,
            "hostIP": "10.0.0.1",
            "hostIPs": [{"ip": "10.0.0.1"}],
            **({"podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}]} if step > 2 else {}),
        },
    }


class OwnPlace:
    """A containerd of our own, and a stand-in for the kubelet.

    Args:
        node: the node.
        api: its API server.
        pid: the agent's process.
        metrics: the address of its metrics.
    """

    def __init__(self, node: nodes.Node, api: TalkativeAPIServer, pid: int, metrics: str) -> None:
        self._node, self._api = node, api
        self.pid, self.metrics = pid, metrics

    def begin(self, name: str, *, shared: bool) -> Hosted:
        """Start a pod."""
        del name
        one = self._node.admit(Kind.SHARED if shared else Kind.DEFAULT, _LOOK_US)
        self._say(one, 2)
        self._node.start_sandbox(one)
        self._say(one, 3)
        self._api.unseen.add(one.pod.uid)
        self._node.start(one)
        _wait(_SEEN_S)
        self._see(one, 5)
        return one

    def end(self, pod: Hosted) -> None:
        """End a pod as a program that has done its work ends it."""
        self._api.unseen.add(pod.pod.uid)
        self._node.cri.stop(pod.container)
        _wait(_SEEN_S)
        pod.hosted.ended(CONTAINER, 0)
        pod.hosted.finished({"phase": "Succeeded"})
        self._see(pod, 3)
        self._node.end(pod)
        _wait(_COLLECTED_S)
        self._node.ask_to_end(pod, 30.0)
        self._node.forget(pod)
        del self._api.steps[pod.pod.uid]

    def _see(self, one: Hosted, step: int) -> None:
        self._api.unseen.discard(one.pod.uid)
        self._say(one, step)

    def _say(self, one: Hosted, step: int) -> None:
        self._api.steps[one.pod.uid] = step
        self._node.publish()


class ClusterPlace:
    """This node of the cluster that KUBECONFIG names.

    Args:
        pid: the agent's process.
        metrics: the address of its metrics.
    """

    def __init__(self, pid: int, metrics: str) -> None:
        self.pid, self.metrics = pid, metrics
        self._image = os.environ.get("CPUPOOL_E2E_IMAGE", "busybox")
        (self._node,) = (
            [os.environ["CPUPOOL_E2E_NODE"]]
            if "CPUPOOL_E2E_NODE" in os.environ
            else [one["metadata"]["name"] for one in read("nodes")["items"]]
        )
        offered = read("node", self._node)["status"]["allocatable"]
        pools = ((name, NAMES.pool_of(name)) for name in offered)
        shared = [name for name, pool in pools if pool and not pool.kind.exclusive]
        self._shared = next(iter(shared), "")

    def begin(self, name: str, *, shared: bool) -> str:
        """Start a pod, and wait until it runs."""
        limits = {self._shared: "100"} if shared and self._shared else {}
        container = {
            "name": "main",
            "image": self._image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"],
            "resources": {"limits": limits},
        }
        spec = {
            "nodeName": self._node,
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        kubectl("create", "-f", "-", given=body)
        kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
        return name

    def end(self, pod: str) -> None:
        """Delete a pod, and wait for its end."""
        kubectl("delete", "pod", pod)


@contextmanager
def own_place(found: Path | None) -> Iterator[OwnPlace]:
    """Run a containerd and an agent on it.

    Args:
        found: where the agent writes the CPU time of its kinds of work; None for an agent without
            clocks.
    """
    with tempfile.TemporaryDirectory(prefix="cpl-", dir="/tmp") as name:
        authority, folder = trustme.CA(), Path(name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        trusted = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(trusted))
        environment = {**AS_IN_THE_IMAGE, "SSL_CERT_FILE": str(trusted), "SSL_CERT_DIR": name}
        if found:
            environment[watched.WRITTEN] = str(found)
        api, port = TalkativeAPIServer(context), free_port()
        options = ("--metrics-port", str(port), "--starter", "/bin/true")
        with ContainerdHost(folder) as host, nodes.node(host, api) as node:
            node.configure(node.layouts[-1])
            program = "benchmarks.watched" if found else "cpupool"
            with node.agent("nri", *options, environment=environment, program=program) as agent:
                yield OwnPlace(node, api, agent.pid, f"http://127.0.0.1:{port}")


def lives(place: Place[P], pods: int, each_minute: float, lives_s: float) -> tuple[Use, float]:
    """Let pods come and go; return what one of them costs, and the growth in MiB."""
    before = first = Use.of(place.pid, place.metrics)
    warm = min(_WARM, pods // 2)

    def live(number: int) -> None:
        pod = place.begin(f"lives-{os.getpid()}-{number}", shared=number % 2 == 0)
        _wait(lives_s)
        place.end(pod)

    with ThreadPoolExecutor(_AT_ONCE if each_minute else 1) as living:
        began_s = time.monotonic()
        started: list[Future[None]] = []
        for number in range(pods):
            if number == warm or number in _LOOKS or (number and not number % 1000):
                now = Use.of(place.pid, place.metrics)
                before = now if number == warm else before
                first = now if number == _FIRST else first
                print(f"  after {number:6} pods {now.resident_mib:7.2f} MiB", flush=True)
            started.append(living.submit(live, number))
            if each_minute:
                _wait(began_s + (number + 1) * 60 / each_minute - time.monotonic())
            else:
                started[-1].result()
    for each in started:
        each.result()
    _wait(_SETTLES_S)
    after = Use.of(place.pid, place.metrics)
    print(f"  after {pods:6} pods {after.resident_mib:7.2f} MiB", flush=True)
    growth_mib = after.resident_mib - first.resident_mib if pods > _FIRST else 0.0
    return _shared_out(after.since(before), pods - warm), growth_mib


def _wait(seconds: float) -> None:
    threading.Event().wait(max(0.0, seconds))


def rest(place: Place[P], pods: int, rest_s: float) -> Use:
    """Let pods sleep; return what a second of it costs."""
    asleep = [
        place.begin(f"asleep-{os.getpid()}-{number}", shared=number < _SHARERS)
        for number in range(pods)
    ]
    # What belongs to their starts is over by then.
    threading.Event().wait(30.0)
    before, began_s = Use.of(place.pid, place.metrics), time.monotonic()
    threading.Event().wait(rest_s)
    after, took_s = Use.of(place.pid, place.metrics), time.monotonic() - began_s
    for one in asleep:
        place.end(one)
    return _shared_out(after.since(before), took_s)


def _shared_out(used: Use, count: float) -> Use:
    return Use(
        used.cpu_s / count,
        {name: each / count for name, each in used.threads_s.items()},
        {name: each / count for name, each in used.switches.items()},
        used.sweeps / count,
        used.resident_mib,
    )


def _rows(used: Use, unit: float, of: str, *, digits: int) -> Iterator[Row]:
    yield (f"CPU time, {of}", f"{used.cpu_s * unit:.{digits}f}", "")
    yield ("wake-ups", f"{sum(used.switches.values()):.1f}", "")
    yield ("sweeps", f"{used.sweeps:.2f}", "")
    for name, each_s in sorted(used.threads_s.items(), key=lambda item: -item[1]):
        woken = used.switches[name]
        if each_s * unit >= 0.05 or woken >= 0.05:
            yield (f"  thread {name}", f"{each_s * unit:.{digits}f}", f"{woken:.2f} wake-ups")


def _kinds(found: Path, pods: int) -> Iterator[Row]:
    kinds: dict[str, tuple[int, float]] = json.loads(found.read_text())
    for kind, (calls, used_s) in sorted(kinds.items(), key=lambda item: -item[1][1]):
        yield (kind, f"{used_s * 1000 / pods:.2f} ms", f"{calls / pods:.1f} times")


@contextmanager
def _probed(metrics: str) -> Iterator[None]:
    """Probe the agent meanwhile, as often as the kubelet does by daemonsets/agent."""
    ended = threading.Event()

    def probe() -> None:
        for page in cycle(_PROBES):
            with suppress(OSError):
                _get(metrics, page)
            if ended.wait(_PROBES_EACH_S):
                return

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _get(address: str, page: str) -> str:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=10.0)
    try:
        connection.request("GET", page)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def main() -> None:
    """Measure, and exit with 1 where the memory has grown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--each-minute", type=float, default=45.0, help="0 for no pause")
    parser.add_argument("--lives", type=float, default=1.0, help="seconds that a pod lives")
    parser.add_argument("--asleep", type=int, help="measure rest beside so many pods instead")
    parser.add_argument("--rest", type=float, default=300.0, help="seconds of rest")
    parser.add_argument("--kinds", action="store_true", help="CPU time by kind of work, too")
    parser.add_argument("--agent", type=int, help="in a cluster: the process of this node's agent")
    parser.add_argument("--metrics", default="http://127.0.0.1:9404", help="in a cluster: its port")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "kinds.json") if asked.kinds else None
        if os.environ.get("KUBECONFIG"):
            if not asked.agent:
                parser.error("--agent names the process of the agent on this node")
            growth_mib = _measured(ClusterPlace(asked.agent, asked.metrics), asked)
        else:
            with own_place(found) as place:
                growth_mib = _measured(place, asked)
            if found and found.exists():
                print(written(_kinds(found, asked.pods)))
    if growth_mib > GROWTH_MIB:
        sys.exit(f"the memory has grown by {growth_mib:.2f} MiB, more than {GROWTH_MIB} MiB")


def _measured(place: Place[P], asked: argparse.Namespace) -> float:
    with _probed(place.metrics):
        if asked.asleep is not None:
            used = rest(place, asked.asleep, asked.rest)
            what = f"seconds in an hour beside {asked.asleep} pods"
            rows = list(_rows(used, 3600.0, what, digits=2))
            growth_mib = 0.0
        else:
            used, growth_mib = lives(place, asked.pods, asked.each_minute, asked.lives)
            rows = list(_rows(used, 1000.0, "ms for a pod's life", digits=1))
    print(written(rows))
    return growth_mib


if __name__ == "__main__":
    main()
