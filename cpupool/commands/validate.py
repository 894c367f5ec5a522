"""`cpupool validate`: checks pool files before a node sees them."""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cpupool.commands import UsageError, node_labels, open_machine, pool_files
from cpupool.config import poolconfig
from cpupool.core import pools
from cpupool.core.errors import ConfigError, Problem, errors_in
from cpupool.core.names import DEFAULT_DOMAIN, Names
from cpupool.core.pools import PoolKind

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.config.poolconfig import PoolFile, Source

_EXAMPLES = """\
examples:
  cpupool validate configmaps/cpu-pooler-config.yaml
  cpupool validate poolconfig-dpdk.yaml poolconfig-controller.yaml
  cpupool validate /etc/cpu-pooler --topology this --node-labels nodeType=dpdk

Files given together are taken for the files of one ConfigMap. Exit code 0: every file can be used;
1: problems were found; 2: the command line is wrong.
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "validate",
        help=summary,
        description="Checks pool files and prints every problem as"
        " file:line:column: path: what; what to do.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="a pool file, a ConfigMap manifest, or a folder with poolconfig-<name>.yaml files",
    )
    parser.add_argument(
        "--topology",
        metavar="MACHINE",
        help="the machine that must have the CPUs: this, a folder with a copy of /sys, or a"
        " recorded.tar.gz of one; with --node-labels only the file that the node takes must fit",
    )
    parser.add_argument(
        "--node-labels",
        metavar="K=V,...",
        type=node_labels,
        help="tell which file a node with these labels takes",
    )
    parser.add_argument(
        "--resource-domain",
        metavar="DOMAIN",
        default=DEFAULT_DOMAIN,
        help="the agent's --resource-domain (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Check the files and print what is found.

    Returns:
        0 where every file can be used, and one of them on the node if labels are given.

    Raises:
        UsageError: a file or the machine cannot be read.
    """
    topology = open_machine(arguments.topology) if arguments.topology else None
    labels: Mapping[str, str] | None = arguments.node_labels
    problems: list[Problem] = []
    files = _read(arguments.files, Names(arguments.resource_domain), problems)
    problems += poolconfig.rivals(files)
    taken = None
    if labels is not None and not problems:
        taken = _take(files, labels, problems)
    good = []
    for file in files:
        machine = topology if labels is None or file is taken else None
        found = [*file.warnings, *file.located(pools.validate(file.pools, machine))]
        problems += found
        if not errors_in(found):
            good.append(file)
    for problem in problems:
        print(problem, file=out)
    for file in good:
        print(f"{file.name}: ok: {_summary(file)}", file=out)
    if taken:
        print(f"this node takes {taken.name}", file=out)
    return 1 if errors_in(problems) else 0


def _read(paths: Iterable[Path], names: Names, problems: list[Problem]) -> list[PoolFile]:
    files: list[PoolFile] = []
    for path in _expanded(paths):
        found: Sequence[Source] = ()
        with _collected(problems):
            found = poolconfig.sources(str(path), pool_files.read(path), problems)
        for source in found:
            with _collected(problems):
                files.append(poolconfig.parse(source.name, source.text, names, source.origin))
    return files


def _expanded(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        try:
            inside = sorted(filter(_is_pool_file, path.iterdir())) if path.is_dir() else [path]
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; name another folder") from error
        if not inside:
            raise UsageError(f"{path}: no poolconfig-<name>.yaml in this folder; name another one")
        yield from inside


def _is_pool_file(path: Path) -> bool:
    return poolconfig.is_pool_file(path.name)


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
    return ", ".join(f"{pool.name} {pool.cpus}" for pool in by_kind)
