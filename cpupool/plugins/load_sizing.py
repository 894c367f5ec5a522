"""Sizes pools by their load: the load of one period decides the sizes in the next period.

For each pool this module computes from CPU use and waiting time how many CPUs the pool needs. It
divides the available CPUs among the pools. Then each pool makes a step towards its part: a large
step up, or a small step down. `load_controller.py` and `pool_sizes.py` have the arithmetic of
Katalyst.

Two rules are different from Katalyst. A pool does not shrink to a size at which its present load
would make it grow again, so sizes do not oscillate. A pool gets only CPUs that
are free, so a pool that grows never makes another pool shrink faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.plugins.load_controller import Controller, Gains, Limits, Regulator
from cpupool.plugins.pool_sizes import Sizes, normalized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.plugins.config import Aims
PERIOD_S: Final = 5.0
"""The time between two measurements, for which the gains are made."""

_USE: Final = Gains(above=0.1, below=0.04, dead_above=0.01, dead_below=0.06)
_WAITING: Final = Gains(above=0.05, below=0.009, dead_above=0.05, dead_below=0.2)
# A pool that is half idle and whose threads wait nevertheless lacks something else than CPUs.
_BUSY: Final = 0.5
_FALLEN: Final = 0.9
_NEARLY_NONE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The load that the containers of a pool made in a period.

    Attributes:
        used_cpus: their CPU time in a second.
        waiting: the share of the time in which a thread of theirs waited for a CPU, 0 to 1; None
            where the kernel does not say.
    """

    used_cpus: float
    waiting: float | None = None


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool before a decision.

    Attributes:
        size: how many CPUs it has.
        floor: how many it has at least.
        load: its load; None where that was not measured, then it keeps its size.
        most: how many CPUs it can have, if it is on one NUMA node; None for all that there are.
    """

    size: int
    floor: int
    load: PoolLoad | None
    most: int | None = None

    def within(self, total: int) -> int:
        """Return how many of so many CPUs it can have."""
        return total if self.most is None else min(total, self.most)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of earlier decisions that a pool's next decision needs.

    Attributes:
        use: the controller of its use.
        waiting: the controller of its waiting.
        regulator: when it has shrunk.
        tight: the last size at which threads waited, with the CPUs that were in use then.
        needs: when the pool needed how many CPUs, within the pause.
    """

    use: Controller = field(default_factory=Controller)
    waiting: Controller = field(default_factory=Controller)
    regulator: Regulator = field(default_factory=Regulator)
    tight: tuple[int, float] | None = None
    needs: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NextSize:
    """A pool's next size, with the inputs behind it.

    Attributes:
        before: the pool before.
        needed: how many CPUs it needs.
        share: how many of the CPUs that there are fall to it.
        size: how many it gets now.
        memory: for the next decision.
    """

    before: PoolNow
    needed: int
    share: int
    size: int
    memory: Memory

    def __str__(self) -> str:
        """Return the inputs and the result as one line."""
        load = self.before.load
        if load is None:
            return f"not measured: keeps {self.size} CPUs"
        waits = "" if load.waiting is None else f", {load.waiting:.0%} waiting"
        short = f", has a share of {self.share}" if self.share < self.needed else ""
        moves = (
            f"from {self.before.size} to {self.size}"
            if self.size != self.before.size
            else self.size
        )
        most = "" if self.before.most is None else f" of {self.before.most} on its NUMA node"
        return f"{load.used_cpus:.1f} in use{waits}: needs {self.needed}{most}{short}: {moves} CPUs"


