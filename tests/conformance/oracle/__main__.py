"""Runs the suites over folders of recordings: a line per file, exit 1 on any difference."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import CPUPoolError
from tests.conformance.oracle import (
    best_effort,
    cpu_hints,
    pod_fingerprint,
    share_pools,
    static_policy,
    take_by_topology,
    take_cpus,
    topology_merge,
)
from tests.conformance.oracle.verdicts import (
    TOPOLOGIES,
    BrokenRecording,
    Verdict,
    read_cases,
    read_machines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.conformance.oracle.verdicts import Suite

_SUITES: Final[Mapping[str, Suite | None]] = {
    "be_quota.jsonl.gz": best_effort.check_quota,
    "be_select.jsonl.gz": best_effort.check_order,
    "be_suppress_cpus.jsonl.gz": best_effort.check_cpus,
    "container_cpuset.jsonl.gz": None,
    "cpu_hints.jsonl.gz": cpu_hints.check,
    "numa_merge.jsonl.gz": None,
    "pod_fingerprint.jsonl.gz": pod_fingerprint.check,
    "scheduling.jsonl.gz": None,
    "share_pools.jsonl.gz": share_pools.check,
    "static_policy.jsonl.gz": static_policy.check,
    "take_by_topology.jsonl.gz": take_by_topology.check,
    "take_cpus.jsonl.gz": take_cpus.check,
    "topology_merge.jsonl.gz": topology_merge.check,
}
"""A recording's file name → what judges its cases; None where cpupool has no answer to compare."""

_EXCEPTED: Final = tuple(v for v in Verdict if v not in (Verdict.EQUAL, Verdict.DIFFERENT))
_MISFITS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What values of the wrong kind end in: exit 1 is for differences, so it is none of these."""
_SHOWN: Final = 10
_SHOWN_CHARACTERS: Final = 500


@dataclass(slots=True)
class Outcome:
    """How a file's cases were answered.

    Attributes:
        file: its name.
        judged: whether there is a suite for it.
        verdicts: how many cases each verdict has.
        differences: the first ten, each with its file and line.
        slowest_ms: the longest time that one case took.
    """

    file: str
    judged: bool = True
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0

    @property
    def different(self) -> int:
        """How many cases differ from the recording without an excuse."""
        return self.verdicts[Verdict.DIFFERENT]


def run_file(file: Path) -> Outcome:
    """Judge all cases of a file, if there is a suite for it.

    Raises:
        BrokenRecording: the file is unknown, or it is not what the suite expects, or empty.
    """
    if file.name not in _SUITES:
        raise BrokenRecording(f"{file}: no suite knows this file, only {', '.join(_SUITES)}")
    suite = _SUITES[file.name]
    if suite is None:
        return Outcome(file.name, judged=False)
    machines = read_machines(file.parent)
    outcome = Outcome(file.name)
    for where, case in read_cases(file):
        started = time.perf_counter()
        try:
            verdict, difference = suite(case, machines)
        except (BrokenRecording, CPUPoolError) as error:
            raise BrokenRecording(f"{where}: {error}") from error
        except _MISFITS as error:
            what = f"cannot be judged: {type(error).__name__}: {error}"
            raise BrokenRecording(f"{where}: {what}") from error
        outcome.slowest_ms = max(outcome.slowest_ms, (time.perf_counter() - started) * 1000)
        outcome.verdicts[verdict] += 1
        if verdict is Verdict.DIFFERENT and len(outcome.differences) < _SHOWN:
            outcome.differences.append(f"{where}: {difference[:_SHOWN_CHARACTERS]}")
    if not outcome.verdicts:
        raise BrokenRecording(f"{file}: has no cases")
    return outcome


def files_in(folder: Path) -> list[Path]:
    """List a folder's files of cases.

    Raises:
        BrokenRecording: there are none.
    """
    found = sorted(file for file in folder.glob("*.jsonl.gz") if file.name != TOPOLOGIES)
    if not found:
        raise BrokenRecording(f"{folder}: is no folder with recordings (*.jsonl.gz)")
    return found


def _table(outcomes: list[Outcome]) -> Iterator[str]:
    names = [*(verdict.value for verdict in _EXCEPTED), Verdict.DIFFERENT.value]
    yield f"{'file':27}  cases  equal  {'  '.join(names)}  slowest ms"
    for outcome in outcomes:
        if not outcome.judged:
            yield f"{outcome.file:27}  not judged"
            continue
        counts = (outcome.verdicts[verdict] for verdict in (*_EXCEPTED, Verdict.DIFFERENT))
        cells = (f"{count:>{len(name)}}" for count, name in zip(counts, names, strict=True))
        yield (
            f"{outcome.file:27}  {outcome.verdicts.total():5}"
            f"  {outcome.verdicts[Verdict.EQUAL]:5}  {'  '.join(cells)}  {outcome.slowest_ms:10.1f}"
        )
        yield from (f"  {difference}" for difference in outcome.differences)


def _object(outcome: Outcome) -> dict[str, Any]:
    return {
        "file": outcome.file,
        "judged": outcome.judged,
        "cases": outcome.verdicts.total(),
        "equal": outcome.verdicts[Verdict.EQUAL],
        "excepted": {verdict.value: outcome.verdicts[verdict] for verdict in _EXCEPTED},
        "different": outcome.different,
        "differences": outcome.differences,
        "slowest_ms": round(outcome.slowest_ms, 1),
    }


def main(arguments: Sequence[str]) -> int:
    """Run with the command line's arguments.

    Returns:
        0 if every case is equal or excepted, 1 if one differs, 2 if a recording cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.oracle", description=__doc__)
    parser.add_argument("folders", metavar="DIR", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print a JSON array, not a table")
    options = parser.parse_args(arguments)
    try:
        outcomes = [run_file(file) for folder in options.folders for file in files_in(folder)]
    except BrokenRecording as error:
        print(error, file=sys.stderr)  # noqa: T201  # a command's own output
        return 2
    if options.json:
        text = json.dumps([_object(outcome) for outcome in outcomes], indent=2)
    else:
        text = "\n".join(_table(outcomes))
    print(text)  # noqa: T201
    return 1 if any(outcome.different for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
