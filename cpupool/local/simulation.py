"""What if: where pods would land on a machine with given pools, under one policy or another.

A function of values: the machine, its pools, and a trace of pods that come and go. A pod that does
not fit does not wait: it is refused, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cpupool.config import pool_rules
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PodRefused, refuse_errors
from cpupool.core.pool_policy import NUMAPolicy
from cpupool.core.pools import NodePools, PoolKind
from cpupool.local.alignment import Alignment
from cpupool.local.simulated_node import Node, Placement, called
from cpupool.policies import pool_choice
from cpupool.policies.base import Choice, Step
from cpupool.policies.hints import TopologyPolicy
from cpupool.policies.kubelet_accumulator import take_packed
from cpupool.policies.layout import Layout, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cpupool.core.pools import Pool
    from cpupool.core.topology import CPUTopology
    from cpupool.local.simulated_node import Admitted, Chooser, Moment
    from cpupool.local.workload import Event

POOL: Final = "pool"
FIRST_FIT: Final = "first-fit"
KUBELET_PACKED: Final = "kubelet-packed"
POLICIES: Final = (POOL, FIRST_FIT, KUBELET_PACKED, *(policy.value for policy in NUMAPolicy))
"""The policies that can be compared; those after the first three stand for a `numaPolicy`."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that does not fit.

    Attributes:
        at_s: when it came.
        why: the pod and the reason.
    """

    at_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers.

    Attributes:
        admitted: pods that fitted.
        refused: pods that did not.
        on_one_node: of all containers that could be placed on one NUMA node if the pool were
            empty, the share that was; None without any.
        behind_one_cache: likewise for L3 caches.
        utilisation: the mean of `Moment.utilisation` over time; the last where no time passes.
        fragmentation: likewise.
        fragmentation_at_end: that of the last moment.
        largest_block_at_end: likewise.
    """

    admitted: int
    refused: int
    on_one_node: float | None
    behind_one_cache: float | None
    utilisation: float
    fragmentation: float
    fragmentation_at_end: float
    largest_block_at_end: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the pods.

    Attributes:
        summary: in numbers.
        series: the node over time, one moment for each time at which something happened.
        placements: what containers got, or did not get, in the order of their coming.
        running: those of them that are in place at the end.
        refusals: the pods that did not fit.
    """

    summary: Summary
    series: tuple[Moment, ...]
    placements: tuple[Placement, ...]
    running: tuple[Placement, ...]
    refusals: tuple[Refusal, ...]


def compare(
    topology: CPUTopology,
    node_pools: NodePools,
    events: Iterable[Event],
    policies: Iterable[str],
    *,
    manager: TopologyPolicy = TopologyPolicy.NONE,
    tell: Callable[[], None] = lambda: None,
) -> dict[str, Outcome]:
    """Run the same events under several policies.

    Args:
        topology: the machine.
        node_pools: its pools, which fit it.
        events: pods that come and go, in the order of time; at least one.
        policies: of `POLICIES`.
        manager: the kubelet's Topology Manager policy.
        tell: called after each event of each policy.

    Raises:
        ConfigError: an exclusive pool cannot have the policy.
    """
    trace = tuple(events)

    def told() -> Iterator[Event]:
        for event in trace:
            yield event
            tell()

    # Each has its pools before the first begins, so that none runs in vain.
    rules = {name: rule(node_pools, topology, name) for name in policies}
    return {
        name: run(topology, changed_pools, chooser, told(), manager)
        for name, (changed_pools, chooser) in rules.items()
    }


def rule(node_pools: NodePools, topology: CPUTopology, policy: str) -> tuple[NodePools, Chooser]:
    """Give the pools and the chooser that stand for one of `POLICIES`.

    Raises:
        ConfigError: an exclusive pool cannot have that `numaPolicy`.
    """
    if policy == FIRST_FIT:
        return node_pools, first_fit
    if policy == KUBELET_PACKED:
        return node_pools, kubelet_packed
    if policy != POOL:
        numa = NUMAPolicy(policy)
        node_pools = NodePools.of(
            *(
                replace(pool, policy=replace(pool.policy, numa=numa))
                if pool.kind is PoolKind.EXCLUSIVE
                else pool
                for pool in node_pools
            ),
            mixed=node_pools.mixed,
        )
        refuse_errors(pool_rules.validate(node_pools, topology))
    return node_pools, pool_choice.prefer


def run(
    topology: CPUTopology,
    node_pools: NodePools,
    chooser: Chooser,
    events: Iterable[Event],
    manager: TopologyPolicy = TopologyPolicy.NONE,
) -> Outcome:
    """Let pods come and go on one node.

    Args:
        topology: the machine.
        node_pools: its pools, which fit it.
        chooser: what gives the kubelet advice.
        events: in the order of time; at least one.
        manager: the policy of the kubelet's Topology Manager, whose scope is the container.
    """
    node = Node(topology, node_pools, chooser, manager)
    admitted: list[Admitted] = []
    placements: list[Placement] = []
    refusals: list[Refusal] = []
    series: list[Moment] = []
    for event in events:
        if event.ends:
            node.end(event.pod)
        else:
            try:
                admitted.append(node.admit(event.pod, event.at_s))
                placements += admitted[-1].placements
            except PodRefused as error:
                refusals.append(Refusal(event.at_s, str(error)))
                placements += _nothing(event, str(error))
        if series and series[-1].at_s == event.at_s:
            series.pop()
        series.append(node.moment(event.at_s))
    return Outcome(
        _summary(series, admitted, len(refusals)),
        tuple(series),
        tuple(placements),
        tuple(node.placements()),
        tuple(refusals),
    )


def _nothing(event: Event, why: str) -> Iterator[Placement]:
    for container in event.pod.containers:
        for pool, count in sorted(container.requests.items()):
            name = called(event.pod, container)
            yield Placement(event.at_s, name, pool, count, refused=why)


def _summary(series: Sequence[Moment], admitted: Sequence[Admitted], refused: int) -> Summary:
    spans = [(one, other.at_s - one.at_s) for one, other in pairwise(series)]
    last = series[-1]
    # Where everything happens at once, the end is all there is to measure.
    weighed = spans or [(last, 1.0)]
    whole_s = sum(span_s for _, span_s in weighed)
    alignment = Alignment.total(one.alignment for one in admitted)
    return Summary(
        admitted=len(admitted),
        refused=refused,
        on_one_node=alignment.share(Level.NODE),
        behind_one_cache=alignment.share(Level.UNCORE),
        utilisation=sum(one.utilisation * span_s for one, span_s in weighed) / whole_s,
        fragmentation=sum(one.fragmentation * span_s for one, span_s in weighed) / whole_s,
        fragmentation_at_end=last.fragmentation,
        largest_block_at_end=last.largest_block,
    )


def first_fit(
    pool: Pool,
    topology: CPUTopology,
    free: CPUSet,
    count: int,
    *,
    required: CPUSet | None = None,
    held: CPUSet | None = None,
) -> Choice:
    """Take the lowest ids, whatever they are: what a plugin without an opinion leaves to chance."""
    del pool, topology, held
    cpus = required or CPUSet()
    cpus |= CPUSet(cpu for cpu, _ in zip(free - cpus, range(count - len(cpus)), strict=False))
    return Choice(cpus, (Step(FIRST_FIT, "the lowest ids that are free", cpus),), proven=True)


def kubelet_packed(
    pool: Pool,
    topology: CPUTopology,
    free: CPUSet,
    count: int,
    *,
    required: CPUSet | None = None,
    held: CPUSet | None = None,
) -> Choice:
    """Take what the kubelet's own CPU manager would of the CPUs that the pool offers."""
    del held
    given = required or CPUSet()
    layout = Layout.of_topology(topology, pool.offered)
    taken = take_packed(layout, free - given, count - len(given))
    cpus = given | taken.cpus
    why = "as the kubelet's static CPU manager policy packs them"
    return Choice(cpus, (Step(KUBELET_PACKED, why, cpus),), taken.proven)
