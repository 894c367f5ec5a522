"""What an answer of a plugin must keep before it counts.

A plugin is trusted with its own resource, not with the node: an answer never gives a container an
empty set, CPUs of another owner or none to share. Each rule has a name, by which refused answers
are counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError
from cpupool.core.grants import Source
from cpupool.core.names import is_reserved_variable
from cpupool.core.resource_plugins import OCIProperty
from cpupool.policies.qrm import QRMPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.resource_plugins import Answer, Given
    from cpupool.policies.base import CPUManagerPolicy, NodeView

_PROPERTIES: Final = {known.value: known for known in OCIProperty}
_VARIABLE: Final = re.compile(r"[ -<>-~]+", re.ASCII)
_ANNOTATION: Final = re.compile(
    r"(?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_MOST_TEXT: Final = 32 * 1024
"""The most characters in the variables, and in the annotations, of an answer."""


class Rule(Enum):
    """What an answer breaks."""

    PROPERTY = "property"
    """It sets what no container has."""
    NOT_APPLIED = "not applied"
    """It sets what cpupool does not apply."""
    POLICY = "policy"
    """It names CPUs where the policy is not `qrm`."""
    LIST = "list"
    """Its value is no list."""
    EMPTY = "empty"
    """It names no CPU, or no NUMA node."""
    OUTSIDE = "outside"
    """It names CPUs that are not the policy's, or NUMA nodes that the machine lacks."""
    OFFLINE = "offline"
    """It names CPUs that are offline."""
    OWNED = "owned"
    """It names CPUs of another owner."""
    RESERVED = "reserved"
    """It takes CPUs that are always shared."""
    TWICE = "twice"
    """Another answer for the container sets the same."""
    QUANTITY = "quantity"
    """Its quantity is no amount."""
    ENVIRONMENT = "environment"
    """It has a variable that it may not set."""
    ANNOTATIONS = "annotations"
    """It has an annotation that it may not set."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that an answer breaks.

    Attributes:
        rule: the rule.
        why: the fact, in a sentence.
    """

    rule: Rule
    why: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges answers by a node.

    Attributes:
        view: the node.
        policy: its CPU manager policy.
        names: the names that only cpupool uses.
    """

    view: NodeView
    policy: CPUManagerPolicy
    names: Names

    def verdict(
        self,
        pod: str,
        given: Given,
        others: Mapping[str, Given],
        *,
        elsewhere: CPUSet,
        beside: CPUSet,
    ) -> Broken | None:
        """Return the first rule that an answer breaks; None if it counts.

        Args:
            pod: the id in the cgroup name of the container's pod.
            given: the answer.
            others: the answers to the container's other requests: resource → answer.
            elsewhere: the CPUs of exclusive answers for other pods.
            beside: those of other exclusive answers for the pod.
        """
        for resource, answer in sorted(given.answers.items()):
            left = self._left(elsewhere | beside) if given.exclusive else None
            for found in self._broken(answer, self._owned(pod) | elsewhere, left):
                return Broken(found.rule, f"the answer for {resource} {found.why}")
        counted = (given, *(each for each in others.values() if not each.refused))
        for name in sorted({answer.oci_property for answer in given.answers.values()} - {""}):
            answers = [answer for each in counted for answer in each.answers.values()]
            count = sum(answer.oci_property == name for answer in answers)
            if count > 1:
                return Broken(Rule.TWICE, f"{count} answers set {name}")
        return None

    def _owned(self, pod: str) -> CPUSet:
        """Return the CPUs of other pods, without those of plugins: the answers name these."""
        grants = ((uid, grant) for uid, grant in self.view.grants.of_pods if uid != pod)
        return CPUSet.union(grant.cpus for _, grant in grants if grant.source is not Source.PLUGIN)

    def _left(self, own: CPUSet) -> CPUSet:
        """Return the CPUs of the containers without an answer, with these exclusive answers."""
        grants = self.view.grants
        plugged = CPUSet.union(each.cpus for each in grants if each.source is Source.PLUGIN)
        return (self.view.free | plugged & self.view.cpus & self.view.topology.online) - own

    def _broken(self, answer: Answer, owned: CPUSet, left: CPUSet | None) -> Iterator[Broken]:
        """Find what an answer breaks.

        Args:
            answer: the answer.
            owned: the CPUs of other pods.
            left: what an exclusive answer takes CPUs from; None for another answer.
        """
        if answer.oci_property:
            known = _PROPERTIES.get(answer.oci_property)
            shown = answer.oci_property[:60]
            if known is None:
                yield Broken(Rule.PROPERTY, f"sets {shown!r}, which no container has")
            elif not known.applied:
                yield Broken(Rule.NOT_APPLIED, f"sets {shown}, which cpupool does not apply yet")
            elif known is OCIProperty.CPUSET_MEMS:
                yield from self._memory(answer)
            else:
                yield from self._cpus(answer, owned, left)
        amounts = (answer.quantity, *map(float, answer.by_node.values()))
        if not all(isfinite(amount) and amount >= 0 for amount in amounts):
            yield Broken(Rule.QUANTITY, f"has the quantity {answer.quantity}")
        yield from self._texts(answer)

    def _cpus(self, answer: Answer, owned: CPUSet, left: CPUSet | None) -> Iterator[Broken]:
        policy, found = self.policy, _read(answer.value, "CPUs")
        if not isinstance(policy, QRMPolicy):
            name = self.view.pools.cpu_manager.policy
            yield Broken(Rule.POLICY, f"names CPUs, and the CPU manager policy is {name}, not qrm")
        elif isinstance(found, Broken):
            yield found
        else:
            yield from self._placed(policy, found, owned, left)

    def _placed(
        self, policy: QRMPolicy, cpus: CPUSet, owned: CPUSet, left: CPUSet | None
    ) -> Iterator[Broken]:
        if strange := cpus - self.view.cpus:
            yield Broken(Rule.OUTSIDE, f"names CPUs {strange}, which are not the policy's")
        if off := cpus - self.view.topology.online:
            yield Broken(Rule.OFFLINE, f"names CPUs {off}, which are offline")
        if taken := cpus & owned:
            yield Broken(Rule.OWNED, f"names CPUs {taken}, which another pod owns")
        if left is None:
            return
        if kept := cpus & policy.reserved:
            yield Broken(Rule.RESERVED, f"takes the reserved CPUs {kept}")
        elif not left - cpus:
            yield Broken(Rule.RESERVED, "leaves no CPU for the containers without an answer")

    def _memory(self, answer: Answer) -> Iterator[Broken]:
        found = _read(answer.value, "NUMA nodes")
        if isinstance(found, Broken):
            yield found
        elif strange := found - CPUSet(self.view.topology.nodes):
            yield Broken(Rule.OUTSIDE, f"names NUMA nodes {strange}, which the machine lacks")

    def _texts(self, answer: Answer) -> Iterator[Broken]:
        for name, value in answer.env.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                yield Broken(Rule.ENVIRONMENT, f"sets {name[:60]!r}, which no process can have")
            elif is_reserved_variable(name):
                yield Broken(Rule.ENVIRONMENT, f"sets {name}, which only cpupool may set")
        for key, value in answer.annotations.items():
            if not _ANNOTATION.fullmatch(key) or "\0" in value:
                yield Broken(Rule.ANNOTATIONS, f"has the annotation {key[:60]!r}")
            elif key.startswith(f"{self.names.domain}/") and key != self.names.exclusive:
                yield Broken(Rule.ANNOTATIONS, f"has {key}, which only cpupool may set")
        if _length(answer.env) > _MOST_TEXT:
            yield Broken(Rule.ENVIRONMENT, f"has more than {_MOST_TEXT} characters of variables")
        if _length(answer.annotations) > _MOST_TEXT:
            yield Broken(Rule.ANNOTATIONS, f"has more than {_MOST_TEXT} characters of annotations")


def _read(value: str, what: str) -> CPUSet | Broken:
    try:
        found = CPUSet.parse(value)
    except CPUSetParseError as error:
        return Broken(Rule.LIST, f"is no list of {what}: {error}")
    return found or Broken(Rule.EMPTY, f"names no {what}")


def _length(texts: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in texts.items())
