"""All output passes one door, `commands/shell/door.py`; JSON comes in by one reader."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[2] / "cpupool"
STREAMS = {
    "commands/admit.py": "warns on standard error, through the door",
    "cli.py": "puts the door before them, and says errors through it",
    "commands/shell/archive.py": "writes an archive, to no terminal",
    "commands/shell/door.py": "the door",
    "commands/import_profile.py": "says on standard error what is left to do, through the door",
    "commands/simulate.py": "shows its progress on standard error",
    "commands/status.py": "passes on what another cpupool has said on standard error",
    "telemetry/log.py": "a line is escaped before it is written, also where there is no door",
}
"""The modules that may name standard output or standard error, and why."""
BEHIND = {
    "commands/shell/door.py": "the door",
    "commands/pictures/drawing.py": "a picture has colours of its own; _Harmless is its door",
    "commands/status.py": "a picture of another cpupool",
}
"""The modules that may go past the door, and why."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("api/"):
            yield name, ast.parse(path.read_text())


def dotted(node: ast.AST) -> str:
    """Return `a.b` of an attribute of a name; empty for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def users(*names: str) -> set[str]:
    """Return the modules that use an attribute of a module, or import it by its name."""
    found = set()
    for module, tree in modules():
        for node in ast.walk(tree):
            imported = isinstance(node, ast.ImportFrom) and {
                f"{node.module}.{each.name}" for each in node.names
            }
            if dotted(node) in names or (imported and imported & set(names)):
                found.add(module)
    return found


def calls(name: str) -> set[str]:
    return {
        module
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def test_nothing_prints_beside_the_door() -> None:
    assert calls("print") == set()
    assert users("sys.stdout", "sys.stderr") == STREAMS.keys()
    assert users("sys.__stdout__", "sys.__stderr__", "os.writev") == set()
    # A console prints where it is told to: only the module that draws has one.
    assert calls("Console") == {"commands/pictures/drawing.py"}


def test_only_a_picture_goes_past_the_door() -> None:
    assert users("door.behind", "door.write_picture") | {"commands/shell/door.py"} == BEHIND.keys()


def test_json_comes_in_by_one_reader() -> None:
    assert users("json.loads", "json.load", "json.JSONDecoder") == {"wire/json_text.py"}
