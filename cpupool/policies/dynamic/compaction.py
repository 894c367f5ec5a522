"""Compaction: which running containers move, so that a pod fits or CPUs lie closer together.

A plan has one or two moves, and makes the node better by `Score`. If a pod fits only after two
moves, the first move may scatter free CPUs. It makes no other part of the score worse. So there is
little harm if the plan ends after it. A moved container is never worse off itself: it has no more
NUMA nodes, L3 caches or parts of cores than before.

The search is bounded. For each container it tries the CPUs that the policy would choose in each L3
cache, on each NUMA node, and everywhere in the reach of the container. It looks for two moves only
if no single move serves. It tries second moves only after the few best first moves. Whether a
waiting pod fits depends only on how many CPUs and whole cores are free on each NUMA node. So the
search asks this only once for all arrangements with equal numbers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.core.cpuset import CPUSet
from cpupool.policies.layout import Level
from cpupool.policies.static.policy import take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cpupool.core.cpu_manager import StaticOptions
    from cpupool.core.workloads import ContainerRef
    from cpupool.policies.layout import Layout

_Room = tuple[tuple[int, int], ...]
"""How many CPUs, and how many CPUs of whole cores, are free on each NUMA node."""

MOST_MOVES: Final = 2
_MOST_TRIALS: Final = 2048
"""How many arrangements one search compares for each number of moves."""
_MOST_FIRST: Final = 16
"""How many first moves the search for two moves continues with."""


class Move(NamedTuple):
    """A container that gets as many other CPUs.

    Attributes:
        ref: the container.
        before: the CPUs that it has.
        after: the CPUs that it gets.
    """

    ref: ContainerRef
    before: CPUSet
    after: CPUSet


class Shape(NamedTuple):
    """How far the CPUs of one container are spread; less is better.

    Attributes:
        nodes: how many NUMA nodes they touch.
        caches: how many L3 caches.
        cores: how many cores they have only a part of.
    """

    nodes: int
    caches: int
    cores: int


class Score(NamedTuple):
    """How good an arrangement of owners is, by its most important part first; less is better.

    Attributes:
        waiting: how many of the waiting pods do not fit.
        nodes: how many NUMA nodes the owners touch, the sum.
        caches: the same for L3 caches.
        cores: how many cores owners have only a part of, the sum.
        scattered: how far the free CPUs are spread over NUMA nodes, then over L3 caches, then over
            cores: the sum of the squared sizes of the free blocks, negative.
    """

    waiting: int
    nodes: int
    caches: int
    cores: int
    scattered: tuple[int, int, int]


class Gain(Enum):
    """What a plan improves: the first part of the score that is less afterwards."""

    WAITING = "so that a waiting pod fits"
    NODES = "so that containers lie on fewer NUMA nodes"
    CACHES = "so that containers lie behind fewer L3 caches"
    CORES = "so that containers have whole cores"
    SCATTERED = "so that the free CPUs lie closer together"


class Movable(NamedTuple):
    """A container that may move.

    Attributes:
        cpus: the CPUs that it has.
        reach: the CPUs among which it may move.
    """

    cpus: CPUSet
    reach: CPUSet


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The owners of a node, and what can move.

    Attributes:
        layout: the machine.
        options: the options of the policy.
        spread: how far all owners are spread, the sum.
        free: the CPUs that a container can get.
        shared: the CPUs of the containers without any of their own. A move leaves some of them,
            also while its container has its old CPUs, too.
        movable: the containers that may move.
        count_waiting: returns how many of the waiting pods do not fit after these moves.
        moves: the moves until now.
    """

    layout: Layout
    options: StaticOptions
    spread: Shape
    free: CPUSet
    shared: CPUSet
    movable: Mapping[ContainerRef, Movable]
    count_waiting: Callable[[tuple[Move, ...]], int]
    moves: tuple[Move, ...] = ()

    def after(self, move: Move, gained: Shape) -> Arrangement:
        """Return the arrangement after another move; no container moves twice.

        Args:
            move: the move.
            gained: how much less its container is spread then.
        """
        return replace(
            self,
            spread=Shape(*(was - less for was, less in zip(self.spread, gained, strict=True))),
            free=(self.free - move.after) | (move.before - move.after),
            shared=(self.shared - move.after) | (move.before - move.after),
            movable={ref: each for ref, each in self.movable.items() if ref != move.ref},
            moves=(*self.moves, move),
        )

    def score(self, known: dict[_Room, int]) -> Score:
        """Return how good it is.

        Args:
            known: free CPUs and cores of each NUMA node → how many pods do not fit there.
        """
        if self.room not in known:
            known[self.room] = self.count_waiting(self.moves)
        blocks = (self.layout.free(level, self.free).values() for level in _BLOCKS)
        nodes, caches, cores = (-sum(len(block) ** 2 for block in found) for found in blocks)
        return Score(known[self.room], *self.spread, (nodes, caches, cores))

    @property
    def room(self) -> _Room:
        """The room on each NUMA node."""
        cores = self.layout.whole_cores(self.free)
        nodes = self.layout.groups[Level.NODE].values()
        return tuple((len(node & self.free), len(node & cores)) for node in nodes)


