"""Draw the house in `docs/architecture.md`: `make picture`, or `python -m docs.house`.

The floors are those of the import contract `layers`, the words those of each room's sign, which is
the docstring of its `__init__.py`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/architecture.md"
_PACKAGE: Final = ROOT / "cpupool"
_LINES: Final = ("deciding", "pure")
"""Contracts that bind whole floors: a line of the picture has the name of each."""
_WIDTH: Final = 98
_DRAWN: Final = re.compile(r"(?<=<!-- python -m docs\.house -->\n)```text\n.*?```\n", re.DOTALL)


def draw() -> str:
    """Return the picture: a floor for each layer, the highest first."""
    contracts = {one["id"]: one for one in _read()}
    floors = [
        [room for room in layer.split(" | ") if (_PACKAGE / room).is_dir()]
        for layer in contracts["layers"]["layers"]
    ]
    floors = [rooms for rooms in floors if rooms]
    bound = {name: _bound(contracts[name]["source_modules"]) for name in _LINES}
    lines = list(_floors(floors, bound, {name: contracts[name]["name"] for name in _LINES}))
    return "\n".join([_rule("┌", "", "┐"), *lines, _rule("└", "", "┘")])


def updated(page: str) -> str:
    """Return the page with the picture as it is now."""
    return _DRAWN.sub(f"```text\n{draw()}\n```\n", page)


def write() -> None:
    """Put the picture into the page."""
    PAGE.write_text(updated(PAGE.read_text()))


def _read() -> Sequence[Mapping[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: Sequence[Mapping[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def _bound(modules: Collection[str]) -> frozenset[str]:
    """Return the rooms among modules."""
    names = (module.split(".") for module in modules)
    return frozenset(parts[1] for parts in names if len(parts) == 2)


def _floors(
    floors: Sequence[Sequence[str]], bound: Mapping[str, frozenset[str]], names: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines between roof and ground."""
    begun: list[str] = []
    for number, rooms in zip(range(len(floors), 0, -1), floors, strict=True):
        for name, among in bound.items():
            if name not in begun and not among.isdisjoint(rooms):
                begun.append(name)
                yield _rule("├", f" {names[name]} ", "┤")
        for at, room in enumerate(rooms):
            free = "*" if any(room not in bound[name] for name in begun) else ""
            floor = "" if at else str(number)
            yield f"{floor:>2} │ {room + free:<11} {_sign(room):<{_WIDTH - 14}} │"


def _rule(left: str, text: str, right: str) -> str:
    return f"   {left}{text:─^{_WIDTH}}{right}"


def _sign(room: str) -> str:
    """Return what a room's sign says first, and the rooms in it."""
    sign = ast.get_docstring(ast.parse((_PACKAGE / room / "__init__.py").read_text())) or ""
    first = re.split(r"[.:;,](?:\s|$)", sign, maxsplit=1)[0]
    inner = sorted(path.parent.name for path in (_PACKAGE / room).glob("*/__init__.py"))
    return f"{first} ({', '.join(inner)})" if inner else first


if __name__ == "__main__":
    write()
