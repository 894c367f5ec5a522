"""Waiting for what another thread or process does, with a bound."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 30.0
_LOOK_S = 0.005


def eventually(condition: Callable[[], object], what: str) -> None:
    """Return once the condition holds; fail when it does not in time."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {DEADLINE_S} s: {what}")
        threading.Event().wait(_LOOK_S)