_BLOCKS: Final = (Level.NODE, Level.UNCORE, Level.CORE)


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves that make a node better.

    Attributes:
        moves: in their order.
        gain: what gets better.
    """

    moves: tuple[Move, ...]
    gain: Gain


@dataclass(frozen=True, slots=True)
class _Trial:
    """An arrangement that the search compares.

    Attributes:
        arrangement: the arrangement after its moves.
        score: how good it is.
    """

    arrangement: Arrangement
    score: Score

    @property
    def moved(self) -> int:
        """How many CPUs move."""
        return sum(len(move.after - move.before) for move in self.arrangement.moves)

    def cost(self) -> tuple[object, ...]:
        """Return by what the best plan is chosen: a pod is served by the fewest moved CPUs."""
        names = [(*move.ref, str(move.after)) for move in self.arrangement.moves]
        return self.score.waiting, self.moved, self.score, names


def plan(start: Arrangement, most: int, *, for_waiting: bool) -> Plan | None:
    """Return the best plan; None if no plan makes the node better.

    Args:
        start: the node now.
        most: how many moves it may have, up to `MOST_MOVES`.
        for_waiting: whether it must let more of the waiting pods fit.
    """
    known: dict[_Room, int] = {}
    now = start.score(known)

    def serves(trial: _Trial) -> bool:
        return trial.score.waiting < now.waiting if for_waiting else trial.score < now

    begun = [_Trial(start, now)]
    for _ in range(min(most, MOST_MOVES)):
        each = _MOST_TRIALS // len(begun)
        tried = (islice(_continued(trial.arrangement, known), each) for trial in begun)
        found = list(chain.from_iterable(tried))
        if serving := [trial for trial in found if serves(trial)]:
            best = min(serving, key=_Trial.cost)
            return Plan(best.arrangement.moves, _gain(now, best.score))
        begun = _first(found, now, for_waiting=for_waiting)
        if not begun:
            break
    return None


def _first(found: Iterable[_Trial], now: Score, *, for_waiting: bool) -> list[_Trial]:
    """Return the first moves that a second move may follow, the best first.

    For a waiting pod only the room on each NUMA node counts, so one of the moves is enough that
    make the same room.
    """
    kept = sorted(found, key=lambda trial: (trial.score, trial.moved))
    if for_waiting:
        kept = [trial for trial in kept if trial.score[:-1] <= now[:-1]]
        by_room: dict[_Room, _Trial] = {}
        for trial in kept:
            by_room.setdefault(trial.arrangement.room, trial)
        return list(by_room.values())[:_MOST_FIRST]
    kept = [trial for trial in kept if trial.score <= now]
    return kept[:_MOST_FIRST]


def shape(layout: Layout, cpus: CPUSet) -> Shape:
    """Return how far some CPUs are spread."""
    places = [layout.places[cpu] for cpu in cpus & layout.cpus]
    by_core = Counter(place.core for place in places)
    cores = layout.groups[Level.CORE]
    parts = sum(count < len(cores[core]) for core, count in by_core.items())
    return Shape(
        len({place.node for place in places}), len({place.uncore for place in places}), parts
    )


def spread(layout: Layout, owners: Iterable[CPUSet]) -> Shape:
    """Return how far all owners are spread, the sum."""
    nodes = caches = cores = 0
    for cpus in owners:
        one = shape(layout, cpus)
        nodes, caches, cores = nodes + one.nodes, caches + one.caches, cores + one.cores
    return Shape(nodes, caches, cores)


def reach(layout: Layout, cpus: CPUSet, level: Level) -> CPUSet:
    """Return the CPUs of the NUMA nodes, or the L3 caches, that a container has CPUs of."""
    groups = layout.groups[level]
    return CPUSet.union(groups[group] for group in layout.free(level, cpus))


def _continued(arrangement: Arrangement, known: dict[_Room, int]) -> Iterator[_Trial]:
    """Yield what one more move can make of an arrangement; no container is worse off then."""
    layout = arrangement.layout
    for ref, movable in arrangement.movable.items():
        has = movable.cpus
        before, seen = shape(layout, has), {has}
        for cpus in _targets(arrangement, movable, before):
            if cpus in seen:
                continue
            seen.add(cpus)
            if arrangement.shared <= cpus:
                continue
            pairs = zip(before, shape(layout, cpus), strict=True)
            gained = Shape(*(was - now for was, now in pairs))
            if min(gained) >= 0:
                after = arrangement.after(Move(ref, has, cpus), gained)
                yield _Trial(after, after.score(known))


def _targets(arrangement: Arrangement, movable: Movable, before: Shape) -> Iterator[CPUSet]:
    """Yield the CPUs that a container could have instead, in each group that has enough.

    Args:
        arrangement: the node.
        movable: the container.
        before: how far it is spread: in larger groups it would be spread further.
    """
    layout, has = arrangement.layout, movable.cpus
    room = (arrangement.free | has) & movable.reach
    if arrangement.options.full_pcpus_only:
        room = layout.whole_cores(room)
    whole = layout.whole_cores(has)
    groups = list(layout.groups[Level.UNCORE].values())
    if before.caches > 1:
        groups += layout.groups[Level.NODE].values()
    if before.nodes > 1:
        groups.append(room)
    for there in (room & group for group in groups):
        if len(there) < len(has):
            continue
        kept = whole & there
        yield kept | _taken(arrangement, there - kept, len(has) - len(kept))
        if kept:
            yield _taken(arrangement, there, len(has))
        if not has.isdisjoint(there) and len(there - has) >= len(has):
            yield _taken(arrangement, there - has, len(has))


def _taken(arrangement: Arrangement, free: CPUSet, count: int) -> CPUSet:
    return take(arrangement.layout, arrangement.options, free, count).cpus


def _gain(before: Score, after: Score) -> Gain:
    parts = zip(Gain, before, after, strict=True)
    return next(gain for gain, was, now in parts if was != now)
