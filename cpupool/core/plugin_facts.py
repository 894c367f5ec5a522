"""The answers of plugins for resources: what each container has of each resource."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.properties import (
    CPUSET_CPUS,
    CPUSET_MEMS,
    NO_PROPERTIES,
    BadProperty,
    Properties,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.workloads import ContainerID, ContainerRef


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
class AnswerPart:
    """The part of a plugin's answer for one resource: what the container has of the resource.

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


AnswerParts = Mapping[str, AnswerPart]
"""Resource → the part of the answer; a plugin may answer for more than its own resource."""


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A plugin's answer to a question, as the agent records it.

    Attributes:
        quantity: how much the container requested.
        parts: its parts; empty if the plugin has nothing to do for it.
        hint: the NUMA nodes that the agent sent with the question; None for none.
        exclusive: whether CPUs in the answer are the container's own.
        refused: why the agent does not apply the answer; empty if it does.
        kept: whether the answer is lost, and the CPUs are those that the container has: the agent
            asks the plugin again.
    """

    quantity: float
    parts: AnswerParts = field(default_factory=dict)
    hint: TopologyHint | None = None
    exclusive: bool = False
    refused: str = ""
    kept: bool = False

    @property
    def cpus(self) -> CPUSet:
        """The CPUs of the parts that apply."""
        return CPUSet.parse_or_empty(self.values.get(CPUSET_CPUS, ""))

    @property
    def memory(self) -> CPUSet:
        """The NUMA nodes for the memory, by the parts that apply."""
        return CPUSet.parse_or_empty(self.values.get(CPUSET_MEMS, ""))

    def near(self, nodes: Collection[int]) -> tuple[TopologyHint, ...] | None:
        """Return the NUMA nodes by the plugin's answer, or else by the request; None for any.

        A request for all nodes of the machine comes from plugins without a preference.

        Args:
            nodes: all NUMA nodes of the machine.
        """
        said = next((part.hints for part in self.parts.values() if part.hints), None)
        if said or self.hint is None or (self.hint.nodes or set(nodes)) >= set(nodes):
            return said
        return (self.hint,)

    @property
    def values(self) -> Mapping[str, str]:
        """The properties that apply: name → value."""
        if self.refused:
            return {}
        parts = self.parts.values()
        return {each.oci_property: each.value for each in parts if each.oci_property}

    @property
    def texts(self) -> frozenset[str]:
        """The names of the variables and annotations that apply."""
        parts = () if self.refused else self.parts.values()
        return frozenset().union(*(each.env.keys() | each.annotations.keys() for each in parts))

    def serves(self, quantity: float) -> bool:
        """Return whether the answer is enough for a request, which may have grown since."""
        known = (each.quantity for each in self.parts.values() if each.scalar)
        # An answer that has not been judged yet may have any number.
        return not self.kept and quantity <= max(
            (self.quantity, *map(ceil, filter(isfinite, known)))
        )


Record = Mapping["ContainerRef", Mapping[str, RecordedAnswer]]
"""Container → requested resource → the answer of its plugin."""


@dataclass(frozen=True, slots=True)
class PluginFacts:
    """The agent's knowledge of the plugins of a node, and of their answers.

    Attributes:
        served: the resources that a plugin serves, or has served: a request for one is answered
            before its container starts.
        answers: every answer.
        refusals: container → why a plugin, or all together, refuse it.
        names: resource of pods → the plugin's, for those that plugins serve under another name.
        prepared: container → the instances for which plugins have prepared all that they gave, for
            the containers whose plugins are to prepare each start.
        ready: those of them whose next start is prepared, and waits for an instance.
        enabled: whether the agent asks plugins.
        answering: the resources whose plugin is there, and has not been silent when it was asked
            last: it answers or refuses a request in seconds.
        expected: whether a plugin is about to say which resource it serves.
        own: container → the CPUs of an exclusive answer.
        shared: container → the CPUs of another answer.
        memory: container → the NUMA nodes for its memory.
        properties: container → what else it must have.
    """

    served: frozenset[str] = frozenset()
    answers: Record = field(default_factory=dict)
    refusals: Mapping[ContainerRef, str] = field(default_factory=dict)
    names: Mapping[str, ServedAs] = field(default_factory=dict)
    prepared: Mapping[ContainerRef, frozenset[ContainerID]] = field(default_factory=dict)
    ready: frozenset[ContainerRef] = frozenset()
    enabled: bool = False
    answering: frozenset[str] = frozenset()
    expected: bool = False
    own: Mapping[ContainerRef, CPUSet] = field(init=False, compare=False)
    shared: Mapping[ContainerRef, CPUSet] = field(init=False, compare=False)
    memory: Mapping[ContainerRef, CPUSet] = field(init=False, compare=False)
    properties: Mapping[ContainerRef, Properties] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[bool, dict[ContainerRef, CPUSet]] = {True: {}, False: {}}
        memory: dict[ContainerRef, CPUSet] = {}
        properties: dict[ContainerRef, Properties] = {}
        for ref, by_resource in self.answers.items():
            if found_here := properties_of(by_resource.values()):
                properties[ref] = found_here
            for answer in by_resource.values():
                if cpus := answer.cpus:
                    found[answer.exclusive][ref] = cpus
                if nodes := answer.memory:
                    memory[ref] = nodes
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "properties", properties)
        object.__setattr__(self, "own", found[True])
        object.__setattr__(self, "shared", found[False])

    def served_as(self, resource: str) -> ServedAs:
        """Return under which name a plugin serves a resource of pods."""
        return self.names.get(resource) or ServedAs(resource)

    def texts(self, container: ContainerRef) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables and annotations for the creation of a container.

        If two resources set the same one, the resource whose name is first in order prevails.
        """
        env: dict[str, str] = {}
        annotations: dict[str, str] = {}
        for _, answer in sorted(self.answers.get(container, {}).items(), reverse=True):
            for _, part in sorted(answer.parts.items(), reverse=True):
                if not answer.refused:
                    env |= part.env
                    annotations |= part.annotations
        return env, annotations


def properties_of(answers: Iterable[RecordedAnswer]) -> Properties:
    """Return the properties that the answers for a container set, beside CPUs and NUMA nodes.

    No answer that applies has a bad value; a record may have one that another agent accepted.
    """
    values = {name: value for each in answers for name, value in each.values.items()}
    with suppress(BadProperty):
        return Properties.of(values)
    return NO_PROPERTIES
