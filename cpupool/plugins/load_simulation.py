"""Replays a load on pools that are sized by it, and tells how long their requests wait: simulated.

The model of a pool of c CPUs is M/M/c: requests arrive at random, each takes a CPU for `service_s`
on average, and those without a CPU queue. The share of requests that wait is Erlang's C. A load
above the pool's CPUs is a backlog that the pool works off later; a request then waits for all
before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cpupool.plugins.load_sizing import PERIOD_S, Memory, PoolLoad, PoolNow, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cpupool.plugins.config import Aims

_HALVINGS: Final = 60
_FULL: Final = 0.99


@dataclass(frozen=True, slots=True)
class Queue:
    """A pool of so many CPUs in a period.

    Attributes:
        cpus: how many CPUs it has, 1 or more.
        offered: how many CPUs its requests would use.
        backlog_s: the CPU time that is left of earlier periods.
    """

    cpus: int
    offered: float
    backlog_s: float = 0.0

    @property
    def left_s(self) -> float:
        """The backlog after a period."""
        return max(0.0, self.backlog_s + (self.offered - self.cpus) * PERIOD_S)

    @property
    def load(self) -> PoolLoad:
        """The load that a measurement of the period finds."""
        used = self.offered + (self.backlog_s - self.left_s) / PERIOD_S
        waiting = 1.0 if self._delay_s else self._waits * self._random / self.cpus
        return PoolLoad(used, waiting)

    def waits_longer(self, seconds: float, service_s: float) -> float:
        """Return the share of requests that wait longer than `seconds` for a CPU."""
        beyond_s = seconds - self._delay_s
        if beyond_s < 0:
            return 1.0
        return self._waits * math.exp(-(self.cpus - self._random) * beyond_s / service_s)

    @property
    def _delay_s(self) -> float:
        """The mean time to work off what is there before a request."""
        return (self.backlog_s + self.left_s) / 2 / self.cpus

    @property
    def _random(self) -> float:
        """The load that the model of random arrivals is for: it has none for a full pool."""
        return min(self.offered, _FULL * self.cpus)

    @property
    def _waits(self) -> float:
        """The share of requests that wait: Erlang's C, by his recursion for B."""
        load, blocked = self._random, 1.0
        for cpus in range(1, self.cpus + 1):
            blocked = load * blocked / (cpus + load * blocked)
        return blocked / (1 - load / self.cpus * (1 - blocked))


@dataclass(frozen=True, slots=True)
class Period:
    """The pools in a period: pool → its queue."""

    at_s: float
    queues: Mapping[str, Queue]


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay: the pools in each period.

    Attributes:
        total: how many CPUs the pools and batch work have together.
        periods: in order, each of `PERIOD_S`.
    """

    total: int
    periods: Sequence[Period]

    @property
    def hours(self) -> float:
        """The duration of the replay."""
        return len(self.periods) * PERIOD_S / 3600

    @property
    def batch_cpu_hours(self) -> float:
        """The CPU time that the pools left to batch work."""
        spare = sum(
            self.total - sum(queue.cpus for queue in period.queues.values())
            for period in self.periods
        )
        return spare * PERIOD_S / 3600

    @property
    def moved_cpus_per_hour(self) -> float:
        """The number of CPUs that joined or left a pool, per hour."""
        moved = sum(
            abs(queue.cpus - before.queues[name].cpus)
            for before, after in pairwise(self.periods)
            for name, queue in after.queues.items()
        )
        return moved / self.hours

    def wait_s(self, pool: str, share: float, service_s: float) -> float:
        """Return the time that all but `share` of a pool's requests wait at most."""
        queues = [period.queues[pool] for period in self.periods]
        requests = sum(queue.offered for queue in queues)

        def too_short(seconds: float) -> bool:
            longer = sum(queue.offered * queue.waits_longer(seconds, service_s) for queue in queues)
            return longer > share * requests

        if not too_short(0.0):
            return 0.0
        high = service_s
        while too_short(high):
            high *= 2
        return _threshold(too_short, 0.0, high)


def by_load(
    load: Mapping[str, Sequence[float]], floors: Mapping[str, int], total: int, aims: Aims
) -> Replay:
    """Replay a load on pools that begin with the CPUs that it needs, and follow it.

    Args:
        load: pool → how many CPUs its requests would use, for each period.
        floors: pool → how many CPUs it has at least.
        total: how many CPUs there are.
        aims: how busy pools may be.
    """
    memories = dict.fromkeys(floors, Memory())

    def resized(now_s: float, queues: Mapping[str, Queue]) -> dict[str, int]:
        pools = {
            name: PoolNow(queue.cpus, floors[name], queue.load) for name, queue in queues.items()
        }
        decided = decide(aims, pools, memories, total, now_s)
        memories.update({name: decision.memory for name, decision in decided.items()})
        return {name: decision.size for name, decision in decided.items()}

    first = {
        name: max(floors[name], math.ceil(cpus / aims.use)) for name, (cpus, *_) in load.items()
    }
    fits = sum(first.values()) <= total
    return _replay(load, first if fits else floors, total, resized)


def fixed(load: Mapping[str, Sequence[float]], sizes: Mapping[str, int], total: int) -> Replay:
    """Replay a load on pools that keep their sizes."""
    return _replay(load, sizes, total, lambda _now_s, _queues: dict(sizes))


def fixed_as_good(
    load: Sequence[float], wait_s: float, share: float, service_s: float, total: int
) -> int | None:
    """Return the fewest CPUs with which all but `share` of the requests wait no longer.

    None where all CPUs are too few.
    """

    def too_few(cpus: int) -> bool:
        replay = fixed({"": load}, {"": cpus}, total)
        return replay.wait_s("", share, service_s) > wait_s

    found = bisect_left(range(1, total + 1), x=True, key=lambda cpus: not too_few(cpus)) + 1
    return found if found <= total else None


def _replay(
    load: Mapping[str, Sequence[float]],
    sizes: Mapping[str, int],
    total: int,
    resized: Callable[[float, Mapping[str, Queue]], Mapping[str, int]],
) -> Replay:
    backlogs = dict.fromkeys(sizes, 0.0)
    periods = []
    for number, offered in enumerate(zip(*(load[name] for name in sizes), strict=True)):
        queues = {
            name: Queue(sizes[name], cpus, backlogs[name])
            for name, cpus in zip(sizes, offered, strict=True)
        }
        periods.append(Period(number * PERIOD_S, queues))
        backlogs = {name: queue.left_s for name, queue in queues.items()}
        sizes = resized(number * PERIOD_S, queues)
    return Replay(total, periods)


def _threshold(too_low: Callable[[float], bool], low: float, high: float) -> float:
    """Return where `too_low` ends."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return high
