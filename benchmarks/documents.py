"""The parts that the measurements of this folder share when they write a document."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Times:
    """The times of calls, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(
        cls,
        calls: Iterable[Callable[[], object]],
        clock_ns: Callable[[], int] = time.thread_time_ns,
    ) -> Self:
        """Time each call by itself; making the next one is not counted.

        Args:
            calls: at least one.
            clock_ns: the thread's CPU time, which for a call that waits for nothing is what it
                takes on a CPU of its own.
        """
        # As in the agent, what is there already is not looked through for garbage again.
        gc.freeze()
        taken_ms = []
        for call in calls:
            before_ns = clock_ns()
            call()
            taken_ms.append((clock_ns() - before_ns) / 1e6)
        return cls.of_values(taken_ms)

    @classmethod
    def of_values(cls, taken_ms: Iterable[float]) -> Self:
        """Return the figures of at least one time."""
        ordered = sorted(taken_ms)
        p99_ms = ordered[ceil(len(ordered) * 0.99) - 1]
        return cls(statistics.median(ordered), p99_ms, ordered[-1])

    def shown(self, aim_ms: float) -> str:
        """Write them for a table's cell, bold where the 99th percentile is above the aim."""
        text = f"{self.p50_ms:.2f} / {self.p99_ms:.2f} / {self.max_ms:.2f}"
        return f"**{text}**" if self.p99_ms > aim_ms else text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table, its first column to the left and all others to the right."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))
