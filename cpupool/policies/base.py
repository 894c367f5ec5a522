"""The interface of a policy: pure functions of a view of the node, which choose and place CPUs.

A role asks, a policy decides, the manager records the decision as a grant. A policy does no I/O and
keeps no state: its earlier decisions are among the grants in the view.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import without_frames
from cpupool.core.grants import Grants
from cpupool.core.koordinator import NodeRules
from cpupool.core.pools import NodePools
from cpupool.core.requests import NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.assignments import Cause, Step
    from cpupool.core.cpu_time import CPUUse
    from cpupool.core.devices import AllocatedDevices
    from cpupool.core.errors import PlacementError
    from cpupool.core.grants import Grant, Sharing
    from cpupool.core.requests import CPURequest, Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, ContainerRef, Pod
    from cpupool.policies.hints import ResourceHints

DEFAULT: Final = "default"
"""The name of the shared set of containers whose request gives them no CPUs."""
BEST_EFFORT: Final = "best effort"
"""The name of the shared set of best-effort pods, where they have one of their own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """CPUs that a policy chose, and how.

    Attributes:
        cpus: as many CPUs as requested.
        steps: the reasons, in their order.
        proven: whether no better choice exists by the rules; otherwise this is the best choice
            that the search found.
        parts: container → its part of the CPUs, where the containers of a pod do not share them.
    """

    cpus: CPUSet
    steps: tuple[Step, ...] = ()
    proven: bool = True
    parts: Mapping[str, CPUSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """How many CPUs the load of the node leaves to a shared set.

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
class Ask:
    """A request for CPUs that a container must have of its own.

    Attributes:
        resource: the resource that they come with.
        count: how many CPUs.
        available: the CPUs to choose from.
        reusable: CPUs that the init containers of its pod leave to it. For a pool they come first,
            as the kubelet demands (must_include_deviceIDs in deviceplugin/v1beta1/api.proto).
        others: CPUs of the resource that other pods have.
        has: CPUs that the container has already, and keeps.
        nodes: the NUMA nodes that come first; None for any.
        pod: the pod of the container; None for a container that requests a pool.
    """

    resource: Resource
    count: int
    available: CPUSet
    reusable: CPUSet = field(default_factory=CPUSet)
    others: CPUSet = field(default_factory=CPUSet)
    has: CPUSet = field(default_factory=CPUSet)
    nodes: frozenset[int] | None = None
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod has no CPUs of its own, although its request promises some.

    Attributes:
        error: what is missing.
        holds: whether its containers are not created until they can have their CPUs; otherwise they
            share.
        reachable: whether the pod fits once the pods that are ending have left their CPUs.
    """

    error: PlacementError
    holds: bool
    reachable: bool

    def __post_init__(self) -> None:
        without_frames(self.error)


class Demand(NamedTuple):
    """A container to be placed.

    Attributes:
        pod: its pod.
        container: the container in its pod's spec.
        request: the part of its request that cpupool serves.
        devices: the devices that the kubelet gave it for this request.
        kept: the shared CPUs that it keeps after an edit of its pools; None if it follows the edit.
    """

    pod: Pod
    container: Container
    request: CPURequest = NO_REQUEST
    devices: Mapping[Resource, AllocatedDevices] = MappingProxyType({})
    kept: CPUSet | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """A policy's view of a node: values of one moment.

    Attributes:
        topology: the machine.
        pools: as configured.
        cpus: the CPUs of the CPU manager policy: the default pool's, offline CPUs included.
        grants: who owns which CPUs.
        barred: CPUs on which only their owner's containers run: CPUs with an owner, their siblings
            where the owner has whole cores, and blocked CPUs.
        pods: all pods of the node.
        extents: shared set → its CPUs now; empty while the policies compute the extents.
        default: the assignment of a container whose request gives it no CPUs.
        refused: the id in a pod's cgroup name → why the CPU manager policy gave the pod no CPUs.
        rules: what the node's labels and annotations say.
        homes: the id in a pod's cgroup name → the one NUMA node whose shared CPUs the pod has.
        sizes: shared set → how many CPUs the load leaves to it.
        answered: container → the CPUs that a plugin names for it, which others may have, too.
        claimed: container → the CPUs that a plugin names for it alone.
        common: the online CPUs that are not barred.
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


class Policy(Protocol):
    """A policy that decides about one kind of request."""

    def choose(self, view: NodeView, ask: Ask) -> Choice:
        """Choose a container's own CPUs; return the CPUs that it has already, if it has some.

        Raises:
            NotEnoughCPUs: there are fewer.
            SMTAlignmentError: the policy promises whole cores, and there are too few.
        """
        ...

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return shared set → the CPUs that it has now; a set may be empty."""
        ...

    def place(self, view: NodeView, demand: Demand) -> CPUAssignment:
        """Return the CPUs on which a container must run, by its request and the grants."""
        ...


class CPUManagerPolicy(Policy, Protocol):
    """A policy for containers that request no pool, on the default pool's CPUs."""

    def hints(self, ask: Ask) -> ResourceHints | None:
        """Return the NUMA nodes on which a container's CPUs could lie; None for any nodes."""
        ...

    def wants(self, pod: Pod) -> Mapping[str, int]:
        """Return container → the number of its own CPUs, in the order of choosing.

        `WHOLE_POD` stands for all containers of a pod that share one set. The caller leaves out
        containers that request pools.
        """
        ...

    def sharing(self, pod: Pod) -> Sharing:
        """Return who else may run on the CPUs that a pod owns."""
        ...

    def available(self, view: NodeView) -> CPUSet:
        """Return the CPUs that a container can get as its own."""
        ...

    def narrowed(self, view: NodeView, ask: Ask) -> Ask:
        """Return a request for some of the available CPUs only, before they are aligned.

        Raises:
            PlacementError: the policy never has CPUs for it.
        """
        ...

    def home(self, view: NodeView, pod: Pod) -> int | None:
        """Return the NUMA node whose shared CPUs a pod has; None if it has those of all.

        The view has the earlier choices.
        """
        ...

    def sizes(self, view: NodeView, use: CPUUse) -> Mapping[str, Size]:
        """Return shared set → how many CPUs the load leaves to it; no set that does not follow it.

        Args:
            view: the node, with the sizes until now.
            use: what CPUs and pods use now.
        """
        ...

    @property
    def settled(self) -> Mapping[str, str]:
        """What the policy has settled itself for its configuration; empty for nothing."""
        ...

    def remembering(self, settled: Mapping[str, str]) -> CPUManagerPolicy:
        """Return this policy with what an earlier one has settled for the same configuration."""
        ...


CPUManagerPolicies: TypeAlias = "Mapping[str, Callable[[NodePools, CPUTopology], CPUManagerPolicy]]"
"""The policies that a pool file can choose: name → factory for the pools of a machine.

The factory raises ConfigError where the configuration is not valid on the machine.
"""
