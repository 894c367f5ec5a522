"""The benefit and the cost of publishing a node's topology: `python -m benchmarks.node_topology`.

The filter of NodeResourceTopologyMatch over 50 recorded nodes, and the topology reporter's writes,
bytes, time and memory.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from benchmarks.documents import Times, table
from benchmarks.processes import PATIENCE_S, agent, cpu_s, memory
from cpupool.agent.topology_reporter import TopologyReporter
from cpupool.config.settings import Publishing
from cpupool.core.node_topology import NodeMemory
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import Node
from cpupool.host.sysfs import open_topology
from cpupool.manager.node_topology import Surroundings
from cpupool.wire import node_topology as wire
from tests import builders, testdata
from tests.apiserver import FakeAPIServer
from tests.machines import Machine
from tests.topology_match_experiment import NODES, run
from tests.topology_nodes import MEMORY_BYTES, NAMES, ModelNode, pod_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cpupool.wire.node_topology import Observed, Values

MACHINE: Final = Machine(sockets=2, nodes=4, l3=2, cores=16, threads=2)
POOLS: Final = 10
PODS: Final = 250
EVENTS: Final = 200
HOUR_S: Final = 3600.0
APPEARS_S: Final = 2.0
"""The time from Allocate until the API server shows that a pod runs."""
PAUSE_S: Final = 5.0
STEPS: Final = 200
SETTLES_S: Final = 30.0
NAME: Final = "node"


def main() -> None:
    """Run everything and print the tables."""

    def tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    print(refusals(tell), figures(tell), sep="\n\n")


def refusals(tell: Callable[[str], None]) -> str:
    """Return a table: pods offered to nodes, with and without the filter."""
    tell(f"pods for {NODES} nodes, with and without the filter of NodeResourceTopologyMatch")
    recorded = sorted((testdata.folder() / "topologies").glob("*.tar.gz"))
    machines = [open_topology(str(machine)) for machine in recorded]
    rows = []
    for init, which in ((False, ""), (True, "; pods with an init container")):
        for kind, found in run(machines, init=init).items():
            in_vain = ", ".join(f"{name} {n}" for name, n in sorted(found.in_vain.items()))
            counts = (found.offered, found.refused, found.refused_behind, found.in_vain.total())
            rows.append((kind.value + which, *map(str, counts), in_vain or "-"))
    header = ("what refuses", "offered", "refused, no filter", "refused, filter", "in vain", "for")
    return table(header, rows)


def figures(tell: Callable[[str], None]) -> str:
    """Return a table: what the topology reporter writes, and takes."""
    tell("the topology reporter, and agents with and without it")
    return table(("what", "measured"), _figures())


def _figures() -> Iterator[tuple[str, str]]:
    node, found, clock_s = _node(), _Object(), count(step=PAUSE_S)
    reporter = _reporter(node, found, lambda: next(clock_s))
    for number in range(PODS):
        node.run(_pod(number))
    reporter.step()
    what = f"{len(MACHINE.topology().online)} CPUs, {len(node.topology.nodes)} NUMA nodes"
    what = f"{what}, {POOLS} exclusive pools"
    yield f"bytes of the object: {what}", f"{found.bytes}"
    idle = Times.of(reporter.step for _ in range(STEPS))
    yield f"CPU time of a look, {PODS} pods, no change, ms", idle.shown(100)
    yield f"writes in an hour with {EVENTS} events of pods of pools", f"{_writes(1)}"
    yield "the same, half of them of pods without pools", f"{_writes(2)}"
    for publishing in (Publishing.OFF, Publishing.ZONES):
        yield (
            f"agent with {PODS - POOLS} pods, --node-topology={publishing.value}",
            _agent(publishing),
        )


class _Object:
    """A `NodeTopologySink` that is its own API server."""

    version = wire.V1ALPHA2

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self.written_s: list[float] = []
        self.bytes = 0
        self._now_s = now_s
        self._present: tuple[Observed, ...] = ()

    def observed(self) -> tuple[Observed, ...]:
        return self._present

    def wakes(self, _changed: Callable[[], None]) -> None:
        """Nothing else writes the object."""

    def apply(self, node_uid: str, values: Values) -> None:
        body = wire.applied(NAME, node_uid, self.version, values)
        self.written_s.append(self._now_s())
        self.bytes = len(json.dumps(body, separators=(",", ":")))
        owners = frozenset([(NAME, node_uid)])
        self._present = (replace(wire.observed(body), owners=owners, ours=frozenset(values)),)


def _node() -> ModelNode:
    topology = MACHINE.topology()
    cores = [*topology.cores[8:]]
    pools = (
        Pool.named(
            f"exclusive_{number}", ",".join(str(core.first) for core in cores[number::POOLS])
        )
        for number in range(POOLS)
    )
    default = Pool.named("default", ",".join(map(str, topology.cores[:8])))
    return ModelNode(topology, NodePools.of(*pools, default))


def _pod(number: int) -> dict[str, Any]:
    return pod_body(f"pod-{number}", {f"exclusive_{number % POOLS}": "1", "cpu": "10m"})


def _reporter(
    node: ModelNode, found: _Object, now_s: Callable[[], float] = lambda: 0.0
) -> TopologyReporter:
    around = Surroundings(
        memory={number: NodeMemory(MEMORY_BYTES) for number in node.topology.nodes}
    )
    return TopologyReporter(
        node.manager,
        found,
        Publishing.ZONES,
        node=lambda: Node("uid", {}),
        node_name=NAME,
        around=lambda: around,
        ready=lambda: True,
        telemetry=builders.telemetry(),
        now_s=now_s,
    )


def _writes(every: int) -> int:
    """Count the writes of an hour; each pod that ends, or starts, is an event."""
    clock = [0.0]
    node, found = _node(), _Object(lambda: clock[0])
    reporter = _reporter(node, found, lambda: clock[0])
    reporter.step()
    chance = random.Random(1)
    changes: list[tuple[float, Callable[[], None]]] = []
    for number in range(EVENTS // every // 2):
        name = f"pod-{number}"
        started_s = chance.uniform(0, HOUR_S * 3 / 4)
        changes += [
            (started_s, lambda number=number: _start(node, number)),  # type: ignore[misc]
            (started_s + APPEARS_S, lambda name=name: node.shows(name)),  # type: ignore[misc]
            (chance.uniform(started_s + APPEARS_S, HOUR_S), lambda name=name: node.end(name)),  # type: ignore[misc]
        ]
    free_s = 0.0
    for at_s, change in [*sorted(changes, key=lambda one: one[0]), (HOUR_S, lambda: None)]:
        if clock[0] < free_s <= at_s:
            # A write was put off.
            clock[0] = free_s
            reporter.step()
            free_s = found.written_s[-1] + PAUSE_S
        clock[0] = at_s
        change()
        if at_s >= free_s:
            reporter.step()
            free_s = found.written_s[-1] + PAUSE_S
    return len(found.written_s) - 1


def _start(node: ModelNode, number: int) -> None:
    node.run(_pod(number), shown=False)


def _agent(publishing: Publishing) -> str:
    """Return the cost of an agent while many pods start, and some time after the last of them."""
    pools = [f'  {pool.name}: {{cpus: "{pool.cpus}"}}\n' for pool in _node().pools]
    options = ("--metrics-port", "0", "--node-topology", publishing.value)
    with FakeAPIServer() as api:
        api.crds[wire.GROUP] = [*wire.VERSIONS]
        with agent(api, MACHINE, f"pools:\n{''.join(pools)}", *options) as (node, pid):
            for number in range(POOLS):
                resource = NAMES.resource(f"exclusive_{number}")
                node.kubelet.wait_for(resource, lambda listing: listing.allocatable > 0, PATIENCE_S)
            before_s = cpu_s(pid)
            for number in range(PODS - POOLS):
                node.run_pod({"kind": "Pod", **_pod(number)})
            threading.Event().wait(SETTLES_S)
            busy_s = cpu_s(pid) - before_s
            wrote = sum(asked.verb == "patch" for asked in list(api.requests))
            return f"{memory(pid)}, CPU time {busy_s:.1f} s, {wrote} patches"


if __name__ == "__main__":
    started_s = time.monotonic()
    main()
    print(f"{time.monotonic() - started_s:.0f} s", file=sys.stderr)
