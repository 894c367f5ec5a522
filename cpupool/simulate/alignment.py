"""The alignment of containers: a container's CPUs lie on one NUMA node, or behind one L3 cache."""

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
"""The levels at which a container is aligned if all its CPUs are in one group."""


@dataclass(slots=True)
class Alignment:
    """A count of aligned containers.

    Attributes:
        could: level → how many containers could have all their CPUs in one node or cache.
        does: level → how many of these have.
    """

    could: Counter[Level] = field(default_factory=Counter)
    does: Counter[Level] = field(default_factory=Counter)

    @classmethod
    def of(cls, chosen: Mapping[str, CPUSet], layouts: Mapping[str, Layout]) -> Alignment:
        """Return the alignment of one container.

        Args:
            chosen: exclusive pool → the CPUs that it has of this pool.
            layouts: pool → the layout of all CPUs that the pool can give; a group has the same id
                in all layouts.
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
        """Return the sum."""
        whole = cls()
        for alignment in several:
            whole.add(alignment)
        return whole

    def add(self, other: Alignment) -> None:
        """Add containers."""
        self.could.update(other.could)
        self.does.update(other.does)

    def remove(self, other: Alignment) -> None:
        """Subtract containers."""
        self.could.subtract(other.could)
        self.does.subtract(other.does)

    def share(self, level: Level) -> float | None:
        """Return the share of aligned containers; None if no container could be aligned."""
        return self.does[level] / self.could[level] if self.could[level] else None
