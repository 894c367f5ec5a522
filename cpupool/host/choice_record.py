"""The record of the CPUs that the CPU manager policy chose: a file that outlives the agent.

The agent writes a choice before a container gets its CPUs. After a restart it reads the file, and
believes an entry only as far as the node's other facts allow it (`manager.after_restart`). The file
is for one boot: no container survives a reboot. So the disk need not have it at once, and an answer
to the container runtime does not wait for the disk. A file that cannot be used is kept under
another name (`RecordFile`).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.core.grants import Sharing, Source
from cpupool.host.record_file import RecordFile
from cpupool.policies.view import BEST_EFFORT
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures
from cpupool.wire import cpu_manager_state
from cpupool.wire.cpu_manager_state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cpupool.core.events import EventSink
    from cpupool.core.grants import Grant
    from cpupool.manager.resolve import Reader, Snapshot
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

_NOTHING: Final = State("")
_AGAIN_S: Final = 10.0
"""The time between a failed write and the next attempt."""


class ChoiceRecord:
    """Keeps the file equal to the grants of the CPU manager policy; any thread may call it.

    A node whose policy has never chosen CPUs has no file. Without the file the agent works on: it
    also recognises its choices in the containers.

    Args:
        manager: the node's state.
        path: the file.
        boot_id: the kernel's file with the id of this boot.
        events: tells the node's admin that the agent cannot use, or cannot write, the file.
        metrics: shows the same.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Reader,
        path: Path,
        boot_id: Path,
        *,
        events: EventSink,
        metrics: Metrics,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._path = path
        self._file = RecordFile(
            path,
            _NOTHING,
            cpu_manager_state.encode,
            cpu_manager_state.parse,
            complain=events.node,
            durable=False,
        )
        self._boot_id = boot_id
        self._events = events
        self._metrics = metrics
        self._now_s = now_s
        self._lock = threading.Lock()
        self._kept: Snapshot | None = None
        self._recorded = False
        self._failures = Failures()
        self._due_s = 0.0

    def recorded(self) -> State | None:
        """Return the record of an earlier agent in this boot; None without such a file."""
        with self._lock:
            if (state := self._file.read()) is _NOTHING:
                return None
            try:
                here = self._boot()
            except HostFileError as error:
                log.warning("recorded CPUs are ignored", file=self._path, error=error)
                return None
            if state.boot_id != here:
                log.info("recorded CPUs are ignored: they are of another boot", file=self._path)
                return None
            self._recorded = True
            return state

    def decided(self) -> Snapshot:
        """Return the manager's facts and decisions, once the choices among them are in the file."""
        with self._lock:
            now = self._manager.snapshot()
            if not self._has(now) and self._now_s() >= self._due_s:
                self._keep(now)
            return now

    def is_kept(self) -> bool:
        """Return whether the file has the choices of now, and so a restart changes none."""
        now = self.decided()
        with self._lock:
            return self._has(now)

    def _has(self, now: Snapshot) -> bool:
        """Return whether the file has the choices of a moment; a container alone changes none."""
        kept = self._kept
        return (
            kept is not None
            and kept.resolution.view is now.resolution.view
            and kept.facts.policy is now.facts.policy
        )

    def _keep(self, now: Snapshot) -> None:
        if not now.facts.recovered:
            # The file has choices that this agent does not know yet.
            return
        view, settled = now.resolution.view, now.facts.policy.settled
        chosen = {uid: each for uid, each in view.chosen.items() if each.source is Source.POLICY}
        entries = {uid: grant.parts for uid, grant in chosen.items()}
        bubbles = {uid: grant.cpus for uid, grant in chosen.items() if grant.bubble}
        owned = CPUSet.union(grant.cpus for grant in view.chosen.values())
        try:
            if entries or settled or self._recorded:
                policy, boot_id = view.pools.cpu_manager.policy, self._boot()
                shared = view.cpus - owned
                self._file.write(
                    State(
                        policy,
                        shared,
                        entries,
                        bubbles,
                        boot_id=boot_id,
                        settled=settled,
                        sharing=_sharing(now, chosen),
                        changes={uid: each.changes for uid, each in chosen.items() if each.changes},
                        moved_unix_s=now.facts.moved_unix_s,
                    )
                )
                self._recorded = True
        except CPUPoolError as error:
            self._due_s = self._now_s() + _AGAIN_S
            self._complain(str(error))
        else:
            self._kept = now
            self._complain("")

    def _boot(self) -> str:
        """Return the id of this boot.

        Raises:
            HostFileError: the kernel's file cannot be read.
        """
        try:
            found = self._boot_id.read_bytes().decode("ascii", "replace").strip()
        except FileNotFoundError:
            found = ""
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
            raise HostFileError(str(self._boot_id), why, "check the folder's rights") from error
        if not found:
            raise HostFileError(str(self._boot_id), "is missing", "mount the machine's /proc")
        return found

    def _complain(self, why: str) -> None:
        """Report a failure once, and its end."""
        self._metrics.choices_unrecorded(failed=bool(why))
        if why and self._failures.begins(why):
            log.warning("chosen CPUs cannot be recorded", error=why)
            what = "the CPUs that the CPU manager policy chose are not recorded"
            self._events.node("CPUChoiceNotRecorded", f"{what}: {why}")
        elif not why and self._failures.ends():
            log.info("chosen CPUs are recorded again", file=self._path)


def _sharing(now: Snapshot, chosen: Mapping[str, Grant]) -> Mapping[str, Sharing]:
    """Return owner → the others that may run on its CPUs; empty where no owner shares.

    Only where best-effort pods have a set of their own does a policy lend them the CPUs of owners.
    """
    lends = any(grant.sharing is not Sharing.NONE for grant in chosen.values())
    if lends or BEST_EFFORT in now.resolution.view.extents:
        return {uid: grant.sharing for uid, grant in chosen.items()}
    return {}
