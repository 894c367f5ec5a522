"""How containers lie: whether the CPUs of each are on one NUMA node, and behind one L3 cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.policies.layout import Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.policies.layout import Layout

_LEVELS: Final = (Level.NODE, Level.UNCORE)
"""Where a container lies well if all its CPUs are in one group."""


@dataclass(slots=True)
class Alignment:
    """Counts containers that lie well.

    Attributes:
        could: level → how many could have all their CPUs in one node or cache.
        does: level → how many of these have.
    """

    could: Counter[Level] = field(default_factory=Counter)
    does: Counter[Level] = field(default_factory=Counter)

    @classmethod
    def of(cls, chosen: Mapping[str, CPUSet], layouts: Mapping[str, Layout]) -> Alignment:
        """Look at one container.

        Args:
            chosen: exclusive pool → the CPUs that it has of this pool.
            layouts: pool → all that the pool has to give; what is in the same group of two pools'
                layouts is in the same node or cache.
        """
        found = cls()
        for level in _LEVELS:
            groups = {pool: layouts[pool].groups[level] for pool in chosen}
            found.could[level] += any(
                all(len(groups[pool].get(group, ())) >= len(cpus) for pool, cpus in chosen.items())
                for group in set().union(*groups.values())
            )
            used = {
                group for pool, cpus in chosen.items() for group in layouts[pool].free(level, cpus)
            }
            found.does[level] += len(used) == 1
        return found

    @classmethod
    def total(cls, several: Iterable[Alignment]) -> Alignment:
        """Sum up."""
        whole = cls()
        for one in several:
            whole.add(one)
        return whole

    def add(self, other: Alignment) -> None:
        """Count containers in."""
        self.could.update(other.could)
        self.does.update(other.does)

    def remove(self, other: Alignment) -> None:
        """Count containers out again."""
        self.could.subtract(other.could)
        self.does.subtract(other.does)

    def share(self, level: Level) -> float | None:
        """Give the share of those that do; None where none could."""
        return self.does[level] / self.could[level] if self.could[level] else None
