"""Koordinator's choice of CPUs.

It takes whole cores, or one CPU of each core. It begins with the fullest or the emptiest NUMA node.
It can take CPUs that other pods have, too.

The results equal those of `takeCPUs` and `takePreferredCPUs` of Koordinator 1.8
(pkg/scheduler/plugins/nodenumaresource/cpu_accumulator.go), except that Koordinator may give one
CPU more than requested.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.policies.accumulators.kubelet import Taken
from cpupool.policies.layout import Level

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.policies.layout import Layout

_NOTHING: Final = CPUSet()
_LEVELS: Final[Mapping[ExclusivePolicy, Level]] = {
    ExclusivePolicy.PHYSICAL_CORE: Level.CORE,
    ExclusivePolicy.NUMA_NODE: Level.NODE,
}


@dataclass(frozen=True, slots=True)
class OccupiedCPUs:
    """CPUs that earlier pods have; CPUs that may be shared are available, too.

    Attributes:
        cpus: the CPUs.
        references: how many pods have each of them.
        exclusive: whether these pods prefer not to share cores, or NUMA nodes, with pods that have
            the same preference.
    """

    cpus: CPUSet
    references: int = 1
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE


def take(
    layout: Layout,
    available: CPUSet,
    count: int,
    *,
    full_cores: bool,
    strategy: NUMAPolicy,
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE,
    held: Collection[OccupiedCPUs] = (),
    preferred: CPUSet = _NOTHING,
) -> Taken:
    """Take CPUs of one NUMA node, else of one socket, else of several sockets.

    `pool_choice.py` only spreads over cores, and passes neither `exclusive` nor `held`.

    Args:
        layout: the machine.
        available: the CPUs to choose from.
        count: how many to take.
        full_cores: whether cores are filled (FullPCPUs) instead of spread over (SpreadByPCPUs).
        strategy: MOST_ALLOCATED tries the fullest node or socket first, any other the emptiest:
            Koordinator's DistributeEvenly does as LeastAllocated.
        exclusive: the units that the pod prefers not to share with pods of the same preference.
        held: the CPUs of earlier pods; CPUs of fewer pods come first.
        preferred: CPUs that come before all others.

    Returns:
        `count` of the available CPUs.

    Raises:
        NotEnoughCPUs: fewer are available.
    """
    if count > len(available):
        raise NotEnoughCPUs(count, len(available))
    references: Counter[int] = Counter()
    for occupied in held:
        references.update(dict.fromkeys(occupied.cpus, occupied.references))
    threads = layout.largest_core
    accumulator = _Accumulator(
        layout=layout,
        threads=threads,
        fills=full_cores or threads == 1,
        sign=1 if strategy is NUMAPolicy.MOST_ALLOCATED else -1,
        apart=_LEVELS.get(exclusive),
        others=CPUSet.union(occupied.cpus for occupied in held if occupied.exclusive is exclusive),
        references=references,
    )
    first = available & preferred
    taken = accumulator.take(first, min(count, len(first)))
    return Taken(taken | accumulator.take(available - first, count - len(taken)))


@dataclass(frozen=True, slots=True)
class _Accumulator:
    """Takes CPUs for one request, in several steps (Koordinator: `cpuAccumulator`).

    Attributes:
        layout: the machine.
        threads: how many CPUs a core has.
        fills: whether to take cores as a whole.
        sign: 1 where the fewest free CPUs come first, -1 where the most free CPUs come first.
        apart: whether the pod prefers not to share cores, or NUMA nodes; None without a preference.
        others: the CPUs of pods with the same preference.
        references: CPU → how many pods have it; a CPU without a pod may be missing.
    """

    layout: Layout
    threads: int
    fills: bool
    sign: int
    apart: Level | None
    others: CPUSet
    references: Mapping[int, int]

    def take(self, free: CPUSet, count: int) -> CPUSet:
        """Take `count` of the free CPUs; there are as many."""
        groups = (
            cpus
            for level in (Level.NODE, Level.SOCKET)
            # A request larger than the average node skips the nodes, even if one is large enough.
            if count * len(self.layout.groups[level]) <= len(self.layout.cpus)
            for preferred in (True, False)
            for cpus in self._groups(level, free, preferred=preferred)
        )
        fitting = next((cpus for cpus in groups if len(cpus) >= count), None)
        if fitting is not None:
            return CPUSet(fitting[:count])
        taken = self._whole_cores(free, count) if self.fills else _NOTHING
        for preferred in (True, False):
            missing = count - len(taken)
            if missing:
                taken |= CPUSet(self._anywhere(free - taken, taken, preferred=preferred)[:missing])
        return taken

    def _groups(self, level: Level, free: CPUSet, *, preferred: bool) -> list[list[int]]:
        """List each node's or socket's CPUs in the order of taking, the best group first.

        Args:
            level: NODE or SOCKET.
            free: the CPUs to group.
            preferred: whether to leave out the cores or nodes of other pods and, when spreading
                over cores, all but one CPU of each core.
        """
        # Whole cores share no core anyway, and on sockets a preference for NUMA nodes has no
        # effect.
        if preferred and (level is Level.NODE if self.apart is Level.NODE else not self.fills):
            free = self._unshared(free, self.others)
        full = self.layout.whole_cores(free) if self.fills else _NOTHING
        sockets = self.layout.free(Level.SOCKET, free)
        ranked: list[tuple[int, int, int, list[int]]] = []
        for group, members in self.layout.free(level, free).items():
            if self.fills:
                cpus = self._core_by_core(members & full)
            else:
                cpus = self._one_by_one(members, preferred=preferred)
            # When spreading over a node, its size includes siblings.
            size = len(members if level is Level.NODE and not self.fills else cpus)
            socket = self.layout.places[members.first].socket
            around = len(sockets[socket]) if level is Level.NODE else 0
            ranked.append((self.sign * size, self.sign * around, group, cpus))
        return [cpus for *_, cpus in sorted(ranked)]

    def _whole_cores(self, free: CPUSet, count: int) -> CPUSet:
        """Take whole sockets, the largest first, then cores of the smallest, as far as they fit."""
        taken: list[int] = []
        split: list[list[int]] = []
        sockets = self._groups(Level.SOCKET, free, preferred=False)
        for cpus in sorted(sockets, key=len, reverse=True):
            if len(taken) + len(cpus) <= count:
                taken += cpus
            else:
                split.append(cpus)
        for cpus in sorted(split, key=len):
            for _, core in groupby(cpus, key=self._core):
                siblings = list(core)
                if len(taken) + len(siblings) <= count:
                    taken += siblings
        return CPUSet(taken)

    def _anywhere(self, free: CPUSet, taken: CPUSet, *, preferred: bool) -> list[int]:
        """List CPUs of all sockets: CPUs near the taken CPUs first, split cores before whole."""
        if preferred:
            free = self._unshared(free, self.others | taken)
        near = self.layout.free(Level.SOCKET, taken)
        sockets = self.layout.free(Level.SOCKET, free)
        nodes = self.layout.free(Level.NODE, free)

        def rank(core: tuple[int, CPUSet]) -> tuple[int, ...]:
            number, cpus = core
            place = self.layout.places[cpus.first]
            return (
                -len(near.get(place.socket, _NOTHING)),
                self.sign * len(sockets[place.socket]),
                self.sign * len(nodes[place.node]),
                len(cpus),
                place.socket,
                self._references_of(cpus),
                number,
            )

        cores = sorted(self.layout.free(Level.CORE, free).items(), key=rank)
        return self._spread([cpu for _, cpus in cores for cpu in self._least_shared_first(cpus)])

    def _unshared(self, free: CPUSet, others: CPUSet) -> CPUSet:
        """Return the free CPUs without the cores or nodes of others, as the pod prefers."""
        if self.apart is None:
            return free
        groups = self.layout.groups[self.apart].values()
        return free - CPUSet.union(cpus for cpus in groups if not cpus.isdisjoint(others))

    def _core_by_core(self, cpus: CPUSet) -> list[int]:
        cores: defaultdict[int, list[int]] = defaultdict(list)
        for cpu in cpus:
            cores[self._core(cpu)].append(cpu)
        ranked = sorted((self._references_of(core), number, core) for number, core in cores.items())
        return [cpu for *_, core in ranked for cpu in core]

    def _one_by_one(self, cpus: CPUSet, *, preferred: bool) -> list[int]:
        ordered = self._least_shared_first(cpus)
        if preferred:
            return [cpu for cpu, siblings in self._siblings_before(ordered) if not siblings]
        return self._spread(ordered)

    def _least_shared_first(self, cpus: CPUSet) -> list[int]:
        return sorted(cpus, key=lambda cpu: self.references.get(cpu, 0))

    def _references_of(self, cpus: Iterable[int]) -> int:
        return sum(self.references.get(cpu, 0) for cpu in cpus)

    def _spread(self, cpus: list[int]) -> list[int]:
        """Order CPUs so that one CPU of each core comes first, then a second CPU of each."""
        # CPUs not more than a core has keep their order, also on several cores.
        if len(cpus) <= self.threads:
            return cpus
        return [cpu for cpu, _ in sorted(self._siblings_before(cpus), key=itemgetter(1))]

    def _siblings_before(self, cpus: list[int]) -> Iterator[tuple[int, int]]:
        """Yield each CPU with the number of CPUs of its core that come before it."""
        seen: Counter[int] = Counter()
        for cpu in cpus:
            core = self._core(cpu)
            yield cpu, seen[core]
            seen[core] += 1

    def _core(self, cpu: int) -> int:
        return self.layout.places[cpu].core
