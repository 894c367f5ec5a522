"""The choice of one node's pool file, from the file and the labels on a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.commands.shell import cpu_manager
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import read_file
from cpupool.config import pool_selection, poolconfig
from cpupool.config.pool_selection import Machine
from cpupool.core.errors import ConfigError, Problem, refuse_errors
from cpupool.host.installed_policies import find_policy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.config.pool_file import PoolFile
    from cpupool.config.poolconfig import Source
    from cpupool.core.names import Names
    from cpupool.core.topology import CPUTopology


def choose(
    path: Path, labels: Mapping[str, str] | None, names: Names, machine: CPUTopology
) -> tuple[Source, PoolFile]:
    """Read a pool file or a ConfigMap manifest, and choose the pool file of one node.

    Args:
        path: the file that the user has named.
        labels: the node's labels; None if the file holds only one pool file anyway.
        names: for the resource domain.
        machine: the node's, which the pools must fit.

    Raises:
        UsageError: the file cannot be read, a pool file in it is refused, or the labels choose
            none, or are needed.
    """
    text = read_file(path)
    try:
        source, file = _choose(path, text, labels, names, machine)
        refuse_errors(cpu_manager.problems(file, machine))
    except ConfigError as error:
        raise UsageError(error) from error
    return source, file


def _choose(
    path: Path,
    text: bytes,
    labels: Mapping[str, str] | None,
    names: Names,
    machine: CPUTopology,
) -> tuple[Source, PoolFile]:
    problems: list[Problem] = []
    sources = poolconfig.sources(str(path), text, problems)
    # One of several pool files need not be the one that must fit the machine.
    known = Machine(machine, labels) if labels is not None or len(sources) == 1 else None
    files = poolconfig.parse_all(sources, names, problems, known, find_policy)
    refuse_errors(problems)
    if labels is None and len(files) != 1:
        raise UsageError(f"{path}: there are {len(files)} pool files in it; add --node-labels")
    chosen = files[0] if labels is None else pool_selection.select(files, labels)
    for source, file in zip(sources, files, strict=True):
        if file is chosen:
            return source, file
    raise UsageError(f"{path}: no pool file in it is for a node with these --node-labels")
