"""Fail where the branch coverage of a room's deciding modules lies below the floor."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import tomllib
from pathlib import Path

import coverage

FLOOR_PERCENT = 98
ROOT = Path(__file__).parents[1]


def main() -> int:
    """Print a line per room; 1 if the branches of one lie below the floor."""
    measured = coverage.Coverage()
    measured.combine(keep=True)
    measured.load()
    low = 0
    for room, include in deciding().items():
        lines, branches = percentages(measured, include)
        print(
            f"coverage of what decides in cpupool/{room}: "
            f"branches {branches:.1f} % (floor {FLOOR_PERCENT} %), lines {lines:.1f} %"
        )
        if branches < FLOOR_PERCENT:
            low += 1
            table = io.StringIO()
            measured.report(include=include, file=table)
            print(table.getvalue())
    return 1 if low else 0


def deciding() -> dict[str, list[str]]:
    """Give room → its files that decide without I/O: those of the import contract `pure`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (found for found in settings["contracts"] if found["id"] == "pure")
    found: dict[str, list[str]] = {}
    for module in contract["source_modules"]:
        path = ROOT / module.replace(".", "/")
        room = path if path.is_dir() else path.parent
        files = f"{path}/*" if path.is_dir() else f"{path}.py"
        found.setdefault(room.relative_to(ROOT / "cpupool").as_posix(), []).append(files)
    return found


def percentages(measured: coverage.Coverage, include: list[str]) -> tuple[float, float]:
    """Give the share of lines and of branches that ran, in percent.

    Coverage's own figure is of both together, and lines are far more than branches.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        measured.json_report(include=include, outfile=str(report))
        totals = json.loads(report.read_text())["totals"]
    lines = totals["covered_lines"] / totals["num_statements"]
    branches = totals["covered_branches"] / totals["num_branches"]
    return lines * 100, branches * 100


if __name__ == "__main__":
    sys.exit(main())
