"""CPU-Pooler's pool files: from text to the pools of a node, or to everything wrong with it.

One file serves the nodes that its `nodeSelector` matches; one without serves the nodes that no
other does. The files of a cluster are the keys `poolconfig-<name>.yaml` of one ConfigMap, which a
node sees as a folder of files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from cpupool.config import cpu_manager, document, pool_rules
from cpupool.config.document import Listing, Origin, Table, Text
from cpupool.config.pool_keys import NODE_SELECTOR, PoolReader
from cpupool.config.pool_rules import MIXED_CPUS
from cpupool.config.reader import entries
from cpupool.core.cpu_manager import CPU_MANAGER, CPU_MANAGER_POLICIES
from cpupool.core.errors import (
    ConfigError,
    Location,
    Problem,
    Severity,
    errors_in,
    refuse_errors,
)
from cpupool.core.names import POOL_FILE_PREFIX, POOL_FILE_SUFFIX
from cpupool.core.pools import NodePools

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from cpupool.config.document import Value
    from cpupool.core.names import Names
    from cpupool.core.topology import CPUTopology

_POOLS: Final = "pools"
_RESOURCE_BASE_NAME: Final = "resourceBaseName"
_LIKE_A_POOL_FILE: Final = re.compile(r"pools?[-_.]?conf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PoolFile:
    """One pool file.

    Attributes:
        name: the file, or the key of the ConfigMap manifest.
        pools: its pools.
        node_selector: the labels that a node must have to take this file.
        locations: path of a value → where it stands; "" → where the file begins.
        warnings: what is odd in how the file is written; errors, too, in a file that is refused.
            What its pools mean, on a machine or by themselves, is for `config.pool_rules.validate`.
    """

    name: str
    pools: NodePools
    node_selector: Mapping[str, str]
    locations: Mapping[str, Location]
    warnings: tuple[Problem, ...]

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
        return self.located([*self.warnings, *pool_rules.validate(self.pools, machine)])


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


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one pool file.

    Attributes:
        name: the file, or the key of the ConfigMap manifest.
        text: what it holds.
        origin: where the text begins in the file that the user sees.
    """

    name: str
    text: str | bytes
    origin: Origin

    @classmethod
    def of(cls, name: str, text: str | bytes) -> Source:
        """Take a whole file for a pool file."""
        return cls(name, text, Origin(name))


def is_pool_file(name: str) -> bool:
    """Return whether a key of the ConfigMap, or a file of its folder, is a pool file."""
    return name.startswith(POOL_FILE_PREFIX)


def misnamed(name: str, location: Location) -> Iterator[Problem]:
    """Warn of a key, or a file, that is no pool file and has nearly the name of one."""
    if not is_pool_file(name) and _LIKE_A_POOL_FILE.match(name):
        what = f"{name[:63]!r} is no pool file, as it does not begin with {POOL_FILE_PREFIX}"
        yield Problem(what, "rename it if it is one", Severity.WARNING, location=location)


def parse(
    name: str,
    text: str | bytes,
    resource_names: Names,
    origin: Origin | None = None,
    cpu_managers: Collection[str] = CPU_MANAGER_POLICIES,
) -> PoolFile:
    """Read one pool file.

    Args:
        name: what to call the file.
        text: what it holds.
        resource_names: for the resource domain, which older files name too.
        origin: where the text begins, if not at the beginning of a file of that name.
        cpu_managers: the CPU manager policies that it can name.

    Raises:
        ConfigError: with everything that is wrong with the file, warnings included.
    """
    file = _read(Source(name, text, origin or Origin(name)), resource_names, cpu_managers)
    refuse_errors(file.problems(None))
    return file


def _read(source: Source, resource_names: Names, cpu_managers: Collection[str]) -> PoolFile:
    """Read what can be read of a pool file, to be refused or not.

    Raises:
        ConfigError: it is no YAML, or no map.
    """
    decoder = _Decoder([])
    root = document.read(source.text, source.origin, decoder.problems)
    top = decoder.table(root, (_POOLS, CPU_MANAGER, MIXED_CPUS, NODE_SELECTOR, _RESOURCE_BASE_NAME))
    if top is None:
        raise ConfigError(decoder.problems)
    decoder.check_domain(top.get(_RESOURCE_BASE_NAME), resource_names.domain)
    manager = cpu_manager.read(decoder, top.get(CPU_MANAGER), cpu_managers)
    listed = decoder.read_pools(top.get(_POOLS), required=not (manager.chooses or manager.declared))
    return PoolFile(
        name=source.name,
        pools=NodePools.of(
            *listed,
            mixed=decoder.read_mixed(top.get(MIXED_CPUS)),
            cpu_manager=manager,
        ),
        node_selector=dict(decoder.read_labels(top.get(NODE_SELECTOR))),
        locations=document.locations(root),
        warnings=tuple(decoder.problems),
    )


