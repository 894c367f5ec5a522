"""What a policy is: pure functions of a view of the node, which choose and place CPUs.

A door asks, a policy decides, the manager records the decision as a grant. A policy does no I/O and
keeps no state: its earlier decisions are among the grants that it sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Grants, Source
from cpupool.core.pools import NodePools
from cpupool.core.requests import NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.assignments import Cause
    from cpupool.core.devices import AllocatedDevices
    from cpupool.core.grants import Grant
    from cpupool.core.pools import CPUManager
    from cpupool.core.requests import CPURequest, Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, Pod

DEFAULT: Final = "default"
"""The name of the shared set where containers run that have no CPUs by their request."""


@dataclass(frozen=True, slots=True)
class Step:
    """One reason in a choice.

    Attributes:
        rule: what asked for it: a key of the pool file, or the kubelet.
        why: what it found, in a sentence.
        left: the CPUs that remain to choose from.
    """

    rule: str
    why: str
    left: CPUSet


@dataclass(frozen=True, slots=True)
class Choice:
    """CPUs that were chosen, and how.

    Attributes:
        cpus: as many as were asked for.
        steps: the reasons, in their order.
        proven: that no better choice exists by the rules; else it is the best of those looked at.
    """

    cpus: CPUSet
    steps: tuple[Step, ...] = ()
    proven: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """CPUs that a container is to have of its own.

    Attributes:
        resource: with which they come.
        count: how many.
        available: those to choose from.
        reusable: what the init containers of its pod leave to it. Of a pool's these come first, as
            the kubelet demands (must_include_deviceIDs in deviceplugin/v1beta1/api.proto).
        others: CPUs of the resource that other pods have.
        has: CPUs that the container has already, and keeps.
        nodes: the NUMA nodes that come first; None for any.
    """

    resource: Resource
    count: int
    available: CPUSet
    reusable: CPUSet = field(default_factory=CPUSet)
    others: CPUSet = field(default_factory=CPUSet)
    has: CPUSet = field(default_factory=CPUSet)
    nodes: frozenset[int] | None = None


class Demand(NamedTuple):
    """A container to be placed.

    Attributes:
        pod: its pod.
        container: as its pod's spec has it.
        request: what counts of its request for pools.
        devices: what the kubelet has given it for that.
        kept: the shared CPUs that it keeps after an edit of its pools; None where it follows.
    """

    pod: Pod
    container: Container
    request: CPURequest = NO_REQUEST
    devices: Mapping[Resource, AllocatedDevices] = MappingProxyType({})
    kept: CPUSet | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a policy sees of a node: values, as of one moment.

    Attributes:
        topology: the machine.
        pools: as configured.
        cpus: the CPU manager policy's: those of the default pool, offline ones included.
        grants: who owns which CPUs.
        barred: CPUs on which only their owner's containers run: those with an owner, their siblings
            where the owner has whole cores, and blocked CPUs.
        pods: all that are there.
        extents: shared set → its CPUs now; empty while the policies are asked for it.
        default: where a container belongs that has no CPUs by its request.
        common: the CPUs that many may run on now.
        chosen: the id in a pod's cgroup name → what the CPU manager policy has given to the pod.
    """

    topology: CPUTopology
    pools: NodePools = field(default_factory=NodePools)
    cpus: CPUSet = field(default_factory=CPUSet)
    grants: Grants = field(default_factory=Grants)
    barred: CPUSet = field(default_factory=CPUSet)
    pods: tuple[Pod, ...] = ()
    extents: Mapping[str, CPUSet] = field(default_factory=dict)
    default: CPUAssignment = field(default_factory=lambda: CPUAssignment(Placement.DEFAULT))
    common: CPUSet = field(init=False)
    chosen: Mapping[str, Grant] = field(init=False)

    def __post_init__(self) -> None:
        chosen = {uid: one for uid, one in self.grants.of_pods if one.source is Source.POLICY}
        object.__setattr__(self, "common", self.topology.online - self.barred)
        object.__setattr__(self, "chosen", chosen)

    @property
    def free(self) -> CPUSet:
        """The CPUs that the CPU manager policy can give out now, reserved ones included."""
        return self.cpus & self.common

    @property
    def kubelet_places(self) -> bool:
        """Whether what has no CPUs by its request is left to the kubelet."""
        return self.default.placement is Placement.KUBELET

    def confined(self, cause: Cause, reason: str) -> CPUAssignment:
        """Return where a container belongs that cannot have what it asks for."""
        if self.kubelet_places:
            return replace(self.default, reason=reason, cause=cause)
        return replace(self.default, placement=Placement.CONFINED, reason=reason, cause=cause)


class Policy(Protocol):
    """Decides about one kind of request."""

    def choose(self, view: NodeView, ask: Ask) -> Choice:
        """Choose a container's own CPUs; the same again where it has them.

        Raises:
            NotEnoughCPUs: there are fewer.
            SMTAlignmentError: whole cores are promised and cannot be had.
        """
        ...

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return shared set → the CPUs that it has now."""
        ...

    def place(self, view: NodeView, demand: Demand) -> CPUAssignment:
        """Return where a container must run, by its request and the grants."""
        ...


class CPUManagerPolicy(Policy, Protocol):
    """Decides about the containers that ask for no pool, on the default pool's CPUs."""

    def wants(self, pod: Pod) -> Mapping[str, int]:
        """Return container → how many CPUs of its own it gets; in the order of choosing.

        Containers that ask for pools are left out by the caller.
        """
        ...

    def available(self, view: NodeView) -> CPUSet:
        """Return the CPUs that a container can be given as its own."""
        ...


CPUManagerPolicies: TypeAlias = (
    "Mapping[str, Callable[[CPUManager, CPUTopology], CPUManagerPolicy]]"
)
"""The policies that a pool file can choose: name → what makes it for a configuration and a machine.

It raises ConfigError where the configuration is not lawful on the machine.
"""
