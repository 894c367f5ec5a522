"""CPU-Pooler's pool files: from text to the pools of a node, or to everything wrong with it.

One file serves the nodes that its `nodeSelector` matches; one without serves the nodes that no
other does. The files of a cluster are the keys `poolconfig-<name>.yaml` of one ConfigMap, which a
node sees as a folder of files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.config import cpu_manager, document
from cpupool.config.document import Listing, Origin, Table, Text
from cpupool.config.pool_file import PoolFile
from cpupool.config.pool_keys import NODE_SELECTOR, PoolReader
from cpupool.config.pool_rules import MIXED_CPUS
from cpupool.config.reader import entries, is_label
from cpupool.core.cpu_manager import CPU_MANAGER
from cpupool.core.errors import (
    ConfigError,
    Location,
    Problem,
    Severity,
    refuse_errors,
)
from cpupool.core.names import POOL_FILE_PREFIX, POOL_FILE_SUFFIX
from cpupool.core.pools import NodePools

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cpupool.config.cpu_manager import FindPolicy
    from cpupool.config.document import Value
    from cpupool.config.pool_selection import Machine
    from cpupool.core.names import Names

_POOLS: Final = "pools"
_RESOURCE_BASE_NAME: Final = "resourceBaseName"
_CONFIG_MAP_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}", re.ASCII)
_KEY_FORM: Final = "use up to 253 letters, digits, -, _ and ."
KEYS_OF_POOL_FILES: Final = (_POOLS, CPU_MANAGER, MIXED_CPUS, NODE_SELECTOR, _RESOURCE_BASE_NAME)
_LIKE_A_POOL_FILE: Final = re.compile(r"pools?[-_.]?conf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one pool file.

    Attributes:
        name: the file, or the key of the ConfigMap manifest.
        text: its content.
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
    find_policy: FindPolicy = cpu_manager.only_built_in,
) -> PoolFile:
    """Read one pool file.

    Args:
        name: the file's name in messages.
        text: its content.
        resource_names: for the resource domain, which older files name too.
        origin: where the text begins, if not at the beginning of a file of that name.
        find_policy: finds a CPU manager policy that is not built in.

    Raises:
        ConfigError: with everything that is wrong with the file, warnings included.
    """
    file = _read(Source(name, text, origin or Origin(name)), resource_names, find_policy)
    refuse_errors(file.problems(None))
    return file


def _read(source: Source, resource_names: Names, find_policy: FindPolicy) -> PoolFile:
    """Read the readable parts of a pool file, which the caller may refuse.

    Raises:
        ConfigError: it is no YAML, or no map.
    """
    decoder = _Decoder([])
    root = document.read(source.text, source.origin, decoder.problems)
    top = decoder.table(root, KEYS_OF_POOL_FILES)
    if top is None:
        raise ConfigError(decoder.problems)
    decoder.check_domain(top.get(_RESOURCE_BASE_NAME), resource_names.domain)
    manager, unusable = cpu_manager.read(decoder, top.get(CPU_MANAGER), find_policy)
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
        unusable=unusable,
    )


def parse_all(
    found: Iterable[Source],
    resource_names: Names,
    problems: list[Problem],
    machine: Machine | None = None,
    find_policy: FindPolicy = cpu_manager.only_built_in,
) -> tuple[PoolFile, ...]:
    """Read pool files, without those that are refused.

    A file whose policy cannot be used here is not refused: it may be for another node. A caller
    that takes it for a node refuses the errors among its `problems`.

    Args:
        found: their texts.
        resource_names: for the resource domain.
        problems: takes everything that is wrong with those that are refused.
        machine: the node's, for what is wrong on it with files that are refused anyway. That a file
            without an error of its own fits is for the caller to check.
        find_policy: finds a CPU manager policy that is not built in.
    """
    read: list[PoolFile | ConfigError] = []
    for source in found:
        try:
            read.append(_read(source, resource_names, find_policy))
        except ConfigError as error:
            read.append(error)
    legible = [outcome for outcome in read if isinstance(outcome, PoolFile)]
    files = []
    for outcome in read:
        if isinstance(outcome, ConfigError):
            problems += outcome.problems
        elif not outcome.refused:
            files.append(outcome)
        else:
            problems += outcome.problems(machine.of(outcome, legible) if machine else None)
    return tuple(files)


def sources(name: str, text: str | bytes, problems: list[Problem]) -> tuple[Source, ...]:
    """Find the pool files in a text: it is one itself, or has ConfigMaps with any number.

    A text of several objects may have other objects next to ConfigMaps with pool files.

    Args:
        name: the file's name in messages.
        text: its content.
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


class _Decoder(PoolReader):
    """Reads pool files and ConfigMaps, and notes the problems in them."""

    __slots__ = ()

    def read_manifests(self, roots: Sequence[Table]) -> Iterator[Source]:
        """Read the pool files in Kubernetes objects and lists of them."""
        objects = [item for root in roots for item in listed(root)]
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
            if not is_pool_file(key):
                continue
            if not _CONFIG_MAP_KEY.fullmatch(key):
                self.refuse(value, "no ConfigMap can have this key", _KEY_FORM, value.key)
            if text := self.text(value):
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
        """Read the labels that a node must have; warn of one that no node can have."""
        for key, entry in entries(self.table(value)):
            if text := self.text(entry):
                yield key, text.text
                if not is_label(key, text.text):
                    what = "no node can have this label, so the file is for none"
                    self._warn(entry, what, "write domain/name: value")


def listed(root: Table) -> Iterable[Table]:
    """Return the objects of a list, or the object itself."""
    items = root.get("items")
    if not isinstance(items, Listing):
        return (root,)
    return (item for item in items.items if isinstance(item, Table))


def is_config_map(root: Table) -> bool:
    """Return whether an object says that it is a ConfigMap."""
    kind = root.get("kind")
    return isinstance(kind, Text) and kind.text == "ConfigMap"


def _holds_pool_files(root: Table) -> bool:
    data = root.get("data")
    return is_config_map(root) and isinstance(data, Table) and any(map(is_pool_file, data.entries))
