"""One agent works on a node: the loops of a second agent wait for the end of the first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cpupool.core.errors import HostFileError
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cpupool.host.files import FileLock
    from cpupool.loops.supervisor import Loop
    from cpupool.telemetry.health import Health

log = logs.get(__name__)


class SingleInstance:
    """Runs loops only while no other agent runs on this node.

    Args:
        lock: the file that the node's one agent holds locked.
        health: shows the wait, and expects the beats of the loops.
        silent_s: the time in which a loop must beat.
        serving_s: loop → the same, for loops that peers wait for.
        unready: the conditions of roles that must not look ready before they have run.
        entered: called once this process has the lock, before any of the loops.
    """

    def __init__(
        self,
        lock: FileLock,
        health: Health,
        silent_s: float,
        unready: Iterable[str],
        entered: Callable[[], None],
        *,
        serving_s: Mapping[str, float],
    ) -> None:
        self._lock = lock
        self._health = health
        self._silent_s = silent_s
        self._serving_s = serving_s
        self._unready = tuple(unready)
        self._enter = entered
        self._entering = threading.Lock()
        self._entered = False

    def run(self, name: str, loop: Loop, stop: threading.Event) -> None:
        """Wait for the end of another agent, then run a loop until `stop` is set."""
        if self._alone(stop):
            within_s = self._serving_s.get(name, self._silent_s)
            self._health.expect(name, within_s, serves=name in self._serving_s)
            loop(stop)

    def release(self) -> None:
        """Release the lock, so that another agent can work."""
        self._lock.release()

    def _alone(self, stop: threading.Event) -> bool:
        """Wait until no other agent runs on this node; return False if `stop` ends the wait."""
        # The first loop that comes here takes the lock for all.
        with self._entering:
            if not self._entered and not stop.is_set():
                try:
                    self._entered = self._lock.acquire(stop, self._tell_waiting)
                    if self._entered:
                        self._enter()
                except HostFileError as error:
                    log.warning("another agent on this node would not be noticed", reason=error)
                    self._entered = True
                if self._entered:
                    for condition in self._unready:
                        self._health.set(condition, ok=False, message="it is starting; wait")
                    self._health.set("node", ok=True)
            return self._entered

    def _tell_waiting(self) -> None:
        self._health.set("node", ok=False, message="another agent runs here; end one of the two")
        log.warning("another agent runs on this node, waiting for its end")
