"""Reads a recorded load: a CSV file with a column per pool.

    at_s,online,offline
    0,12.0,3
    60,14.5,3.5

A row has the CPUs that each pool's requests use from `at_s` until the next row; the last row holds
for as long as the one before it, or for a period.
"""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import ConfigError, Location, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TIME: Final = "at_s"
_LONGEST_S: Final = 366 * 86400
_MOST_CPUS: Final = 100_000


def read(file: str, text: str, period_s: float) -> dict[str, list[float]]:
    """Return pool → its load in each period.

    Raises:
        ConfigError: the file has no such rows; with the first problem.
    """
    try:
        return _read(list(csv.reader(text.splitlines(), strict=True)), period_s)
    except _RowError as error:
        where = Location(file, error.number, 1)
        raise ConfigError([Problem(str(error), error.remedy, location=where)]) from error
    except csv.Error as error:
        remedy = "write comma-separated values"
        raise ConfigError(
            [Problem(f"this is no CSV: {error}", remedy, location=Location(file))]
        ) from error


class _RowError(Exception):
    """A row that is wrong."""

    def __init__(self, number: int, what: str, remedy: str) -> None:
        super().__init__(what)
        self.number = number
        self.remedy = remedy


def _read(rows: Sequence[Sequence[str]], period_s: float) -> dict[str, list[float]]:
    head = rows[0] if rows else []
    pools = head[1:]
    if not pools or head[0] != _TIME or len({*pools}) < len(pools) or not all(pools):
        remedy = f"begin with a row as {_TIME},online,offline"
        raise _RowError(1, "the first row does not name the pools", remedy)
    found = [_row(number, row, head) for number, row in enumerate(rows[1:], start=2) if row]
    if not found:
        raise _RowError(2, "there is no load in it", "write a row with numbers")
    times = [at_s for at_s, _ in found]
    for number, (before, after) in enumerate(pairwise(times), start=3):
        if not before < after <= times[0] + _LONGEST_S:
            remedy = "let the times grow, within a year"
            raise _RowError(number, f"{after:g} s comes after {before:g} s", remedy)
    last_s = times[-1] - times[-2] if len(times) > 1 else period_s
    ends = [*times[1:], times[-1] + last_s]
    held = zip(ends, (loads for _, loads in found), strict=True)
    columns = zip(*_periods(times[0], list(held), period_s), strict=True)
    return dict(zip(pools, map(list, columns), strict=True))


def _row(number: int, row: Sequence[str], head: Sequence[str]) -> tuple[float, list[float]]:
    if len(row) != len(head):
        remedy = f"write {len(head)} values, for {', '.join(head)}"
        raise _RowError(number, f"this row has {len(row)} values", remedy)
    at_s, *loads = (_number(number, text) for text in row)
    if max(loads) > _MOST_CPUS:
        raise _RowError(number, f"{max(loads):g} CPUs are too many", "write a load in CPUs")
    return at_s, loads


def _number(number: int, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise _RowError(number, f"{text!r} is no load", "write a number that is not negative")
    return found


def _periods(
    at_s: float, held: Sequence[tuple[float, list[float]]], period_s: float
) -> Iterator[list[float]]:
    for end_s, loads in held:
        while at_s < end_s:
            yield loads
            at_s += period_s
