"""The states of a question and what moves them: each row of each table, and all that is no row."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.policies.qrm.questions import Question
from cpupool.qrm.question_table import (
    CALL,
    GRACE_S,
    HAS,
    START,
    STAY,
    Call,
    Event,
    Has,
    HintsAnswer,
    Impossible,
    QuestionTable,
    Row,
    Start,
    Stay,
    after,
)
from tests.unit.manager.plugged import container, cpus, pod, ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from enum import Enum

    from cpupool.core.plugin_facts import RecordedAnswer

States = tuple[Call, Has, Start]
NEW: States = (Call.QUIET, Has.NOTHING, Start.FREE)
TABLES = (CALL, HAS, START, STAY)
MAIN, OTHER = ref("a"), ContainerRef("a-uid", "other")
OWN = cpus("1-2", exclusive=True)
QUESTION = Question.of(pod("a"), container(), "cpu", 2.0)
ONE, TWO = ContainerID("one"), ContainerID("two")


class Table(QuestionTable):
    """A table with a clock that the test sets."""

    def __init__(self) -> None:
        self._at_s = 0.0
        super().__init__(lambda: self._at_s)

    def at(self, now_s: float) -> Self:
        self._at_s = now_s
        return self


def states(row: Row) -> States:
    return row.call, row.has, row.start


def sees(event: Event) -> list[type[Enum]]:
    """Return the kinds of states that an event moves."""
    return [
        type(next(iter(table.values()))) for table in TABLES if event in {of for _, of in table}
    ]


OF_QUESTIONS = [event for event in Event if sees(event) and sees(event) != [Stay]]


def moved(at: States, event: Event) -> States | None:
    """Return where an event leads a question by the tables; None if it cannot happen."""
    call, has, start = at
    try:
        return after(CALL, call, event), after(HAS, has, event), after(START, start, event)
    except Impossible:
        return None


def ways() -> dict[States, tuple[Event, ...]]:
    """Return the states in which a question can be, each with the shortest way from a new one."""
    found: dict[States, tuple[Event, ...]] = {NEW: ()}
    waiting = deque([NEW])
    while waiting:
        at = waiting.popleft()
        for event in OF_QUESTIONS:
            to = moved(at, event)
            if to is not None and to not in found:
                found[to] = (*found[at], event)
                waiting.append(to)
    return found


WAYS = ways()


def walk(events: Iterable[Event]) -> tuple[Table, Row]:
    """Return a table with a question after some events."""
    table = Table()
    row = table.row(MAIN, "cpu")
    for event in events:
        table.move(row, event)
    return table, row


def name(value: object) -> str:
    return value.name if isinstance(value, (Call, Has, Start, Stay, Event)) else ""


@pytest.mark.parametrize(
    ("state", "event", "to"),
    [(state, event, to) for table in (CALL, HAS, START) for (state, event), to in table.items()],
    ids=name,
)
def test_each_row_moves_a_question_that_can_be_there(state: Enum, event: Event, to: Enum) -> None:
    way, there = next(
        (way, there)
        for at, way in WAYS.items()
        if state in at and (there := moved(at, event)) is not None
    )
    table, row = walk(way)
    assert state in states(row)

    table.move(row, event)

    assert states(row) == there
    assert to in there


NO_ROW = [
    (table, state, event)
    for table in TABLES
    for state in type(next(iter(table.values())))
    for event in Event
    if (state, event) not in table
    and (event in {of for _, of in table} or state in {Call.GONE, Stay.GONE})
]


@pytest.mark.parametrize(("table", "state", "event"), NO_ROW, ids=name)
def test_what_is_no_row_is_refused(table: Any, state: Enum, event: Event) -> None:
    with pytest.raises(Impossible, match=f"{event.name} cannot happen in .*{state.name}"):
        after(table, state, event)


@pytest.mark.parametrize("way", WAYS.values(), ids=lambda way: " ".join(map(name, way)))
def test_what_cannot_happen_moves_nothing(way: tuple[Event, ...]) -> None:
    for event in OF_QUESTIONS:
        table, row = walk(way)
        before = states(row)
        if moved(before, event) is None:
            with pytest.raises(Impossible):
                table.move(row, event)
            assert states(row) == before
            assert table.changes == walk(way)[0].changes


def test_every_state_and_every_event_is_in_a_table() -> None:
    reached = {state for at in WAYS for state in at}
    assert reached == {*Call, *Has, *Start}
    assert {event for event in Event if not sees(event)} == set()


def test_events_of_two_states_are_those_of_the_theory() -> None:
    assert {event: sees(event) for event in Event if len(sees(event)) > 1} == {
        Event.ASK: [Call, Has],
        Event.PREPARE: [Call, Start],
        Event.PREPARED: [Call, Start],
        Event.MUST_PREPARE: [Call, Start],
        Event.RELEASE: [Call, Start],
        Event.FORGET: [Call, Has, Start, Stay],
    }


UNDER_WAY = {Call.HINTS_ASKED, Call.ASKED, Call.PREPARING}
IS_ASKED = {
    Event.ASK_HINTS: ({Call.QUIET}, Call.HINTS_ASKED),
    Event.HEARD: ({Call.HINTS_ASKED}, Call.HINTED),
    Event.STALE: ({Call.HINTED}, Call.QUIET),
    Event.ASK: ({Call.QUIET, Call.HINTED}, Call.ASKED),
    Event.ANSWERED: ({Call.ASKED, Call.LEFT}, Call.QUIET),
    Event.PREPARE: ({Call.QUIET, Call.HINTED}, Call.PREPARING),
    Event.PREPARED: ({Call.PREPARING}, Call.QUIET),
    Event.REFUSED: (UNDER_WAY, Call.QUIET),
    Event.LOST: (UNDER_WAY | {Call.HINTED, Call.LEFT}, Call.QUIET),
    Event.LATE: ({Call.LEFT}, Call.QUIET),
    Event.MUST_PREPARE: ({Call.QUIET}, Call.QUIET),
    Event.RELEASE: ({Call.QUIET}, Call.QUIET),
}
"""Event → where it can happen, and where it leads."""
ANSWERS = {Event.GOOD: Has.VALID, Event.KEEP: Has.KEPT, Event.FORGET: Has.NOTHING}
STARTS = {
    Event.MUST_PREPARE: ({*Start}, Start.DUE),
    Event.ADOPT: ({Start.FREE}, Start.USED),
    Event.PREPARED: ({Start.DUE, Start.USED}, Start.READY),
    Event.START: ({Start.READY}, Start.USED),
    Event.RELEASE: ({*Start} - {Start.FREE}, Start.FREE),
    Event.FORGET: ({*Start}, Start.FREE),
}


def rows(table: Mapping[tuple[Any, Event], Any], event: Event) -> dict[Any, Any]:
    """Return where an event leads: state → state."""
    return {state: to for (state, of), to in table.items() if of is event}


def test_a_call_begins_where_none_is_under_way_and_ends_in_quiet() -> None:
    for event, (states_, to) in IS_ASKED.items():
        assert rows(CALL, event) == dict.fromkeys(states_, to), event
    left = dict.fromkeys(UNDER_WAY | {Call.LEFT}, Call.LEFT)
    gone = {Call.QUIET: Call.GONE, Call.HINTED: Call.GONE}
    assert rows(CALL, Event.FORGET) == left | gone
    assert {event for _, event in CALL} == {*IS_ASKED, Event.FORGET}


def test_a_bad_answer_takes_the_place_of_none_that_counts() -> None:
    for event, to in ANSWERS.items():
        assert rows(HAS, event) == dict.fromkeys(Has, to), event
    same = {has: has for has in Has}
    assert rows(HAS, Event.ASK) == same | {Has.NOTHING: Has.PERHAPS}
    assert rows(HAS, Event.BAD) == same | dict.fromkeys((Has.NOTHING, Has.PERHAPS), Has.BAD)
    assert rows(HAS, Event.CONTESTED) == dict.fromkeys((Has.VALID, Has.KEPT), Has.BAD)
    assert {event for _, event in HAS} == {*ANSWERS, Event.ASK, Event.BAD, Event.CONTESTED}


def test_each_start_needs_a_preparation_of_its_own() -> None:
    for event, (states_, to) in STARTS.items():
        assert rows(START, event) == dict.fromkeys(states_, to), event
    asked = {Start.DUE: Start.DUE, Start.USED: Start.USED}
    assert rows(START, Event.PREPARE) == asked
    assert {event for _, event in START} == {*STARTS, Event.PREPARE}


def test_a_pod_ends_before_it_is_forgotten() -> None:
    assert STAY == {
        (Stay.HERE, Event.END): Stay.ENDING,
        (Stay.ENDING, Event.RETURN): Stay.HERE,
        (Stay.ENDING, Event.FORGET): Stay.GONE,
    }


def test_a_start_is_prepared_only_by_a_call_of_its_own() -> None:
    starts = {start for call, _, start in WAYS if call is Call.PREPARING}
    assert starts == {Start.DUE, Start.USED}


USUAL = [
    (Event.ASK_HINTS, (Call.HINTS_ASKED, Has.NOTHING, Start.FREE)),
    (Event.HEARD, (Call.HINTED, Has.NOTHING, Start.FREE)),
    (Event.ASK, (Call.ASKED, Has.PERHAPS, Start.FREE)),
    (Event.ANSWERED, (Call.QUIET, Has.PERHAPS, Start.FREE)),
    (Event.MUST_PREPARE, (Call.QUIET, Has.PERHAPS, Start.DUE)),
    (Event.GOOD, (Call.QUIET, Has.VALID, Start.DUE)),
    (Event.PREPARE, (Call.PREPARING, Has.VALID, Start.DUE)),
    (Event.PREPARED, (Call.QUIET, Has.VALID, Start.READY)),
    (Event.START, (Call.QUIET, Has.VALID, Start.USED)),
    (Event.PREPARE, (Call.PREPARING, Has.VALID, Start.USED)),
    (Event.REFUSED, (Call.QUIET, Has.VALID, Start.USED)),
    (Event.ASK, (Call.ASKED, Has.VALID, Start.USED)),
    (Event.BAD, (Call.ASKED, Has.VALID, Start.USED)),
    (Event.FORGET, (Call.LEFT, Has.NOTHING, Start.FREE)),
    (Event.ANSWERED, (Call.QUIET, Has.NOTHING, Start.FREE)),
    (Event.FORGET, (Call.GONE, Has.NOTHING, Start.FREE)),
]


def test_the_way_of_a_question_is_that_of_the_theory() -> None:
    table, row = walk(())
    for event, there in USUAL:
        table.move(row, event)
        assert states(row) == there, event
    assert list(table) == []


def entered(table: Table, event: Event, given: RecordedAnswer = OWN) -> Row:
    row = table.row(MAIN, "cpu")
    table.enter(row, event, given)
    return row


def test_an_answer_is_recorded_until_its_pod_has_ended_and_its_plugin_forgets_it() -> None:
    table = Table()
    row = entered(table, Event.GOOD)
    assert (table.record, row.own) == ({MAIN: {"cpu": OWN}}, CPUSet.of(1, 2))
    table.at(0.0).follow({"a-uid"}, {"cpu"})
    assert table.ending("cpu") == []
    table.at(1.0).follow((), {"cpu"})
    assert table.ending("cpu") == ["a-uid"]
    assert table.grace_s() == 1.0 + GRACE_S
    table.forgot("cpu", ["a-uid"])
    assert (table.ending("cpu"), table.record) == ([], {MAIN: {"cpu": OWN}})
    table.at(2.0).follow((), {"cpu"})
    assert table.record == {}
    assert table.grace_s() == math.inf


def test_a_pod_that_returns_is_forgotten_by_all_plugins_when_it_ends_again() -> None:
    table = Table()
    entered(table, Event.GOOD)
    table.at(0.0).follow((), {"cpu", "memory"})
    table.forgot("cpu", ["a-uid"])
    table.at(1.0).follow({"a-uid"}, {"cpu", "memory"})
    # It was asked to forget the pod before this returned.
    table.forgot("memory", ["a-uid"])
    table.at(2.0).follow((), {"cpu", "memory"})
    assert (table.ending("cpu"), table.ending("memory")) == (["a-uid"], ["a-uid"])
    assert table.grace_s() == 2.0 + GRACE_S


def test_a_pod_that_returns_keeps_what_a_plugin_has_forgotten_and_this_is_asked_again() -> None:
    table = Table()
    cpu, memory = entered(table, Event.GOOD), table.row(MAIN, "memory")
    table.enter(memory, Event.GOOD, OWN)
    table.at(0.0).follow((), {"cpu", "memory"})
    table.forgot("cpu", ["a-uid"])
    table.at(1.0).follow({"a-uid"}, {"cpu", "memory"})
    assert [row.has for row in (cpu, memory)] == [Has.KEPT, Has.VALID]
    assert cpu.answer == replace(OWN, kept=True)
    table.forgot("memory", ["a-uid"])
    assert memory.answer == replace(OWN, kept=True)
    table.enter(cpu, Event.BAD, replace(OWN, refused="names no CPUs"))
    table.forgot("cpu", ["a-uid"])
    assert cpu.answer == replace(OWN, refused="names no CPUs")


def test_a_pod_of_which_no_plugin_knows_is_forgotten_at_once() -> None:
    table, row = walk([Event.ASK_HINTS, Event.HEARD])
    table.at(0.0).refuse(MAIN, "no NUMA nodes")
    assert table.at(0.0).next_s() == 1.0
    table.at(0.0).follow((), {"cpu"})
    assert (list(table), table.refusals, table.at(0.0).next_s()) == ([], {}, math.inf)
    assert row.call is Call.GONE


def test_a_plugin_that_was_asked_and_is_away_is_awaited() -> None:
    table = Table()
    table.move(table.row(MAIN, "cpu"), Event.ASK)
    table.at(1.0).registered("cpu", serves=False)
    table.at(2.0).follow((), ())
    assert table.ending("cpu") == [MAIN.pod]
    table.at(3.0).registered("cpu", serves=True)
    table.forgot("cpu", [MAIN.pod])
    table.at(4.0).follow((), ("cpu",))
    assert table.ending("cpu") == []


def test_a_plugin_of_a_recorded_answer_forgets_a_pod_that_ended_without_an_agent() -> None:
    table = Table()
    entered(table, Event.GOOD)
    table.at(1.0).recalled()
    table.at(2.0).follow((), ())
    assert table.ending("cpu") == [MAIN.pod]
    table.at(3.0).registered("cpu", serves=True)
    table.forgot("cpu", [MAIN.pod])
    table.at(4.0).follow((), ("cpu",))
    assert (table.ending("cpu"), table.record) == ([], {})


def test_an_answer_that_comes_late_lets_the_plugin_forget_the_pod_again() -> None:
    table, row = walk([Event.ASK])
    table.at(0.0).follow((), {"cpu"})
    table.at(GRACE_S).follow((), {"cpu"})
    assert row.call is Call.LEFT
    for now_s in (1.0, 2.0):
        table.at(GRACE_S + now_s).follow((), {"cpu"})
    assert table.ending("cpu") == []

    assert table.hear(row, Event.ANSWERED)
    table.enter(row, Event.GOOD, OWN)
    table.at(GRACE_S + 3.0).follow((), {"cpu"})
    assert table.ending("cpu") == ["a-uid"]


@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        (Event.ASK_HINTS, Event.HEARD),
        (Event.ASK_HINTS, Event.REFUSED),
        (Event.ASK, Event.REFUSED),
    ],
    ids=name,
)
def test_another_end_of_a_call_that_comes_late_is_of_no_interest(asked: Event, ends: Event) -> None:
    table, row = walk([asked])
    table.at(0.0).follow((), {"cpu"})
    table.at(GRACE_S).follow((), {"cpu"})
    assert not table.hear(row, ends)
    table.at(GRACE_S).follow((), {"cpu"})
    assert list(table) == []


def test_what_is_listed_of_a_pod_that_is_back_stays_after_a_late_end() -> None:
    table, row = walk([Event.ASK_HINTS])
    table.at(0.0).follow((), {"cpu"})
    table.enter(row, Event.GOOD, OWN)
    assert not table.hear(row, Event.HEARD)
    table.at(1.0).follow({"a-uid"}, {"cpu"})
    assert table.record == {MAIN: {"cpu": OWN}}


def test_a_refusal_drops_the_hints_of_the_whole_pod_and_of_no_other() -> None:
    table = Table()
    rows = [table.row(of, "cpu") for of in (MAIN, OTHER, ref("b"))]
    for row in rows:
        table.move(row, Event.ASK_HINTS)
        table.hear(row, Event.HEARD)
        row.hints = HintsAnswer(None)
    assert table.at(0.0).refuse(OTHER, "no room")
    assert not table.at(1.0).refuse(OTHER, "no room")
    assert [row.hints for row in rows] == [None, None, HintsAnswer(None)]
    assert [row.call for row in rows] == [Call.QUIET, Call.QUIET, Call.HINTED]
    both = [MAIN, OTHER]
    assert (table.at(2.9).waits(both, both), table.at(3.0).waits(both, both)) == (True, False)
    assert not table.at(2.9).waits(both, [MAIN])
    assert (table.at(2.9).next_s(), table.at(3.0).next_s()) == (3.0, math.inf)


def test_what_a_plugin_has_refused_stays_until_it_answers() -> None:
    table = Table()
    cpu, memory = (table.row(MAIN, resource) for resource in ("cpu", "memory"))
    assert table.at(0.0).refuse(MAIN, "cpu is away", "cpu")
    assert table.at(0.0).refuse(MAIN, "no memory", "memory")
    assert not table.at(0.0).refuse(MAIN, "cpu is away", "cpu")
    assert table.refusals == {MAIN: "cpu is away; no memory"}
    table.answered(memory)
    assert table.refusals == {MAIN: "cpu is away"}
    assert table.refuse(MAIN, "no NUMA nodes")
    assert table.refusals == {MAIN: "no NUMA nodes"}
    table.answered(cpu)
    assert table.refusals == {}


def test_a_container_waits_while_its_plugin_is_asked_and_not_while_it_prepares() -> None:
    waits = {
        way[-1]: table.at(0.0).waits([MAIN], [MAIN])
        for way in (
            [Event.ASK_HINTS],
            [Event.ASK_HINTS, Event.HEARD],
            [Event.ASK],
            [Event.ADOPT, Event.PREPARE],
        )
        for table, _ in (walk(way),)
    }
    assert waits == {
        Event.ASK_HINTS: True,
        Event.HEARD: False,
        Event.ASK: True,
        Event.PREPARE: False,
    }


def test_another_plugin_is_asked_anew_and_without_a_pause() -> None:
    table = Table()
    for resource in ("cpu", "memory"):
        table.move(table.row(MAIN, resource), Event.ASK)
    table.at(0.0).refuse(OTHER, "no room")
    table.at(5.0).registered("cpu", serves=False)
    assert [row.call for row in table] == [Call.QUIET, Call.ASKED]
    assert (table.lost_s, table.at(0.0).next_s()) == ({"cpu": 5.0}, math.inf)
    assert table.refusals == {OTHER: "no room"}
    table.at(6.0).registered("cpu", serves=True, lists=True)
    assert (table.lost_s, table.unlisted) == ({}, {"cpu"})
    table.at(7.0).registered("cpu", serves=False)
    table.at(7.0 + GRACE_S).follow((), ())
    assert (table.lost_s, table.unlisted) == ({}, set())


def test_a_preparation_serves_one_instance() -> None:
    table = Table()
    row = entered(table, Event.GOOD)
    table.prepare(row, QUESTION)
    assert table.serve(row, [])
    table.move(row, Event.PREPARE)
    table.hear(row, Event.PREPARED)
    assert not table.serve(row, [])
    assert not table.serve(row, [ONE])
    assert (row.start, table.prepared) == (Start.USED, {MAIN: frozenset([ONE])})
    assert not table.serve(row, [ONE])
    assert table.serve(row, [ONE, TWO])
    assert table.serve(row, [])


def test_no_instance_has_a_preparation_before_all_plugins_have_prepared() -> None:
    table = Table()
    rows = [entered(table, Event.GOOD), table.row(MAIN, "memory")]
    table.enter(rows[1], Event.GOOD, OWN)
    for row in rows:
        table.prepare(row, QUESTION)
    for row in rows:
        assert table.ready == set()
        table.move(row, Event.PREPARE)
        table.hear(row, Event.PREPARED)
        if row is rows[0]:
            assert not table.serve(row, [ONE])
            assert row.start is Start.READY
    assert table.ready == {MAIN}
    assert [table.serve(row, [TWO]) for row in rows] == [False, False]
    assert (table.prepared, table.ready) == ({MAIN: frozenset([TWO])}, frozenset())


def test_what_runs_was_prepared_and_a_failure_is_told_once() -> None:
    table = Table()
    row = entered(table, Event.GOOD)
    table.prepare(row, QUESTION, frozenset([ONE]))
    assert not table.serve(row, [ONE])
    assert [table.at(now_s).unprepared(row, "no room") for now_s in (0.0, 1.0)] == [True, False]
    assert (table.refusals, row.attempt.due_s) == ({MAIN: "no room"}, 3.0)
    table.move(row, Event.RELEASE)
    assert (table.refusals, table.prepared) == ({}, {})
