"""What plugins have answered, and whether it counts.

The answers depend on history, as choices do: a plugin is asked once for a container, and its last
good answer stays. The placement of containers follows from the book's facts (`PluginFacts`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.resource_plugins import Given
from cpupool.manager import plugin_recovery
from cpupool.manager.plugin_recovery import Recovery
from cpupool.policies.plugin_answers import Judge
from cpupool.wire import katalyst
from cpupool.wire.katalyst import QoSLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.names import Names
    from cpupool.core.resource_plugins import Answers, Record
    from cpupool.core.workloads import ContainerRef, Pod
    from cpupool.manager.ports import FoundContainer
    from cpupool.manager.resolve import Snapshot
    from cpupool.policies.plugin_answers import Broken

    _Key = tuple[ContainerRef, str]

_ALONE: Final[Mapping[_Key, Given]] = {}


class AnswerBook:
    """The answers of a node; only one thread calls it.

    Args:
        names: the names that only cpupool uses.
        broken: called with the container, the resource and the rule for an answer that breaks
            one, unless the answer before has broken it in the same way: a plugin may repeat it
            every three seconds.
        v2: whether the node has cgroup version 2.

    Attributes:
        changes: how often an answer has changed.
    """

    def __init__(
        self, names: Names, broken: Callable[[ContainerRef, str, Broken], None], *, v2: bool = True
    ) -> None:
        self._names = names
        self._v2 = v2
        self._broken = broken
        self.changes = 0
        self._given: defaultdict[ContainerRef, dict[str, Given]] = defaultdict(dict)
        self._own: dict[_Key, CPUSet] = {}
        self._told: dict[_Key, Broken] = {}

    def load(self, record: Record) -> None:
        """Take the answers that an earlier agent recorded."""
        for ref, by_resource in record.items():
            for resource, given in by_resource.items():
                self._enter((ref, resource), given)

    def recover(
        self,
        now: Snapshot,
        found: Sequence[FoundContainer],
        chosen: Mapping[str, CPUSet],
    ) -> Recovery:
        """Take what containers keep although the record lacks it; return what that is.

        Args:
            now: the node, before any choice of an earlier agent counts.
            found: the containers with their present CPUs.
            chosen: as for `plugin_recovery.recover`.
        """
        judge = self._judge(now)
        return self._keep(plugin_recovery.recover(now, self.record, judge, found, chosen))

    def recover_late(self, now: Snapshot) -> Recovery:
        """Take what containers keep that the runtime has reported later; return what that is."""
        answered = {(ref.pod, ref.name) for ref in self._given}
        if all(
            not each.answered or (each.pod, each.name) in answered
            for each in now.facts.sighted.values()
        ):
            return Recovery()
        return self._keep(plugin_recovery.recover_late(now, self.record, self._judge(now)))

    @property
    def record(self) -> Record:
        """Every answer, also those that do not count."""
        return {ref: dict(by_resource) for ref, by_resource in self._given.items()}

    @property
    def resources(self) -> Mapping[str, set[str]]:
        """The id in a pod's cgroup name → the resources with an answer."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for ref, by_resource in self._given.items():
            found[ref.pod].update(by_resource)
        return found

    def of(self, ref: ContainerRef) -> Mapping[str, Given]:
        """Return the answers for a container: resource → answer."""
        return self._given.get(ref, {})

    def asked_for(
        self,
        pod: Pod,
        quantity: float,
        answers: Answers,
        hint: TopologyHint | None = None,
        *,
        has: Given | None = None,
    ) -> Given:
        """Return an answer with what was asked.

        Args:
            pod: the container's pod.
            quantity: how much was requested.
            answers: what the plugin has answered.
            hint: the NUMA nodes that went with the request.
            has: the answer until now. CPUs that a container has kept for itself stay its own.
        """
        dedicated = katalyst.qos_level(pod) is QoSLevel.DEDICATED or (
            has is not None and has.kept and has.exclusive
        )
        marked = any(
            answer.annotations.get(self._names.exclusive) == "true" for answer in answers.values()
        )
        return Given(quantity, answers, hint, exclusive=dedicated or marked)

    def listed(self, pod: Pod, quantity: float, answers: Answers, has: Given | None) -> Given:
        """Return the answer that a plugin's list has for a container.

        A pod's author may have changed its class since it was admitted. A list may leave out the
        variables and annotations with which the container was created.

        Args:
            pod: the container's pod.
            quantity: how much the container requests.
            answers: what the plugin lists.
            has: the answer until now.
        """
        if has is None or has.kept:
            return self.asked_for(pod, quantity, answers, has=has)
        joined = {
            resource: replace(
                answer,
                env=answer.env or before.env,
                annotations=answer.annotations or before.annotations,
            )
            for resource, answer in answers.items()
            for before in (has.answers.get(resource, answer),)
        }
        return replace(has, answers=joined, refused="")

    def take(self, now: Snapshot, answered: Mapping[_Key, Given]) -> None:
        """Take new answers: each that keeps the rules counts; otherwise the last good one stays.

        An answer may name CPUs that another of them leaves, so those that count come first. Then
        come answers that count only together, as those of two pods that swap their CPUs.
        """
        waiting, judge = dict(answered), self._judge(now)
        verdicts: dict[_Key, Broken] = {}
        while True:
            before, verdicts = len(waiting), {}
            # One after the other: two of them may name the same CPU.
            for key, given in answered.items():
                if key not in waiting:
                    continue
                if verdict := self._verdict(judge, key, given):
                    verdicts[key] = verdict
                else:
                    self._enter(key, replace(waiting.pop(key), refused=""))
            if len(waiting) < before:
                continue
            entered = self._together(judge, waiting)
            if not entered:
                break
            for key in entered:
                self._enter(key, replace(waiting.pop(key), refused=""))
        for key, verdict in verdicts.items():
            self._refuse(key, waiting[key], verdict)

    def judge_again(self, now: Snapshot) -> None:
        """Judge the answers that do not count by the node of now."""
        judge = self._judge(now)
        for key, given in tuple(self._entries()):
            # One without answers has broken a rule that no node mends.
            judged = given.refused and given.answers
            if judged and self._verdict(judge, key, given) is None:
                self._enter(key, replace(given, refused=""))

    def forget(self, pod: str) -> None:
        """Forget a pod that has ended; `pod` is the id in its cgroup's name."""
        self.changes += 1
        for ref in [ref for ref in self._given if ref.pod == pod]:
            for resource in self._given.pop(ref):
                self._own.pop((ref, resource), None)
                self._told.pop((ref, resource), None)

    def _keep(self, recovery: Recovery) -> Recovery:
        for key, given in recovery.refused.items():
            self._enter(key, given)
        for ref, kept in recovery.kept.items():
            self._enter((ref, kept.resource), kept.given)
        return recovery

    def _entries(self) -> Iterator[tuple[_Key, Given]]:
        for ref, by_resource in self._given.items():
            for resource, given in by_resource.items():
                yield (ref, resource), given

    def _judge(self, now: Snapshot) -> Judge:
        return Judge(now.resolution.view, now.facts.policy, self._names, v2=self._v2)

    def _together(self, judge: Judge, waiting: Mapping[_Key, Given]) -> list[_Key]:
        """Return the answers that count if all of them come at one time."""
        left = dict(waiting)
        while left:
            broken = [key for key in left if self._verdict(judge, key, left[key], left) is not None]
            if not broken:
                break
            for key in broken:
                del left[key]
        return list(left)

    def _verdict(
        self, judge: Judge, key: _Key, given: Given, together: Mapping[_Key, Given] = _ALONE
    ) -> Broken | None:
        """Judge an answer, with others that would come at the same time."""
        ref, resource = key
        others = {
            **self.of(ref),
            **{name: new for (of, name), new in together.items() if of == ref},
        }
        others.pop(resource, None)
        own = {of: cpus for of, cpus in self._own.items() if of not in together}
        own |= {of: new.cpus for of, new in together.items() if new.exclusive}
        own.pop(key, None)
        return judge.verdict(
            ref,
            given,
            others,
            elsewhere=CPUSet.union(
                cpus for (other, _), cpus in own.items() if other.pod != ref.pod
            ),
            in_pod=CPUSet.union(cpus for (other, _), cpus in own.items() if other.pod == ref.pod),
        )

    def _refuse(self, key: _Key, given: Given, verdict: Broken) -> None:
        ref, resource = key
        before = self.of(ref).get(resource)
        # What can never count is not kept: its values may not even equal themselves.
        answers = given.answers if verdict.rule.may_pass else {}
        refused = replace(given, answers=answers, refused=verdict.why)
        if self._told.get(key) != verdict:
            self._told[key] = verdict
            self._broken(ref, resource, verdict)
        if before is None or (before.refused and before != refused):
            self._enter(key, refused)

    def _enter(self, key: _Key, given: Given) -> None:
        ref, resource = key
        self.changes += 1
        self._given[ref][resource] = given
        self._own.pop(key, None)
        if not given.refused:
            self._told.pop(key, None)
        if given.exclusive and (cpus := given.cpus):
            self._own[key] = cpus
