"""Measure what cpupool costs a node: `make bench`, or `python -m benchmarks`.

CPU time and memory of this machine, printed as a table beside the aims. Ratios travel to other
machines, absolute figures do not.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cpupool.api import deviceplugin_pb2 as pb
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.commands.drawing import show, table
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import MAX_DEVICE_LIST_BYTES, NodePools, Pool
from cpupool.host.cgroupfs import CgroupFS
from cpupool.kubelet import channel
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.local import cgroups
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from cpupool.manager.manager import Manager
from cpupool.roles.cpusetter import CPUSetter
from tests import builders
from tests.machines import MACHINES, Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cpupool.core.workloads import Pod

CONTAINERS = 500
SWEEPS = 50
CALLS = 300
PATIENCE_S = 60.0
SHARED = "128-143"

Row = tuple[str, str, str]


def main() -> None:
    """Run everything and print the table."""
    rows: list[Row] = []
    for measure in (sweep, shared_pool, agent_memory):
        print(f"measuring: {measure.__doc__}", file=sys.stderr, flush=True)
        rows += measure()
    show(table(("what", "measured", "aim"), rows), sys.stdout)


def sweep() -> Iterator[Row]:
    """A sweep over 500 containers with nothing to repair."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as folder, ExitStack() as stack:
        everything = CPUSet.of(0)
        place = stack.enter_context(cgroups.opened(Path(folder), "bench", everything))
        pods = [builders.pod(f"p{number}") for number in range(CONTAINERS // 2)]
        for pod in pods:
            # As on a real node: a sandbox and a container in each pod.
            place.make(f"kubepods/burstable/pod{pod.uid}/{'0' * 64}")
            place.make(f"kubepods/burstable/pod{pod.uid}/{pod.containers[0].id}")
        manager = Manager(Names())
        manager.reconfigure(
            NodePools.of(Pool.named("default", "0")), MACHINES["single_cpu"].topology()
        )
        source = _Pods(tuple(pods))
        setter = CPUSetter(
            manager=manager,
            tree=CgroupFS(place.root, place.cgroup_root),
            pods=source,
            devices=source,
            checkpoint=source,
            interval_s=1.0,
            swept=lambda _report: None,
        )
        setter.sweep()
        report = setter.sweep()
        assert len(report.found) == CONTAINERS
        assert not report.repairs
        cpu_ms = [_cpu_ms(setter.sweep) for _ in range(SWEEPS)]
        kind = "emulated" if isinstance(place, EmulatedCgroups) else "real"
    yield (f"sweep of {CONTAINERS} right containers, {kind} cgroups", _ms(cpu_ms), "50 ms of CPU")


class _Pods:
    """Pods whose containers request nothing, so the kubelet has nothing to say."""

    def __init__(self, pods: tuple[Pod, ...]) -> None:
        self._pods = pods

    def pods(self) -> tuple[Pod, ...]:
        return self._pods

    def by_pod_name(self) -> dict[tuple[str, str], dict[str, dict[str, frozenset[str]]]]:
        return {}

    def by_pod_uid(self) -> dict[str, dict[str, dict[str, frozenset[str]]]]:
        return {}


def shared_pool() -> Iterator[Row]:
    """Allocate and ListAndWatch of a shared pool of 200 CPUs."""
    pool = Pool.named("shared_big", "0-199")
    manager = Manager(Names())
    manager.reconfigure(NodePools.of(pool), Machine(cores=200).topology())
    with tempfile.TemporaryDirectory(prefix="cpl-") as folder:
        server = DevicePluginServer(manager, pool, Path(folder))
        server.start()
        socket = Path(folder) / server.endpoint
        with channel.opened(socket, MAX_DEVICE_LIST_BYTES) as opened:
            plugin = DevicePluginStub(opened)
            lists: list[pb.ListAndWatchResponse] = []
            list_ms = [_wall_ms(lambda: lists.append(_first_list(plugin))) for _ in range(10)]
            for asked in (1, 1000):
                request = pb.AllocateRequest()
                request.container_requests.add().devices_ids.extend(map(str, range(asked)))
                call_ms = [_wall_ms(partial(plugin.Allocate, request)) for _ in range(CALLS)]
                yield (
                    f"Allocate of {asked} of {len(lists[0].devices)} devices",
                    _ms(call_ms),
                    "p99 5 ms",
                )
        server.stop()
    size_mib = lists[0].ByteSize() / 2**20
    yield (f"first ListAndWatch message, {size_mib:.2f} MiB", _ms(list_ms), "-")


def _first_list(plugin: DevicePluginStub) -> pb.ListAndWatchResponse:
    stream = plugin.ListAndWatch(pb.Empty())
    first: pb.ListAndWatchResponse = next(iter(stream))
    stream.cancel()
    return first


def agent_memory() -> Iterator[Row]:
    """Resident memory of the agent with two pools of 64 exclusive CPUs and a shared one of 16."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as name:
        folder = Path(name)
        # 160 cores of two threads on 8 NUMA nodes.
        machine = Machine(sockets=2, nodes=4, l3=2, cores=10, threads=2).write(folder)
        config = folder / "etc"
        config.mkdir()
        (config / "poolconfig-bench.yaml").write_text(
            f'pools:\n  exclusive_a: {{cpus: "0-63"}}\n  exclusive_b: {{cpus: "64-127"}}\n'
            f'  shared_a: {{cpus: "{SHARED}"}}\n  default: {{cpus: "144-159"}}\n'
        )
        with (
            EmulatedCgroups(folder, machine.topology().online, "measuring") as place,
            EmbeddedNode(folder, place, sysfs=machine.sys) as node,
        ):
            pods = folder / "pods.json"
            pods.write_text(json.dumps(node.bodies()))
            agent = subprocess.Popen(
                [
                    *(sys.executable, "-m", "cpupool", "agent", "--host-root", name),
                    *("--config", str(config), "--pods", str(pods)),
                ],
                stderr=subprocess.DEVNULL,
            )
            try:
                yield from _agent_rows(node, pods, agent.pid)
            finally:
                agent.terminate()
                agent.wait(10)


def _agent_rows(node: EmbeddedNode, pods: Path, pid: int) -> Iterator[Row]:
    for pool in ("exclusive_a", "exclusive_b", "shared_a"):
        resource = Names().resource(pool)
        node.kubelet.wait_for(resource, lambda listing: listing.allocatable > 0, PATIENCE_S)
    yield ("agent at rest, no pods", _memory(pid), "42 MiB resident")
    for number in range(20):
        amounts = {Names().resource("shared_a"): "100"}
        node.run_pod(
            {
                "kind": "Pod",
                "metadata": {"name": f"p{number}"},
                "spec": {"containers": [{"name": "main", "resources": {"limits": amounts}}]},
            }
        )
    pods.write_text(json.dumps(node.bodies()))
    _wait_until_placed(node)
    yield ("agent with 20 pods", _memory(pid), "42 MiB resident")


def _wait_until_placed(node: EmbeddedNode) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    tree = CgroupFS(node.root.cgroup, node.cgroup_root)
    paths = [node.path_of(process) for process in node.processes() if process.container]
    while any(str(tree.effective(path)) != SHARED for path in paths):
        assert time.monotonic() < deadline_s, "the agent has not placed the containers"
        pause.wait(0.05)


def _memory(pid: int) -> str:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return f"RSS {kib['Rss'] / 1024:.1f} MiB, PSS {kib['Pss'] / 1024:.1f} MiB"


def _cpu_ms(call: Callable[[], object]) -> float:
    before_s = time.process_time()
    call()
    return (time.process_time() - before_s) * 1000


def _wall_ms(call: Callable[[], object]) -> float:
    before_s = time.perf_counter()
    call()
    return (time.perf_counter() - before_s) * 1000


def _ms(values: Iterable[float]) -> str:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered):.2f} ms, p99 {p99:.2f} ms"


if __name__ == "__main__":
    main()
