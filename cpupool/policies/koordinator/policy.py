"""Koordinator's CPU orchestration: LSE and LSR pods own CPUs, LS and best-effort pods share.

A pod owns the CPUs that a scheduler has assigned by the annotation `resource-status`, if they are
the policy's, as many as the pod requests, and free. For an LSE or LSR pod without the annotation
the policy chooses on the node. All containers of a pod share its set.

Source: the proposal *Fine-grained CPU orchestration*; pkg/scheduler/plugins/nodenumaresource and
pkg/koordlet/runtimehooks/hooks/cpuset in Koordinator 1.8.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from cpupool.core.assignments import Cause, CPUAssignment, Placement, Step
from cpupool.core.cpu_manager import SUPPRESSION, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.grants import WHOLE_POD
from cpupool.core.orchestration import Orchestration, QoS
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.workloads import QoSClass
from cpupool.policies.accumulators.koordinator import OccupiedCPUs
from cpupool.policies.base import Choice
from cpupool.policies.koordinator import classes, lending, pod_annotations
from cpupool.policies.koordinator.best_effort import Load, size
from cpupool.policies.koordinator.late_binding import LateBinding, split
from cpupool.policies.koordinator.pod_annotations import QOS_CLASS
from cpupool.policies.layout import Level
from cpupool.policies.static.policy import COMMON_SETTINGS, StaticPolicy
from cpupool.policies.view import BEST_EFFORT, DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.cpu_time import CPUUse
    from cpupool.core.grants import Sharing
    from cpupool.core.orchestration import NodeRules
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import ChoiceRequest, ContainerToPlace
    from cpupool.policies.view import NodeView, Size

KOORDINATOR: Final = "koordinator"
"""The name of the policy."""
_NO_RULES: Final = Orchestration()


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


def _is_best_effort(pod: Pod) -> bool:
    """Return whether a pod runs on the CPUs of best-effort pods, unless annotations name others."""
    orchestration = pod.orchestration or _NO_RULES
    return orchestration.qos is not QoS.LS and pod.qos is QoSClass.BEST_EFFORT


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

    settings: ClassVar[frozenset[str]] = COMMON_SETTINGS | {SUPPRESSION}
    kubelet_options: ClassVar[tuple[str, ...]] = (
        "full-pcpus-only",
        "distribute-cpus-across-numa",
    )
    scopes: ClassVar[frozenset[Scope]] = frozenset({Scope.CONTAINER})
    reads_classes: ClassVar[bool] = True
    sharers_stay: ClassVar[bool] = False
    owner_classes: ClassVar[tuple[str, ...]] = (QoS.LSE.value, QoS.LSR.value)
    priority_classes: ClassVar[Mapping[str, int]] = pod_annotations.PRIORITY_VALUES
    beside_kubelet: ClassVar[bool] = True
    instead_of_kubelet: ClassVar[str] = (
        f"give Guaranteed pods that need CPUs of their own the label {QOS_CLASS}: {QoS.LSR.value}"
    )

    like: Koordlet | None = None

    def asked_alignment(self, rules: NodeRules, pod: Pod | None) -> TopologyPolicy | None:
        """Return the topology policy of a pod's annotation, or else of the node's label."""
        told = pod.orchestration if pod else None
        return (told and told.topology) or rules.topology

    @staticmethod
    def may_own(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
        """Return whether a pod's class owns CPUs, or a scheduler may have assigned some."""
        return pod_annotations.may_own(labels, annotations)

    @staticmethod
    def irregular(pod: Pod) -> str:
        """Return which rule of admission a pod of the class LSE or LSR breaks; empty for none."""
        return classes.irregular(pod)

    def requests(self, pod: Pod) -> Mapping[str, int]:
        """Return the number of CPUs of a pod that owns some, if it requests whole CPUs."""
        orchestration = pod.orchestration
        owns = orchestration is not None and orchestration.owns and not orchestration.fault
        return {WHOLE_POD: pod.whole_cpus} if owns and pod.whole_cpus else {}

    def sharing(self, pod: Pod) -> Sharing:
        """Return that best-effort pods run on the CPUs of an owner that is not an LSE pod."""
        return lending.sharing(pod)

    def available(self, view: NodeView) -> CPUSet:
        """Return the CPUs that have no owner, and are neither reserved nor withheld."""
        return StaticPolicy.available(self, view) - view.rules.withheld

    def narrowed(self, view: NodeView, request: ChoiceRequest) -> ChoiceRequest:
        """Return a request for CPUs that the node chooses without those that it cannot choose.

        Raises:
            BindPolicyUnmet: the pod requires a bind policy that the node never keeps.
        """
        orchestration = (request.pod and request.pod.orchestration) or _NO_RULES
        if orchestration.cpus:
            return request
        return replace(
            request, available=self._binding(view, orchestration).candidates(request.available)
        )

    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        """Return the CPUs that a scheduler has assigned, or choose some.

        Raises:
            AssignmentRefused: the assigned CPUs are not as many as requested, not free, or not the
                policy's, or without them too few would be left to share.
            BindPolicyUnmet: no choice keeps the bind policy that the pod or the node requires.
            SMTAlignmentError: the pod or the node demands whole cores, and there are too few.
            NotEnoughCPUs: fewer are free.
        """
        if request.has:
            return Choice(request.has)
        orchestration = (request.pod and request.pod.orchestration) or _NO_RULES
        if orchestration.cpus:
            self._check(view, request, orchestration.cpus)
            choice = Choice(
                orchestration.cpus, (Step("resource-status", "a scheduler's", orchestration.cpus),)
            )
        else:
            choice = self._binding(view, orchestration).choose(request, tuple(self._held(view)))
        if request.pod and orchestration.split:
            step = Step("cpus-per-container", "each container has a part", choice.cpus)
            parts = split(self.layout, request.pod, choice.cpus)
            return replace(choice, steps=(*choice.steps, step), parts=parts)
        return choice

    def home(self, view: NodeView, pod: Pod) -> int | None:
        """Return a NUMA node with as many shared CPUs as the limit of a ConstrainedBurst pod.

        A pod stays on its node while that suffices. Otherwise it gets the node with the fewest such
        pods, of these the node with the most shared CPUs, and of these the lowest.
        """
        by_node = self.layout.free(Level.NODE, view.extents[DEFAULT])
        limit_milli = pod.limit_milli or math.inf
        sizes = {
            node: len(cpus)
            for node, cpus in by_node.items()
            if len(cpus) * MILLI_PER_CPU >= limit_milli
        }
        if (has := view.homes.get(pod.cgroup_uid)) in sizes:
            return has
        guests = Counter(view.homes.values())
        return min(sizes, key=lambda node: (guests[node], -sizes[node], node), default=None)

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return the shared CPUs, and those of best-effort pods: LSR pods lend theirs.

        Under load best-effort pods have some of these, the reserved CPUs first.
        """
        return {
            DEFAULT: view.free - view.rules.withheld,
            BEST_EFFORT: lending.borrowed(view, self.reserve(view)),
        }

    def sizes(self, view: NodeView, use: CPUUse) -> Mapping[str, Size]:
        """Return how many CPUs the load leaves to best-effort pods."""
        suppression = view.pools.cpu_manager.suppression
        if suppression is None:
            return {}
        outside = {
            pod.cgroup_uid
            for pod in view.pods
            if any(container.requests for container in pod.containers)
        }
        best_effort = {pod.cgroup_uid for pod in view.pods if _is_best_effort(pod)}
        reservation = view.rules.reservation
        named = reservation.cpus & view.topology.online
        found = size(
            Load.of(use, view.cpus & view.topology.online, best_effort, outside),
            suppression,
            cpus=len(view.cpus & view.topology.online),
            reserved=max(len(self.reserved), len(named), reservation.count),
            whole=sum(map(len, lending.lent_and_shared(view))),
            before=len(view.extents[BEST_EFFORT]),
        )
        return {BEST_EFFORT: found}

    def place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        """Return the CPUs of the pod, or the shared CPUs of its class.

        Source: getContainerCPUSet in pkg/koordlet/runtimehooks/hooks/cpuset/rule.go.
        """
        assignment = StaticPolicy.place(self, view, to_place)
        orchestration = to_place.pod.orchestration or _NO_RULES
        if assignment.placement is not Placement.DEFAULT:
            return assignment
        if orchestration.fault:
            return view.confined(Cause.ANNOTATION, orchestration.fault)
        if cpus := self._shared(view, to_place.pod, orchestration):
            reason = (
                _unkept(view, to_place.pod)
                if orchestration.bursts
                else _suppressed(view, to_place.pod, cpus)
            )
            return CPUAssignment(Placement.DEFAULT, default=cpus, reason=reason)
        if self.like and self.like.kubelet_static:
            return CPUAssignment(Placement.KUBELET)
        return assignment

    def _shared(self, view: NodeView, pod: Pod, orchestration: Orchestration) -> CPUSet:
        """Return the shared CPUs of a pod's class; none if koordlet leaves it to the kubelet."""
        shared, best_effort = view.extents[DEFAULT], view.extents[BEST_EFFORT]
        idle = pod.qos is QoSClass.BEST_EFFORT
        usual = best_effort if idle else shared
        like = self.like or Koordlet()
        if orchestration.nodes and (orchestration.qos is not QoS.BE or like.be_cpu_manager):
            among = best_effort if orchestration.qos is QoS.BE else shared
            return among & self._around(orchestration.nodes) or usual
        if (home := view.homes.get(pod.cgroup_uid)) is not None:
            return shared & self._around((home,))
        if orchestration.qos is QoS.SYSTEM and (own := view.rules.system.cpus & view.free):
            return own
        if orchestration.qos is QoS.LS:
            return shared
        return CPUSet() if like.kubelet_static and not idle else usual

    def _check(self, view: NodeView, request: ChoiceRequest, cpus: CPUSet) -> None:
        if strange := cpus - view.cpus:
            raise AssignmentRefused(cpus, f"but {strange} are not the CPU manager's")
        if len(cpus) != request.count:
            raise AssignmentRefused(cpus, f"but the pod requests {request.count}")
        if kept := cpus & (self.reserved | view.rules.withheld):
            raise AssignmentRefused(cpus, f"but {kept} are reserved")
        if taken := cpus - request.available:
            raise AssignmentRefused(cpus, f"but {taken} are not free", heals=True)
        shared = view.free - view.rules.withheld
        bare = (
            self.layout.free(Level.NODE, shared).keys()
            - self.layout.free(Level.NODE, shared - cpus).keys()
        )
        if bare and shared.isdisjoint(self.reserve(view)):
            nodes = ", ".join(map(str, sorted(bare)))
            why = f"but NUMA nodes {nodes} would have no CPU for the pods that share"
            raise AssignmentRefused(cpus, why, heals=True)

    def _binding(self, view: NodeView, orchestration: Orchestration) -> LateBinding:
        return LateBinding(self.layout, self.options, view.rules, orchestration, self._floor(view))

    def _floor(self, view: NodeView) -> CPUSet:
        """Return the CPUs that stay shared: the reserved CPUs, or else one of each NUMA node."""
        shared = view.free - view.rules.withheld
        by_node = self.layout.free(Level.NODE, shared).values()
        return shared & self.reserve(view) or CPUSet(cpus.first for cpus in by_node)

    def _held(self, view: NodeView) -> Iterator[OccupiedCPUs]:
        pods = {pod.cgroup_uid: pod for pod in view.pods}
        for uid, grant in view.chosen.items():
            pod = pods.get(uid)
            orchestration = (pod and pod.orchestration) or _NO_RULES
            yield OccupiedCPUs(grant.cpus, exclusive=orchestration.exclusive)


def _suppressed(view: NodeView, pod: Pod, cpus: CPUSet) -> str:
    """Return why a best-effort pod has fewer CPUs than without a load; empty if it has all."""
    size = view.sizes.get(BEST_EFFORT)
    if size and size.reduced and _is_best_effort(pod) and cpus == view.extents[BEST_EFFORT]:
        return f"best-effort pods are suppressed to {size}"
    return ""


def _unkept(view: NodeView, pod: Pod) -> str:
    """Return why a ConstrainedBurst pod has the shared CPUs of all NUMA nodes; empty if not."""
    if pod.cgroup_uid in view.homes:
        return ""
    if not pod.limit_milli:
        return "ConstrainedBurst needs a cpu limit of each container"
    cpus = -(-pod.limit_milli // MILLI_PER_CPU)
    return f"ConstrainedBurst: no NUMA node has {cpus} shared CPUs, as many as the pod's limit"
