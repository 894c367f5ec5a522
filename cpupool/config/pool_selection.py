"""The selection of the pool file that applies to a node, by the node's labels.

A file applies if the node has all labels of its `nodeSelector`. A file with a selector comes before
files without one. Two files that apply to one node are an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from cpupool.config.pool_keys import NODE_SELECTOR
from cpupool.core.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cpupool.config.pool_file import PoolFile
    from cpupool.core.topology import CPUTopology


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a node, which the pools of the node's file must fit.

    Attributes:
        topology: its CPUs.
        labels: the node's labels, which choose its file; None where every file must fit.
    """

    topology: CPUTopology
    labels: Mapping[str, str] | None

    def of(self, file: PoolFile, files: Sequence[PoolFile]) -> CPUTopology | None:
        """Return the topology for a file, of several, that must fit it."""
        mine = files if self.labels is None else _matching(files, self.labels)
        return self.topology if file in mine else None


def select(files: Sequence[PoolFile], labels: Mapping[str, str]) -> PoolFile | None:
    """Choose the file for a node with these labels; None if no file matches.

    A file with a matching selector wins over files without a selector.

    Raises:
        ConfigError: more than one file matches.
    """
    matching = _matching(files, labels)
    if len(matching) > 1:
        first, *others = matching
        raise ConfigError(_both(file, first, "this node") for file in others)
    return matching[0] if matching else None


def _matching(files: Sequence[PoolFile], labels: Mapping[str, str]) -> Sequence[PoolFile]:
    everywhere = [file for file in files if file.matches(labels)]
    return [file for file in everywhere if file.node_selector] or everywhere


def rivals(files: Sequence[PoolFile]) -> tuple[Problem, ...]:
    """Find files that are never a node's only match, because another matches all their nodes."""
    return tuple(
        _both(second, first, "every node that one of them is for")
        for first, second in combinations(files, 2)
        if bool(first.node_selector) == bool(second.node_selector)
        and (first.matches(second.node_selector) or second.matches(first.node_selector))
    )


def _both(file: PoolFile, other: PoolFile, node: str) -> Problem:
    return Problem(
        what=f"{file.name} and {other.name} ({other.locate(NODE_SELECTOR)}) both match {node}",
        remedy="change one so that no node matches both",
        path=NODE_SELECTOR,
        location=file.locate(NODE_SELECTOR),
    )
