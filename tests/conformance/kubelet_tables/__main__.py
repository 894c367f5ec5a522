"""Lists the kubelet's tables with their counts; exit 1 if an answer is not the listed one."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from tests.conformance.kubelet_tables import tables
from tests.conformance.kubelet_tables.tables import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


def listing() -> str:
    """Return the list of tables, and why rows differ or are left out, in Markdown."""
    return "\n".join([*_counts(), "", *_reasons()])


def _counts() -> Iterator[str]:
    yield "| test of the kubelet | rows | retold | equal | different | left out |"
    yield "| --- | --- | --- | --- | --- | --- |"
    total: Counter[Verdict] = Counter()
    for file in tables.read_files():
        yield f"| **`{file.path}`** | | | | | |"
        for name, rows in file.tables.items():
            counts = Counter(row.verdict for row in rows)
            total += counts
            yield _line(f"`{name}`", counts)
    yield _line("**all**", total)


def _line(name: str, counts: Counter[Verdict]) -> str:
    retold = counts[Verdict.EQUAL] + counts[Verdict.DIFFERENT]
    cells = [counts.total(), retold, *(counts[verdict] for verdict in Verdict)]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def _reasons() -> Iterator[str]:
    concerned = [entry for entry in tables.entries() if entry.verdict is not Verdict.EQUAL]
    for key, sentence in tables.reasons().items():
        rows = [entry for entry in concerned if entry.reason == key]
        where = "; ".join(
            f"`{name}` {', '.join(str(entry.number) for entry in listed)}"
            for name, listed in groupby(rows, key=lambda entry: entry.table)
        )
        yield f"* **{key[0].upper()}{key[1:]}.** {sentence} ({where})"


def main() -> int:
    """Print the list, and on stderr each row whose answer is not the listed one."""
    print(listing())  # noqa: T201  # a command's own output
    machines = tables.machines()
    flaws = [
        f"{entry.table}, row {entry.number}: {flaw}"
        for entry in tables.entries()
        if entry.verdict is not Verdict.LEFT_OUT and (flaw := entry.flaw(machines))
    ]
    print("\n".join(flaws), end="", file=sys.stderr)  # noqa: T201
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
