"""Measure what cpupool costs a node: `make bench`, or `python -m benchmarks`.

CPU time and memory of this machine, printed as a table beside the aims. Ratios travel to other
machines, absolute figures do not.
"""

from __future__ import annotations

import socketserver
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.admitting import admitting
from benchmarks.bursts import bursts
from benchmarks.first_instruction import first_instruction
from benchmarks.imports import imports
from benchmarks.processes import PATIENCE_S, cpu_s, memory
from benchmarks.processes import agent as running
from benchmarks.resizing import resizing
from benchmarks.rest import rest
from benchmarks.rows import ms, wall_ms, written
from benchmarks.starter import starter
from benchmarks.sweeps import sweep
from benchmarks.webhook import webhook
from benchmarks.webhook_rest import webhook_rest
from cpupool.api import deviceplugin_pb2 as pb
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.manager.manager import Manager
from cpupool.rpc.serving import ServingLoop
from tests import builders
from tests.apiserver import FakeAPIServer
from tests.cgroups import overwrite
from tests.kubelets import dial
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rows import Row
    from cpupool.core.workloads import Pod
    from cpupool.local.node import EmbeddedNode
    from cpupool.local.pods import ContainerProcess

CALLS = 300
POOLS = ("exclusive_a", "exclusive_b", "shared_a")
SHARED = "128-143"
PODS = 250
RESTARTS = 100
QUIET_S = 60.0
WIDENED = 3


def main() -> None:
    """Run everything and print the table; arguments name what to run alone, as `rest`."""
    rows: list[Row] = []
    everything = (
        *(sweep, shared_pool, starter, webhook, agent, rest, imports),
        *(webhook_rest, first_instruction, bursts, admitting, resizing),
    )
    wanted = sys.argv[1:]
    for measure in everything:
        if wanted and measure.__name__ not in wanted:
            continue
        print(f"measuring: {measure.__doc__}", file=sys.stderr, flush=True)
        rows += measure()
    print(written(rows))


def shared_pool() -> Iterator[Row]:
    """Allocate and ListAndWatch of a shared pool of 200 CPUs."""
    pool = Pool.named("shared_big", "0-199")
    manager = Manager(Names())
    manager.reconfigure(NodePools.of(pool), Machine(cores=200).topology())
    with tempfile.TemporaryDirectory(prefix="cpl-") as folder, ServingLoop() as loop:
        server = DevicePluginServer(manager, builders.resource(pool.name), Path(folder), loop)
        server.start()
        socket = Path(folder) / server.endpoint
        with dial(socket) as opened:
            plugin = DevicePluginStub(opened)
            lists: list[pb.ListAndWatchResponse] = []
            list_ms = [wall_ms(lambda: lists.append(_first_list(plugin))) for _ in range(10)]
            for asked in (1, 1000):
                request = pb.AllocateRequest()
                request.container_requests.add().devices_ids.extend(map(str, range(asked)))
                call_ms = [wall_ms(partial(plugin.Allocate, request)) for _ in range(CALLS)]
                yield (
                    f"Allocate of {asked} of {len(lists[0].devices)} devices",
                    ms(call_ms),
                    "p99 5 ms",
                )
        server.stop()
    size_mib = lists[0].ByteSize() / 2**20
    yield (f"first ListAndWatch message, {size_mib:.2f} MiB", ms(list_ms), "-")


def _first_list(plugin: DevicePluginStub) -> pb.ListAndWatchResponse:
    stream = plugin.ListAndWatch(pb.Empty())
    first: pb.ListAndWatchResponse = next(iter(stream))
    stream.cancel()
    return first


def agent() -> Iterator[Row]:
    """The agent's process with two pools of 64 exclusive CPUs and a shared one of 16."""
    # 160 cores of two threads on 8 NUMA nodes.
    machine = Machine(sockets=2, nodes=4, l3=2, cores=10, threads=2)
    pools = (
        'pools:\n  exclusive_a: {cpus: "0-63"}\n  exclusive_b: {cpus: "64-127"}\n'
        f'  shared_a: {{cpus: "{SHARED}"}}\n  default: {{cpus: "144-159"}}\n'
    )
    port = ("--metrics-port", str(_free_port()))
    with FakeAPIServer() as api, running(api, machine, pools, *port) as (node, pid):
        yield from _agent_rows(_AgentOnNode(node, api, pid))


