"""`cpupool validate`: checks pool files before a node sees them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from cpupool.commands.shell import cpu_manager, door
from cpupool.commands.shell.exit_codes import BAD_INPUT, FAILED, UsageError
from cpupool.commands.shell.files import input_file, open_machine, read_file
from cpupool.commands.shell.options import (
    add_command,
    add_node_labels,
    add_resource_domain,
    add_topology,
)
from cpupool.config import pool_selection, poolconfig
from cpupool.config.pool_selection import Machine
from cpupool.config.poolconfig import Source
from cpupool.core.cpu_manager import CPU_MANAGER, POLICY
from cpupool.core.errors import ConfigError, Location, Problem, Severity, errors_in
from cpupool.core.names import Names
from cpupool.core.pools import PoolKind
from cpupool.host.installed_policies import find_policy, shadowed
from cpupool.plugins import config_file
from cpupool.policies.built_in import kind

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.commands.shell.options import Commands
    from cpupool.config.pool_file import PoolFile
    from cpupool.core.pools import Pool
    from cpupool.core.topology import CPUTopology
    from cpupool.plugins.config import PluginConfig

_EXAMPLES = """\
examples:
  cpupool validate configmaps/cpu-pooler-configmap.yaml
  cpupool validate poolconfig-dpdk.yaml poolconfig-controller.yaml
  cpupool validate /etc/cpu-pooler --topology this --node-labels nodeType=dpdk
  cpupool validate resource-plugins.yaml --topology recorded.tar.gz

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
        "Checks pool files, and files of our resource plugins, and prints every problem as"
        " file:line:column: path: what; what to do.",
        _EXAMPLES,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        type=input_file,
        nargs="+",
        help="a pool file or a file of our resource plugins, ConfigMaps with some beside other"
        " objects, or a folder with poolconfig-<name>.yaml files",
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
    plugin_sources: list[Source] = []
    sources = list(_sources(arguments.files, problems, plugin_sources))
    machine = Machine(topology, labels) if topology else None
    names = Names(arguments.resource_domain)
    files = poolconfig.parse_all(sources, names, problems, machine, find_policy)
    problems += pool_selection.rivals(files)
    taken = None
    only_plugins = bool(plugin_sources) and not sources
    if labels is not None and not only_plugins and not errors_in(problems):
        taken = _take(files, labels, problems)
    good = []
    for file in files:
        fits = topology if labels is None or file is taken else None
        found = (*cpu_manager.problems(file, fits), *_shadowed(file))
        problems += found
        if not errors_in(found):
            good.append(file)
    said = [f"{file.name}: ok: {_summary(file)}" for file in good]
    said += _plugin_files(plugin_sources, topology, problems)
    for line in (*map(str, problems), *said):
        door.tell(line, out)
    if taken:
        door.tell(f"this node takes {taken.name}", out)
    if any(problem.unreadable for problem in problems):
        return BAD_INPUT
    return FAILED if errors_in(problems) else 0


def _shadowed(file: PoolFile) -> tuple[Problem, ...]:
    """Warn of a package whose policy has the built-in name that a file means."""
    name = file.pools.cpu_manager.policy
    never = shadowed(name) if file.pools.cpu_manager.chooses else None
    if never is None:
        return ()
    path = f"{CPU_MANAGER}.{POLICY}"
    return file.located([Problem(never.what, never.remedy, Severity.WARNING, path=path)])


def _plugin_files(
    sources: Iterable[Source], topology: CPUTopology | None, problems: list[Problem]
) -> Iterator[str]:
    """Check the files of our resource plugins; yield a line for each that can be used."""
    for source in sources:
        with _collected(problems):
            file = config_file.read_file(source)
            unfit = file.unfit(topology.online) if topology else ()
            found = sorted(
                (*file.problems, *unfit), key=lambda problem: problem.location or Location("")
            )
            problems += found
            if not errors_in(found):
                yield f"{file.name}: ok: {_summary_of_plugins(file.config)}"


def _sources(
    paths: Iterable[Path], problems: list[Problem], of_plugins: list[Source]
) -> Iterator[Source]:
    """Yield the pool files, and add the files of our resource plugins to `of_plugins`."""
    for path in paths:
        inside = _pool_files(path, problems)
        if inside is None:
            text = read_file(path)
            plugins = config_file.sources(str(path), text)
            of_plugins += plugins
            found: list[Problem] = []
            with _collected(found):
                pool_files = poolconfig.sources(str(path), text, found)
                yield from (source for source in pool_files if source not in plugins)
                if plugins and not set(pool_files) - set(plugins):
                    # They say that the file has no pool file.
                    found.clear()
            problems += found
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
        if taken := pool_selection.select(files, labels):
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


def _summary_of_plugins(config: PluginConfig) -> str:
    nics = [nic.name for nic in config.nics]
    parts = {"pools": [*config.pools], "roles": [*config.roles], "NICs": nics}
    named = (f"{what} {', '.join(names)}" for what, names in parts.items() if names)
    return f"for resource plugins: {'; '.join(named) or 'without pools'}"


def _summary(file: PoolFile) -> str:
    by_kind = (pool for kind in PoolKind for pool in file.pools.of_kind(kind))
    listed = ", ".join(f"{pool.name} {pool.listed}{_policy(pool)}" for pool in by_kind)
    parts = [listed] if listed else []
    if mixed := file.pools.mixed:
        parts.append(f"mixed CPUs of {mixed.pool} for {mixed.containers_limit} containers")
    if file.pools.cpu_manager.chooses:
        manager = file.pools.cpu_manager
        keys = {POLICY, *kind(manager).settings}
        shown = (f"{key}: {value}" for key, value in manager.settings.items() if key in keys)
        parts.append(f"{CPU_MANAGER} with {', '.join(shown)}")
    return "; ".join(parts)


def _policy(pool: Pool) -> str:
    keys = ", ".join(f"{key}: {value}" for key, value in pool.policy.written().items())
    return keys and f" ({keys})"
