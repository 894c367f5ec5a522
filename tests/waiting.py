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
_SHARE = 0.1
"""A pause is this part of the wait so far: looks take CPU time from what is awaited."""


def eventually(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Return once the condition holds; fail when it does not in time.

    Args:
        condition: looked at again and again.
        what: what is waited for; a function where that includes how things stand in the end.
    """
    begun_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun_s
        if waited_s > DEADLINE_S:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {DEADLINE_S} s: {told}")
        threading.Event().wait(max(_LOOK_S, _SHARE * waited_s))
