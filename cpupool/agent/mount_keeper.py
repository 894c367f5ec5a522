"""The mount keeper writes the files that containers mount, and keeps them true.

These are the process starter, and a folder of files for each shared pool. They are there before a
pool is offered. The role writes them while the cpusetter moves the containers: an application that
starts in between waits until its cpuset and the files of its pools agree.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.loops.step_loop import StepLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cpupool.host.mounts import Mounts
    from cpupool.manager.resolve import Reader
    from cpupool.telemetry.health import Health

NAME: Final = "mount keeper"
_LOOK_S: Final = 30.0
_RETRY_S: Final = 2.0


class MountKeeper(StepLoop):
    """Provides the mounts, once the owner of each CPU is known.

    Args:
        manager: the node's state.
        mounts: the files that containers mount.
        health: takes the beats of the loop.
        ready: returns whether the owner of each CPU is known, and only cpupool places containers.
        provided: called when the mounts of shared pools have changed.
        look_s: the time between two looks without an event; shorter after a failure.
    """

    def __init__(
        self,
        manager: Reader,
        mounts: Mounts,
        *,
        health: Health,
        ready: Callable[[], bool],
        provided: Callable[[], None],
        look_s: float = _LOOK_S,
    ) -> None:
        super().__init__(partial(health.beat, NAME))
        self._manager = manager
        self._mounts = mounts
        self._ready = ready
        self._provided = provided
        self._look_s = look_s
        self._announced: deque[str] = deque()

    def step(self) -> float:
        """Provide the mounts; return the seconds to the next step."""
        self._look()
        return _RETRY_S if self._mounts.failing else self._look_s

    def swept(self, overwritten: Collection[str] = ()) -> None:
        """Note a sweep: the CPUs of shared pools may have changed.

        Any thread may call it. The role keeps what it cannot write yet.

        Args:
            overwritten: shared pools whose containers must look at their CPUs, even if these are
                the same as before.
        """
        self._announced.extend(overwritten)
        if overwritten or self._manager.snapshot().resolution.shared != self._mounts.provided:
            self.wake()

    def _look(self) -> None:
        if not self._ready():
            return
        facts, resolution = self._manager.snapshot()
        before = self._mounts.provided
        announced = {self._announced.popleft() for _ in range(len(self._announced))}
        # Pods may hold devices of pools that are not known yet.
        self._mounts.provide(resolution.shared if facts.configured else None, announced)
        if self._mounts.provided != before:
            self._provided()
