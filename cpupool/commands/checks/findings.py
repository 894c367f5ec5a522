"""The findings of `cpupool doctor`: how a check says what it has found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.errors import Problem

_SHOWN: Final = 5
_REFUSED: Final = re.compile(
    r'^cpupool_watch_restarts_total\{(?=[^}]*reason="40[13]")[^}]*resource="(\w+)"[^}]*\}',
    re.MULTILINE,
)
"""The metric of watches that began again because the API server had refused them."""


class Verdict(Enum):
    """The verdict of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Row:
    """The finding of one check.

    Attributes:
        check: its name.
        verdict: its verdict.
        fact: the finding.
        remedy: what to do about it; empty for nothing.
    """

    check: str
    verdict: Verdict
    fact: str
    remedy: str = ""


def refused(metrics: str | None) -> set[str]:
    """Return the resources that the API server has not let the agent watch.

    Args:
        metrics: the agent's answer to /metrics; None without one.
    """
    return set(_REFUSED.findall(metrics or ""))


def problems(check: str, found: Iterable[Problem], fine: str) -> Iterator[Row]:
    """Return a row for each problem, or one row if there is no problem."""
    rows = [
        Row(
            check,
            Verdict.WARNING if problem.severity is Severity.WARNING else Verdict.PROBLEM,
            ": ".join(
                part for part in (str(problem.location or ""), problem.path, problem.what) if part
            ),
            problem.remedy,
        )
        for problem in found
    ]
    yield from rows or [Row(check, Verdict.OK, fine)]


def listed(texts: Iterable[str]) -> str:
    """Join the first texts, and count the others."""
    named = list(texts)
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f"{', '.join(named[:_SHOWN])}{more}"
