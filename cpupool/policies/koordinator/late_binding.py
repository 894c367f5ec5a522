"""The choice of CPUs for an LSE or LSR pod that a scheduler without CPUs in mind has placed.

A requirement of the pod prevails over the node's rules, and these over a preference of the pod. A
requirement that cannot be kept refuses the pod; a preference that cannot be kept is among the
reasons of the choice.

Source: the proposal *Fine-grained CPU orchestration*; pkg/scheduler/plugins/nodenumaresource in
Koordinator 1.8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Step
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs, PlacementError, SMTAlignmentError
from cpupool.core.orchestration import BindPolicy
from cpupool.core.pool_policy import NUMAPolicy
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.workloads import ContainerKind
from cpupool.policies.accumulators.koordinator import take
from cpupool.policies.accumulators.kubelet import take_distributed, take_packed
from cpupool.policies.base import Choice
from cpupool.policies.koordinator.exclusivity import apart
from cpupool.policies.layout import Level

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.core.cpu_manager import StaticOptions
    from cpupool.core.orchestration import NodeRules, Orchestration
    from cpupool.core.workloads import Pod
    from cpupool.policies.accumulators.koordinator import OccupiedCPUs
    from cpupool.policies.accumulators.kubelet import Taken
    from cpupool.policies.base import ChoiceRequest
    from cpupool.policies.koordinator.exclusivity import Apart
    from cpupool.policies.layout import Layout

_FULL, _SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
_BIND: Final = "bind policy"


class BindPolicyUnmet(PlacementError):
    """A required bind policy that the pod's CPUs would not keep.

    Attributes:
        policy: the bind policy.
    """

    def __init__(self, policy: BindPolicy, why: str, *, heals: bool = False) -> None:
        self.policy = policy
        self.heals = heals
        what = f"the required cpu bind policy {policy.value} cannot be kept: {why}"
        super().__init__(f"{what}; require another one in a new pod", what)


class FloorReached(NotEnoughCPUs):
    """A request that would leave too few CPUs to the pods that share.

    Attributes:
        kept: the CPUs that no pod owns.
    """

    def __init__(self, requested: int, available: int, kept: CPUSet) -> None:
        super().__init__(requested, available)
        self.kept = kept
        self.as_kubelet += f"; CPUs {kept} stay with the pods that share"


@dataclass(frozen=True, slots=True)
class _Way:
    """The way in which the pod's CPUs lie on cores.

    Attributes:
        bind: FULL_PCPUS or SPREAD_BY_PCPUS.
        why: the source of the way.
        required: whether the pod does not start with CPUs that lie otherwise.
    """

    bind: BindPolicy
    why: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class LateBinding:
    """The choice for one pod.

    Attributes:
        layout: the machine.
        options: the admin's options in the pool file.
        rules: the rules in the node's labels.
        orchestration: the rules in the pod's annotations.
        kept: CPUs that stay with the pods that share.
    """

    layout: Layout
    options: StaticOptions
    rules: NodeRules
    orchestration: Orchestration
    kept: CPUSet

    @property
    def _threads(self) -> int:
        return self.layout.usual(Level.CORE)

    @property
    def _smt(self) -> bool:
        return self.layout.largest_core > 1

    def candidates(self, free: CPUSet) -> CPUSet:
        """Return the free CPUs with which the pod may start.

        Raises:
            BindPolicyUnmet: the pod requires what the node never gives.
        """
        free, way = free - self.kept, self._way()
        if way.required and way.bind is _FULL:
            return self.layout.whole_cores(free)
        if way.required:
            return CPUSet(core.first for core in self.layout.free(Level.CORE, free).values())
        return free

    def choose(self, request: ChoiceRequest, held: Collection[OccupiedCPUs]) -> Choice:
        """Choose CPUs.

        Args:
            request: the request.
            held: the CPUs of earlier pods.

        Raises:
            BindPolicyUnmet: no choice keeps the bind policy that the pod or the node requires.
            SMTAlignmentError: the pod or the node demands whole cores, and there are too few.
            NotEnoughCPUs: fewer are free.
        """
        way, free = self._way(), self.candidates(request.available)
        self._refuse_too_few(way, request, free)
        why = f"{way.bind.value}: {way.why}"
        if self._smt and self.orchestration.bind not in {None, way.bind}:
            why += f", although the pod prefers {self.orchestration.bind.value}"
        steps = [Step(_BIND, why, free)]
        among = free
        if request.nodes is not None:
            by_node = self.layout.groups[Level.NODE]
            near = free & CPUSet.union(by_node.get(node, CPUSet()) for node in request.nodes)
            few = len(near) < request.count
            nodes = ", ".join(map(str, sorted(request.nodes)))
            why = "have too few CPUs, so others count, too" if few else "serve all its resources"
            among = free if few else near
            steps.append(Step("NUMA alignment", f"NUMA nodes {nodes} {why}", among))
        preference = self.orchestration.exclusive
        keeping = apart(
            self.layout, preference, held, count=request.count, free=free, arm=self.rules.arm
        )
        steps += keeping.explained(among)
        taken = self._take(among, request.count, full=way.bind is _FULL, keeping=keeping)
        if way.required and not self._keeps(way.bind, taken.cpus):
            raise BindPolicyUnmet(way.bind, f"CPUs {taken.cpus} are the best choice", heals=True)
        steps.append(Step("allocate strategy", self._strategy.value, taken.cpus))
        steps += self._unkept(way.bind, taken.cpus)
        steps += keeping.unkept(self.layout, taken.cpus)
        return Choice(taken.cpus, tuple(steps), proven=taken.proven)

    def _way(self) -> _Way:
        """Return how the pod's CPUs lie on cores.

        Raises:
            BindPolicyUnmet: the pod requires what the node never gives.
        """
        orchestration, rules = self.orchestration, self.rules
        whole = rules.full_cores_only or self.options.full_pcpus_only
        if orchestration.required and orchestration.bind:
            way = _Way(orchestration.bind, "the pod requires it", required=True)
        elif whole:
            way = _Way(_FULL, "the node gives whole cores only", required=True)
        elif rules.bind:
            way = _Way(rules.bind, "the Node's label says so", required=rules.bind is _SPREAD)
        elif orchestration.bind:
            way = _Way(orchestration.bind, "the pod prefers it")
        else:
            way = _Way(_FULL, "by default")
        if way.bind is _FULL or not self._smt:
            # Where a core is a CPU, both ways are the same.
            return replace(way, bind=_FULL)
        if orchestration.required and whole:
            raise BindPolicyUnmet(_SPREAD, "the node gives whole cores only")
        if rules.arm and orchestration.required:
            raise BindPolicyUnmet(_SPREAD, "on arm64 there is FullPCPUs only")
        if rules.arm:
            return _Way(_FULL, "on arm64 there is no other")
        return way

    def _refuse_too_few(self, way: _Way, request: ChoiceRequest, free: CPUSet) -> None:
        enough = len(free) >= request.count
        if way.required and way.bind is _FULL and (request.count % self._threads or not enough):
            available = None if request.count % self._threads else len(free)
            raise SMTAlignmentError(request.count, self._threads, available)
        if way.required and not enough:
            cores = len(self.layout.groups[Level.CORE])
            why = f"{request.count} CPUs requested, {len(free)} cores have a free CPU"
            raise BindPolicyUnmet(way.bind, why, heals=request.count <= cores)
        if not enough and self.kept:
            raise FloorReached(request.count, len(free), self.kept)
        if not enough:
            raise NotEnoughCPUs(request.count, len(free))

    @property
    def _strategy(self) -> NUMAPolicy:
        if self.rules.strategy is None and self.options.distribute_cpus_across_numa:
            return NUMAPolicy.DISTRIBUTED
        return self.rules.strategy or NUMAPolicy.LEAST_ALLOCATED

    def _take(self, among: CPUSet, count: int, *, full: bool, keeping: Apart) -> Taken:
        if self._strategy is NUMAPolicy.DISTRIBUTED:
            group = self._threads if full else 1
            return take_distributed(self.layout, among, count, group=group, spread=not full)
        return take(
            self.layout,
            among,
            count,
            full_cores=full,
            strategy=self._strategy,
            exclusive=keeping.preference,
            held=keeping.held,
        )

    def _keeps(self, bind: BindPolicy, cpus: CPUSet) -> bool:
        if bind is _FULL:
            return self.layout.whole_cores(cpus) == cpus
        return len(self.layout.free(Level.CORE, cpus)) == len(cpus)

    def _unkept(self, bind: BindPolicy, cpus: CPUSet) -> Iterator[Step]:
        """Yield that the CPUs do not lie on cores as wished."""
        if not self._keeps(bind, cpus):
            parts = cpus - self.layout.whole_cores(cpus)
            how = f"{parts} are parts of cores" if bind is _FULL else "of one core are among them"
            yield Step(_BIND, f"{bind.value} is not kept: CPUs {how}", cpus)


def split(layout: Layout, pod: Pod, cpus: CPUSet) -> Mapping[str, CPUSet]:
    """Return container → its part of a pod's CPUs.

    A container that requests whole CPUs has as many, on whole cores where possible. An init
    container leaves its CPUs to later containers, a sidecar does not. Other containers share the
    CPUs that remain; where none remain, and before the pod's containers run, they have no part. All
    of the CPUs are no part.
    """
    parts: dict[str, CPUSet] = {}
    others: list[str] = []
    left = cpus
    for container in pod.containers:
        count, rest = divmod(container.request_milli, MILLI_PER_CPU)
        if container.kind is ContainerKind.EPHEMERAL:
            continue
        if count and not rest and count <= len(left):
            parts[container.name] = take_packed(layout, left, count).cpus
            if container.kind is not ContainerKind.INIT:
                left -= parts[container.name]
        elif container.kind is not ContainerKind.INIT:
            others.append(container.name)
    parts |= dict.fromkeys(others if left else (), left)
    return {name: part for name, part in parts.items() if part != cpus}
