"""The CPUs that `eligible: container` saves: `python -m benchmarks.eligible`.

Many pods have a database, which is to own its CPUs, and two sidecars that use little CPU time most
of the time (the case of kubernetes/kubernetes#106149). By the kubelet's rule the database owns CPUs
only if the sidecars request their limits, too. A scheduler that counts puts each pod on the first
simulated node with room, and the policy `static` of each node chooses the CPUs.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from benchmarks.documents import table
from cpupool.core.cpu_manager import CPUManager, Eligible, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MILLI_PER_CPU, NodePools
from cpupool.core.workloads import QoSClass
from cpupool.policies.built_in import assignable
from cpupool.policies.pools.preferred_cpus import prefer
from cpupool.simulate import workload
from cpupool.simulate.node import SimulatedNode
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.workloads import Pod

PODS: Final = 7500
SIZES: Final = (8, 10, 12)
"""The CPUs of a database."""
SIDECARS: Final = {"logs": (0.5, 4), "maintenance": (0.5, 3)}
"""Sidecar → its request, and its limit."""
MACHINE: Final = MACHINES["epyc_like"].topology()
POLICY: Final = CPUManager("static", CPUSet.parse("0-1,32-33"))


@dataclass(frozen=True, slots=True)
class Way:
    """A way to give the databases CPUs of their own.

    Attributes:
        title: its name.
        eligible: the setting.
        qos: the class of the pods.
        requests: sidecar → its request.
    """

    title: str
    eligible: Eligible
    qos: QoSClass
    requests: dict[str, float]


WAYS: Final = (
    Way(
        "Guaranteed pods, sidecars request their limits",
        Eligible.POD,
        QoSClass.GUARANTEED,
        {name: limit for name, (_, limit) in SIDECARS.items()},
    ),
    Way(
        "Burstable pods, `eligible: container`",
        Eligible.CONTAINER,
        QoSClass.BURSTABLE,
        {name: request for name, (request, _) in SIDECARS.items()},
    ),
)


@dataclass(slots=True)
class Filled:
    """A node with pods.

    Attributes:
        node: the node.
        free_milli: the cpu that the scheduler can still give there.
    """

    node: SimulatedNode
    free_milli: int


@dataclass(slots=True)
class Cluster:
    """As many nodes as the pods need.

    Attributes:
        pools: the pool file of each node.
        size_milli: the cpu that a node can give.
        nodes: the nodes with pods.
    """

    pools: NodePools
    size_milli: int
    nodes: list[Filled] = field(default_factory=list)

    @classmethod
    def empty(cls, eligible: Eligible) -> Self:
        """Return a cluster without pods."""
        pools = NodePools.of(cpu_manager=replace(POLICY, eligible=eligible))
        given = assignable(pools, MACHINE) or CPUSet()
        return cls(pools, len(given) * MILLI_PER_CPU)

    def place(self, pod: Pod) -> None:
        """Admit a pod on the first node with room."""
        milli = pod.request_milli
        found = next((each for each in self.nodes if each.free_milli >= milli), None)
        if found is None:
            node = SimulatedNode(MACHINE, self.pools, prefer, TopologyPolicy.NONE)
            found = Filled(node, self.size_milli)
            self.nodes.append(found)
        found.node.admit(pod, 0)
        found.free_milli -= milli

    def owned(self) -> dict[str, int]:
        """Return container → how many CPUs containers of this name own."""
        counts: dict[str, int] = {}
        for each in self.nodes:
            for placed in each.node.placements():
                name = placed.container.rpartition("/")[2]
                counts[name] = counts.get(name, 0) + len(placed.cpus)
        return counts


def trace(way: Way) -> str:
    """Return the trace of the pods; the databases of each way are the same."""
    dice = random.Random(1)

    def lines() -> Iterator[str]:
        for number in range(PODS):
            size = dice.choice(SIZES)
            containers = [{"name": "db", "cpu": size, "limit": size}]
            for name, (_, limit) in SIDECARS.items():
                containers.append({"name": name, "cpu": way.requests[name], "limit": limit})
            yield json.dumps(
                {"at_s": 0, "pod": f"db/{number}", "qos": way.qos.value, "containers": containers}
            )

    return "\n".join(lines())


def measured(way: Way) -> tuple[Way, Cluster, int]:
    """Place the pods of a way; return the milli-CPUs that they request, too."""
    cluster = Cluster.empty(way.eligible)
    pods = [event.pod for event in workload.read("trace", trace(way))]
    for pod in pods:
        cluster.place(pod)
    return way, cluster, sum(pod.request_milli for pod in pods)


def shown(found: Iterable[tuple[Way, Cluster, int]]) -> str:
    """Return a table."""
    rows = []
    for way, cluster, milli in found:
        owned = cluster.owned()
        databases = owned.pop("db")
        cells = (milli // MILLI_PER_CPU, databases, sum(owned.values()), len(cluster.nodes))
        rows.append((way.title, *(f"{number:,}" for number in cells)))
    header = ("", "cpu that pods request", "CPUs of databases", "CPUs of sidecars", "nodes")
    return table(header, rows)


def main() -> None:
    """Print the table."""
    print(shown(measured(way) for way in WAYS))


if __name__ == "__main__":
    main()
