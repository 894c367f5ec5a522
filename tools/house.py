"""Draw the package as a house, with what a reader meets in it: `make house`.

It informs, and sets no limits: what must hold is a contract in `pyproject.toml` or a test.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tools.survey import MOST_ARGUMENTS, layers_of, survey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from tools.survey import Sized, Survey

ROOT: Final = Path(__file__).parents[1]
_SHOWN: Final = 15
_BAR: Final = 40
"""The width of the largest room's bar."""
_NARROWEST: Final = 110
"""The columns that the arrows need."""
_QUIET: Final = "bright_black"


def draw(house: Survey, walks: Mapping[str, Sequence[str]]) -> Iterator[RenderableType]:
    """Draw the parts of a survey, each with its definition."""
    yield _titled(
        "Rooms",
        "A room is a folder of the package, highest layer first; lines and modules are those of its"
        " own and of the folders in it, without generated code and `__init__`.",
        _rooms(house),
    )
    yield _titled(
        f"Arrows: {len(house.arrows)} between rooms; {len(house.upward)} upward,"
        f" {len(house.circles)} circles",
        "A number counts the pairs of modules of which the row's imports the column's, imports for"
        " types included. An arrow is upward where the layers do not allow it, a circle is a set of"
        " modules that import each other at run time; both must be 0.",
        _arrows(house),
        *(Text(" <-> ".join(circle), "bold red") for circle in house.circles),
    )
    yield _sizes("Modules", "Lines of a file, all of them.", "lines", house.modules)
    yield _sizes("Classes", "Lines of a class, with its decorators.", "lines", house.classes)
    yield _sizes(
        f"Constructors: {len(house.long_constructors)} with more than {MOST_ARGUMENTS} arguments",
        "Arguments of `__init__` without self, or fields of a dataclass that it takes; plain"
        " values, which are frozen dataclasses and named tuples, are left out.",
        "arguments",
        house.constructors,
    )
    yield _named(
        "Koordinator's words",
        'Files whose paths do not say "koordinator", with "koord" in any case.',
        house.koordinator,
    )
    yield _named(
        "The QRM's words",
        "Files outside qrm/, plugins/ and policies/qrm/ with QRM, Katalyst, resource plugin or QoS"
        " Resource Manager, in any case.",
        house.qrm,
    )
    yield _named(
        "Policies asked by name",
        "Places outside policies/ that compare with a policy's constant or class, have a case of"
        " one, or a table by them; settings of the kubelet, named so, are left out.",
        house.by_name,
    )
    for name, modules in walks.items():
        yield _named(
            f"Walk: {name}",
            "Modules of which the role's thread enters a function, from the cause until the agent"
            " rests (tools/walks.py).",
            [module.removeprefix("cpupool.") for module in modules],
        )


def _titled(title: str, definition: str, *parts: RenderableType) -> RenderableType:
    return Group(Text(title, "bold"), Text(definition, _QUIET), *parts, "")


def _table(*titles: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left", no_wrap=True)
    return table


def _rooms(house: Survey) -> Table:
    table = _table("room", "modules", "lines", "", numbers=("modules", "lines"))
    names = {room.name for room in house.rooms}
    order = [name for layer in ("", *house.layers) for name in sorted(names) if _in(name, layer)]
    inside = {
        name: [room for room in house.rooms if room.name == name or (name and _in(room.name, name))]
        for name in order
    }
    lines = {name: sum(room.lines for room in rooms) for name, rooms in inside.items()}
    for name in order:
        depth, _, last = name.count("/"), *name.rpartition("/")[1:]
        table.add_row(
            f"{'  ' * depth}{last}/" if name else "the files beside them",
            str(sum(room.modules for room in inside[name])),
            str(lines[name]),
            Text(
                "█" * round(_BAR * lines[name] / max(lines.values())), _QUIET if depth else "blue"
            ),
        )
    return table


def _in(room: str, top: str) -> bool:
    """Return whether a room is another one, or lies in it; the package is in no room."""
    return room == top or (bool(top) and room.startswith(f"{top}/"))


def _arrows(house: Survey) -> Table:
    """Draw the imports between rooms: the allowed ones lie right of the diagonal."""
    imports = {(arrow.importer, arrow.imported): arrow for arrow in house.arrows}
    numbers = [str(number) for number, _ in enumerate(house.layers, 1)]
    table = _table("", "room", *numbers, numbers=("", *numbers))
    table.padding = (0, 1, 0, 0)
    for number, importer in zip(numbers, house.layers, strict=True):
        cells = []
        for imported in house.layers:
            arrow = imports.get((importer, imported))
            if arrow is None:
                cells.append(Text("■" if importer == imported else "·", _QUIET))
            else:
                cells.append(Text(str(arrow.imports), "bold red" if arrow.upward else ""))
        table.add_row(number, importer, *cells)
    return table


def _sizes(title: str, definition: str, unit: str, found: Sequence[Sized]) -> RenderableType:
    table = _table(unit, "", numbers=(unit,))
    for sized in found[:_SHOWN]:
        table.add_row(str(sized.size), sized.name)
    return _titled(title, definition, table)


def _named(title: str, definition: str, names: Sequence[str]) -> RenderableType:
    listed = Columns(names, padding=(0, 2), column_first=True)
    return _titled(f"{title}: {len(names)}", definition, listed)


def main() -> int:
    """Draw the house, or print it as JSON."""
    parser = argparse.ArgumentParser(prog="make house", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--walks", action="store_true", help="trace three walks of the agent, too")
    given = parser.parse_args()
    house = survey(ROOT / "cpupool", layers_of(ROOT / "pyproject.toml"))
    found: Mapping[str, Sequence[str]] = {}
    if given.walks:
        from tools.walks import walks  # noqa: PLC0415 - it loads the agent

        found = walks()
    if given.json:
        print(json.dumps({**asdict(house), "walks": found}, indent=2))
    else:
        console = Console(highlight=False, markup=False)
        console.width = max(console.width, _NARROWEST)
        console.print(*draw(house, found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
