"""The CPUs that plugins have given, found again where the record of their answers lacks them.

The sources, the best first: the annotation of a living container, which an agent wrote when the
runtime created it; the record; the CPUs where the container runs. Each is valid only if the machine
has the CPUs and no other owner has one. A cgroup does not show why a container runs there. So the
plugin must be able to give its CPUs now, and no container without an answer runs on the same set.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from cpupool.core.cgroups import POD_ITSELF
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Source
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.pod_resources import CPU
from cpupool.core.properties import CPUSET_CPUS
from cpupool.core.workloads import ContainerID, ContainerRef, oldest_first
from cpupool.manager import by_plugins, sightings
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.katalyst import QoSLevel
from cpupool.policies.view import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.plugin_facts import Record
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.bad_answers import Judge


class Trace(Enum):
    """The sources of the CPUs of a container beside the record."""

    ANNOTATION = "its annotation names"
    CGROUP = "where it runs"


class Kept(NamedTuple):
    """The CPUs that a container keeps until its plugin answers again.

    Attributes:
        pod: its pod.
        resource: the resource for which the plugin is asked again.
        given: what the book is to have.
        trace: how they are known.
    """

    pod: Pod
    resource: str
    given: RecordedAnswer
    trace: Trace

    @property
    def fact(self) -> str:
        """Return what the container keeps, in words."""
        alone = "for itself" if self.given.exclusive else "beside others"
        trace = f"which {self.trace.value}" if self.trace is Trace.ANNOTATION else self.trace.value
        return f"CPUs {self.given.cpus} {alone}, {trace}"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a search.

    Attributes:
        kept: container → the CPUs that it keeps, for those that the record lacks or has otherwise.
        lost: running containers that must have had CPUs of their own, which nothing names → pod.
        refused: container and resource → a recorded answer that is not valid, because another
            container's annotation names its CPUs.
    """

    kept: Mapping[ContainerRef, Kept] = field(default_factory=dict)
    lost: Mapping[ContainerRef, Pod] = field(default_factory=dict)
    refused: Mapping[tuple[ContainerRef, str], RecordedAnswer] = field(default_factory=dict)


