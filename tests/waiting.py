"""Waiting for what another thread or process does, with a bound."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = "CPUPOOL_TEST_DEADLINE_S"
DEADLINE_S = float(os.environ.get(DEADLINE, "120"))
"""More than anything takes on a machine that is busy twenty times over; only what fails waits for
so long. A slow machine sets its own."""
_LOOK_S = 0.005


def eventually(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Return once the condition holds; fail when it does not in time.

    Args:
        condition: looked at again and again.
        what: what is waited for; a function where that includes how things stand in the end.
    """
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {DEADLINE_S} s: {told}")
        threading.Event().wait(_LOOK_S)
