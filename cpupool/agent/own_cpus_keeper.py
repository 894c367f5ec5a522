"""The keeper of own CPUs tells containers before they lose CPUs, and waits for the notice to end.

A container that loses CPUs reads in its folder which CPUs these are, and the earliest time of the
loss. The keeper first writes the folder, and begins the notice then. After the notice the keeper
narrows the container. When the kernel reports that the container's cpuset is the new set, the
keeper writes into the folder that the change is complete. If a container gets CPUs, the keeper
writes the folder when the kernel reports the new CPUs in the cpuset. A change by a plugin is
complete when the keeper hears of it, so it has no notice.

A notice ends early if the agent sees that no thread of the container needs a leaving CPU. A thread
needs one if it is pinned to leaving CPUs alone.

If the keeper cannot write a folder, the notice still ends at its time: other containers get the
CPUs also when the disk is full.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError
from cpupool.host.own_folders import NotBefore, Told, ToldChange
from cpupool.loops.step_loop import StepLoop
from cpupool.manager.resizing import Reason
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cpupool.agent.ports import Owners
    from cpupool.core.mounts import Mount
    from cpupool.core.workloads import ContainerRef
    from cpupool.host.own_folders import OwnFolders
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.resizing import OwnCPUs

log = logs.get(__name__)

NAME: Final = "own CPUs keeper"
SPARE_S: Final = 600.0
"""The time for which a pod is gone before its folders are removed. A pod whose container is being
created may be unknown for a moment."""
_LOOK_S: Final = 30.0
_RETRY_S: Final = 2.0
_REACTION_S: Final = 2.0
"""The shortest notice that ends early: an application that reads its folder once a second, without
inotify, has read it by then, and has had as long to act."""
_THREADS_S: Final = 0.5
"""The time between two looks at the threads of a container."""
_SPARING: Final = 9
"""How many times as long as the looks at threads the pause after them lasts at least: many threads
take a second to read, and the answers to the runtime must not wait for them."""
_FAILED: Final = "CPUNoticeFailed"
_REMOVAL: Final = "removal"


@dataclass(slots=True)
class _Notice:
    """A notice that lasts: the container knows, or should know, that CPUs leave.

    Attributes:
        assigned: the CPUs that stay.
        leaving: the CPUs that leave.
        ready: whether the container's cpuset had all CPUs in force when the notice began. Only
            then the folder has the notice. Otherwise it begins again when the cpuset is right.
        change: the announcement in the folder. None if the notice is not ready, or has 0 seconds:
            then the folder gets a report after the CPUs have left.
        due_s: when the CPUs are taken.
        threads_s: when the agent looks next whether a thread needs them; infinite for never.
    """

    assigned: CPUSet
    leaving: CPUSet
    ready: bool
    change: ToldChange | None
    due_s: float
    threads_s: float


class OwnCPUsKeeper(StepLoop):
    """The role that tells containers of their own CPUs. One thread runs it.

    Any thread may call `prepare`, `repaired` and `wake`; `wake` follows each change of `own_cpus`.

    Args:
        owners: the containers whose own CPUs may change.
        folders: the folders of the containers; only this role writes them.
        announced: called when a notice has begun; it must not block.
        telemetry: takes Events for a pod's author, and the beats of the loop.
        now_s: the monotonic clock of the machine, which containers read, too.
        wall_s: the wall clock.
        look_s: the time between two looks without an event; shorter after a failure.
    """

    def __init__(
        self,
        owners: Owners,
        folders: OwnFolders,
        *,
        telemetry: Telemetry,
        announced: Callable[[], None],
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        look_s: float = _LOOK_S,
    ) -> None:
        super().__init__(partial(telemetry.health.beat, NAME))
        self._owners = owners
        self._folders = folders
        self._announced = announced
        self._events = telemetry.events
        self._now_s = now_s
        self._wall_s = wall_s
        self._look_s = look_s
        # Guards the folders and all below: a container may be created during a step.
        self._lock = threading.Lock()
        self._notices: dict[ContainerRef, _Notice] = {}
        # The containers of the last look, with the cause of their changes.
        self._known: dict[ContainerRef, Reason | None] = {}
        # Containers that have had a folder since this role began.
        self._told: set[ContainerRef] = set()
        # Containers whose folders were right at the last look, with the CPUs that were told.
        self._right: dict[ContainerRef, OwnCPUs] = {}
        self._look_due_s = -math.inf
        self._repaired: set[ContainerRef] = set()
        self._gone_since: dict[str, float] = {}
        self._failures = Failures()

    def prepare(self, ref: ContainerRef) -> Mount | None:
        """Make the folder of a container that is created next, and return its mount.

        It never raises. There is no folder if the container's own CPUs cannot change, or if the
        folder cannot be written: then the container is not told of changes.
        """
        own = self._owners.own_cpus().get(ref)
        if own is None:
            return None
        with self._lock:
            self._known[ref] = own.cause
            self._gone_since.pop(ref.pod, None)
            # A new process pins its threads anyway.
            self._repaired.discard(ref)
            mount = self._folders.mount(ref) if self._keep(ref, own, created=True) else None
        self.wake()
        return mount

    def notices(self) -> Mapping[ContainerRef, float]:
        """Return the containers that know that CPUs leave → when these leave, in Unix time."""
        with self._lock:
            return {
                ref: notice.change.not_before.wall_s
                for ref, notice in self._notices.items()
                if notice.change and notice.change.not_before
            }

    def repaired(self, refs: Iterable[ContainerRef]) -> None:
        """Note that other programs' writes into these containers' cgroups have been repaired.

        Their threads may have lost the CPUs to which they were pinned.
        """
        with self._lock:
            self._repaired.update(refs)
        self.wake()

    def step(self) -> float:
        """Write what has changed, and end the notices that are due; return the seconds to the next.

        A notice ends outside of the lock, because `narrow` is another's work.
        """
        with self._lock:
            due = self._look()
            watched = {ref: one for ref, one in self._notices.items() if ref not in due}
        for ref, notice in due.items():
            self._end(ref, notice, early=False)
        begun_s = self._now_s()
        for ref, notice in watched.items():
            if self._is_followed(ref, notice):
                self._end(ref, notice, early=True)
        now_s = self._now_s()
        for notice in watched.values():
            notice.threads_s = max(notice.threads_s, now_s + _SPARING * (now_s - begun_s))
        with self._lock:
            dues_s = (min(one.due_s, one.threads_s) for one in self._notices.values())
            next_s = min(dues_s, default=math.inf)
            look_s = _RETRY_S if self._failures else self._look_s
            return max(0.0, min(look_s, next_s - self._now_s()))

    def _end(self, ref: ContainerRef, notice: _Notice, *, early: bool) -> None:
        narrowed = self._owners.narrow(ref, notice.assigned, notice.leaving)
        log.info(
            "notice ended",
            pod=ref.pod,
            container=ref.name,
            cpus=notice.assigned,
            narrowed=narrowed,
            early=early,
        )
        with self._lock:
            if narrowed and self._notices.get(ref) is notice:
                del self._notices[ref]
                self._right.pop(ref, None)

    def _is_followed(self, ref: ContainerRef, notice: _Notice) -> bool:
        """Return whether the agent sees that no thread of a container needs the leaving CPUs."""
        now_s = self._now_s()
        if now_s < notice.threads_s:
            return False
        needs = self._owners.needs(ref, notice.leaving)
        notice.threads_s = math.inf if needs is None else now_s + _THREADS_S
        return needs is False

    def _look(self) -> Mapping[ContainerRef, _Notice]:
        """Write what has changed, and return the notices that are due.

        These are due again soon: `narrow` may find that other CPUs stay or leave by now.
        """
        own_cpus = self._owners.own_cpus()
        lost = {ref: cause for ref, cause in self._known.items() if ref not in own_cpus}
        kept = {ref: cause for ref, cause in lost.items() if not self._forget(ref, cause)}
        self._known = {ref: own.cause for ref, own in own_cpus.items()} | kept
        self._repaired &= self._known.keys()
        now_s = self._now_s()
        if now_s >= self._look_due_s:
            # Without an event, too: another program may have changed the folders.
            self._look_due_s = now_s + self._look_s
            self._right.clear()
            self._remove_spare()
        for ref, own in own_cpus.items():
            if ref in self._repaired or self._right.get(ref) != own:
                self._keep(ref, own)
        now_s = self._now_s()
        due = {ref: notice for ref, notice in self._notices.items() if notice.due_s <= now_s}
        for notice in due.values():
            notice.due_s = now_s + _RETRY_S
        return due

    def _forget(self, ref: ContainerRef, cause: Reason | None) -> bool:
        """Forget a container whose own CPUs cannot change any more; return whether it knows this.

        A plugin can let a container that runs share CPUs from now on. By a policy an owner keeps
        its CPUs until its pod ends, also after an edit of the pool file.
        """
        self._notices.pop(ref, None)
        self._right.pop(ref, None)
        pod, before = self._owners.pod(ref.pod), self._folders.told(ref)
        plugged = cause is Reason.PLUGIN and pod is not None and not pod.finished
        if plugged and before and before.cpus:
            none, change = CPUSet(), ToldChange(Reason.PLUGIN, before.cpus)
            if not self._tell(ref, Told(none, none, none, change), before):
                return False
        self._told.discard(ref)
        self._failures.ends(str(ref))
        return True

    def _keep(self, ref: ContainerRef, own: OwnCPUs, *, created: bool = False) -> bool:
        """Write what is new for a container; return whether its folder is right then."""
        right = self._follow(ref, own, created=created)
        if right:
            self._right[ref] = own
        else:
            self._right.pop(ref, None)
        return right

    def _follow(self, ref: ContainerRef, own: OwnCPUs, *, created: bool) -> bool:
        """Write what is new for a container, and keep the time of its notice."""
        before = self._folders.told(ref)
        # A container that was created without this role, for example without the agent, has none.
        has_folder = created or self._folders.there(ref)
        if not has_folder:
            self._repaired.discard(ref)
            if ref in self._told:
                # A new folder would not be the one that the container has mounted.
                self._complain(ref, "its folder has been removed; restart it to give it another")
            else:
                self._failures.ends(str(ref))
        if not own.leaving:
            self._notices.pop(ref, None)
            if has_folder and (created or own.settled):
                return self._tell(ref, _complete(before, own), before)
            return True
        notice = self._notices.get(ref)
        # CPUs that come are told once the kernel has them, also where others leave at once.
        ready = created or own.settled or (before is not None and own.in_force <= before.cpus)
        lasts = (
            notice is not None
            and (notice.assigned, notice.leaving) == (own.assigned, own.leaving)
            and (notice.ready or not ready or not has_folder)
        )
        change = notice.change if notice and lasts else None
        if ready and not lasts:
            change = self._announcement(before, own)
        right = True
        if has_folder and (created or change):
            told = Told(own.in_force, own.assigned, own.baseline, change)
            right = self._tell(ref, told, before)
        if not lasts:
            # The notice begins after the attempt to write, also if this has failed.
            now_s = self._now_s()
            threads_s = now_s + _REACTION_S if has_folder and right and ready else math.inf
            self._notices[ref] = _Notice(
                own.assigned, own.leaving, ready, change, now_s + own.notice_s, threads_s
            )
            self._announced()
            log.info(
                "notice begins",
                pod=ref.pod,
                container=ref.name,
                leaving=own.leaving,
                s=own.notice_s,
            )
        return right

    def _announcement(self, before: Told | None, own: OwnCPUs) -> ToldChange | None:
        """Return the change that a container is to know before CPUs leave."""
        if own.notice_s <= 0:
            return None
        not_before = NotBefore(self._wall_s() + own.notice_s, self._now_s() + own.notice_s)
        if before and before.announced and before.assigned == own.assigned:
            # An earlier agent has announced it. The notice begins again.
            return replace(before.announced, removed=own.leaving, not_before=not_before)
        added = own.assigned - before.assigned - before.cpus if before else CPUSet()
        reason = Reason.COMPACT if added else Reason.SHRINK
        return ToldChange(reason, own.leaving, added, not_before)

    def _tell(self, ref: ContainerRef, told: Told, before: Told | None) -> bool:
        repaired = ref in self._repaired
        if repaired and told == before and not told.announced:
            told = replace(told, change=ToldChange(Reason.REPAIR))
        try:
            self._folders.tell(ref, told, again=repaired)
        except (OSError, CPUPoolError) as error:
            self._complain(ref, str(error))
            return False
        self._repaired.discard(ref)
        self._told.add(ref)
        self._failures.ends(str(ref))
        return True

    def _remove_spare(self) -> None:
        """Remove the folders of pods that are gone."""
        remaining = self._owners.remaining()
        if remaining is None:
            return
        now_s = self._now_s()
        kept = {*remaining, *(ref.pod for ref in self._known)}
        try:
            gone = self._folders.pods() - kept
            self._gone_since = {pod: self._gone_since.get(pod, now_s) for pod in gone}
            for pod, since_s in self._gone_since.items():
                if now_s - since_s >= SPARE_S:
                    self._folders.remove(pod)
                    log.info("folders of a pod that is gone removed", pod=pod)
        except OSError as error:
            if self._failures.begins(error, _REMOVAL):
                log.warning("folders of pods that are gone cannot be removed", reason=error)
        else:
            self._failures.ends(_REMOVAL)

    def _complain(self, ref: ContainerRef, why: str) -> None:
        if not self._failures.begins(why, str(ref)):
            return
        pod = self._owners.pod(ref.pod)
        log.warning("container not told of its CPUs", pod=ref.pod, container=ref.name, reason=why)
        said = f"container {ref.name} is not told of its CPUs: {why}; they change all the same"
        if pod is None:
            self._events.node(_FAILED, f"pod {ref.pod}: {said}")
        else:
            self._events.pod(pod, _FAILED, said)


def _complete(before: Told | None, own: OwnCPUs) -> Told:
    """Return what a folder tells when the kernel has the CPUs.

    It tells the CPUs that have come or left since what it told before. Those that were announced to
    leave are no news.
    """
    now = Told(own.in_force, own.assigned, own.baseline)
    if before is None:
        return now
    announced = before.announced
    if announced is None and replace(before, change=None) == now:
        return before
    removed, added = before.cpus - now.cpus, now.cpus - before.cpus
    if announced:
        removed, added = removed - announced.removed, added - announced.added
    if removed or added:
        return replace(now, change=ToldChange(_reason(before, own, removed), removed, added))
    return now


def _reason(before: Told, own: OwnCPUs, removed: CPUSet) -> Reason:
    """Return why CPUs have come or left."""
    less, more = before.assigned - own.assigned, own.assigned - before.assigned
    if not (less or more):
        # The container must have the same CPUs as before.
        return Reason.OFFLINE if removed else Reason.ONLINE
    if own.cause:
        return own.cause
    if less and more:
        return Reason.COMPACT
    return Reason.GROW if more else Reason.SHRINK
