"""A row of the table that `python -m benchmarks` prints, and how a figure of it is measured."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Row = tuple[str, str, str]
"""The subject of the measurement, the figure, the aim."""


def written(rows: Iterable[Row]) -> str:
    """Write rows as a Markdown table in which each row is one line, whatever it is printed on."""
    table = [("what", "measured", "aim"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"
        for row in table
    ]
    ruler = f"| {' | '.join('-' * width for width in widths)} |"
    return "\n".join((lines[0], ruler, *lines[1:]))


def cpu_ms(call: Callable[[], object]) -> float:
    """Return how much CPU time this process takes for a call."""
    before_s = time.process_time()
    call()
    return (time.process_time() - before_s) * 1000


def wall_ms(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    before_s = time.perf_counter()
    call()
    return (time.perf_counter() - before_s) * 1000


def ms(values: Iterable[float]) -> str:
    """Write the middle and the worst of some milliseconds."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered):.2f} ms, p99 {p99:.2f} ms"
