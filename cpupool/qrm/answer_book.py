"""Judges what plugins have answered, and enters it into the table of questions.

The answers depend on history, as choices do: a plugin is asked once for a container, and its last
good answer stays. The placement of containers follows from the answers (`PluginFacts`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.katalyst import QoSLevel
from cpupool.qrm.answer_recovery import Recovery, RecoverySearch
from cpupool.qrm.bad_answers import Judge
from cpupool.qrm.question_table import Event, Has

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.names import Names
    from cpupool.core.plugin_facts import AnswerParts, Record
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.bad_answers import Broken
    from cpupool.qrm.question_table import QuestionTable

    _Key = tuple[ContainerRef, str]

_ALONE: Final[Mapping[_Key, RecordedAnswer]] = {}


class AnswerBook:
    """The answers of a node; only one thread calls it.

    Args:
        table: has the answers.
        names: the names that only cpupool uses.
        broken: called with the container, the resource and the rule for an answer that breaks
            one, unless the answer before has broken it in the same way: a plugin may repeat it
            every three seconds.
        v2: whether the node has cgroup version 2.
    """

    def __init__(
        self,
        table: QuestionTable,
        names: Names,
        broken: Callable[[ContainerRef, str, Broken], None],
        *,
        v2: bool = True,
    ) -> None:
        self._table = table
        self._names = names
        self._v2 = v2
        self._broken = broken

    def load(self, record: Record) -> None:
        """Take the answers that an earlier agent recorded."""
        for ref, by_resource in record.items():
            for resource, given in by_resource.items():
                event = Event.BAD if given.refused else Event.KEEP if given.kept else Event.GOOD
                self._table.enter(self._table.row(ref, resource), event, given)

    def recover(
        self,
        now: Snapshot,
        found: Sequence[FoundContainer],
        chosen: Mapping[str, CPUSet],
    ) -> Recovery:
        """Take what containers keep although the record lacks it (`RecoverySearch`)."""
        record, judge = self._table.record, self._judge(now)
        return self._keep(RecoverySearch(now, record, judge, found, chosen).recovery())

    def recover_late(self, now: Snapshot) -> Recovery:
        """Take what containers keep that the runtime has reported later."""
        if all(
            not each.answered or self._table.answers(ContainerRef(each.pod, each.name))
            for each in now.facts.sighted.values()
        ):
            return Recovery()
        return self._keep(RecoverySearch(now, self._table.record, self._judge(now)).late())

    def asked_for(
        self,
        pod: Pod,
        quantity: float,
        answers: AnswerParts,
        hint: TopologyHint | None = None,
        *,
        has: RecordedAnswer | None = None,
    ) -> RecordedAnswer:
        """Return an answer with what was asked.

        CPUs that a container has kept for itself stay its own.
        """
        dedicated = katalyst.qos_level(pod) is QoSLevel.DEDICATED or (
            has is not None and has.kept and has.exclusive
        )
        marked = any(
            answer.annotations.get(self._names.exclusive) == "true" for answer in answers.values()
        )
        return RecordedAnswer(quantity, answers, hint, exclusive=dedicated or marked)

    def listed(
        self, pod: Pod, quantity: float, answers: AnswerParts, has: RecordedAnswer | None
    ) -> RecordedAnswer:
        """Return the answer that a plugin's list has for a container.

        A pod's author may have changed its class since it was admitted. A list may leave out the
        variables and annotations with which the container was created.
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
            for before in (has.parts.get(resource, answer),)
        }
        return replace(has, parts=joined, refused="")

    def take(self, now: Snapshot, answered: Mapping[_Key, RecordedAnswer]) -> Mapping[_Key, str]:
        """Take new answers; return why some are not valid, whose last valid ones stay.

        An answer may name CPUs that another of them leaves, so the valid ones come first. Then
        come answers that are valid only together, as those of two pods that swap their CPUs.
        """
        waiting, judge = dict(answered), self._judge(now)
        broken_rules: dict[_Key, Broken] = {}
        while True:
            before, broken_rules = len(waiting), {}
            # One after the other: two of them may name the same CPU.
            for key, given in answered.items():
                if key not in waiting:
                    continue
                if broken := self._first_broken(judge, key, given):
                    broken_rules[key] = broken
                else:
                    self._accept(key, waiting.pop(key))
            if len(waiting) < before:
                continue
            entered = self._together(judge, waiting)
            if not entered:
                break
            for key in entered:
                self._accept(key, waiting.pop(key))
        for key, broken in broken_rules.items():
            self._refuse(key, waiting[key], broken)
        return {key: broken.why for key, broken in broken_rules.items()}

    def judge_again(self, now: Snapshot) -> None:
        """Judge the bad answers by the present node."""
        judge = self._judge(now)
        for row in [row for row in self._table if row.has is Has.BAD]:
            given, key = row.answer, (row.container, row.resource)
            # One without answers has broken a rule that no node mends.
            if given and given.parts and self._first_broken(judge, key, given) is None:
                self._accept(key, given)

    def _keep(self, recovery: Recovery) -> Recovery:
        for key, given in recovery.refused.items():
            self._table.enter(self._table.row(*key), Event.CONTESTED, given)
        for ref, kept in recovery.kept.items():
            self._table.enter(self._table.row(ref, kept.resource), Event.KEEP, kept.given)
        return recovery

    def _judge(self, now: Snapshot) -> Judge:
        return Judge(now.resolution.view, now.facts.policy, self._names, v2=self._v2)

    def _together(self, judge: Judge, waiting: Mapping[_Key, RecordedAnswer]) -> list[_Key]:
        """Return the answers that are valid if all of them come at one time."""
        left = dict(waiting)
        while left:
            broken = [
                key for key in left if self._first_broken(judge, key, left[key], left) is not None
            ]
            if not broken:
                break
            for key in broken:
                del left[key]
        return list(left)

    def _first_broken(
        self,
        judge: Judge,
        key: _Key,
        given: RecordedAnswer,
        together: Mapping[_Key, RecordedAnswer] = _ALONE,
    ) -> Broken | None:
        """Judge an answer, with others that would come at the same time."""
        ref, resource = key
        others = {
            **self._table.answers(ref),
            **{name: new for (of, name), new in together.items() if of == ref},
        }
        others.pop(resource, None)
        own = {(row.container, row.resource): row.own for row in self._table if row.own}
        own |= {of: new.cpus if new.exclusive else CPUSet() for of, new in together.items()}
        own.pop(key, None)
        return judge.first_broken(
            ref,
            given,
            others,
            elsewhere=CPUSet.union(
                cpus for (other, _), cpus in own.items() if other.pod != ref.pod
            ),
            in_pod=CPUSet.union(cpus for (other, _), cpus in own.items() if other.pod == ref.pod),
        )

    def _accept(self, key: _Key, given: RecordedAnswer) -> None:
        event = Event.KEEP if given.kept else Event.GOOD
        self._table.enter(self._table.row(*key), event, replace(given, refused=""))

    def _refuse(self, key: _Key, given: RecordedAnswer, broken: Broken) -> None:
        row = self._table.row(*key)
        # An answer that is bad for good is not kept: its values may not even equal themselves.
        answers = {} if broken.for_good else given.parts
        refused = replace(given, parts=answers, refused=broken.why)
        if row.broken != broken:
            row.broken = broken
            self._broken(*key, broken)
        if row.has in (Has.VALID, Has.KEPT) or row.answer == refused:
            self._table.move(row, Event.BAD)
        else:
            self._table.enter(row, Event.BAD, refused)
