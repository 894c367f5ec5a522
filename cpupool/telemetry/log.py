"""Logging to stderr: one line per decision, with a constant phrase and its facts.

    2026-11-21T08:00:00.123Z INFO cpupool.agent.cpusetter: cpuset repaired cpus=2-3 op=sweep-3f2a1b

Levels: ERROR needs a person, WARNING may soon need a person, INFO is a change on the node, DEBUG is
a reason. Facts are logfmt: an ambiguous value is quoted and escaped, so no name of a pod or a file
can end or begin a line.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cpupool.core import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(slots=True)
class _Operation:
    """The mark of the lines of one operation; the first line makes the id, most have no line."""

    kind: str
    mark: str = ""

    def __str__(self) -> str:
        self.mark = self.mark or f"{self.kind}-{secrets.token_hex(3)}"
        return self.mark


_OPERATION: Final[ContextVar[_Operation | None]] = ContextVar("operation", default=None)


@dataclass(frozen=True, slots=True)
class Line:
    """The content of a log record; it becomes text only when the record is written.

    Attributes:
        phrase: the event, constant and lower-case.
        facts: name → value, in the order to show them.
    """

    phrase: str
    facts: Mapping[str, object]

    def __str__(self) -> str:
        pairs = (f"{name}={_quoted(str(value))}" for name, value in self.facts.items())
        return " ".join((self.phrase, *pairs))


class Log:
    """The log of one module; a line costs almost nothing where its level is off."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, phrase: str, /, **facts: object) -> None:
        """Log the reason of a decision."""
        self._write(logging.DEBUG, phrase, facts)

    def info(self, phrase: str, /, **facts: object) -> None:
        """Log a change on the node."""
        self._write(logging.INFO, phrase, facts)

    def warning(self, phrase: str, /, **facts: object) -> None:
        """Log a problem that may soon need a person."""
        self._write(logging.WARNING, phrase, facts)

    def error(self, phrase: str, /, **facts: object) -> None:
        """Log a problem that needs a person."""
        self._write(logging.ERROR, phrase, facts)

    def exception(self, phrase: str, /, **facts: object) -> None:
        """Log a problem that needs a person, with the traceback of the present exception."""
        self._write(logging.ERROR, phrase, facts, exc_info=True)

    def _write(
        self, level: int, phrase: str, facts: dict[str, object], *, exc_info: bool | None = None
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if operation := _OPERATION.get():
            facts["op"] = str(operation)
        self._logger.log(level, Line(phrase, facts), exc_info=exc_info)


def get(name: str) -> Log:
    """Return the log of the module with this dotted name."""
    return Log(logging.getLogger(name))


@contextmanager
def operation(kind: str) -> Iterator[None]:
    """Mark every line that this thread writes inside the context with `op=<kind>-<id>`.

    An operation inside another operation keeps the outer mark.
    """
    if _OPERATION.get():
        yield
        return
    token = _OPERATION.set(_Operation(kind))
    try:
        yield
    finally:
        _OPERATION.reset(token)


def set_up(level: int, *, json: bool = False) -> None:
    """Send cpupool's log lines of this level and above to stderr, as text or as JSON objects."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONFormatter() if json else _TextFormatter())
    logger = logging.getLogger("cpupool")
    logger.handlers = [handler]
    logger.setLevel(level)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = visible.line(record.getMessage())
        text = f"{_time(record)} {record.levelname} {record.name}: {message}"
        if record.exc_info:
            # With an indent a traceback is readable, and none of its lines looks like a log line.
            traceback = self.formatException(record.exc_info)
            text += "".join(f"\n    {visible.line(line)}" for line in traceback.splitlines())
        return text


class _JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = record.msg if isinstance(record.msg, Line) else Line(record.getMessage(), {})
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": line.phrase,
        }
        # A fact of the same name takes none of these keys.
        entry = {**line.facts, **entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


def _quoted(value: str) -> str:
    bare = value.isprintable() and value and not any(mark in value for mark in ' "=\\')
    return value if bare else json.dumps(value)
