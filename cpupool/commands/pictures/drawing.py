"""Draws a machine in the terminal: the only module that knows the drawing library.

Boxes stand for sockets, dies, NUMA nodes and L3 groups, a column of tiles for a core, a tile for a
CPU.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cpupool.commands.checks import cpu_checks, plugin_rows
from cpupool.commands.checks.findings import Verdict
from cpupool.commands.pictures import columns
from cpupool.commands.pictures.painting import LegendRow, Mark, paint, summary
from cpupool.commands.shell import door, reasons
from cpupool.core import visible
from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.names import ENABLE_SHARED_CPUS
from cpupool.core.orchestration import QoS
from cpupool.core.pools import PoolKind
from cpupool.core.topology import CoreType
from cpupool.policies.view import BEST_EFFORT, DEFAULT, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from cpupool.commands.checks.findings import Row
    from cpupool.commands.pictures.painting import Painting
    from cpupool.core.topology import CPUTopology
    from cpupool.manager.report import ContainerStatus, NodeStatus

_Item = TypeVar("_Item")

_SVG_COLUMNS: Final = 100
_COLOURS: Final = ("TERM", "COLORTERM", "NO_COLOR")
"""The variables that say which colours a terminal has."""
_BORDERS: Final = 4
"""The width that a box takes: two lines, and a blank next to each."""

_PLAIN: Final = Mark(" ", "#ffffff on #566072")
_OFFLINE: Final = Mark("x", "#8a8f98")
_QUIET: Final = "#8a8f98"
_VERDICTS: Final = {
    Verdict.OK: ("+", "green"),
    Verdict.WARNING: ("!", "bold yellow"),
    Verdict.PROBLEM: ("x", "bold red"),
    Verdict.UNSEEN: ("-", _QUIET),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A painted machine; printed on a rich console it takes the width that it is given.

    Attributes:
        topology: the machine.
        painting: how its CPUs are painted; those without a mark are plain.
    """

    topology: CPUTopology
    painting: Painting

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the machine and its legend."""
        sketch = _Sketch(self.topology, self.painting.marks)
        yield from (_text(line, "bold") for line in summary(self.topology))
        yield sketch.whole(options.max_width)
        yield _legend(self.topology, self.painting)


def node_containers(topology: CPUTopology, status: NodeStatus) -> Picture:
    """Draw the machine painted by container."""
    found = [(each, CPUSet.parse(each.found)) for each in status.containers]
    painting = paint(
        ((_label(container), cpus) for container, cpus in found),
        {_label(each): leaving for each, cpus in found if (leaving := each.leaving & cpus)},
    )
    return Picture(topology, painting)


def _label(container: ContainerStatus) -> str:
    """Return the name of a container for a legend; a sandbox has only the name of its pod."""
    of_pod = container.name.count("/") == 1 and not container.confined
    return f"{container.name} (sandbox)" if of_pod else container.name


def node_status(topology: CPUTopology, status: NodeStatus) -> RenderableType:
    """Draw the machine painted by container, and list the containers that want a look."""
    odd = [container for container in status.containers if container.odd]
    rows = [
        (
            container.name,
            container.found,
            str(container.wanted),
            container.reason or "not moved yet",
        )
        for container in odd
    ]
    listed = table(("container", "runs on", "belongs on", "why"), rows)
    return Group(
        _text(f"Enforcement: {status.enforcement.value}", "bold"),
        *([_text(f"nri: {status.nri}", "bold")] if status.nri else []),
        *(_text(f"{part.why}; {part.remedy}.", "bold") for part in status.withheld),
        node_containers(topology, status),
        *_pools(status),
        *_cpu_manager(status),
        *(_text(line, "bold") for line in reasons.in_progress(status)),
        *_plugins(status),
        _text(_verdict(status), "bold"),
        *([listed] if odd else []),
    )


def _verdict(status: NodeStatus) -> str:
    """Return how many containers are where they belong."""
    if status.waiting_for:
        return f"Nothing is touched yet: the agent waits for {status.waiting_for}."
    containers = status.containers
    right = sum(not container.astray for container in containers)
    confined = sum(container.confined for container in containers)
    verdict = f"{right} of {len(containers)} containers are where they belong."
    return f"{verdict} Confined to the default pool: {confined}." if confined else verdict


def _cpu_manager(status: NodeStatus) -> Iterator[RenderableType]:
    """List the CPUs that the CPU manager policy has given, and the pods that it could not serve."""
    manager = status.pools.cpu_manager
    if not manager.chooses:
        yield from _refused(status, "why")
        return
    owners = [found for found in status.containers if found.placement is Placement.POLICY]
    own = CPUSet.union(owner.exclusive | owner.leaving for owner in owners)
    yield _text(
        f"CPU manager: {manager.policy}; reserved CPUs: {status.reserved or 'none'};"
        f" CPUs with an owner: {own or 'none'}.",
        "bold",
    )
    if BEST_EFFORT in status.sets:
        yield from _classes(status, owners)
    if SYSTEM in status.sets:
        names = ", ".join(manager.system_pods.namespaces)
        yield _text(f"CPUs of system pods ({names}): {status.sets[SYSTEM] or 'none'}.", "bold")
    yield from (_text(f"{each[0].upper()}{each[1:]}.") for each in cpu_checks.bubbles(status))
    yield from (_text(f"The load leaves {name} {size}.") for name, size in status.sizes.items())
    yield from _refused(status, "why it has no CPUs of its own")


def _refused(status: NodeStatus, why: str) -> Iterator[RenderableType]:
    if status.refused:
        rows = [(pod.name, "held" if pod.held else "shares", pod.why) for pod in status.refused]
        yield table(("pod", "state", why), rows)


def _plugins(status: NodeStatus) -> Iterator[RenderableType]:
    """List the plugins for resources, and their answers about the node and containers."""
    if rows := list(plugin_rows.plugin_rows(status)):
        yield table(("resource", "plugin", "state"), rows)
    if rows := list(plugin_rows.node_rows(status)):
        yield table(("resource of the node", "amount", "state"), rows)
    if answers := list(plugin_rows.answer_rows(status)):
        yield table(("container", "resource", "answer", "state"), answers)


def _classes(status: NodeStatus, owners: Iterable[ContainerStatus]) -> Iterator[RenderableType]:
    """List the pods with CPUs of their own, the others that run there, and the other pods' CPUs."""
    rows = {
        owner.name.rpartition("/")[0]: (
            owner.qos,
            str(owner.exclusive),
            "no pod" if owner.qos == QoS.LSE.value else "best-effort pods",
        )
        for owner in owners
        if owner.name.count("/") == 2
    }
    if rows:
        titles = ("pod", "class", "CPUs of its own", "who else runs there")
        yield table(titles, [(pod, *cells) for pod, cells in rows.items()])
    shared, best_effort = status.sets[DEFAULT], status.sets[BEST_EFFORT]
    yield _text(f"Shared CPUs: {shared}; CPUs of best-effort pods: {best_effort}.", "bold")


