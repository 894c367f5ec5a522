"""Pods offered to many nodes: which of them the nodes refuse, and which a scheduler keeps away.

50 recorded machines with pools, CPUs offline and pods on them, all from seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import CPUManager, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.node_topology import TopologyManager
from cpupool.core.pod_resources import CPU
from cpupool.core.pool_policy import CPUBindPolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.kube import views
from tests.topology_match import unfit
from tests.topology_nodes import NAMES, ModelNode, pod_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpupool.core.topology import CPUTopology

    Body = dict[str, Any]

NODES: Final = 50
_LEAST_CPUS: Final = 8
_SIZES: Final = (1, 1, 1, 2, 2, 2, 3, 4, 4, 6, 8, 12, 16, 24)
_OFFERED: Final = 60
_SINGLE: Final = TopologyPolicy.SINGLE_NUMA_NODE


class Kind(Enum):
    """What refuses pods on a node."""

    CONTAINERS = "pools, kubelet single-numa-node, container"
    PODS = "pools, kubelet single-numa-node, pod"
    STATIC = "cpuManager static, topologyPolicy single-numa-node"
    BOTH = "the same with pools, kubelet none"
    NONE = "pools, kubelet none"


@dataclass(slots=True)
class Result:
    """What became of the pods that were offered to the nodes of a kind.

    Attributes:
        offered: how many times a pod was offered to a node with enough of all it requests.
        refused: how many of these the node refuses.
        kept_off: how many the filter keeps off.
        refused_behind: how many of those that the filter lets pass the node refuses.
        in_vain: resource → how many the filter keeps off for it, although the node accepts them.
        surprises: what the node says of pods that it refuses behind the filter.
    """

    offered: int = 0
    refused: int = 0
    kept_off: int = 0
    refused_behind: int = 0
    in_vain: Counter[str] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)


def run(machines: Sequence[CPUTopology], *, init: bool = False) -> dict[Kind, Result]:
    """Offer every pod to every node.

    Args:
        machines: the machines; small ones are left out.
        init: whether the offered pods have an init container that requests devices or CPUs.
    """
    able = [machine for machine in machines if len(machine.online) >= _LEAST_CPUS]
    results = {kind: Result() for kind in Kind}
    for number in range(NODES):
        chance = random.Random(number)
        kind = [*Kind][number % len(Kind)]
        node = _node(able[number % len(able)], kind, chance)
        _fill(node, kind, chance)
        published = node.topology_object()
        for body in _bodies(node, kind, chance, _OFFERED, init=init):
            _offer(node, body, published, results[kind])
    return results


def _offer(node: ModelNode, body: Body, published: Body, result: Result) -> None:
    pod = views.pod(body, NAMES)
    if not node.fits(pod) or pod.qos is None:
        return
    refusal = node.refusal(body)
    kept = unfit(body, pod.qos, published, node.allocatable())
    result.offered += 1
    result.refused += bool(refusal)
    result.kept_off += bool(kept)
    if refusal and not kept:
        result.refused_behind += 1
        result.surprises.append(f"{len(node.topology.nodes)} NUMA nodes: {refusal}")
    if kept and not refusal:
        result.in_vain[kept] += 1


def _node(machine: CPUTopology, kind: Kind, chance: random.Random) -> ModelNode:
    off = CPUSet()
    if chance.random() < 1 / 3:
        off = CPUSet(chance.sample([*machine.online], 2)) - CPUSet.of(machine.online.first)
    topology = machine.cut_to(machine.online - off).remembering(machine)
    manager = CPUManager("static", machine.cores[0], topology_policy=_SINGLE)
    if kind is Kind.STATIC:
        return ModelNode(topology, NodePools.of(cpu_manager=manager))
    # The first core, or half of all, is for everyone, and the others are dealt out to pools.
    both = kind is Kind.BOTH
    cores = [*machine.cores[1 :: 2 if both else 1]]
    chance.shuffle(cores)
    most = len(cores) * 2 // 3
    full = PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES, numa=chance.choice([*NUMAPolicy]))
    pools = NodePools.of(
        Pool.named("exclusive_a", str(CPUSet(core.first for core in cores[:most]))),
        replace(Pool.named("exclusive_b", str(CPUSet.union(cores[most:]))), policy=full),
        Pool.named("default", str(machine.online - CPUSet.union(cores))),
        cpu_manager=manager if both else None,
    )
    kubelet = kind in {Kind.CONTAINERS, Kind.PODS}
    scope = Scope.POD if kind is Kind.PODS else Scope.CONTAINER
    policy = _SINGLE if kubelet else TopologyPolicy.NONE
    return ModelNode(topology, pools, TopologyManager(policy, scope))


def _fill(node: ModelNode, kind: Kind, chance: random.Random) -> None:
    """Run some pods, of which some end."""
    fillers = chance.randrange(1 + len(node.topology.cores) // 4)
    for number, body in enumerate(_bodies(node, kind, chance, fillers)):
        name = f"filler-{number}"
        body["metadata"] |= {"name": name, "uid": name}
        if node.fits(views.pod(body, NAMES)) and not node.run(body) and chance.random() < 1 / 4:
            node.end(name)


def _bodies(
    node: ModelNode, kind: Kind, chance: random.Random, number: int, *, init: bool = False
) -> Iterator[Body]:
    threads = max(map(len, node.topology.cores))
    for each in range(number):
        name = f"pod-{each}"
        if kind is Kind.STATIC or (kind is Kind.BOTH and each % 2):
            yield _static(name, chance, init=init)
        else:
            yield _of_pools(name, threads, chance, init=init)


def _static(name: str, chance: random.Random, *, init: bool) -> Body:
    sizes = [chance.choice(_SIZES) for _ in range(chance.choice((1, 1, 2)))]
    first = {CPU: str(chance.choice(_SIZES)), "memory": "1Gi"} if init else None
    return pod_body(name, *({CPU: str(size), "memory": "1Gi"} for size in sizes), init=first)


def _of_pools(name: str, threads: int, chance: random.Random, *, init: bool) -> Body:
    guaranteed = {CPU: "100m", "memory": "1Gi"} if chance.random() < 1 / 2 else {}

    def limits() -> dict[str, str]:
        size = chance.choice(_SIZES)
        asked = chance.choice(
            (("exclusive_a",), ("exclusive_a",), ("exclusive_b",), ("exclusive_a", "exclusive_b"))
        )
        # A pool of whole cores refuses parts of cores, wherever they are.
        whole = {"exclusive_a": size, "exclusive_b": size * threads}
        return {**guaranteed, **{pool: str(whole[pool]) for pool in asked}}

    containers = [limits() for _ in range(chance.choice((1, 1, 2)))]
    return pod_body(name, *containers, init=limits() if init else None)
