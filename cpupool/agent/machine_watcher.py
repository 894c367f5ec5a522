"""The machine watcher follows the CPUs that containers can have, and puts each change in force.

It is level-triggered: each look compares the CPUs that are online, and those that cgroups withhold,
with the manager's. Events only make it look sooner. The loop waits for those of the kernel about
CPUs in one call, so it is no `StepLoop`.

The manager knows what an offline CPU means for its owner (`Manager.update_topology`,
`policies/base.py`).
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.host.uevents import CPUEvents
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from cpupool.host.usable_cpus import TopologySource, Withholding
    from cpupool.manager.manager import Manager
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

NAME: Final = "machine watcher"
_LOOK_S: Final = 10.0
_LOOK_AT_CGROUPS_S: Final = 1.0
"""No event comes when a cgroup takes CPUs where none is watched."""
_LOOK_WITHOUT_EVENTS_S: Final = 0.05


class MachineWatcher:
    """The role that owns the topology.

    Args:
        manager: takes each reading.
        topology: reads the machine's CPUs.
        health: takes the beats of the loop.
        changed: called when CPUs went offline or came back.
        listen: opens the kernel's events.
        withholding: what `topology` leaves out; None where it leaves out nothing.
    """

    def __init__(
        self,
        manager: Manager,
        topology: TopologySource,
        *,
        health: Health,
        changed: Callable[[], None],
        listen: Callable[[], CPUEvents] = CPUEvents,
        withholding: Withholding | None = None,
    ) -> None:
        self._manager = manager
        self._topology = topology
        self._health = health
        self._changed = changed
        self._listen = listen
        self._withholding = withholding
        self._events: CPUEvents | None = None
        self._silence = ""
        self._failures = Failures()

    def run(self, stop: threading.Event) -> None:
        """Follow the machine until `stop` is set; `wake` after setting it returns at once."""
        with ExitStack() as ending:
            events = self._events = ending.enter_context(closing(self._listen()))
            watches = [self._withholding.watch(self.wake)] if self._withholding else []
            for watch in watches:
                ending.callback(watch.stop)
            while not stop.is_set():
                self._health.beat(NAME)
                for watch in watches:
                    watch.ensure()
                self.look()
                events.wait(self._pause_s(events.silence))

    def wake(self) -> None:
        """Look now: a CPU may be offline, or `run` is to notice `stop`."""
        if self._events is not None:
            self._events.wake()

    def look(self) -> None:
        """Tell the manager which CPUs are online, and which of them containers cannot have."""
        try:
            online = self._topology.online()
            withheld = self._withholding.withheld() if self._withholding else ()
            before = self._manager.snapshot().facts.topology
            if (online, withheld) == (before.online, before.withheld):
                return
            # A large machine takes long to read, and containers would stay on the CPUs of others.
            shrinks = online <= before.online
            # Another thread may read the machine meanwhile: its causes belong to its reading.
            now = (
                replace(before.cut_to(online), withheld=withheld)
                if shrinks
                else self._topology.topology()
            )
            problems = self._manager.update_topology(now)
        except CPUPoolError as error:
            if self._failures.begins(error):
                log.warning("topology not read", reason=error)
            return
        self._changed()
        self._failures.ends()
        log.info("online CPUs", cpus=now.online, before=before.online or "not known")
        for part in now.withheld:
            log.warning("CPUs are withheld", reason=part.why, remedy=part.remedy)
        for problem in problems:
            log.warning("pools on this machine", problem=problem)

    def _pause_s(self, silence: str) -> float:
        unwatched = self._withholding is not None and self._withholding.unwatched
        pause_s = _LOOK_AT_CGROUPS_S if unwatched else _LOOK_S
        if silence:
            pause_s = _LOOK_WITHOUT_EVENTS_S
        if silence != self._silence:
            self._silence = silence
            log.warning("no events of CPUs from the kernel", look_s=pause_s, reason=silence)
        return pause_s
