"""What a plugin of the QoS Resource Manager is asked, and what it answers.

Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from math import ceil, copysign, isfinite
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, PlacementError
from cpupool.core.properties import (
    CPUSET_CPUS,
    CPUSET_MEMS,
    NO_PROPERTIES,
    BadProperty,
    Properties,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.workloads import ContainerID, ContainerRef


_MOST: Final = 2**53
"""Up to this number every whole number is a float."""


def is_amount(number: float) -> bool:
    """Return whether a number is an amount of a resource: from 0 to 2^53, and not -0.0.

    An amount equals itself, also after it was written to a file and read.
    """
    return 0 <= number <= _MOST and copysign(1.0, number) > 0


def is_text(text: str) -> bool:
    """Return whether a file can hold a text: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ContainerRole(Enum):
    """The part of a container in its pod, in the words of the plugin API."""

    INIT = 0
    MAIN = 1
    SIDECAR = 2


@dataclass(frozen=True, slots=True)
class ServedAs:
    """The plugin's resource for a resource of pods of another name.

    Attributes:
        resource: the name under which the plugin is registered.
        divisor: how much of the pods' resource is 1 of the plugin's.
    """

    resource: str
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """What a plugin wants to be asked.

    Attributes:
        pre_start: before each start of a container.
        aligned: for hints, whose merge it gets with the request for an allocation.
        reconciled: what each container has now, again and again.
    """

    pre_start: bool = False
    aligned: bool = False
    reconciled: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A container's request for one resource.

    Attributes:
        container: the container.
        namespace: its pod's namespace.
        pod_name: its pod's name.
        role: its part in the pod.
        index: its place among the containers, or the init containers, of the pod's spec.
        resource: the name under which the plugin is registered.
        quantity: in the base unit of the resource: CPUs, or bytes.
        pod_role: the pod's role for the plugin; empty for none.
        pod_type: the pod's type for the plugin; empty for none.
        labels: the pod's.
        annotations: the pod's.
        qos_class: Kubernetes' QoS class of the pod.
    """

    container: ContainerRef
    namespace: str
    pod_name: str
    role: ContainerRole
    index: int
    resource: str
    quantity: float
    pod_role: str = ""
    pod_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    qos_class: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a container has of one resource.

    Attributes:
        oci_property: what `value` sets, by the Go name in the CRI's LinuxContainerResources; empty
            for nothing.
        value: as the container runtime reads it.
        quantity: how much that is.
        scalar: whether quantities can be compared, so that one that is enough is kept.
        of_node: whether the node's status names the resource.
        env: variables of the container.
        annotations: annotations of the container.
        hints: the NUMA nodes of the allocation; None for no preference.
        by_node: NUMA node → quantity.
    """

    oci_property: str = ""
    value: str = ""
    quantity: float = 0.0
    scalar: bool = False
    of_node: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[TopologyHint, ...] | None = None
    by_node: Mapping[int, int] = field(default_factory=dict)


Answers = Mapping[str, Answer]
"""Resource → what a container has of it; a plugin may answer for more than its own resource."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a plugin has answered to a request of a container; the record of it is kept.

    Attributes:
        quantity: how much the container requested.
        answers: what it has; empty if the plugin has nothing to do for it.
        hint: the NUMA nodes that were handed over with the request; None for none.
        exclusive: whether CPUs in the answer are the container's own.
        refused: why the answer does not count; empty if it does.
        kept: whether the answer is lost, and the CPUs are those that the container has: the plugin
            is asked again.
    """

    quantity: float
    answers: Answers = field(default_factory=dict)
    hint: TopologyHint | None = None
    exclusive: bool = False
    refused: str = ""
    kept: bool = False

    @property
    def cpus(self) -> CPUSet:
        """The CPUs that count."""
        return CPUSet.parse_or_empty(self.values.get(CPUSET_CPUS, ""))

    @property
    def memory(self) -> CPUSet:
        """The NUMA nodes for its memory that count."""
        return CPUSet.parse_or_empty(self.values.get(CPUSET_MEMS, ""))

    @property
    def near(self) -> tuple[TopologyHint, ...] | None:
        """The NUMA nodes of it: as the plugin says, or as it was asked; None for any."""
        said = (answer.hints for answer in self.answers.values() if answer.hints)
        return next(said, None if self.hint is None else (self.hint,))

    @property
    def values(self) -> Mapping[str, str]:
        """The properties that count: name → value."""
        if self.refused:
            return {}
        answers = self.answers.values()
        return {each.oci_property: each.value for each in answers if each.oci_property}

    @property
    def texts(self) -> frozenset[str]:
        """The names of the variables and annotations that count."""
        answers = () if self.refused else self.answers.values()
        return frozenset().union(*(each.env.keys() | each.annotations.keys() for each in answers))

    def serves(self, quantity: float) -> bool:
        """Return whether the answer is enough for a request, which may have grown since."""
        known = (each.quantity for each in self.answers.values() if each.scalar)
        # An answer that has not been judged yet may have any number.
        return not self.kept and quantity <= max(
            (self.quantity, *map(ceil, filter(isfinite, known)))
        )


