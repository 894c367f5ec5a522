"""The NRI plugin connects to the container runtime, and keeps the connection.

It connects once the owner of each CPU is known and no pod ends, again after each loss, and at once
when the runtime makes its socket anew. `conversation.py` has the conversation itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import RemoteProtocolError
from cpupool.host.files import DirectoryWatch
from cpupool.loops.step_loop import StepLoop
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.loops.telemetry import Telemetry
    from cpupool.runtime.nri.adapter import NRIRuntime
    from cpupool.runtime.nri.conversation import Conversation
    from cpupool.runtime.nri.wait_before_connecting import ConnectionWait

log = logs.get(__name__)

NAME: Final = "nri plugin"
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""The pauses after attempts to connect; the last one is for all further attempts."""
_LOOK_S: Final = 30.0


class NRIPlugin(StepLoop):
    """The role that the container runtime asks; one thread runs it.

    Args:
        runtime: the container runtime.
        conversation: takes the runtime's messages, and answers them.
        wait: decides how long to wait before connecting.
        required: whether containers must be created this way, so that the node is not ready
            without the connection.
        ready: returns whether the owner of each CPU is known.
        appears: the folder in which the runtime makes its socket; None not to watch it.
        telemetry: takes the beats of the loop, and whether the runtime is connected.
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
        # A runtime that has restarted creates containers without waiting for its plugins.
        watches = [] if appears is None else [DirectoryWatch(appears, lambda _path: self.wake())]
        super().__init__(partial(telemetry.health.beat, NAME), watches)
        self._runtime = runtime
        self._conversation = conversation
        self._wait = wait
        self._required = required
        self._ready = ready
        self._metrics = telemetry.metrics
        self._health = telemetry.health
        self._attempts = 0
        self._lost_why = ""

    def step(self) -> float:
        """Converse with the runtime if that is possible; return the seconds to the next step.

        Raises:
            RemoteProtocolError: the runtime that has started this process has ended.
        """
        # Containers must not be corrected before it is known who owns which CPU.
        if not (self._runtime.launched or self._ready()):
            self._wait.begin_anew()
            return _LOOK_S
        if pause_s := self._wait.pause_s():
            self._tell_connected(f"it {self._wait.waits}")
            return min(pause_s, _LOOK_S)
        return self._attempt()

    def wake(self) -> None:
        """Let the loop notice that it must stop, or that it may connect now."""
        super().wake()
        self._runtime.wake()

    def facts_changed(self) -> None:
        """Look again if a request waits for facts, or the connection for a pod."""
        if self._conversation.waits or self._wait.waits:
            self.wake()

    def _attempt(self) -> float:
        """Connect, and converse until the end; return the seconds to the next attempt."""
        if self._woken:
            # A runtime makes its socket before it listens, and may refuse the next attempt.
            self._attempts = 0
        try:
            with self._runtime.attached():
                self._converse()
        except RemoteProtocolError as error:
            self._tell_lost(str(error))
            if self._runtime.launched:
                raise
        pause_s = _PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)]
        self._attempts += 1
        return pause_s

    def _converse(self) -> None:
        try:
            while not self._stop.is_set():
                self._beat()
                self._conversation.turn(self._connected)
        finally:
            self._conversation.end()

    def _connected(self) -> None:
        self._wait.begin_anew()
        self._lost_why, self._attempts = "", 0
        self._tell_connected()
        log.info("NRI connected", containers=len(self._runtime.containers))

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
