"""A pool file as a value: its pools, the nodes that it is for, and the place of each value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cpupool.config import pool_rules
from cpupool.core.errors import Location, errors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.errors import Problem
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology


@dataclass(frozen=True, slots=True)
class PoolFile:
    """One pool file.

    Attributes:
        name: the file, or the key of the ConfigMap manifest.
        pools: its pools.
        node_selector: the labels that a node must have to take this file.
        locations: path of a value → where it stands; "" → where the file begins.
        warnings: doubts about the text of the file; errors, too, in a file that is refused.
            `config.pool_rules.validate` judges its pools, on a machine or by themselves.
        unusable: why its CPU manager policy cannot be used where the file is read; None if it can.
            An error for the node of the file, and none for other files: its pools are good.
    """

    name: str
    pools: NodePools
    node_selector: Mapping[str, str]
    locations: Mapping[str, Location]
    warnings: tuple[Problem, ...]
    unusable: Problem | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether this file is for a node with these labels: all labels must match."""
        return self.node_selector.items() <= labels.items()

    def locate(self, path: str) -> Location:
        """Return the place of a path, or of its nearest parent that is written."""
        while path not in self.locations:
            path = path.rpartition(".")[0]
        return self.locations[path]

    def located(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Put problems in the order of the file, each with the place where it stands."""
        found = [
            replace(item, location=item.location or self.locate(item.path)) for item in problems
        ]
        return tuple(sorted(found, key=lambda problem: problem.location or Location(self.name)))

    def problems(self, machine: CPUTopology | None) -> tuple[Problem, ...]:
        """Find everything wrong with the file, on this machine or, without one, by itself."""
        found = [*self.warnings, *pool_rules.validate(self.pools, machine)]
        return self.located([*found, self.unusable] if self.unusable else found)

    @property
    def refused(self) -> bool:
        """Whether the file is wrong on every machine, whatever policies are installed."""
        return any(problem != self.unusable for problem in errors_in(self.problems(None)))
