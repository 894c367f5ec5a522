"""The cost of plugins of the QoS Resource Manager: `python -m benchmarks.resource_plugins`.

It takes four minutes; `--seconds 5 --settle 5` measures the agents at rest for a shorter time.

It measures the time in which three plugins admit a pod, without the plugins' own time, and the cost
of an agent with and without them when 250 containers have nothing to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from benchmarks.documents import Times, table
from benchmarks.processes import PATIENCE_S, agent, cpu_s, memory
from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.names import Names
from cpupool.kube import views
from cpupool.local.pods import HostedPod
from tests.apiserver import FakeAPIServer
from tests.machines import Machine
from tests.resource_plugins import PluginDouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cpupool.local.node import EmbeddedNode

NODES: Final = 4
MACHINE: Final = Machine(sockets=2, nodes=NODES, l3=2, cores=16, threads=2)
POOLS: Final = (
    'pools:\n  default: {cpus: "0-127"}\n'
    'cpuManager: {policy: qrm, reserved: "0-1", topologyPolicy: best-effort}\n'
)
NIC: Final = "example.com/nic"
GIVEN: Final[Mapping[str, Mapping[str, Any]]] = {
    "cpu": {"oci_property_name": "CpusetCpus", "allocation_result": "2-31"},
    "memory": {"oci_property_name": "CpusetMems", "allocation_result": "0"},
    NIC: {"envs": {"NIC": "eth0"}, "annotations": {"example.com/netns": "/run/netns/ns1"}},
}
PODS: Final = 250
ADMITTED: Final = 100
SETTLES_S: Final = 30.0
QUIET_S: Final = 60.0
_OPTIONS: Final = ("--resource-plugins",)
_NO_PORT: Final = ("--metrics-port", "0")
_LOOK_S: Final = 0.0005


class Plugin(PluginDouble):
    """A plugin that gives every container the same, and counts the time that it takes.

    Attributes:
        busy_s: how long it has answered.
        allocated: the containers to which it has given something.
    """

    def __init__(self, folder: Path, resource: str) -> None:
        socket = folder / f"{resource.rpartition('/')[2]}.sock"
        super().__init__(socket, resource, need_reconcile=True, with_topology_alignment=True)
        self.busy_s = 0.0
        hints = [api.TopologyHint(nodes=[node], preferred=True) for node in range(NODES)]
        can = api.HintsEntry(key=resource, value=api.ListOfTopologyHints(hints=hints))
        entry = api.AllocationEntry(
            key=resource, value=api.ResourceAllocationInfo(**GIVEN[resource])
        )
        self._given = api.ResourceAllocation(resource_allocation=[entry])
        self.allocated = api.GetResourcesAllocationResponse()
        self.replies |= {
            "GetTopologyHints": api.ResourceHintsResponse(resource_hints=[can]).SerializeToString(),
            "Allocate": self._allocate,
            "GetResourcesAllocation": lambda _request: self.allocated.SerializeToString(),
            "RemovePod": b"",
        }

    def answer(self, method: str, request: bytes) -> bytes:
        """Answer a call, and count the time."""
        began_s = time.perf_counter()
        try:
            return super().answer(method, request)
        finally:
            self.busy_s += time.perf_counter() - began_s

    def _allocate(self, request: bytes) -> bytes:
        asked = api.ResourceRequest.FromString(request)
        containers = self.allocated.pod_resources[asked.pod_uid].container_resources
        containers[asked.container_name].CopyFrom(self._given)
        return api.ResourceAllocationResponse(allocation_result=self._given).SerializeToString()


def main() -> None:
    """Run everything and print the table."""

    def tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=QUIET_S, help="of each agent at rest")
    parser.add_argument("--settle", type=float, default=SETTLES_S, help="seconds before that")
    asked = parser.parse_args()
    print(plugins(tell, quiet_s=asked.seconds, settles_s=asked.settle))


def plugins(
    tell: Callable[[str], None], *, quiet_s: float = QUIET_S, settles_s: float = SETTLES_S
) -> str:
    """Return a table: what plugins cost.

    Args:
        tell: called with what is measured next.
        quiet_s: how long agents at rest are measured.
        settles_s: how long they settle before that.
    """
    rows = list[tuple[str, str]]()
    tell(f"three plugins admit {ADMITTED} pods")
    rows += _admission()
    for options in ((), _OPTIONS):
        with_plugins = "with" if options else "without"
        tell(
            f"an agent {with_plugins} plugins: {PODS} pods start, {settles_s:g} s to settle,"
            f" {quiet_s:g} s at rest"
        )
        rows += _at_rest(*options, quiet_s=quiet_s, settles_s=settles_s)
    return table(("what", "measured"), rows)


def _admission() -> Iterator[tuple[str, str]]:
    taken_ms, bodies = [], list[dict[str, Any]]()
    with (
        FakeAPIServer() as server,
        agent(server, MACHINE, POOLS, *_OPTIONS, *_NO_PORT) as (node, pid),
        _registered(node) as registered,
    ):
        bodies.append(_listed("first"))
        server.set_pods(bodies)
        _until(lambda: _recorded(node, "first"))
        before_s = cpu_s(pid)
        for number in range(ADMITTED):
            bodies.append(_listed(uid := f"u{number}"))
            busy_s = sum(plugin.busy_s for plugin in registered)
            began_s = time.perf_counter()
            server.set_pods(bodies)
            _until(partial(_recorded, node, uid))
            busy_s = sum(plugin.busy_s for plugin in registered) - busy_s
            taken_ms.append((time.perf_counter() - began_s - busy_s) * 1000)
        used_ms = (cpu_s(pid) - before_s) * 1000 / ADMITTED
    what = "a pod with three plugins, six calls"
    yield (
        f"{what}: from the pod's creation to its recorded answers, ms",
        Times.of_values(taken_ms).shown(inf),
    )
    yield f"{what}: CPU time of the agent, ms", f"{used_ms:.1f}"


def _at_rest(*options: str, quiet_s: float, settles_s: float) -> Iterator[tuple[str, str]]:
    with ExitStack() as opened:
        server = opened.enter_context(FakeAPIServer())
        node, pid = opened.enter_context(agent(server, MACHINE, POOLS, *options, *_NO_PORT))
        registered = opened.enter_context(_registered(node)) if options else []
        for number in range(PODS):
            node.run_pod(_pod(f"p{number}"))
        for each in registered:
            _until(partial(_gives_all, each))
        time.sleep(settles_s)
        before_s, asked = cpu_s(pid), _lists(registered)
        time.sleep(quiet_s)
        used_ms, asked = (cpu_s(pid) - before_s) * 1000, _lists(registered) - asked
        what = f"agent with {PODS} containers at rest, {len(registered)} plugins"
        lists = f", {asked} lists of {PODS} containers" if registered else ""
        yield f"{what}: CPU time in {quiet_s:g} s{lists}, ms", f"{used_ms:.0f}"
        yield f"{what}: memory", memory(pid)


def _lists(registered: list[Plugin]) -> int:
    return sum(len(each.asked["GetResourcesAllocation"]) for each in registered)


def _pod(name: str) -> dict[str, Any]:
    requests = {"cpu": "1", "memory": "64Mi", NIC: "1"}
    container = {"name": "main", "resources": {"requests": requests}}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


@contextmanager
def _registered(node: EmbeddedNode) -> Iterator[list[Plugin]]:
    folder = node.root.state / "resource-plugins"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        yield [opened.enter_context(Plugin(folder, resource)) for resource in GIVEN]


def _listed(uid: str) -> dict[str, Any]:
    """Return a pod that the scheduler has bound to the node."""
    return dict(HostedPod(views.created(_pod(uid), uid), Names()).body)


def _recorded(node: EmbeddedNode, uid: str) -> bool:
    """Return whether the file has the answers of all plugins for a pod."""
    file = node.root.answers
    return file.exists() and file.read_text().count(f'"{uid}"') == len(GIVEN)


def _gives_all(plugin: Plugin) -> bool:
    return len(plugin.allocated.pod_resources) == PODS


def _until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit("it takes too long")
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
