"""Pool files that a command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.commands import UsageError
from cpupool.config import poolconfig
from cpupool.core.errors import Problem, refuse_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.config.poolconfig import PoolFile, Source
    from cpupool.core.names import Names


def read(path: Path) -> bytes:
    """Read a file that the user has named.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file that can be read") from error


def choose(path: Path, labels: Mapping[str, str] | None, names: Names) -> tuple[Source, PoolFile]:
    """Read a pool file or a ConfigMap manifest, and choose the pool file of one node.

    Args:
        path: what the user has named.
        labels: the node's labels; None if the file holds only one pool file anyway.
        names: for the resource domain.

    Raises:
        UsageError: the file cannot be read, or the labels choose none, or are needed.
        ConfigError: a pool file is refused.
    """
    problems: list[Problem] = []
    found = poolconfig.sources(str(path), read(path), problems)
    refuse_errors(problems)
    parsed = [
        (source, poolconfig.parse(source.name, source.text, names, source.origin))
        for source in found
    ]
    if labels is None:
        if len(parsed) != 1:
            raise UsageError(f"{path}: there are {len(parsed)} pool files in it; add --node-labels")
        return parsed[0]
    chosen = poolconfig.select([file for _, file in parsed], labels)
    for source, file in parsed:
        if file is chosen:
            return source, file
    raise UsageError(f"{path}: no pool file in it is for a node with these --node-labels")