Record = Mapping["ContainerRef", Mapping[str, Given]]
"""Container → requested resource → what its plugin has answered."""


@dataclass(frozen=True, slots=True)
class PluginFacts:
    """What is known of the plugins of a node, and of their answers.

    Attributes:
        served: the resources that a plugin serves, or has served: a request for one is answered
            before its container starts.
        given: every answer.
        refusals: container → why a plugin, or all together, refuse it.
        names: resource of pods → the plugin's, for those that plugins serve under another name.
        prepared: container → the instances for which plugins have prepared all that they gave, for
            the containers whose plugins are to prepare each start.
        enabled: whether the agent asks plugins.
        own: container → the CPUs of an exclusive answer.
        shared: container → the CPUs of another answer.
        memory: container → the NUMA nodes for its memory.
        properties: container → what else it must have.
    """

    served: frozenset[str] = frozenset()
    given: Record = field(default_factory=dict)
    refusals: Mapping[ContainerRef, str] = field(default_factory=dict)
    names: Mapping[str, ServedAs] = field(default_factory=dict)
    prepared: Mapping[ContainerRef, frozenset[ContainerID]] = field(default_factory=dict)
    enabled: bool = False
    own: Mapping[ContainerRef, CPUSet] = field(init=False, compare=False)
    shared: Mapping[ContainerRef, CPUSet] = field(init=False, compare=False)
    memory: Mapping[ContainerRef, CPUSet] = field(init=False, compare=False)
    properties: Mapping[ContainerRef, Properties] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[bool, dict[ContainerRef, CPUSet]] = {True: {}, False: {}}
        memory: dict[ContainerRef, CPUSet] = {}
        properties: dict[ContainerRef, Properties] = {}
        for ref, by_resource in self.given.items():
            if found_here := properties_of(by_resource.values()):
                properties[ref] = found_here
            for given in by_resource.values():
                if cpus := given.cpus:
                    found[given.exclusive][ref] = cpus
                if nodes := given.memory:
                    memory[ref] = nodes
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "properties", properties)
        object.__setattr__(self, "own", found[True])
        object.__setattr__(self, "shared", found[False])

    def served_as(self, resource: str) -> ServedAs:
        """Return under which name a plugin serves a resource of pods."""
        return self.names.get(resource) or ServedAs(resource)

    def texts(self, container: ContainerRef) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables and annotations that a container is created with.

        Of two resources that set the same one, the first by name counts.
        """
        env: dict[str, str] = {}
        annotations: dict[str, str] = {}
        for _, given in sorted(self.given.get(container, {}).items(), reverse=True):
            for _, answer in sorted(given.answers.items(), reverse=True):
                if not given.refused:
                    env |= answer.env
                    annotations |= answer.annotations
        return env, annotations


def properties_of(given: Iterable[Given]) -> Properties:
    """Return what the answers for a container set in addition to CPUs and NUMA nodes.

    No answer that counts has a bad value; a record may have one that another agent accepted.
    """
    values = {name: value for each in given for name, value in each.values.items()}
    with suppress(BadProperty):
        return Properties.of(values)
    return NO_PROPERTIES


class AnswerAwaited(PlacementError):
    """A container whose plugins have not answered yet."""

    passes = True

    def __init__(self, container: str, resources: str) -> None:
        what = f"the plugin for {resources} has not answered for container {container} yet"
        super().__init__(f"{what}; wait, or check that the plugin runs", what)


class RequestUnclear(PlacementError):
    """A pod whose annotation with requests does not count.

    Attributes:
        why: what is wrong with it.
    """

    heals = False

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"{why}; correct the annotation, and create the pod again", why)


class RequestRefused(PlacementError):
    """A container that a plugin, or the topology policy, refuses.

    Attributes:
        container: its name.
        why: the plugin's words.
    """

    def __init__(self, container: str, why: str) -> None:
        self.container = container
        self.why = why
        what = f"container {container}: {why}"
        super().__init__(f"{what}; the plugin's log has more", what)


class AnswerContested(PlacementError):
    """A container whose plugin has named CPUs that another pod owns.

    Attributes:
        container: its name.
        cpus: the CPUs of the other pod.
    """

    def __init__(self, container: str, cpus: CPUSet) -> None:
        self.container = container
        self.cpus = cpus
        what = f"container {container}: its plugin has named CPUs {cpus}, which another pod owns"
        super().__init__(f"{what}; create this pod or that one again", what)


class PluginError(CPUPoolError):
    """A plugin does not answer, or refuses.

    Attributes:
        resource: the resource that it is for.
        refused: whether it has answered, with a refusal.
        why: the plugin's words, or the fact.
    """

    def __init__(self, resource: str, why: str, remedy: str, *, refused: bool = False) -> None:
        self.resource = resource
        self.refused = refused
        self.why = why
        super().__init__(f"the plugin for {resource} {why}; {remedy}")
