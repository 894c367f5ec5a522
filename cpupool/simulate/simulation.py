"""The simulation: the placement of pods on a machine with given pools, under several policies.

It is a function of values: the machine, its pools, and a trace of pods that come and go. A pod that
does not fit does not wait: it is refused, with the reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from cpupool.config import pool_rules
from cpupool.core.assignments import Step
from cpupool.core.cpu_manager import (
    CPU_MANAGER,
    POLICY,
    STATIC,
    Eligible,
    Misfit,
    SystemPods,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, PodRefused, Problem, refuse_errors
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pool_policy import NUMAPolicy
from cpupool.core.pools import NodePools, PoolKind
from cpupool.policies.accumulators.kubelet import take_packed
from cpupool.policies.base import Choice
from cpupool.policies.built_in import CHOOSING
from cpupool.policies.layout import Layout, Level
from cpupool.policies.pools import preferred_cpus
from cpupool.simulate.alignment import Alignment
from cpupool.simulate.node import (
    Outcome,
    PlacementRecord,
    ResizeRecord,
    SimulatedNode,
    container_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cpupool.core.pools import Pool
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.base import CPUManagerPolicy
    from cpupool.simulate.cpu_manager import MoveRecord
    from cpupool.simulate.node import Chooser, Moment, SimulatedPod
    from cpupool.simulate.workload import Event

POOL: Final = "pool"
FIRST_FIT: Final = "first-fit"
KUBELET_PACKED: Final = "kubelet-packed"
POLICIES: Final = (
    POOL,
    *CHOOSING,
    FIRST_FIT,
    KUBELET_PACKED,
    *(policy.value for policy in NUMAPolicy),
)
"""The policies to compare; those after `kubelet-packed` are values of `numaPolicy`."""
_NONE: Final[Mapping[str, type[CPUManagerPolicy]]] = {}


@dataclass(frozen=True, slots=True)
class RefusedArrival:
    """A pod that does not fit.

    Attributes:
        at_s: when it came.
        why: the pod and the reason.
    """

    at_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of a run.

    Attributes:
        admitted: how many pods came in, at once or later.
        refused: how many pods did not fit.
        waited: how many of the admitted pods waited for CPUs of the CPU manager policy.
        waited_s: how long these pods waited, the mean; until the end for a pod that waits then.
        waiting_at_end: how many pods wait at the end.
        resizes_served: how many containers got the cpu of a resize.
        resizes_refused: how many did not get it.
        resizes_ignored: how many keep the CPUs that they own, because the policy resizes none.
        moves: how many moves to other CPUs have begun.
        on_one_node: the share of containers on one NUMA node, among the containers that could be on
            one node if the pool were empty; None without such containers.
        behind_one_cache: the same for L3 caches.
        utilisation: the mean of `Moment.utilisation` over time; the last where no time passes.
        fragmentation: the same of `Moment.fragmentation`.
        fragmentation_at_end: the fragmentation of the last moment.
        largest_block_at_end: the largest block of the last moment.
    """

    admitted: int
    refused: int
    waited: int
    waited_s: float
    waiting_at_end: int
    resizes_served: int
    resizes_refused: int
    resizes_ignored: int
    moves: int
    on_one_node: float | None
    behind_one_cache: float | None
    utilisation: float
    fragmentation: float
    fragmentation_at_end: float
    largest_block_at_end: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a run.

    Attributes:
        summary: the numbers.
        series: the node over time, one moment for each time with an event.
        placements: the CPUs of containers, or their refusals, in the order of arrival.
        running: the placements of pods that run at the end.
        refusals: the pods that did not fit.
        resizes: the resizes of containers in place, in the order of time.
        moves: the moves of containers, in the order of time.
    """

    summary: Summary
    series: tuple[Moment, ...]
    placements: tuple[PlacementRecord, ...]
    running: tuple[PlacementRecord, ...]
    refusals: tuple[RefusedArrival, ...]
    resizes: tuple[ResizeRecord, ...] = ()
    moves: tuple[MoveRecord, ...] = ()


def compare(
    topology: CPUTopology,
    node_pools: NodePools,
    events: Iterable[Event],
    policies: Iterable[str],
    *,
    installed: Mapping[str, type[CPUManagerPolicy]] = _NONE,
    manager: TopologyPolicy = TopologyPolicy.NONE,
    tell: Callable[[], None] = lambda: None,
) -> dict[str, SimulationResult]:
    """Run the same events under several policies.

    Args:
        topology: the machine.
        node_pools: its pools, which are valid on the machine.
        events: pods that come and go, in the order of time; at least one.
        policies: some of `POLICIES`, and of `installed`.
        installed: name → the CPU manager policy of a package.
        manager: the kubelet's Topology Manager policy.
        tell: called after each event of each policy.

    Raises:
        ConfigError: an exclusive pool cannot have the policy.
    """
    trace = tuple(events)

    def reported() -> Iterator[Event]:
        for event in trace:
            yield event
            tell()

    # All pools are valid before the first run begins: no run is wasted.
    rules = {name: rule(node_pools, topology, name, installed) for name in policies}
    return {
        name: run(topology, changed_pools, chooser, reported(), manager)
        for name, (changed_pools, chooser) in rules.items()
    }


def rule(
    node_pools: NodePools,
    topology: CPUTopology,
    policy: str,
    installed: Mapping[str, type[CPUManagerPolicy]] = _NONE,
) -> tuple[NodePools, Chooser]:
    """Return the pools and the chooser that stand for one of `POLICIES`, or of `installed`.

    Raises:
        ConfigError: an exclusive pool cannot have that `numaPolicy`, or the pool file has no CPU
            manager policy.
    """
    if policy == FIRST_FIT:
        return node_pools, first_fit
    cpu_manager = node_pools.cpu_manager
    if policy == KUBELET_PACKED:
        # The kubelet gives a misfit no second chance: the pod has failed.
        name = STATIC if cpu_manager.chooses else cpu_manager.policy
        failing = replace(
            cpu_manager,
            policy=name,
            installed=None,
            on_misfit=Misfit.FAIL,
            eligible=Eligible.POD,
            pod_level=False,
            system_pods=SystemPods(),
        )
        return replace(node_pools, cpu_manager=failing), kubelet_packed
    if policy in CHOOSING or policy in installed:
        if not cpu_manager.chooses:
            what = f"the pool file's CPU manager policy is {cpu_manager.policy}, not {policy}"
            remedy = f"write cpuManager: {{policy: {policy}, reserved: CPUS}}, or compare {POOL}"
            raise ConfigError([Problem(what, remedy, path=f"{CPU_MANAGER}.{POLICY}")])
        chosen = replace(cpu_manager, policy=policy, installed=installed.get(policy))
        node_pools = replace(node_pools, cpu_manager=chosen)
    elif policy != POOL:
        numa = NUMAPolicy(policy)
        node_pools = NodePools.of(
            *(
                replace(pool, policy=replace(pool.policy, numa=numa))
                if pool.kind is PoolKind.EXCLUSIVE
                else pool
                for pool in node_pools
            ),
            mixed=node_pools.mixed,
            cpu_manager=cpu_manager,
        )
        refuse_errors(pool_rules.validate(node_pools, topology))
    return node_pools, preferred_cpus.prefer


def run(
    topology: CPUTopology,
    node_pools: NodePools,
    chooser: Chooser,
    events: Iterable[Event],
    manager: TopologyPolicy = TopologyPolicy.NONE,
) -> SimulationResult:
    """Run a trace of pods on one node.

    Args:
        topology: the machine.
        node_pools: its pools, which are valid on the machine.
        chooser: gives the kubelet advice.
        events: in the order of time; at least one.
        manager: the policy of the kubelet's Topology Manager, whose scope is the container.
    """
    node = SimulatedNode(topology, node_pools, chooser, manager)
    admitted: list[SimulatedPod] = []
    # A pod that waits gets its placements later.
    placements: list[list[PlacementRecord]] = []
    refusals: list[RefusedArrival] = []
    resizes: list[ResizeRecord] = []
    series: list[Moment] = []

    def note(at_s: float) -> None:
        if series and series[-1].at_s == at_s:
            series.pop()
        series.append(node.moment(at_s))

    for event in events:
        for end_s in node.end_notices(event.at_s):
            note(end_s)
        if event.ends:
            node.end(event.pod, event.at_s)
        elif event.resize:
            resizes += node.resize(event.pod, event.resize, event.at_s)
        else:
            try:
                admitted.append(node.admit(event.pod, event.at_s))
                placements.append(admitted[-1].placements)
            except PodRefused as error:
                refusals.append(RefusedArrival(event.at_s, str(error)))
                placements.append(list(_nothing(event, str(error), node.requests(event.pod))))
        note(event.at_s)
    # The end shows the node after the last moves.
    for end_s in chain(node.end_notices(series[-1].at_s), node.end_moves()):
        note(end_s)
    waiting = node.finish(series[-1].at_s)
    return SimulationResult(
        _summary(series, admitted, len(refusals), waiting, resizes, moves=len(node.moves)),
        tuple(series),
        tuple(chain.from_iterable(placements)),
        tuple(node.placements()),
        tuple(refusals),
        tuple(resizes),
        node.moves,
    )


def _nothing(event: Event, why: str, requests: Mapping[str, int]) -> Iterator[PlacementRecord]:
    for container in event.pod.containers:
        own = requests.get(container.name)
        requested = {POLICY_CPUS: own} if own else container.requests
        for pool, count in sorted(requested.items()):
            name = container_name(event.pod, container)
            yield PlacementRecord(event.at_s, name, pool, count, refused=why)


def _summary(
    series: Sequence[Moment],
    admitted: Sequence[SimulatedPod],
    refused: int,
    waiting: int,
    resizes: Sequence[ResizeRecord],
    *,
    moves: int,
) -> Summary:
    spans = [(sample, other.at_s - sample.at_s) for sample, other in pairwise(series)]
    last = series[-1]
    # If all events have the same time, the last moment stands for the mean.
    weighed = spans or [(last, 1.0)]
    whole_s = sum(span_s for _, span_s in weighed)
    alignment = Alignment.total(pod.alignment for pod in admitted)
    outcomes = Counter(resize.outcome for resize in resizes)
    waits_s = [wait_s for pod in admitted if (wait_s := pod.wait_s) is not None]
    return Summary(
        admitted=len(admitted),
        refused=refused,
        waited=len(waits_s),
        waited_s=sum(waits_s) / (len(waits_s) or 1),
        waiting_at_end=waiting,
        resizes_served=outcomes[Outcome.SERVED],
        resizes_refused=outcomes[Outcome.REFUSED],
        resizes_ignored=outcomes[Outcome.IGNORED],
        moves=moves,
        on_one_node=alignment.share(Level.NODE),
        behind_one_cache=alignment.share(Level.UNCORE),
        utilisation=sum(sample.utilisation * span_s for sample, span_s in weighed) / whole_s,
        fragmentation=sum(sample.fragmentation * span_s for sample, span_s in weighed) / whole_s,
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
    """Take the lowest ids: the result with a plugin that has no preference."""
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
    """Choose as the kubelet's own CPU manager would from the CPUs that the pool offers."""
    del held
    given = required or CPUSet()
    layout = Layout.of_topology(topology, pool.offered & topology.online)
    taken = take_packed(layout, free - given, count - len(given))
    cpus = given | taken.cpus
    why = "as the kubelet's static CPU manager policy packs them"
    return Choice(cpus, (Step(KUBELET_PACKED, why, cpus),), taken.proven)
