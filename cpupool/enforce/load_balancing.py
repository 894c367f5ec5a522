"""The goal of load balancing: the CPUs of a container that requests it are an isolated partition.

The scheduler then moves no thread between these CPUs, and no other thread comes near them (cgroup
version 2). It is for containers that have no other CPUs: threads on shared CPUs need the balancing.

Each write makes the kernel rebuild the scheduling domains of the whole node. So the goal writes
only what differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError
from cpupool.core.workloads import ContainerID
from cpupool.enforce.foreign_writers import Reason
from cpupool.enforce.notices import Notice
from cpupool.enforce.ports import ISOLATED, Partition
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.cgroups import FoundContainer
    from cpupool.enforce.notices import NoticeKey
    from cpupool.enforce.ports import PartitionTree
    from cpupool.enforce.repair import Target
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import PlacedContainer, Resolution

log = logs.get(__name__)

_EVENT: Final = "CPULoadBalancingRefused"
_LASTS_S: Final = 5.0
"""The cgroup of an init container that has just ended may still have the next container's CPUs."""

_ASK: Final = "request exclusive pools only"


@dataclass(frozen=True, slots=True)
class _Container:
    """A container that is to be isolated, and the CPUs of its own, offline ones included."""

    key: ContainerKey
    placed: PlacedContainer
    cpus: CPUSet


class _Change(NamedTuple):
    """The wanted kind of a cgroup: an isolated partition, or an ordinary cgroup again."""

    path: str
    isolated: bool


class LoadBalancingGoal:
    """Isolates exactly the containers that request it and can be isolated; a `repair.Goal`.

    A new agent first reads the isolated cgroups, again and again until that succeeds. While no
    container asks, it reads and writes nothing more.

    Args:
        tree: the isolated partitions.
    """

    problem = "load balancing not switched"
    pause_s = 1.0

    def __init__(self, tree: PartitionTree) -> None:
        self._tree = tree
        # Cgroup → the CPUs that it has for itself.
        self._held: dict[str, CPUSet] = {}
        self._has_read = False
        self._failures = Failures()
        self._containers: dict[str, _Container] = {}
        self._refusals: dict[ContainerKey, Notice] = {}

    def wants(
        self, found: Sequence[FoundContainer], resolution: Resolution
    ) -> Mapping[_Change, CPUSet]:
        """Return the cgroups to isolate and to release, each with its CPUs."""
        self._containers, self._refusals = {}, {}
        unknown: set[str] = set()
        self._learn()
        for container in found:
            key = (container.pod, ContainerID(container.id))
            placed = resolution.containers.get(key)
            if placed is None:
                unknown.add(container.path)
            elif not placed.container.balanced:
                notice = _refusal(placed, self._tree.obstacle)
                cpus = _own(container, placed.assignment)
                if notice is not None:
                    self._refusals[key] = notice
                elif cpus:
                    self._containers[container.path] = _Container(key, placed, cpus)
        # The releases come first: a restarted container has the CPUs of its predecessor.
        released = {
            _Change(path, isolated=False): cpus
            for path, cpus in self._held.items()
            if path not in unknown
            and (path not in self._containers or self._containers[path].cpus != cpus)
        }
        isolated = {
            _Change(path, isolated=True): each.cpus for path, each in self._containers.items()
        }
        return {**released, **isolated}

    def put_right(
        self, key: _Change, want: CPUSet, _now_s: float, /, *, was_right: bool
    ) -> Reason | None:
        """Isolate or release a cgroup."""
        if not key.isolated:
            self._tree.release(key.path, want)
            del self._held[key.path]
            log.info("load balancing restored", cgroup=key.path, cpus=want)
            return Reason.MOVED
        if self._tree.partition(key.path) == Partition(ISOLATED, want):
            self._held[key.path] = want
            return None
        self._tree.isolate(key.path, want)
        self._held[key.path] = want
        log.info("load balancing off", cgroup=key.path, cpus=want)
        return Reason.UNKNOWN if was_right else Reason.NEW

    def stays(self, _key: _Change, _changed: AbstractSet[str], /) -> bool:
        """Return False: some files of a target have no watch."""
        return False

    def notices(
        self, targets: Mapping[_Change, Target[CPUSet]]
    ) -> Iterator[tuple[NoticeKey, Notice]]:
        """Yield the containers that are not isolated, or not for long."""
        for key, notice in self._refusals.items():
            yield (key, notice.event), notice
        for path, each in self._containers.items():
            for notice in _outcome(each.placed, targets[_Change(path, isolated=True)]):
                yield (each.key, notice.event), notice

    def _learn(self) -> None:
        """Read the isolated cgroups; after a failure the next sweep tries again."""
        if self._has_read:
            return
        try:
            self._held = {**dict(self._tree.reserved()), **self._held}
            self._has_read = True
        except HostError as error:
            if self._failures.begins(error):
                log.warning("isolated partitions cannot be read", error=error)


def _own(container: FoundContainer, assignment: CPUAssignment) -> CPUSet:
    """Return all exclusive CPUs of a container that runs on no others; else none."""
    own = assignment.exclusive | assignment.offline
    return own if CPUSet.parse(container.cpus) <= own else CPUSet()


def _refusal(placed: PlacedContainer, obstacle: str) -> Notice | None:
    """Return why a container must not be isolated, as far as its request shows it."""
    assignment = placed.assignment
    if assignment.placement is Placement.CONFINED:
        # Another notice reports a confined container, and its cause may pass.
        return None
    others = assignment.shared | assignment.default
    if obstacle:
        return _notice(placed, obstacle, "run it on a node with cgroup version 2 and Linux 6.7")
    if assignment.exclusive and others:
        return _notice(placed, f"it shares CPUs {others} with others", _ASK)
    if not assignment.exclusive:
        return _notice(placed, "it has no CPUs of its own", _ASK)
    return None


def _outcome(placed: PlacedContainer, target: Target[CPUSet]) -> Iterator[Notice]:
    if target.stuck:
        notice = _notice(placed, target.stuck, "wait: cpupool tries again")
        yield replace(notice, lasts_s=_LASTS_S)
    elif target.contested:
        why = "another program takes its cgroup out of isolation again and again"
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
