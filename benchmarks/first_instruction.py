"""The time for which containers of a real containerd run on wrong CPUs, and the cost of starts.

Wrong is the time from the first instruction of a container's program until it is on its own CPUs
for good, as the program itself sees it every millisecond; zero where it was never elsewhere. The
containers are exclusive when one starts at a time, and of a shared pool, beside a default one, when
ten start at once.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.processes import AS_IN_THE_IMAGE, cpu_s, memory
from tests.containerd import node as nodes
from tests.containerd.node import BURST, Node, at_once
from tests.containerd.pods import Hosted, Kind
from tests.containerd.runtime import ContainerdHost
from tests.plugins import AnyPlugin
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.rows import Row
    from cpupool.host.root import HostRoot

CONTAINERS: Final = 100
PAIRS: Final = 100
SETTLED_S: Final = 5.0
QUIET_S: Final = 30.0

# ../shared/reference/baseline.md: the peers on a real kubelet and containerd, 2 CPUs, 30 containers
# a row, p50 / max.
CPU_POOLER_SINGLE: Final = "CPU-Pooler without its starter 156 / 173 ms"
CPU_POOLER_BURST: Final = "CPU-Pooler 230 / 360 ms"
CPU_POOLER_START: Final = "CPU-Pooler with its starter +1050 ms"
CPU_POOLER_MEMORY: Final = "CPU-Pooler 59 MiB in 2 processes, dra-driver-cpu 42 MiB"
_AIMS: Final = {"nri": "0", "cri": "-", "cgroup": "max 20 ms", "cgroup without CRI": "-"}


def first_instruction() -> Iterator[Row]:
    """Containers of a real containerd on wrong CPUs, and their starts."""
    try:
        with host() as managed, host() as alone:
            for way in _AIMS:
                yield from _wrong(managed, way)
            yield from _starts(managed, alone)
    except pytest.skip.Exception as reason:
        yield ("containers of a real containerd", f"not measured: {reason}", "-")


@contextmanager
def host() -> Iterator[Node]:
    """Run a node with a containerd of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="cpl-", dir="/tmp") as folder,
        ContainerdHost(Path(folder)) as host,
        nodes.node(host) as node,
    ):
        yield node


def _wrong(node: Node, way: str) -> Iterator[Row]:
    """Measure one way of setting CPUs."""
    options: tuple[str, ...] = ()
    if way.endswith("without CRI"):
        options = ("--host-root", str(_without_runtime(node.host.root)))
    enforcement, aim = way.split(maxsplit=1)[0], _AIMS[way]
    node.configure(node.layouts[0])
    with node.agent(enforcement, *options, environment=AS_IN_THE_IMAGE):
        rounds = ([node.run(Kind.EXCLUSIVE)] for _ in range(CONTAINERS))
        yield (
            f"{way}: on wrong CPUs, one start at a time",
            _spread(wrong_ms(node, rounds)),
            f"{aim}; {CPU_POOLER_SINGLE}",
        )
    node.configure(node.layouts[-1])
    with node.agent(enforcement, *options, environment=AS_IN_THE_IMAGE) as agent:
        before_s = cpu_s(agent.pid)
        bursts = (at_once(node.run, [Kind.SHARED] * BURST) for _ in range(CONTAINERS // BURST))
        yield (
            f"{way}: on wrong CPUs, {BURST} starts at once",
            _spread(wrong_ms(node, bursts)),
            f"{aim}; {CPU_POOLER_BURST}",
        )
        each_ms = (cpu_s(agent.pid) - before_s) / CONTAINERS * 1000
        at_once(node.run, [Kind.SHARED] * BURST)
        threading.Event().wait(SETTLED_S)
        before_s = cpu_s(agent.pid)
        threading.Event().wait(QUIET_S)
        idle = (cpu_s(agent.pid) - before_s) / QUIET_S * 100
        yield (f"{way}: the agent with {BURST} pods", memory(agent.pid), CPU_POOLER_MEMORY)
        yield (
            f"{way}: the agent's CPU time",
            f"{each_ms:.1f} ms for a container's life, {idle:.3f} % of a core in {QUIET_S:.0f} s",
            "idle 0.1 %",
        )
        node.clear()


def _without_runtime(host: HostRoot) -> Path:
    """Make a place from which everything of a node is seen but the sockets of its runtime."""
    made = host.base / "blind"
    host.run.mkdir(parents=True, exist_ok=True)
    for name in ("sys", "proc", "var", "run/cpupool"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).symlink_to(host.base / name)
    return made


def wrong_ms(node: Node, rounds: Iterable[list[Hosted]]) -> Iterator[float]:
    """Yield how long each of some pods was on wrong CPUs; each round is removed after that."""
    for pods in rounds:
        node.await_right(pods)
        for one in pods:
            wrong_ns = node.record(one).wrong_ns(node.expected(one))
            assert wrong_ns is not None
            yield wrong_ns / 1e6
        at_once(node.remove, pods)


def _starts(managed: Node, alone: Node) -> Iterator[Row]:
    """Start the same pod here and there in turns, where an agent pins it and where none is."""
    managed.configure(managed.layouts[0])
    with managed.agent("nri"), somebody_offers(alone, managed.layouts[0].resources[-1], ["1"]):
        pairs = [(_start_ms(alone), _start_ms(managed)) for _ in range(PAIRS)]
    unmanaged, pinned = zip(*pairs, strict=True)
    more = [with_agent - without for without, with_agent in pairs]
    what = "creation asked for until the first instruction"
    yield (f"{what}, without a CPU manager", _spread(unmanaged), "-")
    yield (f"{what}, pinned by nri", _spread(pinned), "-")
    yield ("what pinning adds, in pairs", f"p50 {quantiles(more)[1]:+.2f} ms", CPU_POOLER_START)


def _start_ms(node: Node) -> float:
    one = node.run(Kind.EXCLUSIVE)
    began_ns = node.record(one).sightings[0].at_ns
    node.remove(one)
    return (began_ns - one.called_ns) / 1e6


@contextmanager
def somebody_offers(node: Node, resource: str, ids: Iterable[str]) -> Iterator[None]:
    """Let a device plugin that adds nothing to containers offer the resource of a pool."""
    plugin = AnyPlugin(resource)
    folder = node.host.root.device_plugins
    with plugin.serving(folder / "other.sock"):
        plugin.list(dict.fromkeys(ids))
        plugin.register(node.host.root.kubelet_socket, "other.sock")
        eventually(lambda: node.kubelet.listing(resource).allocatable, f"{resource} is offered")
        yield


def _spread(values_ms: Iterable[float]) -> str:
    values_ms = list(values_ms)
    percentiles = quantiles(values_ms, n=100, method="inclusive")
    p50, p99 = percentiles[49], percentiles[98]
    return f"p50 {p50:.1f}, p99 {p99:.1f}, max {max(values_ms):.1f} ms"
