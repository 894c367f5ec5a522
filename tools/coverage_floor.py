"""Fail where the branch coverage of a package that decides lies below its floor."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path

import coverage

FLOORS_PERCENT = {"core": 98, "policies": 98, "config": 98, "wire": 98, "admission": 98}


def main() -> int:
    """Print a line per package; 1 if the branches of one lie below their floor."""
    measured = coverage.Coverage()
    measured.combine(keep=True)
    measured.load()
    low = 0
    for package, floor in FLOORS_PERCENT.items():
        include = [f"*/cpupool/{package}/*"]
        lines, branches = percentages(measured, include)
        print(
            f"coverage of cpupool/{package}: "
            f"branches {branches:.1f} % (floor {floor} %), lines {lines:.1f} %"
        )
        if branches < floor:
            low += 1
            table = io.StringIO()
            measured.report(include=include, file=table)
            print(table.getvalue())
    return 1 if low else 0


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
