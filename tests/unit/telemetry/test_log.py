from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable

FORGED = "x\n2026-11-21T08:00:00.000Z ERROR cpupool.agent.app: forged"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

Captured = pytest.CaptureFixture[str]
log = logs.get("cpupool.roles.example")


def _lines(captured: Captured) -> list[str]:
    return captured.readouterr().err.splitlines()


def _fail(message: str) -> None:
    def fail() -> None:
        raise ValueError(message)

    try:
        fail()
    except ValueError:
        log.exception("call failed", method="Allocate")


def test_a_line_is_time_level_name_phrase_and_facts(capsys: Captured) -> None:
    logs.set_up(logging.INFO)
    log.info("cpuset repaired", cgroup=Path("/kubepods/pod1"), cpus=CPUSet.parse("2-3"), tries=1)
    (line,) = _lines(capsys)
    moment, _, rest = line.partition(" ")
    assert TIME.fullmatch(moment)
    assert rest == (
        "INFO cpupool.roles.example: cpuset repaired cgroup=/kubepods/pod1 cpus=2-3 tries=1"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a b", '"a b"'),
        ("", '""'),
        ('say "go"', r'"say \"go\""'),
        ("op=other", '"op=other"'),
        ("back\\slash", r'"back\\slash"'),
        ("line\nend", r'"line\nend"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ("\x7f", r'"\u007f"'),
        ("next\x85line\u2028", r'"next\u0085line\u2028"'),
        ("\u202edesrever", r'"\u202edesrever"'),
        ("na\u00efve", "na\u00efve"),
        ("lone\udcff", r'"lone\udcff"'),
        (None, "None"),
    ],
)
def test_a_value_that_could_be_taken_for_something_else_is_quoted(
    capsys: Captured, value: object, shown: str
) -> None:
    logs.set_up(logging.INFO)
    log.info("pod seen", name=value)
    (line,) = _lines(capsys)
    assert line.endswith(f"pod seen name={shown}")


def test_nothing_can_forge_a_line(capsys: Captured) -> None:
    logs.set_up(logging.INFO)
    log.info("pod seen", name=FORGED)
    logging.getLogger("cpupool.elsewhere").warning("of another door: %s", FORGED)
    _fail(FORGED)
    begun = [line for line in _lines(capsys) if TIME.match(line)]
    assert [line.split()[1] for line in begun] == ["INFO", "WARNING", "ERROR"]


def test_an_exception_comes_with_its_traceback_indented(capsys: Captured) -> None:
    logs.set_up(logging.INFO)
    _fail("odd \x1b[2J")
    first, *traceback = _lines(capsys)
    assert first.endswith("ERROR cpupool.roles.example: call failed method=Allocate")
    assert traceback[0].strip() == "Traceback (most recent call last):"
    assert traceback[-1].strip() == r"ValueError: odd \u001b[2J"
    assert all(line.startswith("    ") for line in traceback)


def test_json_is_one_object_per_line(capsys: Captured) -> None:
    logs.set_up(logging.INFO, json=True)
    log.warning("pod seen", name=FORGED, cpus=CPUSet.parse("2-3"), tries=1, known=False)
    logging.getLogger("cpupool.elsewhere").info("of another door: %s", "x")
    _fail("odd")
    seen, other, failed = (json.loads(line) for line in _lines(capsys))
    assert TIME.fullmatch(seen.pop("time"))
    assert seen == {
        "level": "WARNING",
        "logger": "cpupool.roles.example",
        "message": "pod seen",
        "name": FORGED,
        "cpus": "2-3",
        "tries": 1,
        "known": False,
    }
    assert other["message"] == "of another door: x"
    assert failed["traceback"].endswith("ValueError: odd")


@pytest.mark.parametrize(
    ("say", "level"),
    [
        (log.debug, logging.DEBUG),
        (log.info, logging.INFO),
        (log.warning, logging.WARNING),
        (log.error, logging.ERROR),
    ],
)
def test_a_level_shows_itself_and_what_is_above(
    capsys: Captured, say: Callable[..., None], level: int
) -> None:
    logs.set_up(level)
    say("pod seen", phrase="a fact may be called so, too")
    (line,) = _lines(capsys)
    assert f" {logging.getLevelName(level)} " in line
    logs.set_up(level + 1)
    say("pod seen")
    assert _lines(capsys) == []


def test_facts_are_not_even_looked_at_while_the_level_is_off(capsys: Captured) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError

    logs.set_up(logging.INFO)
    log.debug("pod seen", pod=Costly())
    assert _lines(capsys) == []


def test_the_lines_of_an_operation_share_its_mark(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log.info("before")
        with logs.operation("sweep"):
            log.info("first", cpus="2")
            with logs.operation("config"):
                log.info("within")
            log.info("last")
        with logs.operation("sweep"):
            log.info("next")
        log.info("after")
    said = [record.getMessage().partition(" op=") for record in caplog.records]
    assert [phrase for phrase, _, _ in said] == [
        "before", "first cpus=2", "within", "last", "next", "after",
    ]  # fmt: skip
    marks = [mark for _, _, mark in said]
    assert marks[0] == marks[-1] == ""
    assert re.fullmatch(r"sweep-[0-9a-f]{6}", marks[1])
    assert len(set(marks[1:4])) == 1
    assert marks[4] not in marks[:4]


def test_an_operation_that_fails_ends_with_its_mark(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), logs.operation("sweep"):
        raise ZeroDivisionError
    log.warning("after")
    assert [record.getMessage() for record in caplog.records] == ["after"]


def test_an_operation_marks_no_other_thread(caplog: pytest.LogCaptureFixture) -> None:
    with logs.operation("sweep"):
        other = threading.Thread(target=log.warning, args=("elsewhere",))
        other.start()
        other.join()
    assert [record.getMessage() for record in caplog.records] == ["elsewhere"]