def _pools(status: NodeStatus) -> Iterator[RenderableType]:
    """List the pools, and below them what pods still hold of pools that are no more."""
    shown = {pool.name: pool for pool in status.pools}
    if (behind := status.pools.behind(ENABLE_SHARED_CPUS)) is not None:
        shown[ENABLE_SHARED_CPUS] = behind
    rows = [
        (
            name,
            str(pool.cpus),
            str(status.free(pool)) or "none" if pool.kind is PoolKind.EXCLUSIVE else "",
            str(status.draining.get(name, "")),
        )
        for name, pool in shown.items()
    ]
    gone = [
        (name, "removed", "", str(devices))
        for name, devices in status.draining.items()
        if name not in shown
    ]
    if rows or gone:
        yield table(("pool", "CPUs", "free", "draining"), (*rows, *gone))


def checks(rows: Sequence[Row]) -> RenderableType:
    """List the checks, each with its verdict in a word, and the remedy below the fact."""
    return _Columns([_check_cells(row) for row in rows])


def _check_cells(row: Row) -> Sequence[Text]:
    symbol, style = _VERDICTS[row.verdict]
    fact = _text(row.fact)
    if row.remedy:
        style_below = _QUIET if row.verdict is Verdict.UNSEEN else "bold"
        fact.append(f"\n> {visible.line(row.remedy)}", style_below)
    return Text(symbol, style), Text(row.verdict.value, style), _text(row.check), fact


def _text(words: str, style: str = "") -> Text:
    """Return words from anywhere as one line; only this measures them as they are printed."""
    return Text(visible.line(words), style)


@dataclass(frozen=True, slots=True)
class _Harmless:
    """A picture whose words cannot command the terminal, whatever their source."""

    picture: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.picture, options):
            yield Segment(text if control else visible.lines(text), style, control)


def show(picture: RenderableType, out: TextIO) -> None:
    """Print a picture, in colour where `out` is a terminal that has some."""
    Console(file=door.behind(out), highlight=False).print(_Harmless(picture))


