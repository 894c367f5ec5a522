"""The subcommands: each module adds its arguments with `add_parser` and does its work in `run`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.host.sysfs import open_topology

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology


class UsageError(CPUPoolError):
    """The command line asks for something that cannot be: one line, exit code 2."""


def node_labels(text: str) -> dict[str, str]:
    """Read `key=value,...` from the command line.

    Raises:
        ArgumentTypeError: a piece is no pair.
    """
    labels: dict[str, str] = {}
    for piece in filter(None, text.split(",")):
        key, equals, value = piece.partition("=")
        if not equals or not key.strip():
            raise argparse.ArgumentTypeError(f"{piece!r} is no label; write key=value,key=value")
        labels[key.strip()] = value.strip()
    return labels


def open_machine(spec: str) -> CPUTopology:
    """Read the machine that `--topology` names.

    Raises:
        UsageError: there is none, or none that can be read.
    """
    try:
        return open_topology(spec)
    except HostFileError as error:
        raise UsageError(f"--topology: {error}") from error
