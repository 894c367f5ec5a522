"""The rules that an answer of a plugin keeps before a container gets it.

A plugin is trusted with its own resource, not with the node: an answer never gives a container an
empty set, CPUs of another owner or none to share. Each rule has a name, by which refused answers
are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.core import withheld
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError
from cpupool.core.grants import Source
from cpupool.core.names import is_reserved_variable
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.properties import BadProperty, OCIProperty, Properties, property_named
from cpupool.core.quantity import is_amount
from cpupool.core.topology import MOST_NODES
from cpupool.wire.json_text import is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
    from cpupool.core.workloads import ContainerRef, Pod
    from cpupool.policies.base import CPUManagerPolicy
    from cpupool.policies.view import NodeView

_VARIABLE: Final = re.compile(r"[ -<>-~]+", re.ASCII)
_ANNOTATION: Final = re.compile(
    r"(?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_MOST_TEXT: Final = 32 * 1024
"""The most characters in the variables, and in the annotations, of an answer."""
_SHOWN: Final = 60
"""The most characters of a plugin's text that a message shows."""


class Rule(Enum):
    """A rule for answers, by the name under which metrics count those that break it."""

    PROPERTY = "property"  # it sets only what a container has
    VALUE = "value"  # it sets a property to a possible value
    VERSION = "version"  # it sets only what the node's version of cgroups has
    TOGETHER = "together"  # its properties fit together, also with the container's other answers
    CPU_TIME = "cpu time"  # it leaves the CPU time to cpupool, and gives no more than the pod has
    POLICY = "policy"  # it names CPUs only where the policy is `qrm`
    LIST = "list"  # its value is a list
    EMPTY = "empty"  # it names a CPU, or a NUMA node
    OUTSIDE = "outside"  # it names CPUs of the policy, and NUMA nodes of the machine
    OFFLINE = "offline"  # it names no CPU that is offline
    OWNED = "owned"  # it names no CPU of another owner
    RESERVED = "reserved"  # it takes no CPU that is always shared
    TWICE = "twice"  # no other answer for the container sets the same
    QUANTITY = "quantity"  # a quantity is an amount
    HINT = "hint"  # it names only NUMA nodes that a machine can have
    TEXT = "text"  # a file can hold each text
    ENVIRONMENT = "environment"  # it sets only variables that it may set
    ANNOTATIONS = "annotations"  # it has only annotations that it may set


