"""`cpupool validate`: checks pool files before a node sees them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from cpupool.commands import (
    BAD_INPUT,
    FAILED,
    UsageError,
    add_command,
    add_node_labels,
    add_resource_domain,
    add_topology,
    cpu_manager,
    door,
    input_file,
    open_machine,
    read_file,
)
from cpupool.config import poolconfig
from cpupool.config.poolconfig import Machine, Source
from cpupool.core.cpu_manager import CPU_MANAGER
from cpupool.core.errors import ConfigError, Location, Problem, errors_in
from cpupool.core.names import Names
from cpupool.core.pools import PoolKind

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.commands import Commands
    from cpupool.config.poolconfig import PoolFile
    from cpupool.core.pools import Pool

_EXAMPLES = """\
examples:
  cpupool validate configmaps/cpu-pooler-configmap.yaml
  cpupool validate poolconfig-dpdk.yaml poolconfig-controller.yaml
  cpupool validate /etc/cpu-pooler --topology this --node-labels nodeType=dpdk

The command checks all given files as the files of one ConfigMap. With --node-labels only the file
for that node must fit the machine.

Exit code 0: every file can be used; 1: problems were found; 2: the command line is wrong, or a file
that it names cannot be read, or is no YAML.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "validate",
        summary,
        "Checks pool files and prints every problem as file:line:column: path: what; what to do.",
        _EXAMPLES,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        type=input_file,
        nargs="+",
        help="a pool file, ConfigMaps beside other objects, or a folder with poolconfig-<name>.yaml"
        " files",
    )
    add_topology(parser, "the machine that must have the CPUs", None)
    add_node_labels(parser)
    add_resource_domain(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Check the files and print what is found.

    Returns:
        0 where every file can be used, and one of them on the node if labels are given; BAD_INPUT
        where one is no YAML.

    Raises:
        UsageError: a file or the machine cannot be read.
    """
    topology = open_machine(arguments.topology) if arguments.topology else None
    labels: Mapping[str, str] | None = arguments.node_labels
    problems: list[Problem] = []
    sources = list(_sources(arguments.files, problems))
    machine = Machine(topology, labels) if topology else None
    files = poolconfig.parse_all(sources, Names(arguments.resource_domain), problems, machine)
    problems += poolconfig.rivals(files)
    taken = None
    if labels is not None and not errors_in(problems):
        taken = _take(files, labels, problems)
    good = []
    for file in files:
        fits = topology if labels is None or file is taken else None
        found = cpu_manager.problems(file, fits)
        problems += found
        if not errors_in(found):
            good.append(file)
    for problem in problems:
        door.tell(str(problem), out)
    for file in good:
        door.tell(f"{file.name}: ok: {_summary(file)}", out)
    if taken:
        door.tell(f"this node takes {taken.name}", out)
    if any(problem.unreadable for problem in problems):
        return BAD_INPUT
    return FAILED if errors_in(problems) else 0


def _sources(paths: Iterable[Path], problems: list[Problem]) -> Iterator[Source]:
    for path in paths:
        inside = _pool_files(path, problems)
        if inside is None:
            with _collected(problems):
                yield from poolconfig.sources(str(path), read_file(path), problems)
        else:
            # A node takes each file there for a pool file, so a manifest is none here either.
            yield from (Source.of(str(file), read_file(file)) for file in inside)


def _pool_files(folder: Path, problems: list[Problem]) -> list[Path] | None:
    """List the pool files in a folder; None if it is none."""
    try:
        listed = sorted(folder.iterdir())
    except NotADirectoryError:
        return None
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; name another file or folder") from error
    for path in listed:
        problems += poolconfig.misnamed(path.name, Location(str(path)))
    inside = [path for path in listed if poolconfig.is_pool_file(path.name)]
    if not inside:
        raise UsageError(
            f"{folder}: no poolconfig-<name>.yaml in this folder; name another one, or the file of"
            " a ConfigMap manifest itself"
        )
    return inside


def _take(
    files: Sequence[PoolFile], labels: Mapping[str, str], problems: list[Problem]
) -> PoolFile | None:
    with _collected(problems):
        if taken := poolconfig.select(files, labels):
            return taken
        given = ",".join(f"{key}={value}" for key, value in labels.items()) or "none"
        problems.append(
            Problem(
                what=f"no file is for a node with these labels: {given}",
                remedy="correct the labels, or add a file for this node",
                path="nodeSelector",
            )
        )
    return None


@contextmanager
def _collected(problems: list[Problem]) -> Iterator[None]:
    """Keep the problems of what fails inside, and go on."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _summary(file: PoolFile) -> str:
    by_kind = (pool for kind in PoolKind for pool in file.pools.of_kind(kind))
    listed = ", ".join(f"{pool.name} {pool.cpus}{_policy(pool)}" for pool in by_kind)
    parts = [listed] if listed else []
    if mixed := file.pools.mixed:
        parts.append(f"mixed CPUs of {mixed.pool} for {mixed.containers_limit} containers")
    if file.pools.cpu_manager.chooses:
        settings = file.pools.cpu_manager.settings.items()
        parts.append(
            f"{CPU_MANAGER} with {', '.join(f'{key}: {value}' for key, value in settings)}"
        )
    return "; ".join(parts)


def _policy(pool: Pool) -> str:
    keys = ", ".join(f"{key}: {value}" for key, value in pool.policy.written().items())
    return keys and f" ({keys})"
