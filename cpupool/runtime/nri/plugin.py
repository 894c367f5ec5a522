"""The NRI plugin: connects to the container runtime, and converses with it.

It connects once the owner of each CPU is known and no pod ends, again after each loss, and at once
when the runtime makes its socket anew. What is said is `conversation.py`'s.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import RemoteProtocolError
from cpupool.host.files import DirectoryWatch
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.loops.telemetry import Telemetry
    from cpupool.runtime.nri.adapter import NRIRuntime
    from cpupool.runtime.nri.connecting import ConnectionWait
    from cpupool.runtime.nri.conversation import Conversation

log = logs.get(__name__)

NAME: Final = "nri plugin"
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long to wait after each attempt to reach the runtime; the last counts for all that follow."""
_LOOK_S: Final = 30.0


class NRIPlugin:
    """The role that the container runtime asks; one thread runs it.

    Args:
        runtime: the container runtime.
        conversation: takes what the runtime says, and answers it.
        wait: tells how long to wait before connecting.
        required: containers must be created this way, so that the node is not ready without.
        ready: whether the owner of each CPU is known.
        appears: the folder in which the runtime makes its socket; None not to watch for that.
        telemetry: hears that the loop turns, and whether the runtime is connected.
    """

    def __init__(
        self,
        runtime: NRIRuntime,
        conversation: Conversation,
        wait: ConnectionWait,
        *,
        required: bool = False,
        ready: Callable[[], bool],
        appears: Path | None = None,
        telemetry: Telemetry,
    ) -> None:
        self._runtime = runtime
        self._conversation = conversation
        self._wait = wait
        self._required = required
        self._ready = ready
        self._watch = None if appears is None else DirectoryWatch(appears, self._appeared)
        self._metrics = telemetry.metrics
        self._health = telemetry.health
        self._attempts = 0
        self._lost_why = ""
        self._woken = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Converse with the runtime until `stop` is set; `wake` after setting it returns at once.

        Raises:
            RemoteProtocolError: the runtime that has started this process has ended.
        """
        try:
            while not stop.is_set():
                self._health.beat(NAME)
                if self._watch:
                    self._watch.ensure()
                # Containers must not be corrected before it is known who owns which CPU.
                if not (self._runtime.launched or self._ready()):
                    self._wait.begin_anew()
                    self._rest(_LOOK_S)
                elif pause_s := self._wait.pause_s():
                    self._tell_connected(f"it {self._wait.waits}")
                    self._rest(min(pause_s, _LOOK_S))
                else:
                    self._attempt(stop)
        finally:
            if self._watch:
                self._watch.stop()

    def wake(self) -> None:
        """Let the loop notice that it shall stop, or that it may connect now."""
        self._woken.set()
        self._runtime.wake()

    def facts_changed(self) -> None:
        """Look again at what waits for facts, or for a pod to end."""
        if self._conversation.waits or self._wait.waits:
            self.wake()

    def _appeared(self, _path: Path) -> None:
        # A runtime that has restarted creates containers without waiting for its plugins.
        self.wake()

    def _attempt(self, stop: threading.Event) -> None:
        """Converse for as long as that goes well, and pause after it."""
        try:
            with self._runtime.attached():
                self._converse(stop)
        except RemoteProtocolError as error:
            self._tell_lost(str(error))
            if self._runtime.launched:
                raise
        if self._rest(_PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)]):
            # A runtime makes its socket before it listens, and may refuse the next attempt.
            self._attempts = 0
        else:
            self._attempts += 1

    def _converse(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self._health.beat(NAME)
                self._conversation.turn(self._connected)
        finally:
            self._conversation.end()

    def _connected(self) -> None:
        self._wait.begin_anew()
        self._lost_why, self._attempts = "", 0
        self._tell_connected()
        log.info("NRI connected", containers=len(self._runtime.containers))

    def _rest(self, pause_s: float) -> bool:
        """Wait for as long; return whether `wake` has ended that."""
        woken = self._woken.wait(pause_s)
        # Before the next look at what there is to notice.
        self._woken.clear()
        return woken

    def _tell_lost(self, why: str) -> None:
        if self._lost_why != why:
            self._lost_why = why
            tell = log.warning if self._required else log.info
            tell("NRI is not connected", reason=why)
        self._tell_connected(why)

    def _tell_connected(self, why: str = "") -> None:
        self._metrics.nri_connected(connected=self._runtime.connected())
        if self._required:
            self._health.set(
                NAME, ok=self._runtime.connected(), message=why or "it is connecting; wait"
            )
