"""The order in which containers move onto other CPUs, and the CPUs to which each may move now.

A container that leaves CPUs moves before a container that gains exclusive CPUs: a new owner gets no
CPU on which another pod runs. An owner whose CPUs change is alone on the old ones until it has left
them, however long the runtime takes. Among equals, containers that cpupool writes itself move
before those that the container runtime writes: a write takes a millisecond, whatever the runtime
does. Last come the containers for which the runtime has not answered: it may hang for a single
container.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from cpupool.core.cgroups import POD_ITSELF, Writer
from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.workloads import ContainerID

MOST_AT_ONCE: Final = 8
"""The most containers that one call by NRI moves: containerd takes up to 50 ms for each of them,
and does not create any container meanwhile."""
MOST_CALLS: Final = 4
"""The most calls by CRI at one time: a runtime that makes one change after the other must have made
all of them before the agent gives up on the last."""
_AT_ONCE: Final = {
    Writer.CGROUP: 1,
    Writer.NRI: MOST_AT_ONCE,
    Writer.CRI: MOST_CALLS,
    None: MOST_CALLS,
}


@dataclass(frozen=True, slots=True)
class Move:
    """A container that is not on its CPUs.

    Attributes:
        path: its cgroup.
        pod: the id in its pod's cgroup name.
        container: its id.
        has: the CPUs that it runs on.
        wants: the CPUs that it belongs on.
        own: those of `wants` that are its pod's alone.
        way: its writer; None if only the container runtime knows it.
        silent_s: when the runtime did not answer for it last; minus infinity for never.
        owned: the CPUs that were its pod's alone when it was moved last.
    """

    path: str
    pod: str
    container: ContainerID
    has: CPUSet
    wants: CPUSet
    own: CPUSet
    writer: Writer | None
    silent_s: float = -math.inf
    owned: CPUSet = field(default_factory=CPUSet)

    @property
    def gains(self) -> CPUSet:
        """The CPUs of its own that it does not run on yet."""
        return self.own - self.has


def batches(moves: Iterable[Move]) -> Iterator[tuple[Move, ...]]:
    """Yield the moves in their order; the runtime may make those of a batch at one time."""
    ordered = sorted(moves, key=_rank)
    for _, group in groupby(ordered, key=_rank):
        same = tuple(group)
        size = 1 if same[0].silent_s > -math.inf else _AT_ONCE[same[0].writer]
        yield from (same[start : start + size] for start in range(0, len(same), size))


def goal(move: Move, others: Iterable[Move], refuge: CPUSet) -> CPUSet:
    """Return the CPUs that a container may be moved to at this moment.

    Args:
        move: where it belongs.
        others: the containers that are not where they belong.
        refuge: the CPUs on which it waits while other pods run on all of its own; empty for none.
    """
    there = [other for other in others if other.pod != move.pod]
    left = CPUSet.union(other.owned & other.has for other in there)
    occupied = CPUSet.union(other.has for other in there)
    return move.wants - (move.gains & occupied) - left or refuge - left or move.wants


def _rank(move: Move) -> tuple[float, bool, bool, bool, bool]:
    # In a pod's own cgroup are processes that the kernel has moved onto the CPUs of others.
    by_runtime = move.writer is not Writer.CGROUP
    return (
        move.silent_s,
        bool(move.gains),
        move.container != POD_ITSELF,
        by_runtime,
        move.writer is Writer.NRI,
    )
