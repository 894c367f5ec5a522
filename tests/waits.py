"""An agent that writes how long it may keep the runtime waiting: `python -m tests.waits agent`.

Each line of the file WAITS is one wait: when it begins, and when it ends at the latest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cpupool import cli
from cpupool.runtime.nri.wait_budget import WaitBudget

if TYPE_CHECKING:
    from collections.abc import Hashable

WAITS = "WAITS"
_until_s = WaitBudget.until_s


def until_s(
    self: WaitBudget, container: Hashable, latest_s: float, now_s: float, *, soon: bool = False
) -> float:
    """Return how long the runtime may wait for a container, and write it if it may."""
    found_s = _until_s(self, container, latest_s, now_s, soon=soon)
    if found_s > now_s:
        with Path(os.environ[WAITS]).open("a") as file:
            file.write(f"{now_s} {found_s}\n")
    return found_s


def granted(file: Path) -> list[tuple[float, float]]:
    """Return the times in which the runtime might wait, in order and without overlaps."""
    joined: list[tuple[float, float]] = []
    for since_s, end_s in (map(float, line.split()) for line in file.read_text().splitlines()):
        last_s = joined[-1][1] if joined else since_s
        if last_s < end_s:
            joined.append((max(since_s, last_s), end_s))
    return joined


if __name__ == "__main__":
    WaitBudget.until_s = until_s  # type: ignore[method-assign]
    sys.exit(cli.main(sys.argv[1:]))
