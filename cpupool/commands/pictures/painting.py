"""Decides how each CPU of a picture is painted: a letter and a style per pool, or per container.

A letter next to the CPU's id keeps the picture readable without colour.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import cycle
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Final

from cpupool.core import default_pool
from cpupool.core.cpuset import CPUSet, format_ids
from cpupool.core.pools import HyperThreadingPolicy, PoolKind
from cpupool.policies.view import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

# Dark for what has one owner, light for what is shared: the kinds differ by more than hue. Each
# dark colour has a tint for idle CPUs next to their owner's.
_OWNED: Final = (
    ("#ffffff on #0b61a4", "#000000 on #a8cdea"),
    ("#ffffff on #9c3413", "#000000 on #f0bfa9"),
    ("#ffffff on #5b3a94", "#000000 on #cdbfe6"),
    ("#ffffff on #0a6b52", "#000000 on #a6d8c8"),
)
_SHARED: Final = (
    "#000000 on #f2c230",
    "#000000 on #86d0f2",
    "#000000 on #ef9a4a",
    "#000000 on #e8a4c9",
)
_DEFAULT: Final = "#000000 on #c3c7cc"
_OVERLAP: Final = "bold #000000 on #ffffff"
_LEAVING: Final = "-"


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark with which a CPU is painted.

    Attributes:
        symbol: one character next to its id.
        style: a rich style for its tile.
    """

    symbol: str
    style: str


@dataclass(frozen=True, slots=True)
class LegendRow:
    """The meaning of a mark.

    Attributes:
        mark: the mark.
        name: the owner of the CPUs.
        cpus: all of them.
        note: how they are used.
    """

    mark: Mark
    name: str
    cpus: CPUSet
    note: str = ""


@dataclass(frozen=True, slots=True)
class Painting:
    """A painted machine, ready to be drawn.

    Attributes:
        marks: CPU id → its mark; CPUs that are in nothing have none.
        legend: the meaning of the marks.
    """

    marks: Mapping[int, Mark] = field(default_factory=dict)
    legend: Sequence[LegendRow] = ()


def paint_pools(pools: NodePools, topology: CPUTopology) -> Painting:
    """Paint every CPU by its pool; siblings of exclusive CPUs in the small letter of theirs."""
    letters, owned, shared = cycle(ascii_uppercase), cycle(_OWNED), cycle(_SHARED)
    system = pools.cpu_manager.system_pods
    rows: list[LegendRow] = []
    for pool in pools.on(topology.present):
        letter = next(letters)
        if pool.kind is PoolKind.EXCLUSIVE:
            style, tint = next(owned)
            reserved = f", {pool.policy.reserved} reserved" if pool.policy.reserved else ""
            note = f"one owner each{reserved}"
            rows.append(LegendRow(Mark(letter, style), pool.name, pool.cpus, note))
            granted = pool.hyper_threading is HyperThreadingPolicy.MULTI_THREADED
            rows.append(
                LegendRow(
                    Mark(letter.lower(), style if granted else tint),
                    f"{pool.name}, siblings",
                    pool.reach(topology) - pool.cpus,
                    "granted along" if granted else "kept idle",
                )
            )
        else:
            style = next(shared) if pool.kind is PoolKind.SHARED else _DEFAULT
            rest = pool.cpus - system.cpus
            rows.append(LegendRow(Mark(letter, style), pool.name, rest, pool.kind.value))
    if not pools.of_kind(PoolKind.DEFAULT):
        rows.append(
            LegendRow(
                Mark(next(letters), _DEFAULT),
                "in no pool",
                default_pool.declared(pools, topology) - system.cpus,
                "used as the default pool",
            )
        )
    note = f"only pods of {', '.join(system.namespaces)}"
    rows.append(LegendRow(Mark(next(letters), next(shared)), SYSTEM, system.cpus, note))
    return _resolve(rows)


def paint(
    groups: Iterable[tuple[str, CPUSet]], leaving: Mapping[str, CPUSet] | None = None
) -> Painting:
    """Paint CPUs by named groups; groups of the same CPUs share a mark.

    Args:
        groups: names and CPUs.
        leaving: name → those of its CPUs that it leaves: they keep its colour.
    """
    leaving, names = leaving or {}, defaultdict[CPUSet, list[str]](list)
    for name, cpus in groups:
        names[cpus - leaving.get(name, CPUSet())].append(name)
    styles = cycle(
        style for (dark, _), light in zip(_OWNED, _SHARED, strict=True) for style in (dark, light)
    )
    letters = cycle(ascii_uppercase + ascii_lowercase)
    rows = []
    for cpus, named in names.items():
        mark = Mark(next(letters), next(styles))
        rows.append(LegendRow(mark, _listed(named), cpus))
        rows += (
            LegendRow(Mark(_LEAVING, mark.style), name, leaving[name], "leaving")
            for name in named
            if name in leaving
        )
    return _resolve(rows)


def summary(topology: CPUTopology) -> Iterator[str]:
    """Yield the lines above a picture: how many CPUs a machine has, and which are special."""
    counts = [
        (len(topology.online), "CPU online", "CPUs online"),
        (len(topology.cores), "core", "cores"),
        (len(topology.sockets), "socket", "sockets"),
        (len(topology.nodes), "NUMA node", "NUMA nodes"),
        (len(topology.l3), "L3 cache", "L3 caches"),
    ]
    yield ", ".join(
        f"{count} {singular if count == 1 else plural}"
        for count, singular, plural in counts
        if count
    )
    if without := format_ids(node for node, cpus in topology.nodes.items() if not cpus):
        yield f"NUMA nodes without CPUs: {without}"
    if topology.isolated:
        yield f"isolated from the scheduler (isolcpus): {topology.isolated}"


def _resolve(rows: Sequence[LegendRow]) -> Painting:
    """Map each CPU to the mark of its row, and CPUs of several rows to a separate mark."""
    rows_of: defaultdict[int, list[LegendRow]] = defaultdict(list)
    for row in rows:
        for cpu in row.cpus:
            rows_of[cpu].append(row)
    owners: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for cpu, several in sorted(rows_of.items()):
        if len(several) > 1:
            owners[tuple(row.name for row in several)].append(cpu)
    symbols = cycle("+*#%&@")
    overlaps = [
        LegendRow(Mark(next(symbols), _OVERLAP), " + ".join(names), CPUSet(cpus), "in all of these")
        for names, cpus in owners.items()
    ]
    # A CPU has the last of its marks: that of the overlap.
    shown = [row for row in (*rows, *overlaps) if row.cpus]
    return Painting({cpu: row.mark for row in shown for cpu in row.cpus}, shown)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
