"""The view that a CPU manager policy has of a node: values of one moment, and sets of CPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import without_frames
from cpupool.core.grants import Grants
from cpupool.core.orchestration import NodeRules
from cpupool.core.pools import NodePools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.assignments import Cause
    from cpupool.core.errors import PlacementError
    from cpupool.core.grants import Grant
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import ContainerRef, Pod

DEFAULT: Final = "default"
"""The name of the shared set of containers whose request gives them no CPUs."""
BEST_EFFORT: Final = "best effort"
"""The name of the shared set of best-effort pods, where they have one of their own."""
SYSTEM: Final = "system pods"
"""The name of the shared set of system pods, where there are some."""
OF_POLICY: Final = (DEFAULT, BEST_EFFORT, SYSTEM)
"""The shared sets that are no pools."""


@dataclass(frozen=True, slots=True)
class Size:
    """The number of CPUs that the load of the node leaves to a shared set.

    A size depends on the sizes before it, so it is recorded, as a choice is. Another load with the
    same result is the same size.

    Attributes:
        count: how many CPUs.
        whole: how many CPUs the set has without a load.
        why: the load and the limits, in a sentence.
    """

    count: int
    whole: int
    why: str = field(compare=False)

    @property
    def reduced(self) -> bool:
        """Whether the load takes CPUs from the set."""
        return self.count < self.whole

    def __str__(self) -> str:
        return f"{self.count} of {self.whole} CPUs: {self.why}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a pod has no CPUs of its own, although its request promises some.

    Attributes:
        error: the missing fact or CPUs.
        holds: whether its containers are not created until they can have their CPUs; otherwise they
            share.
        reachable: whether the pod fits once the pods that are ending have left their CPUs.
    """

    error: PlacementError
    holds: bool
    reachable: bool

    def __post_init__(self) -> None:
        without_frames(self.error)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A policy's view of a node.

    Its sets of CPUs:

    * *declared* (`cpus`): the CPUs of the CPU manager policy. They are the default pool's, as the
      pool file lists them or as the other pools leave them, offline and owned CPUs included.
    * *owned* (`grants.cpus`): the CPUs that are some pod's own, of a pool or of the policy.
    * *barred* (`barred`): the CPUs on which only their owner's containers run: the owned CPUs,
      their siblings where the owner has whole cores, and blocked CPUs (`barred.barred`).
    * *common* (`common`): the online CPUs that are not barred, in any pool.
    * *free* (`free`): the declared CPUs that are common. A policy gives out CPUs of these only.
    * *extent* (`extents`): the CPUs that the containers of one shared set run on now: of each
      shared pool, of `DEFAULT`, and of each other set that the policy has.

    Attributes:
        topology: the machine.
        pools: as configured.
        cpus: the declared CPUs.
        grants: the owners of CPUs.
        barred: the barred CPUs.
        pods: all pods of the node.
        extents: shared set → its CPUs now; empty while the policies compute the extents.
        default: the assignment of a container whose request gives it no CPUs.
        refused: the id in a pod's cgroup name → why the CPU manager policy gave the pod no CPUs.
        rules: the rules in the node's labels and annotations.
        homes: the id in a pod's cgroup name → the one NUMA node whose shared CPUs the pod has.
        sizes: shared set → how many CPUs the load leaves to it.
        answered: container → the CPUs that a plugin names for it, which others may have, too.
        claimed: container → the CPUs that a plugin names for it alone.
        common: the common CPUs.
    """

    topology: CPUTopology
    pools: NodePools = field(default_factory=NodePools)
    cpus: CPUSet = field(default_factory=CPUSet)
    grants: Grants = field(default_factory=Grants)
    barred: CPUSet = field(default_factory=CPUSet)
    pods: tuple[Pod, ...] = ()
    extents: Mapping[str, CPUSet] = field(default_factory=dict)
    default: CPUAssignment = field(default_factory=lambda: CPUAssignment(Placement.DEFAULT))
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    rules: NodeRules = field(default_factory=NodeRules)
    homes: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    answered: Mapping[ContainerRef, CPUSet] = field(default_factory=dict)
    claimed: Mapping[ContainerRef, CPUSet] = field(default_factory=dict)
    common: CPUSet = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "common", self.topology.online - self.barred)

    @property
    def chosen(self) -> Mapping[str, Grant]:
        """The id in a pod's cgroup name → the pod's grant from the CPU manager policy."""
        return self.grants.chosen

    @property
    def free(self) -> CPUSet:
        """The CPUs that the CPU manager policy can give out now, reserved CPUs included."""
        return self.cpus & self.common

    @property
    def kubelet_places(self) -> bool:
        """Whether the kubelet places the containers whose request gives them no CPUs."""
        return self.default.placement is Placement.KUBELET

    def others_with(self, cpus: CPUSet, pod: Pod) -> str:
        """Return the names of the other pods that own some of these CPUs."""
        near = {uid for uid, has in self.grants.of_pods if not cpus.isdisjoint(has.cpus)}
        return ", ".join(
            f"{other.namespace}/{other.name}"
            for other in self.pods
            if other is not pod and other.cgroup_uid in near
        )

    def confined(self, cause: Cause, reason: str) -> CPUAssignment:
        """Return the assignment of a container that cannot have what it requests."""
        if self.kubelet_places:
            return replace(self.default, reason=reason, cause=cause)
        return replace(self.default, placement=Placement.CONFINED, reason=reason, cause=cause)