class RecoverySearch:
    """Finds the CPUs that containers keep, by each source in turn.

    Args:
        now: the node.
        record: the recorded answers.
        judge: the rules for answers.
        found: the containers with their present CPUs.
        chosen: the id in a pod's cgroup name → the CPUs that an earlier agent has recorded as a
            choice of the CPU manager policy.
    """

    def __init__(
        self,
        now: Snapshot,
        record: Record,
        judge: Judge,
        found: Sequence[FoundContainer] = (),
        chosen: Mapping[str, CPUSet] = MappingProxyType({}),
    ) -> None:
        self._now = now
        self._record = record
        self._judge = judge
        self._chosen = {
            **chosen,
            **{each.pod: each.chosen for each in now.facts.sighted.values() if each.chosen},
        }
        self._pods = [pod for pod in oldest_first(now.resolution.view.pods) if not pod.finished]
        self._there = {
            (each.pod, ContainerID(each.id)): CPUSet.parse_or_empty(each.cpus) for each in found
        }
        self._runs: dict[ContainerRef, CPUSet] = {}
        self._noted: dict[ContainerRef, CPUSet] = {}
        self._recorded = {
            ref: cpus for ref, by_resource in record.items() if (cpus := _own(by_resource))
        }
        self._own: dict[ContainerRef, CPUSet] = {}
        self._kept: dict[ContainerRef, Kept] = {}
        self._lost: dict[ContainerRef, Pod] = {}
        for identifier, pod, container in sightings.instances(self._pods, now.facts.sighted):
            self._read(identifier, ContainerRef(pod.cgroup_uid, container.name))

    def recovery(self) -> Recovery:
        """Return what containers keep, before any choice of an earlier agent is in force."""
        self._by_annotation()
        noted = dict(self._own)
        for pod, ref in self._containers(self._recorded):
            if ref not in self._own and self._free(pod, self._recorded[ref]):
                self._own[ref] = self._recorded[ref]
        self._by_cgroup()
        refused = {
            (ref, resource): replace(given, refused=f"names CPUs {taken}, which another pod owns")
            for ref, by_resource in self._record.items()
            for resource, given in by_resource.items()
            if ref not in self._kept and given.exclusive
            if (taken := given.cpus & _of_others(noted, ref.pod))
        }
        return Recovery(self._kept, self._lost, refused)

    def late(self) -> Recovery:
        """Return what containers without an answer keep by their annotations.

        The runtime may report a container after the agent has taken over. Then the record is the
        first source: plugins may have answered.
        """
        self._own = dict(self._recorded)
        self._noted = {ref: cpus for ref, cpus in self._noted.items() if ref not in self._record}
        self._by_annotation()
        return Recovery(self._kept)

    def _by_annotation(self) -> None:
        for pod, ref in self._containers(self._noted):
            cpus = self._noted[ref]
            if self._stale(ref) or not self._free(pod, cpus):
                continue
            self._own[ref] = cpus
            if self._recorded.get(ref) != cpus:
                self._kept[ref] = self._as_kept(pod, ref, cpus, Trace.ANNOTATION, exclusive=True)

    def _by_cgroup(self) -> None:
        shares = self._shared()
        for pod, ref in self._containers(self._runs):
            if ref in self._own or not self._lacks(pod, ref):
                continue
            cpus, recorded = self._runs[ref], ref in self._recorded
            exclusive = recorded or katalyst.qos_level(pod) is QoSLevel.DEDICATED
            kept = self._as_kept(pod, ref, cpus, Trace.CGROUP, exclusive=exclusive)
            if cpus not in shares and self._could_be_given(ref, kept.given):
                self._kept[ref] = kept
                if exclusive:
                    self._own[ref] = cpus
            elif exclusive and not recorded:
                self._lost[ref] = pod

    def _read(self, identifier: ContainerID, ref: ContainerRef) -> None:
        """Read the annotation and the cgroup of a container."""
        sighted, topology = self._now.facts.sighted.get(identifier), self._now.facts.topology
        # What has left the runtime's list without being offline is the plugin's again.
        cpus = sighted.answered - (sighted.narrowed & topology.online) if sighted else CPUSet()
        if cpus and cpus <= topology.present:
            self._noted[ref] = cpus
        if cpus := self._there.get((ref.pod, identifier), CPUSet()):
            self._runs[ref] = cpus

    def _containers(
        self, known: Mapping[ContainerRef, object]
    ) -> Iterator[tuple[Pod, ContainerRef]]:
        """Yield the known containers, of the oldest pod first."""
        for pod in self._pods:
            for container in pod.containers:
                ref = ContainerRef(pod.cgroup_uid, container.name)
                if ref in known:
                    yield pod, ref

    def _stale(self, ref: ContainerRef) -> bool:
        """Return whether the record has a later answer than the annotation of a container.

        It does if the container runs on the recorded CPUs; or if these were to come, and its
        old ones are another container's by the record alone.
        """
        has, cpus = self._recorded.get(ref), self._noted[ref]
        if not has or has == cpus:
            return False
        moved = has & self._now.facts.topology.online == self._runs.get(ref)
        others = (
            each for of, each in self._recorded.items() if of != ref and of not in self._noted
        )
        return moved or not cpus.isdisjoint(CPUSet.union(others))

    def _free(self, pod: Pod, cpus: CPUSet) -> bool:
        """Return whether the machine has CPUs, and no other owner has one of them."""
        facts, grants = self._now.facts, self._now.resolution.grants
        granted = (
            grant.cpus
            for uid, grant in grants.of_pods
            if uid != pod.cgroup_uid and grant.source is not Source.PLUGIN
        )
        taken = CPUSet.union(granted) | _of_others(self._own, pod.cgroup_uid)
        return cpus <= facts.topology.present and cpus.isdisjoint(taken)

    def _shared(self) -> set[CPUSet]:
        """Return the sets on which containers without an answer run, and their sandboxes."""
        facts, resolution = self._now
        sets = {resolution.view.extents[DEFAULT]}
        for key, cpus in self._there.items():
            placed = resolution.containers.get(key)
            asks = placed and CPU in by_plugins.plugin_requests(
                facts, resolution.grants, placed.pod, placed.container
            )
            if key[1] != POD_ITSELF and not asks and not (placed and placed.assignment.exclusive):
                sets.add(cpus)
        return sets

    def _lacks(self, pod: Pod, ref: ContainerRef) -> bool:
        """Return whether a container must have an answer for `cpu`, and none is recorded."""
        container = next(each for each in pod.containers if each.name == ref.name)
        facts, grants = self._now.facts, self._now.resolution.grants
        return CPU in by_plugins.plugin_requests(facts, grants, pod, container) and (
            CPU not in self._record.get(ref, {}) or ref in self._recorded
        )

    def _as_kept(
        self, pod: Pod, ref: ContainerRef, cpus: CPUSet, trace: Trace, *, exclusive: bool
    ) -> Kept:
        """Return what a container keeps; what the record has beside CPUs stays."""
        for resource, given in self._record.get(ref, {}).items():
            for name, answer in given.parts.items():
                if answer.oci_property == CPUSET_CPUS and not given.refused:
                    other = {**given.parts, name: replace(answer, value=str(cpus))}
                    return Kept(pod, resource, replace(given, parts=other, kept=True), trace)
        answer = AnswerPart(CPUSET_CPUS, str(cpus))
        return Kept(
            pod, CPU, RecordedAnswer(0.0, {CPU: answer}, exclusive=exclusive, kept=True), trace
        )

    def _could_be_given(self, ref: ContainerRef, given: RecordedAnswer) -> bool:
        """Return whether the plugin could give these CPUs now."""
        chosen = (cpus for pod, cpus in self._chosen.items() if pod != ref.pod)
        elsewhere = CPUSet.union(chosen) | _of_others(self._own, ref.pod)
        in_pod = (cpus for of, cpus in self._own.items() if of.pod == ref.pod)
        others = {name: each for name, each in self._record.get(ref, {}).items() if name != CPU}
        broken = self._judge.first_broken(
            ref, given, others, elsewhere=elsewhere, in_pod=CPUSet.union(in_pod)
        )
        return broken is None


def _own(by_resource: Mapping[str, RecordedAnswer]) -> CPUSet:
    return CPUSet.union(given.cpus for given in by_resource.values() if given.exclusive)


def _of_others(own: Mapping[ContainerRef, CPUSet], pod: str) -> CPUSet:
    """Return the CPUs of the containers of other pods."""
    return CPUSet.union(cpus for of, cpus in own.items() if of.pod != pod)