def parse_all(
    found: Iterable[Source],
    resource_names: Names,
    problems: list[Problem],
    machine: Machine | None = None,
    cpu_managers: Collection[str] = CPU_MANAGER_POLICIES,
) -> tuple[PoolFile, ...]:
    """Read pool files, without those that are refused.

    Args:
        found: their texts.
        resource_names: for the resource domain.
        problems: takes everything that is wrong with those that are refused.
        machine: the node's, for what is wrong on it with files that are refused anyway. That a file
            without an error of its own fits is for the caller to check.
        cpu_managers: the CPU manager policies that they can name.
    """
    read: list[PoolFile | ConfigError] = []
    for source in found:
        try:
            read.append(_read(source, resource_names, cpu_managers))
        except ConfigError as error:
            read.append(error)
    legible = [outcome for outcome in read if isinstance(outcome, PoolFile)]
    files = []
    for outcome in read:
        if isinstance(outcome, ConfigError):
            problems += outcome.problems
        elif not errors_in(outcome.problems(None)):
            files.append(outcome)
        else:
            problems += outcome.problems(machine.of(outcome, legible) if machine else None)
    return tuple(files)


def sources(name: str, text: str | bytes, problems: list[Problem]) -> tuple[Source, ...]:
    """Find the pool files in a text: it is one itself, or has ConfigMaps with any number.

    A text of several objects may have other objects next to ConfigMaps with pool files.

    Args:
        name: what to call the file.
        text: what it holds.
        problems: takes what is wrong with a manifest around its pool files.

    Raises:
        ConfigError: the text cannot be read as YAML.
    """
    decoder = _Decoder([])
    roots = document.read_all(text, Origin(name), decoder.problems)
    manifests = [root for root in roots if isinstance(root, Table) and "kind" in root.entries]
    if not manifests:
        return (Source.of(name, text),)
    found = tuple(decoder.read_manifests(manifests))
    problems += decoder.problems
    return found


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


class _Decoder(PoolReader):
    """Reads what pool files and ConfigMaps hold, and notes what is wrong with it."""

    __slots__ = ()

    def read_manifests(self, roots: Sequence[Table]) -> Iterator[Source]:
        """Read the pool files in Kubernetes objects and lists of them."""
        objects = [item for root in roots for item in _listed(root)]
        holding = [item for item in objects if _holds_pool_files(item)]
        # Where there is no pool file at all, each object says why.
        for item in holding or objects or roots:
            yield from self.read_manifest(item)

    def read_manifest(self, root: Table) -> Iterator[Source]:
        """Read the pool files in a Kubernetes object."""
        kind = self.text(root.get("kind"))
        if kind and kind.text != "ConfigMap":
            self.refuse(kind, "this is no ConfigMap", "give a ConfigMap or a pool file")
            return
        data = self.table(root.get("data"))
        if data and not any(map(is_pool_file, data.entries)):
            form = f"{POOL_FILE_PREFIX}<name>{POOL_FILE_SUFFIX}"
            self.refuse(data, f"there is no key of the form {form}", "put a pool file under one")
        for key, value in entries(data):
            self.problems.extend(misnamed(key, value.key))
            if is_pool_file(key) and (text := self.text(value)):
                yield Source(key, text.text, text.origin)

    def check_domain(self, value: Value, domain: str) -> None:
        """Accept the resource domain of older files where it is the agent's."""
        written = self.text(value)
        if written and written.text not in ("", domain):
            self.refuse(
                value,
                f"{written.text[:63]!r} is not the agent's resource domain, {domain}",
                "remove this line, or set the domain with the agent's --resource-domain",
            )

    def read_labels(self, value: Value) -> Iterator[tuple[str, str]]:
        """Read the labels that a node must have."""
        for key, entry in entries(self.table(value)):
            if text := self.text(entry):
                yield key, text.text


def _listed(root: Table) -> Iterable[Table]:
    """Return the objects of a list, or the object itself."""
    items = root.get("items")
    if not isinstance(items, Listing):
        return (root,)
    return (item for item in items.items if isinstance(item, Table))


def _holds_pool_files(root: Table) -> bool:
    kind, data = root.get("kind"), root.get("data")
    is_config_map = isinstance(kind, Text) and kind.text == "ConfigMap"
    return is_config_map and isinstance(data, Table) and any(map(is_pool_file, data.entries))
