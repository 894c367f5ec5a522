"""Koordinator's CPU orchestration: LSE and LSR pods own CPUs, LS and best-effort pods share.

A pod owns the CPUs that a scheduler has assigned by the annotation `resource-status`, if they are
the policy's, as many as the pod requests, and free. For an LSE or LSR pod without the annotation
the policy chooses on the node. All containers of a pod share its set.

Source: the proposal *Fine-grained CPU orchestration*; pkg/scheduler/plugins/nodenumaresource and
pkg/koordlet/runtimehooks/hooks/cpuset in Koordinator 1.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError, SMTAlignmentError
from cpupool.core.grants import WHOLE_POD, Sharing
from cpupool.core.koordinator import BindPolicy, Orchestration, QoS
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.core.workloads import QoSClass
from cpupool.policies.base import BEST_EFFORT, DEFAULT, Choice, Step
from cpupool.policies.koordinator_accumulator import OccupiedCPUs, take
from cpupool.policies.kubelet_accumulator import take_distributed
from cpupool.policies.layout import Level
from cpupool.policies.static import StaticPolicy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.core.workloads import Pod
    from cpupool.policies.base import Ask, Demand, NodeView
    from cpupool.policies.kubelet_accumulator import Taken

_NO_WISH: Final = Orchestration()


class AssignmentRefused(PlacementError):
    """CPUs of the annotation `resource-status` that the pod cannot have.

    Attributes:
        cpus: the CPUs.
    """

    def __init__(self, cpus: CPUSet, why: str, *, heals: bool = False) -> None:
        self.cpus = cpus
        self.heals = heals
        what = f"the scheduler has assigned CPUs {cpus}, {why}"
        super().__init__(f"{what}; delete the pod, so that it is scheduled again", what)


@dataclass(frozen=True, slots=True)
class Koordlet:
    """The settings of a koordlet whose answers the policy gives, where its own differ.

    Attributes:
        be_cpu_manager: its feature gate BECPUManager: best-effort pods keep to their NUMA nodes.
        kubelet_static: the kubelet's CPU manager is static, and koordlet leaves containers to it,
            also on the CPUs of LSE pods.
    """

    be_cpu_manager: bool = False
    kubelet_static: bool = False


@dataclass(frozen=True, slots=True)
class KoordinatorPolicy(StaticPolicy):
    """The policy on one machine; reserved CPUs are the floor of the shared sets.

    Attributes:
        like: the koordlet to imitate, for a comparison with its recorded answers; none on a node.
    """

    like: Koordlet | None = None

    def wants(self, pod: Pod) -> Mapping[str, int]:
        """Return the number of CPUs of a pod that owns some, if it requests whole CPUs."""
        told = pod.orchestration
        owns = told is not None and told.owns and not told.fault
        return {WHOLE_POD: pod.whole_cpus} if owns and pod.whole_cpus else {}

    def sharing(self, pod: Pod) -> Sharing:
        """Return that best-effort pods run on the CPUs of an owner that is not an LSE pod."""
        told = pod.orchestration
        lends = told is not None and told.owns and told.qos is not QoS.LSE
        return Sharing.BEST_EFFORT if lends else Sharing.NONE

    def available(self, view: NodeView) -> CPUSet:
        """Return the CPUs that have no owner, and are neither reserved nor withheld."""
        return view.free - self.reserved - view.rules.withheld

    def choose(self, view: NodeView, ask: Ask) -> Choice:
        """Return the CPUs that a scheduler has assigned, or choose some.

        Raises:
            AssignmentRefused: the assigned CPUs are not as many as requested, not free, or not the
                policy's.
            SMTAlignmentError: the pod or the node demands whole cores, and there are too few.
            NotEnoughCPUs: fewer are free.
        """
        if ask.has:
            return Choice(ask.has)
        told = (ask.pod and ask.pod.orchestration) or _NO_WISH
        if told.cpus:
            self._check(view, ask, told.cpus)
            return Choice(told.cpus, (Step("resource-status", "a scheduler", told.cpus),))
        return self._bound_late(view, ask, told)

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return the shared CPUs, and those of best-effort pods: LSR pods lend theirs."""
        kept = view.rules.withheld
        lent = CPUSet.union(
            grant.cpus for grant in view.grants if grant.sharing is Sharing.BEST_EFFORT
        )
        shared = view.free - kept
        return {
            DEFAULT: shared,
            BEST_EFFORT: (shared | view.cpus & lent & view.topology.online) - kept or shared,
        }

    def place(self, view: NodeView, demand: Demand) -> CPUAssignment:
        """Return the CPUs of the pod, or the shared CPUs of its class.

        Source: getContainerCPUSet in pkg/koordlet/runtimehooks/hooks/cpuset/rule.go.
        """
        assignment = StaticPolicy.place(self, view, demand)
        told = demand.pod.orchestration or _NO_WISH
        if assignment.placement is not Placement.DEFAULT:
            return assignment
        if told.fault:
            return view.confined(Cause.ANNOTATION, told.fault)
        if cpus := self._shared(view, demand.pod, told):
            return CPUAssignment(Placement.DEFAULT, default=cpus)
        if self.like and self.like.kubelet_static:
            return CPUAssignment(Placement.KUBELET)
        return assignment

    def _shared(self, view: NodeView, pod: Pod, told: Orchestration) -> CPUSet:
        """Return the shared CPUs of a pod's class; none if koordlet leaves it to the kubelet."""
        shared, best_effort = view.extents[DEFAULT], view.extents[BEST_EFFORT]
        idle = pod.qos is QoSClass.BEST_EFFORT
        usual = best_effort if idle else shared
        like = self.like or Koordlet()
        if told.nodes and (told.qos is not QoS.BE or like.be_cpu_manager):
            among = best_effort if told.qos is QoS.BE else shared
            return among & self._around(told.nodes) or usual
        if told.qos is QoS.SYSTEM and view.rules.system.cpus:
            return view.rules.system.cpus & view.cpus & view.topology.online
        if told.qos is QoS.LS:
            return shared
        return CPUSet() if like.kubelet_static and not idle else usual

    def _check(self, view: NodeView, ask: Ask, cpus: CPUSet) -> None:
        if strange := cpus - view.cpus:
            raise AssignmentRefused(cpus, f"but {strange} are not the CPU manager's")
        if len(cpus) != ask.count:
            raise AssignmentRefused(cpus, f"but the pod requests {ask.count}")
        if kept := cpus & (self.reserved | view.rules.withheld):
            raise AssignmentRefused(cpus, f"but {kept} are reserved")
        if taken := cpus - ask.available:
            raise AssignmentRefused(cpus, f"but {taken} are not free", heals=True)

    def _bound_late(self, view: NodeView, ask: Ask, told: Orchestration) -> Choice:
        """Choose CPUs for a pod that a scheduler without CPUs in mind has placed.

        Raises:
            SMTAlignmentError: the pod or the node demands whole cores, and there are too few.
            NotEnoughCPUs: fewer are free.
        """
        rules = view.rules
        threads = self.layout.usual(Level.CORE)
        whole = rules.full_cores_only or self.options.full_pcpus_only
        # Where a core is a CPU, each way to bind is the same, and so is a core of one's own.
        bind = (told.required and told.bind) or rules.bind or told.bind or BindPolicy.FULL_PCPUS
        full = whole or bind is not BindPolicy.SPREAD_BY_PCPUS or threads == 1
        strict = whole or (told.required and full)
        free = ask.available
        if strict:
            if ask.count % threads:
                raise SMTAlignmentError(ask.count, threads)
            free = self.layout.whole_cores(free)
            if len(free) < ask.count:
                raise SMTAlignmentError(ask.count, threads, len(free))
        held = tuple(self._held(view))
        exclusive = self._exclusive(held, told.exclusive, threads, ask.count, free)
        near = free if ask.nodes is None else free & self._around(ask.nodes)
        among = near if len(near) >= ask.count else free
        taken = self._take(view, ask, among, full=full, exclusive=exclusive, held=held)
        return Choice(taken.cpus, proven=taken.proven)

    def _take(
        self,
        view: NodeView,
        ask: Ask,
        among: CPUSet,
        *,
        full: bool,
        exclusive: ExclusivePolicy,
        held: Collection[OccupiedCPUs],
    ) -> Taken:
        strategy = view.rules.strategy
        evenly = strategy is NUMAPolicy.DISTRIBUTED or (
            strategy is None and self.options.distribute_cpus_across_numa
        )
        if evenly:
            group = self.layout.usual(Level.CORE) if full else 1
            return take_distributed(self.layout, among, ask.count, group=group, spread=not full)
        return take(
            self.layout,
            among,
            ask.count,
            full_cores=full,
            strategy=strategy or NUMAPolicy.LEAST_ALLOCATED,
            exclusive=exclusive,
            held=held,
        )

    def _exclusive(
        self,
        held: Collection[OccupiedCPUs],
        wish: ExclusivePolicy,
        threads: int,
        count: int,
        free: CPUSet,
    ) -> ExclusivePolicy:
        """Return what the pod's CPUs avoid: cores, if no NUMA node without such pods has room."""
        if wish is ExclusivePolicy.NUMA_NODE:
            alike = CPUSet.union(
                each.cpus for each in held if each.exclusive is ExclusivePolicy.NUMA_NODE
            )
            nodes = self.layout.groups[Level.NODE].values()
            if not any(node.isdisjoint(alike) and len(node & free) >= count for node in nodes):
                wish = ExclusivePolicy.PHYSICAL_CORE
        if wish is ExclusivePolicy.PHYSICAL_CORE and threads == 1:
            return ExclusivePolicy.NONE
        return wish

    def _held(self, view: NodeView) -> Iterator[OccupiedCPUs]:
        pods = {pod.cgroup_uid: pod for pod in view.pods}
        for uid, grant in view.chosen.items():
            pod = pods.get(uid)
            told = (pod and pod.orchestration) or _NO_WISH
            yield OccupiedCPUs(grant.cpus, exclusive=told.exclusive)
