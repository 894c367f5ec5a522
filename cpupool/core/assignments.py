"""Assignments: the CPUs on which a container must run, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import MemoryNodesRefused
from cpupool.core.properties import NO_PROPERTIES
from cpupool.core.requests import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.bandwidth import Limit
    from cpupool.core.names import Names
    from cpupool.core.properties import Properties
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import RuntimeContainer

_NO_CPUS: Final = CPUSet()


class Placement(Enum):
    """The reason for which a container runs on its CPUs."""

    POOLS = "pools"
    POLICY = "policy"
    """The container owns CPUs that the node's CPU manager policy chose."""
    PLUGIN = "plugin"
    """A plugin for a resource has named the container's CPUs."""
    DEFAULT = "default"
    CONFINED = "confined"
    KUBELET = "kubelet"
    """The kubelet's static CPU manager places the container; cpupool leaves it alone."""


class Cause(Enum):
    """The reason for which the agent confines a container to the default pool."""

    NO_POOL = "no_pool"
    """The container requests a pool that this node does not have."""
    NO_DEVICES = "no_devices"
    """The kubelet has named no devices for the request."""
    CONTESTED = "contested"
    """Another pod owns a CPU that the kubelet gave to the container."""
    ANSWER = "answer"
    """Another pod owns a CPU that a plugin has named for the container alone."""
    NO_CPUS = "no_cpus"
    """The ids of the devices are not CPU ids."""
    OFFLINE = "offline"
    """Every CPU that the kubelet gave to the container is offline."""
    MISFIT = "misfit"
    """The CPU manager policy has no CPUs that serve the pod's request."""
    ANNOTATION = "annotation"
    """An annotation that says which CPUs the pod has cannot be read."""
    UNKNOWN_POD = "unknown_pod"
    """The agent does not know the container's pod."""

    @property
    def may_pass(self) -> bool:
        """Whether the cause may end by itself in a moment.

        The kubelet may write its records after the container starts. If two pods have the same
        device, the earlier pod is about to end.
        """
        return self in {Cause.NO_DEVICES, Cause.CONTESTED}


@dataclass(frozen=True, slots=True)
class Step:
    """One reason in a choice.

    Attributes:
        rule: the source of the rule: a key of the pool file, a word of an annotation, or
            the kubelet.
        why: the result of the rule, in a sentence.
        left: the CPUs that remain to choose from.
    """

    rule: str
    why: str
    left: CPUSet


@dataclass(frozen=True, slots=True)
class MemoryNodes:
    """The NUMA nodes from which a container takes its memory.

    Attributes:
        nodes: their ids, a set with the same text form as one of CPUs (`cpuset.mems`).
        migrates: whether the agent may move the memory of a running container, which stops the
            container for a while; otherwise it sets the nodes only when the container is created.
    """

    nodes: CPUSet
    migrates: bool = False

    def check(self, with_memory: CPUSet) -> None:
        """Refuse nodes that a container cannot have.

        Args:
            with_memory: the nodes of this machine that have memory.

        Raises:
            MemoryNodesRefused: there is no node, or one without memory.
        """
        if not self.nodes or not self.nodes <= with_memory:
            raise MemoryNodesRefused(self.nodes, with_memory)


@dataclass(frozen=True, slots=True)
class CPUAssignment:
    """The CPUs of one container.

    Attributes:
        placement: by its pools, by the CPU manager policy, or by a plugin; default because it
            requests nothing; or confined to the default pool because a fact is missing or
            contradicts another.
        exclusive: the container's own online CPUs, siblings under multiThreaded included.
        shared: CPUs of its shared pools, or those that a plugin names for several containers.
        default: CPUs of the default pool.
        reason: what is missing, for a confined container; for an owner, that it has another number
            of CPUs than it requests.
        cause: the same as a value; None for a container that is not confined.
        offline: the container's own CPUs that are offline.
        stale: `shared` holds the CPUs that its shared pools had before they changed.
        resources: resource → those of these CPUs that come with it, for a container that has what
            it requests.
        limit: the CPU time that the container must have; None where cpupool does not set it.
        memory: the NUMA nodes of its memory; None where cpupool does not set them.
        properties: the other properties that plugins set. A `limit` replaces their CPU time.
    """

    placement: Placement
    exclusive: CPUSet = _NO_CPUS
    shared: CPUSet = _NO_CPUS
    default: CPUSet = _NO_CPUS
    reason: str = ""
    cause: Cause | None = None
    offline: CPUSet = _NO_CPUS
    stale: bool = False
    resources: Mapping[Resource, CPUSet] = field(default_factory=dict)
    limit: Limit | None = None
    memory: MemoryNodes | None = None
    properties: Properties = NO_PROPERTIES

    @property
    def cpus(self) -> CPUSet:
        """The cpuset to write; empty where cpupool leaves the container alone."""
        return self.exclusive | self.shared | self.default

    def annotations(self, names: Names) -> Mapping[str, str]:
        """Return the annotation by which the next agent recognises the container's own CPUs."""
        name = {Placement.POLICY: names.chosen, Placement.PLUGIN: names.answered}
        own = self.exclusive | self.offline
        return {name[self.placement]: str(own)} if own and self.placement in name else {}


def remembering(
    known: RuntimeContainer,
    annotations: Mapping[str, str],
    of_pod: Mapping[str, str],
    listed: str,
    names: Names,
) -> RuntimeContainer:
    """Return a container with the CPUs of its own that an agent noted in its annotations.

    The function ignores an annotation that the pod has, too: the pod's author wrote it, and some
    runtimes copy the annotations of a pod to its containers. The CPU list of the runtime must
    agree: it may lack CPUs that are offline.

    Args:
        known: the container.
        annotations: its annotations in the runtime.
        of_pod: the annotations of its pod's sandbox in the runtime.
        listed: the CPUs that the runtime has for the container.
        names: the names of the annotations.
    """
    has = CPUSet.parse_or_empty(listed)

    def noted(name: str) -> CPUSet:
        cpus = CPUSet.parse_or_empty("" if name in of_pod else annotations.get(name, ""))
        return cpus if has and has <= cpus else _NO_CPUS

    chosen, answered = noted(names.chosen), noted(names.answered)
    return replace(known, chosen=chosen, answered=answered, narrowed=answered - has)