class Broken(NamedTuple):
    """A rule that an answer breaks.

    Attributes:
        rule: the rule.
        why: the fact, in a sentence.
        for_good: whether the same answer breaks it on every state of the node.
    """

    rule: Rule
    why: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges answers by a node.

    Attributes:
        view: the node.
        policy: its CPU manager policy.
        names: the names that only cpupool uses.
        v2: whether the node has cgroup version 2.
    """

    view: NodeView
    policy: CPUManagerPolicy
    names: Names
    v2: bool = True

    def first_broken(
        self,
        container: ContainerRef,
        given: RecordedAnswer,
        others: Mapping[str, RecordedAnswer],
        *,
        elsewhere: CPUSet,
        in_pod: CPUSet,
    ) -> Broken | None:
        """Return the first rule that an answer breaks; None if it is valid.

        Args:
            container: for which it is.
            given: as the plugin has given it.
            others: the answers to the container's other requests: resource → answer.
            elsewhere: the CPUs of exclusive answers for other pods.
            in_pod: those of other exclusive answers for the pod.
        """
        # A caller keeps no answer that breaks a rule for good.
        for resource, answer in sorted(given.parts.items()):
            for found in self._malformed(resource, answer):
                shown = resource[:_SHOWN].encode(errors="backslashreplace").decode()
                why = f"the answer for {shown} {found.why}"
                return Broken(found.rule, why, for_good=True)
        for resource, answer in sorted(given.parts.items()):
            left = self._left(elsewhere | in_pod) if given.exclusive else None
            owned = self._owned(container.pod) | elsewhere
            for found in self._broken(answer, owned, left):
                return Broken(found.rule, f"the answer for {resource} {found.why}")
        counted = (given, *(each for each in others.values() if not each.refused))
        answers = [answer for each in counted for answer in each.parts.values()]
        counts = Counter(answer.oci_property for answer in answers if answer.oci_property)
        for name in sorted({answer.oci_property for answer in given.parts.values()} - {""}):
            if (count := counts[name]) > 1:
                return Broken(Rule.TWICE, f"{count} answers set {name}")
        values = {answer.oci_property: answer.value for answer in answers if answer.oci_property}
        return next(self._together(container, values), None)

    def _owned(self, pod: str) -> CPUSet:
        """Return the CPUs of other pods, without those of plugins: the answers name these."""
        grants = ((uid, grant) for uid, grant in self.view.grants.of_pods if uid != pod)
        return CPUSet.union(grant.cpus for _, grant in grants if grant.source is not Source.PLUGIN)

    def _left(self, own: CPUSet) -> CPUSet:
        """Return the CPUs of the containers without an answer, with these exclusive answers."""
        grants = self.view.grants
        plugged = CPUSet.union(each.cpus for each in grants if each.source is Source.PLUGIN)
        return (self.view.free | plugged & self.view.cpus & self.view.topology.online) - own

    def _broken(self, answer: AnswerPart, owned: CPUSet, left: CPUSet | None) -> Iterator[Broken]:
        """Find what an answer breaks; an exclusive one takes CPUs from those that are `left`."""
        known = property_named(answer.oci_property)
        if known is OCIProperty.CPUSET_MEMS:
            if strange := CPUSet.parse(answer.value) - CPUSet(self.view.topology.nodes):
                yield Broken(Rule.OUTSIDE, f"names NUMA nodes {strange}, which the machine lacks")
        elif known is OCIProperty.CPUSET_CPUS:
            if self.policy.kind.asks_plugins:
                yield from self._placed(CPUSet.parse(answer.value), owned, left)
            else:
                name = self.view.pools.cpu_manager.policy
                why = f"names CPUs, and the CPU manager policy is {name}, not qrm"
                yield Broken(Rule.POLICY, why)

    def _malformed(self, resource: str, answer: AnswerPart) -> Iterator[Broken]:
        """Find what an answer breaks on any node of this version of cgroups."""
        said = (resource, answer.oci_property, answer.value)
        texts = (*said, *_words(answer.env), *_words(answer.annotations))
        if not all(map(is_text, texts)) or any("\0" in text for text in said):
            yield Broken(Rule.TEXT, "has a text that no file can hold")
        amounts = (answer.quantity, *answer.by_node.values())
        if not all(map(is_amount, amounts)):
            shown = ", ".join(f"{amount:g}" for amount in amounts)
            yield Broken(Rule.QUANTITY, f"has the quantity {shown[:_SHOWN]}, which is no amount")
        hinted = (node for hint in answer.hints or () for node in hint.nodes or ())
        nodes = {*answer.by_node, *hinted}
        if strange := [node for node in sorted(nodes) if not 0 <= node < MOST_NODES]:
            yield Broken(Rule.HINT, f"names the NUMA node {strange[0]}, which no machine has")
        if answer.oci_property:
            yield from self._property(answer)
        yield from self._texts(answer)

    def _property(self, answer: AnswerPart) -> Iterator[Broken]:
        known = property_named(answer.oci_property)
        if known is None:
            shown = answer.oci_property[:_SHOWN]
            yield Broken(Rule.PROPERTY, f"sets {shown!r}, which no container has")
        elif known is OCIProperty.CPUSET_MEMS:
            yield from _list(answer.value, "NUMA nodes")
        elif known is OCIProperty.CPUSET_CPUS:
            yield from _list(answer.value, "CPUs")
        else:
            yield from self._value(known, answer.value)

    def _placed(self, cpus: CPUSet, owned: CPUSet, left: CPUSet | None) -> Iterator[Broken]:
        if strange := cpus - self.view.cpus:
            yield Broken(Rule.OUTSIDE, f"names CPUs {strange}, which are not the policy's")
        if off := cpus - self.view.topology.online:
            why = withheld.why(off, self.view.topology.withheld)
            yield Broken(Rule.OFFLINE, f"names CPUs {off} that no container can have: {why}")
        if taken := cpus & owned:
            yield Broken(Rule.OWNED, f"names CPUs {taken}, which another pod owns")
        if left is None:
            return
        if kept := cpus & self.policy.floor():
            yield Broken(Rule.RESERVED, f"takes the reserved CPUs {kept}")
        elif not left - cpus:
            yield Broken(Rule.RESERVED, "leaves no CPU for the containers without an answer")

    def _value(self, known: OCIProperty, value: str) -> Iterator[Broken]:
        try:
            Properties.of({known.value: value})
        except BadProperty as error:
            yield Broken(Rule.VALUE, str(error))
        else:
            if known is OCIProperty.UNIFIED and not self.v2:
                yield Broken(Rule.VERSION, "sets Unified, and this node has cgroup version 1")

    def _together(self, container: ContainerRef, values: Mapping[str, str]) -> Iterator[Broken]:
        """Find what properties of a container break that each alone does not."""
        if OCIProperty.CPU_PERIOD.value in values and OCIProperty.CPU_QUOTA.value not in values:
            yield Broken(Rule.TOGETHER, "CpuPeriod is set without CpuQuota")
        wanted = Properties.of(values)
        limit, swap = wanted.memory_bytes, wanted.swap_bytes
        if swap is not None:
            if limit is None:
                why = "MemorySwapLimitInBytes is set without MemoryLimitInBytes"
                yield Broken(Rule.TOGETHER, why)
            elif swap >= 0 and not 0 <= limit <= swap:
                why = f"MemorySwapLimitInBytes {swap} is less than the memory, {limit}"
                yield Broken(Rule.TOGETHER, why)
        pod = next((each for each in self.view.pods if each.cgroup_uid == container.pod), None)
        if pod is None or wanted.bandwidth is None:
            return
        if self._decides_cpu_time(pod, container.name):
            why = "a container with CPUs of a pool, or of the CPU manager, has the quota of cpupool"
            yield Broken(Rule.CPU_TIME, f"CpuQuota is set: {why}")
        if pod.limit_milli is not None and wanted.bandwidth.cpus is not None:
            milli = wanted.bandwidth.cpus * MILLI_PER_CPU
            if milli > pod.limit_milli:
                why = f"CpuQuota is {float(milli):g} milli-CPUs, and the pod has {pod.limit_milli}"
                yield Broken(Rule.CPU_TIME, why)

    def _decides_cpu_time(self, pod: Pod, name: str) -> bool:
        """Return whether cpupool decides the CPU time of a container; not if a plugin owns it."""
        if any(container.name == name and container.requests for container in pod.containers):
            return True
        grant = self.view.chosen.get(pod.cgroup_uid)
        return bool(grant and grant.source is not Source.PLUGIN and grant.part(name))

    def _texts(self, answer: AnswerPart) -> Iterator[Broken]:
        for name, value in answer.env.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                yield Broken(Rule.ENVIRONMENT, f"sets {name[:_SHOWN]!r}, which no process can have")
            elif is_reserved_variable(name):
                yield Broken(Rule.ENVIRONMENT, f"sets {name}, which only cpupool may set")
        for key, value in answer.annotations.items():
            if not _ANNOTATION.fullmatch(key) or "\0" in value:
                yield Broken(Rule.ANNOTATIONS, f"has the annotation {key[:_SHOWN]!r}")
            elif key.startswith(f"{self.names.domain}/") and key != self.names.exclusive:
                yield Broken(Rule.ANNOTATIONS, f"has {key}, which only cpupool may set")
        if _length(answer.env) > _MOST_TEXT:
            yield Broken(Rule.ENVIRONMENT, f"has more than {_MOST_TEXT} characters of variables")
        if _length(answer.annotations) > _MOST_TEXT:
            yield Broken(Rule.ANNOTATIONS, f"has more than {_MOST_TEXT} characters of annotations")


def _list(value: str, what: str) -> Iterator[Broken]:
    try:
        if not CPUSet.parse(value):
            yield Broken(Rule.EMPTY, f"names no {what}")
    except CPUSetParseError as error:
        yield Broken(Rule.LIST, f"is no list of {what}: {error}")


def _words(texts: Mapping[str, str]) -> Iterator[str]:
    return (word for pair in texts.items() for word in pair)


def _length(texts: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in texts.items())
