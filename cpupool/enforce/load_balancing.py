"""Containers that ask for it leave the scheduler's load balancing, with the CPUs of their own.

The scheduler then moves no thread between these CPUs, and nobody else's threads come near them: an
isolated partition of cgroup version 2. It is for containers that have no other CPUs: the threads on
shared CPUs live on being balanced.

Each change makes the kernel build the scheduling domains of the whole node anew, so nothing is
written that is right already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, HostError
from cpupool.core.workloads import ContainerID
from cpupool.enforce.notices import Notice
from cpupool.enforce.patience import Backoff
from cpupool.manager.ports import ISOLATED, Partition
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cpupool.core.assignments import CPUAssignment
    from cpupool.enforce.notices import NoticeKey
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.ports import FoundContainer, PartitionTree
    from cpupool.manager.resolve import PlacedContainer, Resolution

log = logs.get(__name__)

_EVENT: Final = "CPULoadBalancingRefused"
_TRY_AGAIN_S: Final = 1.0
_LASTS_S: Final = 5.0
"""An init container that has just ended may stand in the way of the one that has its CPUs next."""

_ASK: Final = "ask for exclusive pools only"


@dataclass(frozen=True, slots=True)
class _Wish:
    """A container that is to be isolated, and the CPUs of its own, offline ones included."""

    key: ContainerKey
    placed: PlacedContainer
    cpus: CPUSet


@dataclass(slots=True)
class _Tried:
    """How it went with one cgroup.

    Attributes:
        backoff: how patient to be with it.
        refused: why it is not as it should be; empty where it is.
        fought: somebody else takes it out of isolation again and again.
    """

    backoff: Backoff = field(default_factory=Backoff)
    refused: str = ""
    fought: bool = False


class LoadBalancingKeeper:
    """Isolates the containers that want it and can have it, and no others; a `Keeper`.

    What is isolated is read from the cgroups once, so an agent that starts anew goes on where the
    one before it ended. While no container asks, nothing more is read, and nothing is written.

    Args:
        tree: the isolated partitions.

    Attributes:
        due_s: when to try again; infinite for never.
    """

    def __init__(self, tree: PartitionTree) -> None:
        self.due_s = math.inf
        self._tree = tree
        # Cgroup → the CPUs that it has for itself; None until that has been read.
        self._held: dict[str, CPUSet] | None = None
        self._tried: dict[str, _Tried] = {}

    def keep(
        self, found: Sequence[FoundContainer], resolution: Resolution, now_s: float
    ) -> Mapping[NoticeKey, Notice]:
        """Isolate and release what has to be, and tell the owners of what cannot be isolated."""
        self.due_s = math.inf
        told: dict[NoticeKey, Notice] = {}
        wishes: dict[str, _Wish] = {}
        strangers: set[str] = set()
        for container in found:
            key = (container.pod, ContainerID(container.id))
            placed = resolution.containers.get(key)
            if placed is None:
                strangers.add(container.path)
            elif not placed.container.balanced:
                notice = _refusal(placed, self._tree.obstacle)
                cpus = _own(container, placed.assignment)
                if notice is not None:
                    told[key, notice.event] = notice
                elif cpus:
                    wishes[container.path] = _Wish(key, placed, cpus)
        held = self._known()
        self._tried = {
            path: tried for path, tried in self._tried.items() if path in wishes or path in held
        }
        # First what is given back: a container that has started again has its old one's CPUs.
        for path in held.keys() - strangers:
            if path not in wishes or wishes[path].cpus != held[path]:
                self._release(held, path, now_s)
        for path, wish in wishes.items():
            tried = self._tried.setdefault(path, _Tried())
            self._isolate(held, path, wish.cpus, tried, now_s)
            for notice in _outcome(wish.placed, tried):
                told[wish.key, notice.event] = notice
        return told

    def _known(self) -> dict[str, CPUSet]:
        if self._held is None:
            self._held = {}
            try:
                self._held = dict(self._tree.reserved())
            except HostError as error:
                log.warning("isolated partitions cannot be read", error=error)
        return self._held

    def _release(self, held: dict[str, CPUSet], path: str, now_s: float) -> None:
        tried = self._tried.setdefault(path, _Tried())
        if not self._due(tried, now_s):
            return
        try:
            self._tree.release(path, held[path])
        except HostError as error:
            self._fail(tried, error, path, now_s)
        else:
            log.info("load balancing restored", cgroup=path, cpus=held.pop(path))

    def _isolate(
        self, held: dict[str, CPUSet], path: str, cpus: CPUSet, tried: _Tried, now_s: float
    ) -> None:
        try:
            if self._tree.partition(path) == Partition(ISOLATED, cpus):
                held[path], tried.refused = cpus, ""
                return
            if not self._due(tried, now_s):
                return
            self._tree.isolate(path, cpus)
        except CgroupNotFound:
            return
        except HostError as error:
            self._fail(tried, error, path, now_s)
            return
        tried.backoff = tried.backoff.after(now_s)
        tried.refused, tried.fought = "", path in held and tried.backoff.delay_s > 0
        held[path] = cpus
        log.info("load balancing off", cgroup=path, cpus=cpus)

    def _due(self, tried: _Tried, now_s: float) -> bool:
        if now_s < tried.backoff.due_s:
            self.due_s = min(self.due_s, tried.backoff.due_s)
            return False
        return True

    def _fail(self, tried: _Tried, error: HostError, path: str, now_s: float) -> None:
        if tried.refused != str(error):
            tried.refused = str(error)
            log.warning("load balancing not switched", cgroup=path, error=error)
        tried.backoff = tried.backoff.after(now_s)
        self.due_s = min(self.due_s, max(tried.backoff.due_s, now_s + _TRY_AGAIN_S))


def _own(container: FoundContainer, assignment: CPUAssignment) -> CPUSet:
    """Give the CPUs of a container's own, all of them if it runs on no others, else none."""
    own = assignment.exclusive | assignment.offline
    return own if CPUSet.parse(container.cpus) <= own else CPUSet()


def _refusal(placed: PlacedContainer, obstacle: str) -> Notice | None:
    """Tell why a container is not to be isolated, as far as that follows from what it asks for."""
    assignment = placed.assignment
    if assignment.placement is Placement.CONFINED:
        # Its owner hears of that, and it may pass.
        return None
    others = assignment.shared | assignment.default
    if obstacle:
        return _notice(placed, obstacle, "run it on a node with cgroup version 2 and Linux 6.7")
    if assignment.exclusive and others:
        return _notice(placed, f"it shares CPUs {others} with others", _ASK)
    if not assignment.exclusive:
        return _notice(placed, "it has no CPUs of its own", _ASK)
    return None


def _outcome(placed: PlacedContainer, tried: _Tried) -> Iterator[Notice]:
    if tried.refused:
        notice = _notice(placed, tried.refused, "wait, it is tried again")
        yield replace(notice, lasts_s=_LASTS_S)
    elif tried.fought:
        why = "somebody takes its cgroup out of isolation again and again"
        yield _notice(placed, why, "find the program that writes this cgroup too")


def _notice(placed: PlacedContainer, why: str, remedy: str) -> Notice:
    return Notice(
        _EVENT,
        "load balancing is not off",
        placed.pod,
        placed.container.name,
        f"the scheduler balances its load: {why}",
        f"{remedy}, or take the annotation away",
    )
