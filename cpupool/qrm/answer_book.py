"""Judges what plugins have answered, and enters it into the table of questions.

The answers depend on history, as choices do: a plugin is asked once for a container, and its last
good answer stays. The placement of containers follows from the answers (`PluginFacts`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import Given
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
    from cpupool.core.plugin_facts import Answers, Record
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.bad_answers import Broken
    from cpupool.qrm.question_table import QuestionTable

    _Key = tuple[ContainerRef, str]

_ALONE: Final[Mapping[_Key, Given]] = {}


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
        """Take what containers keep although the record lacks it; as for `RecoverySearch`."""
        record, judge = self._table.record, self._judge(now)
        return self._keep(RecoverySearch(now, record, judge, found, chosen).recovery())

    def recover_late(self, now: Snapshot) -> Recovery:
        """Take what containers keep that the runtime has reported later."""
        if all(
            not each.answered or self._table.given(ContainerRef(each.pod, each.name))
            for each in now.facts.sighted.values()
        ):
            return Recovery()
        return self._keep(RecoverySearch(now, self._table.record, self._judge(now)).late())

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

        CPUs that a container has kept for itself stay its own.
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

    def take(self, now: Snapshot, answered: Mapping[_Key, Given]) -> Mapping[_Key, str]:
        """Take new answers; return why some are not valid, whose last valid ones stay.

        An answer may name CPUs that another of them leaves, so the valid ones come first. Then
        come answers that are valid only together, as those of two pods that swap their CPUs.
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
                    self._count(key, waiting.pop(key))
            if len(waiting) < before:
                continue
            entered = self._together(judge, waiting)
            if not entered:
                break
            for key in entered:
                self._count(key, waiting.pop(key))
        for key, verdict in verdicts.items():
            self._refuse(key, waiting[key], verdict)
        return {key: verdict.why for key, verdict in verdicts.items()}

    def judge_again(self, now: Snapshot) -> None:
        """Judge the bad answers by the present node."""
        judge = self._judge(now)
        for row in [row for row in self._table if row.has is Has.BAD]:
            given, key = row.given, (row.container, row.resource)
            # One without answers has broken a rule that no node mends.
            if given and given.answers and self._verdict(judge, key, given) is None:
                self._count(key, given)

    def _keep(self, recovery: Recovery) -> Recovery:
        for key, given in recovery.refused.items():
            self._table.enter(self._table.row(*key), Event.CONTESTED, given)
        for ref, kept in recovery.kept.items():
            self._table.enter(self._table.row(ref, kept.resource), Event.KEEP, kept.given)
        return recovery

    def _judge(self, now: Snapshot) -> Judge:
        return Judge(now.resolution.view, now.facts.policy, self._names, v2=self._v2)

    def _together(self, judge: Judge, waiting: Mapping[_Key, Given]) -> list[_Key]:
        """Return the answers that are valid if all of them come at one time."""
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
            **self._table.given(ref),
            **{name: new for (of, name), new in together.items() if of == ref},
        }
        others.pop(resource, None)
        own = {(row.container, row.resource): row.own for row in self._table if row.own}
        own |= {of: new.cpus if new.exclusive else CPUSet() for of, new in together.items()}
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

    def _count(self, key: _Key, given: Given) -> None:
        event = Event.KEEP if given.kept else Event.GOOD
        self._table.enter(self._table.row(*key), event, replace(given, refused=""))

    def _refuse(self, key: _Key, given: Given, verdict: Broken) -> None:
        row = self._table.row(*key)
        # An answer that is bad for good is not kept: its values may not even equal themselves.
        answers = {} if verdict.for_good else given.answers
        refused = replace(given, answers=answers, refused=verdict.why)
        if row.broken != verdict:
            row.broken = verdict
            self._broken(*key, verdict)
        if row.has in (Has.VALID, Has.KEPT) or row.given == refused:
            self._table.move(row, Event.BAD)
        else:
            self._table.enter(row, Event.BAD, refused)