def terminal(out: TextIO) -> dict[str, str]:
    """Return the variables with which a process without a terminal draws in the form for `out`."""
    console = Console(file=out)
    drawn = {"COLUMNS": str(console.width)}
    if console.is_terminal:
        named = {name: os.environ[name] for name in _COLOURS if name in os.environ}
        drawn |= {"FORCE_COLOR": "1", **named}
    return drawn


@contextmanager
def progress(title: str, total: int, out: TextIO) -> Iterator[Callable[[], None]]:
    """Show a bar while something long runs, and take it away at the end.

    Args:
        title: the name of the work.
        total: of how many steps it consists.
        out: a terminal.

    Yields:
        what to call after each step.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(file=door.behind(out))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def export_svg(picture: RenderableType, path: Path, title: str) -> None:
    """Write a picture as SVG, at most 100 columns wide.

    Raises:
        HostFileError: the file cannot be written.
    """
    harmless = _Harmless(picture)
    lines = _recorder(_SVG_COLUMNS).render_lines(harmless, pad=False)
    used = max(len("".join(segment.text for segment in line).rstrip()) for line in lines)
    console = _recorder(used)
    console.print(harmless)
    # Without the web fonts: the viewer of a picture asks no other host for anything.
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)
    try:
        path.write_text(svg, "utf-8")
    except OSError as error:
        raise HostFileError(
            str(path), error.strerror or str(error), "name a file that can be written"
        ) from error


def _recorder(width: int) -> Console:
    return Console(
        file=io.StringIO(),
        record=True,
        width=width,
        highlight=False,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Something drawn, with its size in columns and lines."""

    content: RenderableType
    width: int
    height: int
    title: str = ""

    def boxed(self, width: int, height: int) -> Panel:
        return Panel(
            self.content,
            title=_text(self.title, _QUIET),
            title_align="left",
            box=ROUNDED,
            border_style=_QUIET,
            width=width,
            height=height,
        )


_Level = list[tuple[str, CPUSet]]
"""One way to divide the machine: the title and the CPUs of each part."""


class _Sketch:
    """Lays out one machine."""

    def __init__(self, topology: CPUTopology, marks: Mapping[int, Mark]) -> None:
        self._topology = topology
        self._marks = marks
        self._digits = max(len(str(cpu)) for cpu in topology.present)

    def whole(self, width: int) -> RenderableType:
        """Lay the machine out."""
        levels = _levels(self._topology)
        machine = self._contents(self._topology.online, levels, width)
        drawn = CPUSet.union(self._topology.core_of(cpu) for cpu in self._topology.online)
        lost = self._topology.present - drawn
        if not lost:
            return machine.content
        offline = self._tiles([CPUSet.of(cpu) for cpu in lost], width - _BORDERS, "offline")
        fitting = max(machine.width, offline.width + _BORDERS)
        return Group(machine.content, offline.boxed(fitting, offline.height + 2))

    def _contents(self, cpus: CPUSet, levels: Sequence[_Level], width: int) -> _Block:
        if not levels:
            cores = dict.fromkeys(self._topology.cpus[cpu].core for cpu in cpus)
            threads = [self._topology.core_of(self._topology.cores[core].first) for core in cores]
            return self._tiles(threads, width)
        level, *deeper = levels
        return _side_by_side(
            [self._box(title, part, deeper, width) for title, part in _parts(level, cpus)], width
        )

    def _box(self, title: str, cpus: CPUSet, levels: Sequence[_Level], width: int) -> _Block:
        # A level that has one part only in here shares the box.
        while levels and len(parts := _parts(levels[0], cpus)) == 1:
            title = f"{title}, {parts[0][0]}"
            levels = levels[1:]
        inside = self._contents(cpus, levels, width - _BORDERS)
        fitting = max(inside.width + _BORDERS, min(width, len(title) + 6))
        return _Block(inside.content, fitting, inside.height + 2, title)

    def _tiles(self, cores: Sequence[CPUSet], width: int, title: str = "") -> _Block:
        tile = self._digits + 3
        rows = list(_rows(cores, tile, width))
        lines: list[Text] = []
        for row in rows:
            tallest = max(len(core) for core in row)
            columns = [[self._tile(cpu) for cpu in core] for core in row]
            blank = Text(" " * tile)
            # A blank line parts the cores of two rows, which would look like one otherwise.
            lines += [Text()] if lines and tallest > 1 else []
            lines += [
                Text(" ").join(column[line] if line < len(column) else blank for column in columns)
                for line in range(tallest)
            ]
        return _Block(Group(*lines), len(rows[0]) * (tile + 1) - 1, len(lines), title)

    def _tile(self, cpu: int) -> Text:
        mark = self._marks.get(cpu, _PLAIN) if cpu in self._topology.online else _OFFLINE
        return Text(f" {cpu:>{self._digits}}{mark.symbol} ", mark.style)