def decide(
    aims: Aims,
    pools: Mapping[str, PoolNow],
    memories: Mapping[str, Memory],
    total: int,
    now_s: float,
) -> dict[str, NextSize]:
    """Return the next size of each pool; together at most `total`, if they are so now.

    Where not even the floors fit, every pool keeps its size.

    Args:
        aims: how busy pools may be.
        pools: pool → how it is.
        memories: pool → what the last decision remembers; a new pool has none.
        total: how many CPUs the pools have together, at most.
        now_s: a monotonic clock.
    """
    needs = {
        name: _need(aims, now, memories.get(name, Memory()), now.within(total), now_s)
        for name, now in pools.items()
    }
    shares = _shares({name: needed for name, (needed, _) in needs.items()}, pools, total)
    decisions = {}
    free = total - sum(now.size for now in pools.values())
    for name in sorted(pools, key=lambda name: shares[name] - pools[name].size):
        # In this order those that shrink come first, and what they give is free for the others.
        now, (needed, memory) = pools[name], needs[name]
        most = now.within(max(now.size, now.size + free))
        limits = Limits(
            lower=min(now.floor, most),
            upper=max(most, 0),
            spare_cpus=0,
            most_up=aims.most_up,
            most_down=aims.most_down,
            pause_s=aims.pause_s,
        )
        regulator = replace(memory.regulator, size=now.size).after(
            limits, shares[name], in_force=now.size, now_s=now_s
        )
        size = now.size if regulator.size is None else regulator.size
        free -= size - now.size
        memory = replace(memory, regulator=regulator)
        decisions[name] = NextSize(now, needed, shares[name], size, memory)
    return {name: decisions[name] for name in pools}


def _need(aims: Aims, now: PoolNow, memory: Memory, most: int, now_s: float) -> tuple[int, Memory]:
    """Return the most CPUs that any indicator of a pool has demanded within the pause."""
    load, size = now.load, now.size
    if load is None:
        return max(size, now.floor), memory
    ratio = load.used_cpus / max(size, 1)
    tight = memory.tight
    if tight is not None and load.used_cpus < tight[1] * _FALLEN:
        tight = None
    # At this size the pool is as busy as it may be; a smaller one would grow again.
    least = load.used_cpus / aims.use
    use = memory.use.after(
        _steps(_USE, aims),
        cpus=size,
        current=max(ratio, _NEARLY_NONE),
        target=aims.use,
        upper=most,
    )
    demands = [use.needed(lower=least, upper=max(most, least))]
    waiting = memory.waiting
    if load.waiting is not None and ratio >= _BUSY:
        waiting = waiting.after(
            _steps(_WAITING, aims),
            cpus=size,
            current=max(load.waiting, _NEARLY_NONE),
            target=aims.waiting,
            upper=most,
        )
        if load.waiting > aims.waiting * (1 + _WAITING.dead_above):
            tight = size, load.used_cpus
            demands.append(waiting.needed(lower=least, upper=max(most, least)))
    if tight is not None:
        demands.append(tight[0] + 1)
    recent = (entry for entry in memory.needs if now_s - entry[0] < aims.pause_s)
    needs = (*recent, (now_s, ceil(max(demands))))
    needed = max(now.floor, *(cpus for _, cpus in needs))
    return min(needed, most), Memory(use, waiting, memory.regulator, tight, needs)


def _steps(gains: Gains, aims: Aims) -> Gains:
    return replace(gains, most_cpus=aims.most_up, least_cpus=-aims.most_down)


def _shares(needs: Sizes, pools: Mapping[str, PoolNow], total: int) -> Sizes:
    """Return the share of each pool: its need if all fit, else its floor and a part of the rest."""
    if sum(needs.values()) <= total:
        return needs
    floors = {name: min(now.floor, needs[name]) for name, now in pools.items()}
    left = total - sum(floors.values())
    if left < 0:
        return {name: now.size for name, now in pools.items()}
    beyond = {name: more for name in needs if (more := needs[name] - floors[name])}
    return {name: floors[name] + more for name, more in _parts(beyond, left, needs).items()}


def _parts(beyond: Sizes, left: int, names: Sizes) -> Sizes:
    """Return a part of `left` for each name, in proportion to its part of `beyond`."""
    return {**dict.fromkeys(names, 0), **(normalized(beyond, left) or {})}
