"""The sources of a kubelet's configuration: its file, then its drop-ins, then its flags.

Each drop-in is a merge patch (RFC 7386) for what stands before it; a flag takes the place of the
whole setting, only feature gates are merged. Sources: kubernetes cmd/kubelet/app/server.go and
cmd/kubelet/app/options/options.go, KEP-3983.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.config import document
from cpupool.config.document import Listing, Origin, Table, Text
from cpupool.config.kubelet_settings import (
    CPU_MANAGER,
    CPU_MANAGER_OPTIONS,
    CPUS,
    EVICTION,
    FEATURE_GATES,
    KIND,
    KUBE,
    KUBE_CGROUP,
    MEMORY_MANAGER,
    RESERVED_MEMORY,
    SYSTEM,
    SYSTEM_CGROUP,
    TOPOLOGY_MANAGER,
    TOPOLOGY_OPTIONS,
    TOPOLOGY_SCOPE,
)
from cpupool.config.reader import Reader
from cpupool.core.errors import Location, refuse_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cpupool.config.document import Value

_API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
_CONFIG: Final = "config"
_CONFIG_DIR: Final = "config-dir"
_WORDS: Final = {
    "cpu-manager-policy": CPU_MANAGER,
    "kube-reserved-cgroup": KUBE_CGROUP,
    "memory-manager-policy": MEMORY_MANAGER,
    "reserved-cpus": CPUS,
    "system-reserved-cgroup": SYSTEM_CGROUP,
    "topology-manager-policy": TOPOLOGY_MANAGER,
    "topology-manager-scope": TOPOLOGY_SCOPE,
}
_MAPS: Final = {
    "cpu-manager-policy-options": (CPU_MANAGER_OPTIONS, "="),
    "eviction-hard": (EVICTION, "<"),
    "feature-gates": (FEATURE_GATES, "="),
    "kube-reserved": (KUBE, "="),
    "system-reserved": (SYSTEM, "="),
    "topology-manager-policy-options": (TOPOLOGY_OPTIONS, "="),
}
"""Flag → the setting, and the mark between a key and its value."""
_LISTED_MEMORY: Final = "reserved-memory"
_KNOWN: Final = {_CONFIG, _CONFIG_DIR, *_WORDS, *_MAPS, _LISTED_MEMORY}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The part of a kubelet's configuration that its command line gives.

    Attributes:
        config: the file; empty without one.
        config_dir: the folder of drop-ins; empty without one.
        settings: the flags, each under the name of its setting in a file.
    """

    config: str
    config_dir: str
    settings: Table


def command_line(words: Sequence[str]) -> CommandLine:
    """Read a kubelet's command line, the program first; the last of equal flags prevails."""
    given, here = dict(_flags(words[1:])), Location("the kubelet's command line")
    entries: dict[str, Value] = {}
    for flag, value in given.items():
        where = Location(f"the kubelet's --{flag}")
        if flag in _WORDS:
            entries[_WORDS[flag]] = _text(_WORDS[flag], value, where)
        elif flag in _MAPS:
            setting, between = _MAPS[flag]
            entries[setting] = _map(setting, value, between, where)
        elif flag == _LISTED_MEMORY:
            entries[RESERVED_MEMORY] = _reserved_memory(value, where)
    return CommandLine(
        given.get(_CONFIG, ""),
        given.get(_CONFIG_DIR, ""),
        Table("", here, here, entries),
    )


def drop_in(name: str, text: str | bytes) -> Table:
    """Read a drop-in.

    Raises:
        ConfigError: the kubelet does not start with it.
    """
    reader = Reader([])
    root = reader.part(document.read(text, Origin(name), reader.problems))
    for key, needed in (("apiVersion", _API_VERSION), ("kind", KIND)):
        if reader.word(root.get(key)) != needed:
            what = f"the kubelet does not start with a drop-in whose {key} is not {needed}"
            reader.refuse(root.get(key), what, f"write {key}: {needed}, or rename the file")
    refuse_errors(reader.problems)
    return root


def merged(base: Table, *later: Table) -> Table:
    """Return a table with the later ones merged into it; a null removes the setting."""
    entries = {
        key: merged(value) if isinstance(value, Table) else value
        for key, value in base.entries.items()
        if not _is_null(value)
    }
    for table in later:
        for key, value in table.entries.items():
            before = entries.pop(key, None)
            if isinstance(value, Table):
                under = before if isinstance(before, Table) else _like(value, {})
                entries[key] = merged(under, value)
            elif not _is_null(value):
                entries[key] = value
    return _like(base, entries)


def overridden(base: Table, flags: Table) -> Table:
    """Return a table with flags in place of its settings; feature gates are merged."""
    gates = flags.entries.get(FEATURE_GATES)
    replaced = {key: value for key, value in base.entries.items() if key not in flags.entries}
    whole = _like(base, {**replaced, **flags.entries})
    before = base.entries.get(FEATURE_GATES)
    if isinstance(gates, Table) and isinstance(before, Table):
        return merged(whole, _like(whole, {FEATURE_GATES: merged(before, gates)}))
    return whole


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        flag, equals, value = word.removeprefix("--").partition("=")
        # WordSepNormalizeFunc of k8s.io/component-base/cli/flag takes both forms.
        flag = flag.replace("_", "-")
        if word.startswith("--") and flag in _KNOWN:
            yield flag, value if equals else next(rest, "")


def _map(path: str, text: str, between: str, where: Location) -> Table:
    pairs = (part.strip().partition(between) for part in text.split(",") if part.strip())
    entries: Mapping[str, Value] = {
        key.strip(): _text(f"{path}.{key.strip()}", value.strip(), where) for key, _, value in pairs
    }
    return Table(path, where, where, entries)


def _reserved_memory(text: str, where: Location) -> Listing:
    items: list[Value] = []
    for part in filter(None, text.split(";")):
        path = f"{RESERVED_MEMORY}[{len(items)}]"
        node, _, limits = part.partition(":")
        entries: Mapping[str, Value] = {
            "numaNode": _text(f"{path}.numaNode", node.strip(), where),
            "limits": _map(f"{path}.limits", limits, "=", where),
        }
        items.append(Table(path, where, where, entries))
    return Listing(RESERVED_MEMORY, where, where, tuple(items))


def _text(path: str, text: str, where: Location) -> Text:
    return Text(path, where, where, text, Origin(where.file, verbatim=False))


def _like(table: Table, entries: Mapping[str, Value]) -> Table:
    """Return a table at the place of another one."""
    return Table(table.path, table.key, table.location, entries)


def _is_null(value: Value) -> bool:
    return isinstance(value, Text) and value.null
