"""No file and no class is longer than a reader keeps in mind."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MODULE_LINES = 500
CLASS_LINES = 300
LONGER = {
    "cpupool/manager/manager.py::Manager": "one lock, one state",
}
"""What may be longer, and why."""


def sources() -> Iterator[Path]:
    for package in ("cpupool", "tests", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            if ROOT / "cpupool/api" not in path.parents and not path.stem.endswith("_pb2"):
                yield path


def lengths(path: Path) -> Iterator[tuple[str, int, int]]:
    """Give the file and its classes, with decorators: name, lines, how many it may have."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    lines = len(text.splitlines())
    yield name, lines, MODULE_LINES
    if lines <= CLASS_LINES:
        return  # so are its classes
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            yield f"{name}::{node.name}", node.end_lineno - first + 1, CLASS_LINES


def test_only_what_has_a_reason_is_longer() -> None:
    found = {
        name: lines for path in sources() for name, lines, most in lengths(path) if lines > most
    }

    assert found.keys() == LONGER.keys(), found
