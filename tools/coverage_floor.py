"""Fail where the branch coverage of a package that decides lies below its floor."""

from __future__ import annotations

import io
import sys

import coverage

FLOORS_PERCENT = {"core": 98, "policies": 98, "config": 98, "wire": 98}


def main() -> int:
    """Print a line per package; 1 if one lies below its floor."""
    measured = coverage.Coverage()
    measured.combine(keep=True)
    measured.load()
    low = 0
    for package, floor in FLOORS_PERCENT.items():
        table = io.StringIO()
        percent = measured.report(include=[f"*/cpupool/{package}/*"], file=table)
        print(f"coverage of cpupool/{package}: {percent:.1f} % (floor {floor} %)")
        if percent < floor:
            low += 1
            print(table.getvalue())
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