@dataclass(frozen=True, slots=True)
class _AgentOnNode:
    node: EmbeddedNode
    api: FakeAPIServer
    pid: int

    def await_pools(self) -> None:
        for pool in POOLS:
            resource = Names().resource(pool)
            self.node.kubelet.wait_for(
                resource, lambda listing: listing.allocatable > 0, PATIENCE_S
            )

    def run(self, name: str, containers: int) -> Pod:
        limits = {Names().resource("shared_a"): "10"}
        spec = [
            {"name": f"c{number}", "resources": {"limits": limits}} for number in range(containers)
        ]
        return self.node.run_pod(
            {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": spec}}
        )

    def await_placed(self) -> None:
        _until(lambda: all(self.cpus(one).read_text().strip() == SHARED for one in self.started()))

    def started(self) -> list[ContainerProcess]:
        return [process for process in self.node.processes() if process.container]

    def cpus(self, process: ContainerProcess) -> Path:
        base = self.node.root.cgroup / "cpuset"
        return base / self.node.path_of(process) / "cpuset.cpus"

    def placed_after_ms(self, process: ContainerProcess) -> float:
        """Say how long after its cgroup was made a container was on its CPUs."""
        _until(lambda: self.cpus(process).read_text().strip() == SHARED)
        right = self.cpus(process)
        made = right.with_name("cpuset.mems")
        return (right.stat().st_mtime_ns - made.stat().st_mtime_ns) / 1e6

    def right_after_all_are_widened_ms(self) -> float:
        """Widen every container, and return how long after that all are right again."""
        places = [self.cpus(process) for process in self.started()]
        for place in places:
            overwrite(place, CPUSet.parse(SHARED) | CPUSet.of(0))
        widened_s = time.monotonic()
        self.await_placed()
        return (time.monotonic() - widened_s) * 1000

    def registered_after_ms(self) -> float:
        """Restart the kubelet and say how long after its socket was there it knew every pool."""
        self.node.kubelet.restart()
        self.await_pools()
        return (time.time_ns() - self.node.root.kubelet_socket.stat().st_mtime_ns) / 1e6


def _agent_rows(on: _AgentOnNode) -> Iterator[Row]:
    on.await_pools()
    yield ("agent at rest, no pods", memory(on.pid), "50 MiB resident")
    pods = [on.run(f"p{number}", 1) for number in range(20)]
    on.await_placed()
    yield ("agent with 20 pods", memory(on.pid), "50 MiB resident")
    fresh_ms = [on.placed_after_ms(process) for process in on.started()]
    for pod in pods:
        on.node.restart_container(pod.uid, "c0")
    again_ms = [on.placed_after_ms(process) for process in on.started()]
    yield ("new container, cgroup made until right", ms(fresh_ms), "-")
    yield ("restarted container, the same", ms(again_ms), "as a new one")
    registered_ms = [on.registered_after_ms() for _ in range(RESTARTS)]
    yield (
        f"kubelet's socket until {len(POOLS)} pools registered",
        (
            f"first {registered_ms[0]:.0f} ms, {RESTARTS}th {registered_ms[-1]:.0f} ms,"
            f" {ms(registered_ms)}"
        ),
        "80 ms",
    )
    for number in range(20, PODS):
        on.run(f"p{number}", 2)
    on.await_placed()
    yield (f"agent with {PODS} pods of 2 containers", memory(on.pid), "58 MiB resident")
    again_ms = [on.right_after_all_are_widened_ms() for _ in range(WIDENED)]
    yield (
        f"all {len(on.started())} containers widened at once, until right",
        ms(again_ms),
        "1 s",
    )
    threading.Event().wait(QUIET_S)
    asked, used_s = len(on.api.requests), cpu_s(on.pid)
    threading.Event().wait(QUIET_S)
    requests = Counter(one.verb for one in on.api.requests[asked:])
    share = (cpu_s(on.pid) - used_s) / QUIET_S * 100
    yield (f"its CPU time over {QUIET_S:.0f} idle s", f"{share:.3f} % of a core", "0.1 %")
    watches = on.api.watching("pods"), on.api.watching("nodes")
    yield (
        "what it asked of the API server meanwhile",
        (
            f"{requests['list']} lists, {requests['watch']} watches; open: {watches[0]} of pods,"
            f" {watches[1]} of nodes"
        ),
        "0 lists, 1 watch",
    )


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "the agent has not placed the containers"
        pause.wait(0.02)


def _free_port() -> int:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return server.server_address[1]


if __name__ == "__main__":
    main()