def _levels(topology: CPUTopology) -> list[_Level]:
    """Return the ways to divide the machine, the coarsest first."""
    infos = topology.cpus

    def socket(cpus: CPUSet) -> int:
        known = infos[cpus.first]
        return known.socket if known.package_id is None else known.package_id

    levels: list[_Level] = [
        [(f"socket {socket(cpus)}", cpus) for cpus in topology.sockets],
        [(f"die {infos[cpus.first].die_id}", cpus) for cpus in topology.dies],
        [(f"NUMA node {node}", cpus) for node, cpus in topology.nodes.items() if cpus],
        [(f"L3 {number}", cpus) for number, cpus in enumerate(topology.l3)],
    ]
    ordered = sorted((level for level in levels if level), key=len)
    kinds = [
        (f"{kind.value} cores", CPUSet(cpu for cpu in infos if infos[cpu].core_type is kind))
        for kind in CoreType
    ]
    used_kinds = [(title, cpus) for title, cpus in kinds if cpus]
    return [*ordered, used_kinds] if len(used_kinds) > 1 else ordered


def _parts(level: _Level, cpus: CPUSet) -> _Level:
    """Divide some CPUs; those that the level leaves out come last."""
    parts = [(title, inside) for title, group in level if (inside := group & cpus)]
    rest = cpus - CPUSet.union(part for _, part in parts)
    kind = level[0][0].rpartition(" ")[0]
    return [*parts, (f"no {kind}", rest)] if rest else parts


def _side_by_side(boxes: Sequence[_Block], width: int) -> _Block:
    unit = max(box.width for box in boxes)
    grid = Table.grid(padding=(0, 1, 0, 0))
    height = 0
    for row in _rows(boxes, unit, width):
        tallest = max(box.height for box in row)
        grid.add_row(*(box.boxed(unit, tallest) for box in row))
        height += tallest
    return _Block(grid, len(grid.columns) * (unit + 1) - 1, height)


def _rows(items: Sequence[_Item], unit: int, width: int) -> Iterable[Sequence[_Item]]:
    """Break items of one width into rows of nearly the same length."""
    most = max(1, (width + 1) // (unit + 1))
    length = ceil(len(items) / ceil(len(items) / most))
    return (items[start : start + length] for start in range(0, len(items), length))


def _legend(topology: CPUTopology, painting: Painting) -> RenderableType:
    rows = list(painting.legend)
    if rows:
        unmarked = topology.online - CPUSet(painting.marks)
        rows.append(LegendRow(_PLAIN, "none of these", unmarked))
    rows.append(LegendRow(_OFFLINE, "offline", topology.present - topology.online))
    return _Columns(
        [
            (
                Text(f" {row.mark.symbol} ", row.mark.style),
                _text(row.name),
                _text(str(row.cpus)),
                _text(row.note, _QUIET),
            )
            for row in rows
            if row.cpus
        ]
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """Lay out rows of plain text below their titles."""
    return _Columns([tuple(map(_text, row)) for row in rows], titles)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Rows of texts that share the width that they are given; titles may stand above."""

    rows: Sequence[Sequence[Text]]
    titles: Sequence[str] = ()

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        plain = [[cell.plain for cell in row] for row in self.rows]
        texts = [self.titles, *plain] if self.titles else plain
        between = 2 * max(0, len(texts[0]) - 1) if texts else 0
        widths = columns.widths(texts, options.max_width - between)
        drawn = Table.grid(padding=(0, 2, 0, 0))
        if self.titles:
            drawn = Table(
                box=SIMPLE_HEAD,
                header_style="bold",
                show_edge=False,
                pad_edge=False,
                padding=(0, 1, 0, 0),
            )
        titles = self.titles or [""] * len(widths)
        for title, width in zip(titles, widths, strict=True):
            drawn.add_column(_broken(Text(title), width), overflow="fold")
        for row in self.rows:
            drawn.add_row(*map(_broken, row, widths))
        yield drawn


def _broken(text: Text, width: int) -> Text:
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        *broken, last = line.divide(columns.breaks(line.plain, width))
        for piece in broken:
            piece.rstrip()
        lines += [*broken, last]
    return Text("\n").join(lines)
