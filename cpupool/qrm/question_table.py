"""The conversation with plugins as one table: every question, and its state.

A question is what one container requests of one resource. This table has all that the agent knows
about questions, and about their containers and pods. The modules that ask plugins, or report, read
the table.

Theory of operation
===================

A question has three states at one time. Each kind of state has its own transition table, which says
which event leads to which next state:

1. `Call`: what the agent asks the plugin now. A question has one call at a time.
2. `Has`: which answer the container has. The answer stays over a restart of the agent, and over
   the next call: if the request grows, the agent asks again, and the earlier answer stays until the
   plugin has answered.
3. `Start`: how far the plugin has prepared the next start of the container. Most plugins prepare
   none, and the state stays FREE.

The pod has a fourth state, `Stay`. The longest way of a question, as `(call, has, start)`:

    (QUIET, NOTHING, FREE)        a container requests a resource
    (HINTS_ASKED, NOTHING, FREE)  ASK_HINTS: which NUMA nodes can serve the container?
    (HINTED, NOTHING, FREE)       HEARD: these hints wait for the hints of its other resources
    (ASKED, PERHAPS, FREE)        ASK: what does the container get on these NUMA nodes?
    (QUIET, PERHAPS, DUE)         ANSWERED, then MUST_PREPARE if the plugin prepares starts
    (QUIET, VALID, DUE)           GOOD: the answer keeps the rules
    (PREPARING, VALID, DUE)       PREPARE: the agent asks the plugin to prepare the start
    (QUIET, VALID, READY)         PREPARED: only now the `Manager` gets the answer
    (QUIET, VALID, USED)          START: the container runs
    GONE                          END of its pod, then FORGET: its plugins have forgotten the pod

An event moves each state whose transition table has the event: ASK moves `Call` and `Has`. If such
a table has the event, but not in the present state, the event is `Impossible`, and moves nothing.

Four rules are about several questions:

* If another plugin has taken the place of a plugin, the old plugin answers no more calls. LOST ends
  its calls, and the agent asks the new plugin.
* The hints of a pod belong together. A refusal makes all of them STALE, and the agent asks about
  the pod's containers again after a pause.
* In a pod that runs, a pause after a refusal delays only the refused container, and a plugin that
  is away or silent delays no question to another plugin.
* A call about a forgotten pod still ends (LEFT). If the call was ASK, the table still accepts its
  answer: by this call the plugin has stored the pod again. So the agent asks the plugin once more
  to forget the pod.

The table uses no thread and no socket. Its only clock is monotonic.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cpupool.core.cpuset import CPUSet
from cpupool.loops.attempts import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from cpupool.core.plugin_facts import Record, RecordedAnswer
    from cpupool.core.workloads import ContainerID, ContainerRef
    from cpupool.policies.qrm.questions import Question
    from cpupool.qrm.bad_answers import Broken
    from cpupool.qrm.plugin_messages import Hints

GRACE_S: Final = 300.0
"""How long a plugin that is gone may return (endpointStopGracePeriod)."""


class Call(Enum):
    """The present call about a question."""

    QUIET = auto()  # nothing
    HINTS_ASKED = auto()  # which NUMA nodes can serve the container
    HINTED = auto()  # nothing: its hints wait for those of other resources
    ASKED = auto()  # what the container gets
    PREPARING = auto()  # to prepare the next start
    LEFT = auto()  # one of these, about a pod that is forgotten
    GONE = auto()  # nothing, and there is no question any more


class Has(Enum):
    """Which answer the container has."""

    NOTHING = auto()  # none, and the plugin was not asked what it gets
    PERHAPS = auto()  # none; the plugin was asked, and may hold something
    VALID = auto()  # one that keeps the rules
    KEPT = auto()  # it is lost: the container keeps the CPUs that it was found with
    BAD = auto()  # one that breaks a rule; it may be valid on another state of the node


class Start(Enum):
    """How far the next start of the container is prepared."""

    FREE = auto()  # it need not be
    DUE = auto()  # not at all, and the answer is no fact before
    READY = auto()  # it is prepared, and no instance has used it
    USED = auto()  # the newest instance has used it, and another one needs the next


class Stay(Enum):
    """Whether a pod is there."""

    HERE = auto()
    ENDING = auto()  # no container has CPUs, and plugins are asked to forget it
    GONE = auto()


class Event(Enum):
    """An event that moves states."""

    ASK_HINTS = auto()  # the plugin is asked for hints
    HEARD = auto()  # it has said them; a refusal is a list without hints
    STALE = auto()  # a container of the pod was refused, or this one has all
    ASK = auto()  # the plugin is asked what the container gets
    ANSWERED = auto()  # it has said so; GOOD or BAD follows
    PREPARE = auto()  # it is asked to prepare a start
    PREPARED = auto()  # it has
    REFUSED = auto()  # it refuses what it was asked, or the call fails
    LOST = auto()  # another plugin serves the resource, or none
    LATE = auto()  # a call about a pod that is forgotten has ended
    GOOD = auto()  # an answer keeps the rules: of ASK, of a list, or on the node of now
    BAD = auto()  # an answer breaks a rule; the last valid one stays
    KEEP = auto()  # the record, or the plugin, lacks the answer by which the container runs
    CONTESTED = auto()  # another container has the CPUs of the answer by its annotation
    MUST_PREPARE = auto()  # an answer is from a plugin that prepares starts
    ADOPT = auto()  # as MUST_PREPARE, of an earlier agent: what runs was prepared
    START = auto()  # the runtime creates an instance
    RELEASE = auto()  # the plugin that serves the resource now prepares no start
    END = auto()  # a pod has ended
    RETURN = auto()  # it is there all the same
    FORGET = auto()  # the plugins have forgotten a pod, or none knows of it


_State = TypeVar("_State", bound=Enum)


def _moves(
    *rows: tuple[Event, Iterable[_State], _State | None],
) -> Mapping[tuple[_State, Event], _State]:
    """Return a table: state and event → the next state.

    Args:
        rows: an event, the states in which it can happen, and where it leads; None for no change.
    """
    return {(state, event): to or state for event, states, to in rows for state in states}


_UNDER_WAY: Final = (Call.HINTS_ASKED, Call.ASKED, Call.PREPARING)
CALL: Final = _moves(
    (Event.ASK_HINTS, (Call.QUIET,), Call.HINTS_ASKED),
    (Event.HEARD, (Call.HINTS_ASKED,), Call.HINTED),
    (Event.STALE, (Call.HINTED,), Call.QUIET),
    # Without hints: for no topology policy, or a plugin without alignment.
    (Event.ASK, (Call.QUIET, Call.HINTED), Call.ASKED),
    (Event.ANSWERED, (Call.ASKED, Call.LEFT), Call.QUIET),
    (Event.MUST_PREPARE, (Call.QUIET,), None),
    (Event.RELEASE, (Call.QUIET,), None),
    # A start does not wait for other resources.
    (Event.PREPARE, (Call.QUIET, Call.HINTED), Call.PREPARING),
    (Event.PREPARED, (Call.PREPARING,), Call.QUIET),
    (Event.REFUSED, _UNDER_WAY, Call.QUIET),
    (Event.LOST, (*_UNDER_WAY, Call.HINTED, Call.LEFT), Call.QUIET),
    (Event.LATE, (Call.LEFT,), Call.QUIET),
    (Event.FORGET, (Call.QUIET, Call.HINTED), Call.GONE),
    (Event.FORGET, (*_UNDER_WAY, Call.LEFT), Call.LEFT),
)
HAS: Final = _moves(
    (Event.ASK, (Has.NOTHING,), Has.PERHAPS),
    (Event.ASK, (Has.PERHAPS, Has.VALID, Has.KEPT, Has.BAD), None),
    (Event.GOOD, Has, Has.VALID),
    (Event.BAD, (Has.NOTHING, Has.PERHAPS), Has.BAD),
    (Event.BAD, (Has.VALID, Has.KEPT, Has.BAD), None),
    (Event.KEEP, Has, Has.KEPT),
    (Event.CONTESTED, (Has.VALID, Has.KEPT), Has.BAD),
    (Event.FORGET, Has, Has.NOTHING),
)
START: Final = _moves(
    (Event.MUST_PREPARE, Start, Start.DUE),
    (Event.ADOPT, (Start.FREE,), Start.USED),
    (Event.PREPARE, (Start.DUE, Start.USED), None),
    (Event.PREPARED, (Start.DUE, Start.USED), Start.READY),
    (Event.START, (Start.READY,), Start.USED),
    (Event.RELEASE, (Start.DUE, Start.READY, Start.USED), Start.FREE),
    (Event.FORGET, Start, Start.FREE),
)
STAY: Final = _moves(
    (Event.END, (Stay.HERE,), Stay.ENDING),
    (Event.RETURN, (Stay.ENDING,), Stay.HERE),
    (Event.FORGET, (Stay.ENDING,), Stay.GONE),
)
_BEING_ADMITTED: Final = frozenset({Call.HINTS_ASKED, Call.ASKED, Call.LEFT})
_NO_CPUS: Final = CPUSet()
_AT_ONCE: Final = Attempt(0.0)


class Impossible(ValueError):
    """An event that cannot happen in a state."""

    def __init__(self, state: Enum, event: Event) -> None:
        super().__init__(f"{event.name} cannot happen in {type(state).__name__}.{state.name}")


def after(table: Mapping[tuple[_State, Event], _State], state: _State, event: Event) -> _State:
    """Return where an event leads; the same state if the table does not know the event.

    Raises:
        Impossible: the table knows it, but not in this state, or nothing leaves the state.
    """
    if (state, event) not in table:
        known, left = any(of is event for _, of in table), any(of is state for of, _ in table)
        if known or not left:
            raise Impossible(state, event)
    return table.get((state, event), state)


class HintsAnswer(NamedTuple):
    """A plugin's hints for a container.

    Attributes:
        hints: None for no preference, empty if no nodes can serve it.
        why: the plugin's words, if it has refused.
    """

    hints: Hints
    why: str = ""


@dataclass(slots=True, eq=False)
class Row:
    """A question.

    Attributes:
        container: the container.
        resource: the name under which its plugin is registered.
        call: its state, as are `has` and `start`.
        hints: what was heard, while it is HINTED.
        answer: the answer, unless it has NOTHING or PERHAPS something.
        own: the CPUs that the answer gives to the container alone.
        broken: the rule that the last answer has broken; None after a good one.
        confirmed_s: when the plugin has last confirmed the answer.
        prepares: the request whose starts are prepared, unless these are FREE.
        served: the instances that were prepared.
        attempt: when to ask for a preparation again.
        unprepared: why the last preparation has failed; empty if it has not.
    """

    container: ContainerRef
    resource: str
    call: Call = field(default=Call.QUIET, init=False)
    has: Has = field(default=Has.NOTHING, init=False)
    start: Start = field(default=Start.FREE, init=False)
    hints: HintsAnswer | None = field(default=None, init=False)
    answer: RecordedAnswer | None = field(default=None, init=False)
    own: CPUSet = field(default=_NO_CPUS, init=False)
    broken: Broken | None = field(default=None, init=False)
    confirmed_s: float | None = field(default=None, init=False)
    prepares: Question | None = field(default=None, init=False)
    served: frozenset[ContainerID] = field(default=frozenset(), init=False)
    attempt: Attempt = field(default=_AT_ONCE, init=False)
    unprepared: str = field(default="", init=False)


@dataclass(slots=True)
class _Container:
    """Why a container is refused, and when it is tried again.

    Attributes:
        refused: resource → why its plugin refuses the container; empty for all plugins together.
        attempt: when it is tried again.
    """

    refused: dict[str, str] = field(default_factory=dict)
    attempt: Attempt = _AT_ONCE

    @property
    def why(self) -> str:
        """Why it is refused; empty if it is not."""
        return "; ".join(why for _, why in sorted(self.refused.items()))


@dataclass(slots=True)
class _Pod:
    """A pod: since when it has ended, and the resources whose plugins have forgotten it."""

    stay: Stay = Stay.HERE
    ended_s: float = 0.0
    forgotten: frozenset[str] = frozenset()


class QuestionTable:
    """All questions of a node; only one thread calls it.

    Pods are the ids in the names of their cgroups.

    Args:
        now_s: a monotonic clock.

    Attributes:
        now_s: as given.
        changes: how often something has changed that others see: an answer, a refusal or a start.
        lost_s: resource → since when it has no plugin, for some minutes.
        unlisted: the resources whose plugin is to list, and has not yet. Such a plugin allocates
            nothing: an agent that was killed may have asked it without a record of the answer.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.changes = 0
        self.lost_s: dict[str, float] = {}
        self.unlisted: set[str] = set()
        self._rows: defaultdict[ContainerRef, dict[str, Row]] = defaultdict(dict)
        self._containers: dict[ContainerRef, _Container] = {}
        self._pods: dict[str, _Pod] = {}

    def __iter__(self) -> Iterator[Row]:
        """Yield every question."""
        return chain.from_iterable(map(dict.values, tuple(self._rows.values())))

    def row(self, container: ContainerRef, resource: str) -> Row:
        """Return a question; a new one has no answer."""
        by_resource = self._rows[container]
        if resource not in by_resource:
            self._pods.setdefault(container.pod, _Pod())
            by_resource[resource] = Row(container, resource)
        return by_resource[resource]

    def of(self, container: ContainerRef) -> Iterable[Row]:
        """Return the questions of a container."""
        return self._rows.get(container, {}).values()

    def answers(self, container: ContainerRef) -> Mapping[str, RecordedAnswer]:
        """Return the answers for a container: resource → answer."""
        return {row.resource: row.answer for row in self.of(container) if row.answer is not None}

    @property
    def record(self) -> Record:
        """Every answer, also the bad ones."""
        return {ref: answers for ref in self._rows if (answers := self.answers(ref))}

    @property
    def refusals(self) -> Mapping[ContainerRef, str]:
        """Container → why it lacks an answer, or a start that is prepared."""
        refused = {ref: each.why for ref, each in self._containers.items() if each.refused}
        return refused | {row.container: row.unprepared for row in self if row.unprepared}

    @property
    def prepared(self) -> Mapping[ContainerRef, frozenset[ContainerID]]:
        """Container → the instances for which all is prepared."""
        found: dict[ContainerRef, frozenset[ContainerID]] = {}
        for row in self:
            if row.start is not Start.FREE:
                found[row.container] = found.get(row.container, row.served) & row.served
        return found

    @property
    def ready(self) -> frozenset[ContainerRef]:
        """The containers whose next start is prepared by all plugins, and not given yet."""
        ready = {row.container for row in self if row.start is Start.READY}
        return frozenset(ref for ref in ready if self._is_ready(ref))

    def _is_ready(self, ref: ContainerRef, instance: ContainerID | None = None) -> bool:
        return all(
            row.start in (Start.FREE, Start.READY) or instance in row.served for row in self.of(ref)
        )

    # What happens to a question.

    def move(self, row: Row, event: Event) -> None:
        """Let an event move a question.

        Raises:
            Impossible: it cannot happen in the question's states.
        """
        call, has = after(CALL, row.call, event), after(HAS, row.has, event)
        start = after(START, row.start, event)
        self.changes += start is not row.start
        row.call, row.has, row.start = call, has, start
        if call is not Call.HINTED:
            row.hints = None
        if start is Start.FREE:
            row.unprepared = ""
        if call is Call.GONE:
            del self._rows[row.container][row.resource]
            if not self._rows[row.container]:
                del self._rows[row.container]

    def hear(self, row: Row, event: Event) -> bool:
        """Let the end of a call move a question; return whether it matters still."""
        late = row.call is Call.LEFT and event is not Event.ANSWERED
        self.move(row, Event.LATE if late else event)
        return not late

    def enter(self, row: Row, event: Event, answer: RecordedAnswer) -> None:
        """Let an event that brings an answer move a question."""
        self.move(row, event)
        self._pods.setdefault(row.container.pod, _Pod())
        self.changes += 1
        row.answer = answer
        row.own = answer.cpus if answer.exclusive else _NO_CPUS
        if not answer.refused:
            row.broken = None

    def prepare(
        self, row: Row, question: Question, runs: frozenset[ContainerID] | None = None
    ) -> None:
        """Note that starts of a container are prepared, from now on or since what `runs`."""
        self.move(row, Event.MUST_PREPARE if runs is None else Event.ADOPT)
        row.prepares, row.served = question, runs or frozenset()
        row.attempt, row.unprepared = _AT_ONCE, ""

    def serve(self, row: Row, instances: Sequence[ContainerID]) -> bool:
        """Give what is prepared to the newest instance without it; return whether it is lacking.

        It also is once no instance has it: a try of the runtime that is refused is there for a
        moment only. Nor does one instance have it before all plugins have prepared their part.

        Args:
            row: the question.
            instances: the container's instances that are there, the newest last.
        """
        new = [each for each in instances if each not in row.served]
        if row.start is Start.READY and new and self._is_ready(row.container, new[-1]):
            self.move(row, Event.START)
            row.served = row.served.intersection(instances) | {new[-1]}
            return False
        return row.start is not Start.READY and bool(new or row.served.isdisjoint(instances))

    def unprepared(self, row: Row, why: str) -> bool:
        """Note why a start is not prepared, or that it is; return whether `why` is new."""
        new, row.unprepared = row.unprepared != why, why
        row.attempt = row.attempt.refused(self.now_s()) if why else _AT_ONCE
        self.changes += new
        return new

    # What happens to a container.

    def refuse(self, ref: ContainerRef, why: str, resource: str = "") -> bool:
        """Note that a container is refused, and tried again later; return whether that is new.

        What a single plugin refuses stays until it answers, or until all plugins together refuse:
        then it has given hints.

        Args:
            ref: the container.
            why: the reason in words.
            resource: whose plugin refuses; empty for all plugins together.
        """
        self._pods.setdefault(ref.pod, _Pod())
        container = self._containers.setdefault(ref, _Container())
        others = {name: each for name, each in container.refused.items() if name and resource}
        refused = {**others, resource: why}
        new, container.refused = container.refused != refused, refused
        container.attempt = container.attempt.refused(self.now_s())
        self.changes += new
        self._drop_hints(row for row in self if row.container.pod == ref.pod)
        return new

    def answered(self, row: Row) -> None:
        """Note that a plugin refuses a container no more."""
        container = self._containers.get(row.container, _Container())
        for resource in container.refused.keys() & {row.resource, ""}:
            del container.refused[resource]
            self.changes += 1

    def has_all(self, ref: ContainerRef) -> None:
        """Note that a container has all answers."""
        if container := self._containers.pop(ref, None):
            self.changes += bool(container.refused)
        self._drop_hints(self.of(ref))

    def waits(self, refs: Iterable[ContainerRef], tried: Iterable[ContainerRef]) -> bool:
        """Return whether a question has no answer yet, or the next attempt is not due.

        Args:
            refs: the containers of a pod, of which several may be asked for hints at one time.
            tried: those whose attempt counts.
        """
        calls = {row.call for ref in refs for row in self.of(ref)}
        attempts = [self._containers[ref].attempt for ref in tried if ref in self._containers]
        return bool(calls & _BEING_ADMITTED) or any(self.now_s() < each.due_s for each in attempts)

    def next_s(self) -> float:
        """Return when the next attempt comes; one that is due already waits for something else."""
        now_s, attempts = self.now_s(), (each.attempt.due_s for each in self._containers.values())
        return min((due_s for due_s in attempts if due_s > now_s), default=math.inf)

    def _drop_hints(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.call is Call.HINTED:
                self.move(row, Event.STALE)

    # What happens to a plugin.

    def registered(self, resource: str, *, serves: bool, lists: bool = False) -> None:
        """Note that another plugin serves a resource, or none; the calls of the old one have ended.

        What waits for an attempt is tried at once: the refusals were the other plugin's.
        """
        for container in self._containers.values():
            container.attempt = _AT_ONCE
        for row in tuple(self):
            if row.resource == resource and (row.call, Event.LOST) in CALL:
                self.move(row, Event.LOST)
        self.unlisted.discard(resource)
        self.lost_s.pop(resource, None)
        if lists:
            self.unlisted.add(resource)
        if not serves:
            self.lost_s[resource] = self.now_s()

    def recalled(self) -> None:
        """Note that no plugin of a recorded answer has registered: each may, for some minutes."""
        now_s = self.now_s()
        self.lost_s |= {row.resource: now_s for row in self if row.answer is not None}

    # What happens to a pod.

    def follow(self, here: Collection[str], plugins: Collection[str]) -> None:
        """Note which pods have ended, and forget those that need no plugin any more.

        Args:
            here: the pods that are there, or have CPUs.
            plugins: the resources that plugins serve now.
        """
        now_s = self.now_s()
        self.lost_s = {name: at_s for name, at_s in self.lost_s.items() if at_s > now_s - GRACE_S}
        for name, pod in self._pods.items():
            if pod.stay is Stay.ENDING and name in here:
                self._pods[name] = _Pod(after(STAY, pod.stay, Event.RETURN))
                for resource in pod.forgotten:
                    self._ask_again(resource, name)
        gone = self._pods.keys() - here
        held: defaultdict[str, set[str]] = defaultdict(set)
        for row in self if gone else ():
            if row.has is not Has.NOTHING:
                held[row.container.pod].add(row.resource)
        for name in gone:
            pod = self._pods[name]
            if pod.stay is Stay.HERE:
                pod.stay, pod.ended_s = after(STAY, pod.stay, Event.END), now_s
            awaited = held[name].intersection(self.lost_s).union(plugins) if name in held else set()
            if awaited <= pod.forgotten or now_s - pod.ended_s >= GRACE_S:
                self._forget(name)

    def ending(self, resource: str) -> list[str]:
        """Return the ended pods that the plugin for a resource has not forgotten."""
        return [
            name
            for name, pod in self._pods.items()
            if pod.stay is Stay.ENDING and resource not in pod.forgotten
        ]

    def forgot(self, resource: str, pods: Iterable[str], failed: str = "") -> None:
        """Note the pods that a plugin has forgotten, and one that it has not.

        That one comes last the next time: the plugin may refuse only this one.
        """
        for name in self._pods.keys() & set(pods):
            if self._pods[name].stay is Stay.ENDING:
                self._pods[name].forgotten |= {resource}
            else:
                self._ask_again(resource, name)
        if failed in self._pods:
            self._pods[failed] = self._pods.pop(failed)

    def grace_s(self) -> float:
        """Return when an ended pod is forgotten whatever its plugins say."""
        ends = (pod.ended_s for pod in self._pods.values() if pod.stay is Stay.ENDING)
        return min(ends, default=math.inf) + GRACE_S

    def _ask_again(self, resource: str, name: str) -> None:
        """Let a pod that has returned keep what a plugin has forgotten until it answers anew."""
        for row in [row for row in self if (row.container.pod, row.resource) == (name, resource)]:
            if row.answer and not row.answer.refused:
                self.enter(row, Event.KEEP, replace(row.answer, kept=True))

    def _forget(self, name: str) -> None:
        """Forget a pod; of a call that has not ended the question stays."""
        after(STAY, self._pods.pop(name).stay, Event.FORGET)
        for row in [row for row in self if row.container.pod == name]:
            self.move(row, Event.FORGET)
            self.changes += row.answer is not None
            row.answer, row.own, row.broken, row.confirmed_s = None, _NO_CPUS, None, None
            if row.call is Call.LEFT:
                self._pods[name] = _Pod()
        for ref in [ref for ref in self._containers if ref.pod == name]:
            self.changes += bool(self._containers.pop(ref).refused)
