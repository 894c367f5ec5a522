"""The file of our plugins for the QoS Resource Manager: pools, and roles of pods.

reserved: "0-1,40-41"
reservedMemory: 500Mi
pools:
  online: {cpus: 76}
  offline: {weight: 1}
load: {usePercent: 80}
roles:
  ETL: {pool: offline}
  storage-service: {numaNode: same-role}
nics:
  eth1: {numaNode: 1, ipv6: "fdbd:dc05:3:155::20", netns: /var/run/netns/ns1, mbits: 25000}
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final

from cpupool.config.document import Origin, Table, Text, locations, read, read_all
from cpupool.config.poolconfig import (
    KEYS_OF_POOL_FILES,
    Source,
    is_config_map,
    is_pool_file,
    listed,
)
from cpupool.config.reader import WHOLE_NUMBER, Reader, entries
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, Problem, QuantityError, refuse_errors
from cpupool.core.pools import PoolKind
from cpupool.core.quantity import parse as parse_quantity
from cpupool.plugins.config import (
    Aims,
    Neighbours,
    PluginConfig,
    PoolSize,
    Role,
    is_on_node,
)
from cpupool.plugins.nics import NIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.config.document import Value
    from cpupool.core.errors import Location

RESERVED: Final = "reserved"
RESERVED_MEMORY: Final = "reservedMemory"
POOLS: Final = "pools"
LOAD: Final = "load"
ROLES: Final = "roles"
NICS: Final = "nics"
_KEYS: Final = (RESERVED, RESERVED_MEMORY, POOLS, LOAD, ROLES, NICS)
_OWN_KEYS: Final = frozenset({RESERVED_MEMORY, LOAD, ROLES, NICS})
"""The keys that no pool file has at any place."""
DEPLOYED_AS: Final = "resource-plugins.yaml"
"""The key in the ConfigMap of daemonsets/plugins."""
_CPUS: Final = "cpus"
_WEIGHT: Final = "weight"
_MIN_CPUS: Final = "minCpus"
_USE: Final = "usePercent"
_WAITING: Final = "waitingPercent"
_MOST_UP: Final = "mostUp"
_MOST_DOWN: Final = "mostDown"
_PAUSE: Final = "pauseSeconds"
_MOST_PERCENT: Final = 95
"""A use above its aim can be measured only if the aim is well below 100 %."""
_LONGEST_PAUSE_S: Final = 3600
_POOL: Final = "pool"
_NUMA_NODE: Final = "numaNode"
_IPV6: Final = "ipv6"
_IPV4: Final = "ipv4"
_NETNS: Final = "netns"
_MBITS: Final = "mbits"
_NODE: Final = re.compile(r"[0-9]{1,4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PluginFile:
    """The file, as far as it can be read.

    Attributes:
        name: the file, or the key of its ConfigMap.
        config: its content, without the parts that cannot be used.
        locations: path of a value → where it stands; "" → where the file begins.
        problems: everything that is wrong with it by itself.
    """

    name: str
    config: PluginConfig
    locations: Mapping[str, Location]
    problems: tuple[Problem, ...]

    def unfit(self, online: CPUSet) -> tuple[Problem, ...]:
        """Find everything that is wrong with it on a machine, each with the place."""
        return tuple(
            replace(problem, location=self.locations.get(problem.path, self.locations[""]))
            for problem in _unfit(self.config, online)
        )


def parse(source: str, text: str | bytes) -> PluginConfig:
    """Read the file.

    Args:
        source: its name, for messages.
        text: its content.

    Raises:
        ConfigError: names everything that is wrong.
    """
    file = read_file(Source.of(source, text))
    refuse_errors(file.problems)
    return file.config


def read_file(source: Source) -> PluginFile:
    """Read the readable parts of the file, which the caller may refuse.

    Raises:
        ConfigError: it is no YAML.
    """
    problems: list[Problem] = []
    reader = Reader(problems)
    root = read(source.text, source.origin, problems)
    table = reader.table(root, _KEYS)
    pools: dict[str, PoolSize] = {}
    roles: dict[str, Role] = {}
    reserved, memory_bytes, nics, aims = CPUSet(), 0, [], Aims()
    if table is not None:
        reserved = reader.cpus(table.get(RESERVED)) or CPUSet()
        memory_bytes = _bytes(reader, table.get(RESERVED_MEMORY))
        pools = {
            name: _pool(reader, name, value)
            for name, value in entries(reader.table(table.get(POOLS)))
        }
        roles = {
            name: _role(reader, value, pools)
            for name, value in entries(reader.table(table.get(ROLES)))
        }
        aims = _aims(reader, table.get(LOAD))
        nics = [_nic(reader, name, value) for name, value in entries(reader.table(table.get(NICS)))]
    config = PluginConfig(reserved, pools, roles, memory_bytes, tuple(nics), aims)
    return PluginFile(source.name, config, locations(root), tuple(problems))


def sources(name: str, text: str | bytes) -> tuple[Source, ...]:
    """Find such files in a text: it is one itself, or has ConfigMaps with some; none in no YAML.

    A file is known by its keys, and in a ConfigMap also by the name that our DaemonSet gives it.

    Args:
        name: the file's name in messages.
        text: its content.
    """
    try:
        roots = [root for root in read_all(text, Origin(name), []) if isinstance(root, Table)]
    except ConfigError:
        return ()
    if not any("kind" in root.entries for root in roots):
        return (Source.of(name, text),) if len(roots) == 1 and _is_of_plugins(roots[0]) else ()
    return tuple(
        Source(key, value.text, value.origin)
        for root in roots
        for item in listed(root)
        if is_config_map(item)
        for key, value in entries(Reader([]).table(item.get("data")))
        if isinstance(value, Text) and not is_pool_file(key) and _holds(key, value)
    )


def _holds(key: str, value: Text) -> bool:
    """Return whether an entry of a ConfigMap is such a file."""
    try:
        root = read(value.text, value.origin, [])
    except ConfigError:
        return key == DEPLOYED_AS
    return key == DEPLOYED_AS or (isinstance(root, Table) and _is_of_plugins(root))


def _is_of_plugins(root: Table) -> bool:
    """Return whether a map has the keys of this file, and not those of a pool file."""
    keys = root.entries.keys()
    ours, others = keys & _OWN_KEYS, keys & {*KEYS_OF_POOL_FILES} - {POOLS}
    if ours or others:
        return len(ours) > len(others)
    pools = [pool for _, pool in entries(Reader([]).table(root.get(POOLS)))]
    tables = [pool.entries.keys() for pool in pools if isinstance(pool, Table)]
    if any(pool & {_WEIGHT, _MIN_CPUS} for pool in tables):
        return True
    # A number of CPUs is a CPU list, too.
    kinds = {PoolKind.of_name(pool.path.removeprefix(f"{POOLS}.")) for pool in pools}
    return RESERVED in keys and kinds <= {PoolKind.DEFAULT}


def refuse_unfit(config: PluginConfig, online: CPUSet) -> None:
    """Check the file against a machine.

    Raises:
        ConfigError: no CPU is left for the pools, or the machine lacks reserved CPUs.
    """
    refuse_errors(_unfit(config, online))


def _unfit(config: PluginConfig, online: CPUSet) -> Iterator[Problem]:
    if strange := config.reserved - online:
        yield Problem(f"CPUs {strange} are not online", "reserve other CPUs", path=RESERVED)
    left = len(online - config.reserved)
    needed = sum(pool.fewest for pool in config.pools.values())
    if left < max(1, needed):
        pools = f"{len(config.pools)} pools, which have {needed} at least"
        what = f"{left} CPUs are left for {pools}"
        yield Problem(what, "reserve fewer CPUs", path=RESERVED)


def _pool(reader: Reader, name: str, value: Value) -> PoolSize:
    if is_on_node(name):
        what = f"{name[:63]!r} is the name of a pool on a NUMA node, which comes with its pods"
        reader.refuse(value, what, "name it without -NUMA and a number")
    keys = (_CPUS, _WEIGHT, _MIN_CPUS)
    table = reader.table(value, keys)
    if table is None:
        return PoolSize()
    cpus, weight, at_least = (_number(reader, table.get(key)) for key in keys)
    if sum(number is not None for number in (cpus, weight, at_least)) > 1:
        what = "a pool has a number of CPUs or a weight, or a size that follows its load"
        reader.refuse(value, what, f"keep one of {', '.join(keys)}")
    return PoolSize(cpus, weight or 1, at_least)


def _aims(reader: Reader, value: Value) -> Aims:
    usual = Aims()
    table = reader.table(value, (_USE, _WAITING, _MOST_UP, _MOST_DOWN, _PAUSE))
    if table is None:
        return usual
    return Aims(
        _share(reader, table.get(_USE), usual.use),
        _share(reader, table.get(_WAITING), usual.waiting),
        _number(reader, table.get(_MOST_UP)) or usual.most_up,
        _number(reader, table.get(_MOST_DOWN)) or usual.most_down,
        _number(reader, table.get(_PAUSE), _LONGEST_PAUSE_S) or usual.pause_s,
    )


def _share(reader: Reader, value: Value, absent: float) -> float:
    percent = _number(reader, value, _MOST_PERCENT)
    return percent / 100 if percent else absent


def _bytes(reader: Reader, value: Value) -> int:
    written = reader.word(value)
    if not written:
        return 0
    try:
        amount = parse_quantity(written)
    except QuantityError as error:
        reader.refuse(value, str(error), "write bytes, as 500Mi")
        return 0
    if amount < 0 or amount != int(amount):
        reader.refuse(value, f"{written[:63]!r} are no bytes", "write bytes, as 500Mi")
    return int(amount)


def _number(reader: Reader, value: Value, most: int | None = None) -> int | None:
    written = reader.word(value)
    if not written:
        return None
    remedy = "write a whole number from 1" + (f" to {most}" if most else "")
    if not WHOLE_NUMBER.fullmatch(written):
        reader.refuse(value, f"{written[:63]!r} is no whole number from 1", remedy)
        return None
    number = int(written)
    if most is not None and number > most:
        reader.refuse(value, f"{written[:63]!r} is too much", remedy)
        return None
    return number


def _role(reader: Reader, value: Value, pools: Mapping[str, PoolSize]) -> Role:
    table = reader.table(value, (_POOL, _NUMA_NODE))
    if table is None:
        return Role()
    pool = reader.word(table.get(_POOL))
    if pool and pool not in pools:
        reader.refuse(table.get(_POOL), f"{pool[:63]!r} is no pool of this file", "add the pool")
    return Role(pool, _neighbours(reader, table, pool))


def _neighbours(reader: Reader, table: Table, pool: str) -> Neighbours:
    value = table.get(_NUMA_NODE)
    if bool(pool) == bool(reader.word(value)):
        remedy = f"write {_POOL}, or {_NUMA_NODE} for CPUs of its own on one NUMA node"
        reader.refuse(table, "a role has a pool or a NUMA node", remedy)
    known = {each.value: each for each in Neighbours}
    return reader.choice(value, known, Neighbours.SAME_ROLE)


def _nic(reader: Reader, name: str, value: Value) -> NIC:
    table = reader.table(value, (_NUMA_NODE, _IPV6, _IPV4, _NETNS, _MBITS))
    if table is None:
        return NIC(name)
    node = reader.word(table.get(_NUMA_NODE))
    if node and not _NODE.fullmatch(node):
        reader.refuse(table.get(_NUMA_NODE), f"{node[:63]!r} is no NUMA node", "write its number")
        node = ""
    ipv6 = _address(reader, table.get(_IPV6), IPv6Address)
    ipv4 = _address(reader, table.get(_IPV4), IPv4Address)
    if not (ipv6 or ipv4):
        reader.refuse(table, "a NIC has an address", f"write {_IPV6} or {_IPV4}")
    netns = reader.word(table.get(_NETNS))
    mbits = _number(reader, table.get(_MBITS)) or 0
    return NIC(name, int(node) if node else None, ipv6, ipv4, netns, mbits)


def _address(reader: Reader, value: Value, kind: type[IPv4Address | IPv6Address]) -> str:
    written = reader.word(value)
    if not written:
        return ""
    try:
        return str(kind(written))
    except ValueError:
        reader.refuse(value, f"{written[:63]!r} is no such address", "write one, without a mask")
        return ""
