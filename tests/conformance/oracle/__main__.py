"""Runs the suites over folders of recordings: a line per file, exit 1 on any difference."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import CPUPoolError
from tests.conformance.oracle import (
    best_effort,
    binding_hints,
    container_cpuset,
    cpu_hints,
    katalyst_cpus,
    katalyst_merge,
    load_sizes,
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
    Suite,
    Verdict,
    read_cases,
    read_machines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_Suites = Mapping[str, Suite | None]

_SUITES: Final[Mapping[str, _Suites]] = {
    "kubelet": {
        "cpu_hints.jsonl.gz": cpu_hints.check,
        "static_policy.jsonl.gz": static_policy.check,
        "take_by_topology.jsonl.gz": take_by_topology.check,
        "topology_merge.jsonl.gz": topology_merge.check,
    },
    "koordinator": {
        "be_quota.jsonl.gz": best_effort.check_quota,
        "be_select.jsonl.gz": best_effort.check_order,
        "be_suppress_cpus.jsonl.gz": best_effort.check_cpus,
        "container_cpuset.jsonl.gz": container_cpuset.check,
        "numa_merge.jsonl.gz": None,
        "pod_fingerprint.jsonl.gz": pod_fingerprint.check,
        "scheduling.jsonl.gz": None,
        "share_pools.jsonl.gz": share_pools.check,
        "take_cpus.jsonl.gz": take_cpus.check,
    },
    "katalyst": {
        "cpu_hints.jsonl.gz": binding_hints.check_cpu,
        "memory_hints.jsonl.gz": binding_hints.check_memory,
        "pid.jsonl.gz": load_sizes.check_controller,
        "pool_sizes.jsonl.gz": load_sizes.check_sizes,
        "regulator.jsonl.gz": load_sizes.check_regulator,
        "take_cpus.jsonl.gz": katalyst_cpus.check,
        "topology_merge.jsonl.gz": katalyst_merge.check,
    },
}
"""The recorded program, a word of the folder's name → a recording's file name → what judges its
cases; None where cpupool has no answer to compare."""
_AS_KOORDINATOR: Final[_Suites] = {
    "container_cpuset.jsonl.gz": container_cpuset.check_as_koordinator
}
"""What judges without differences on purpose, where that is another suite."""
_MOST_ON_PURPOSE_PERCENT: Final = 5

_EXCEPTED: Final = tuple(v for v in Verdict if v not in (Verdict.EQUAL, Verdict.DIFFERENT))
_MISFITS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What values of the wrong kind end in: exit 1 is for differences, so it is none of these."""
_SHOWN: Final = 10
_SHOWN_CHARACTERS: Final = 500


@dataclass(slots=True)
class Result:
    """How a file's cases were answered.

    Attributes:
        folder: the name of its folder.
        file: its name.
        judged: whether there is a suite for it.
        verdicts: how many cases each verdict has.
        purposes: why cases differ on purpose, and how many.
        differences: the first ten, each with its file and line.
        slowest_ms: the longest time that one case took.
    """

    folder: str
    file: str
    judged: bool = True
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    purposes: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0

    @property
    def different(self) -> int:
        """How many cases differ from the recording without an excuse."""
        return self.verdicts[Verdict.DIFFERENT]

    @property
    def failed(self) -> bool:
        """Whether a case differs without an excuse, or too many cases differ on purpose."""
        most = self.verdicts.total() * _MOST_ON_PURPOSE_PERCENT / 100
        return bool(self.different) or self.verdicts[Verdict.ON_PURPOSE] > most


def run_file(file: Path, *, as_koordinator: bool = False) -> Result:
    """Judge all cases of a file, if there is a suite for it.

    Args:
        file: in a folder whose name has the name of the recorded program.
        as_koordinator: whether cpupool answers as Koordinator also where it differs on purpose.

    Raises:
        BrokenRecording: the folder or the file is unknown, or the file is not what the suite
            expects, or empty.
    """
    folder = file.parent.resolve().name
    suites = next((suites for program, suites in _SUITES.items() if program in folder), None)
    if suites is None:
        raise BrokenRecording(f"{file}: its folder names no program of {', '.join(_SUITES)}")
    if file.name not in suites:
        raise BrokenRecording(f"{file}: no suite knows this file, only {', '.join(suites)}")
    suite = _AS_KOORDINATOR.get(file.name) if as_koordinator else None
    suite = suite or suites[file.name]
    result = Result(folder, file.name, judged=suite is not None)
    if suite is None:
        return result
    machines = read_machines(file.parent)
    for where, case in read_cases(file):
        started = time.perf_counter()
        try:
            verdict, difference = suite(case, machines)
        except (BrokenRecording, CPUPoolError) as error:
            raise BrokenRecording(f"{where}: {error}") from error
        except _MISFITS as error:
            what = f"cannot be judged: {type(error).__name__}: {error}"
            raise BrokenRecording(f"{where}: {what}") from error
        result.slowest_ms = max(result.slowest_ms, (time.perf_counter() - started) * 1000)
        result.verdicts[verdict] += 1
        if verdict is Verdict.ON_PURPOSE:
            result.purposes[difference] += 1
        if verdict is Verdict.DIFFERENT and len(result.differences) < _SHOWN:
            result.differences.append(f"{where}: {difference[:_SHOWN_CHARACTERS]}")
    if not result.verdicts:
        raise BrokenRecording(f"{file}: has no cases")
    return result


def files_in(folder: Path) -> list[Path]:
    """List a folder's files of cases.

    Raises:
        BrokenRecording: there are none.
    """
    found = sorted(file for file in folder.glob("*.jsonl.gz") if file.name != TOPOLOGIES)
    if not found:
        raise BrokenRecording(f"{folder}: is no folder with recordings (*.jsonl.gz)")
    return found


def _table(results: list[Result]) -> Iterator[str]:
    names = [*(verdict.value for verdict in _EXCEPTED), Verdict.DIFFERENT.value]
    files = [f"{result.folder}/{result.file}" for result in results]
    width = max(map(len, files))
    yield f"{'file':{width}}  cases  equal  {'  '.join(names)}  slowest ms"
    for file, result in zip(files, results, strict=True):
        if not result.judged:
            yield f"{file:{width}}  not judged"
            continue
        counts = (result.verdicts[verdict] for verdict in (*_EXCEPTED, Verdict.DIFFERENT))
        cells = (f"{count:>{len(name)}}" for count, name in zip(counts, names, strict=True))
        yield (
            f"{file:{width}}  {result.verdicts.total():5}"
            f"  {result.verdicts[Verdict.EQUAL]:5}  {'  '.join(cells)}  {result.slowest_ms:10.1f}"
        )
        yield from (f"  on purpose, {n}: {why}" for why, n in result.purposes.items())
        yield from (f"  {difference}" for difference in result.differences)


def _object(result: Result) -> dict[str, Any]:
    return {
        "folder": result.folder,
        "file": result.file,
        "judged": result.judged,
        "cases": result.verdicts.total(),
        "equal": result.verdicts[Verdict.EQUAL],
        "excepted": {verdict.value: result.verdicts[verdict] for verdict in _EXCEPTED},
        "on purpose": dict(result.purposes),
        "different": result.different,
        "differences": result.differences,
        "slowest_ms": round(result.slowest_ms, 1),
    }


def main(arguments: Sequence[str]) -> int:
    """Run with the command line's arguments.

    Returns:
        0 if every case is equal or excepted, 1 if one differs or more than 5 % of a file differ on
        purpose, 2 if a recording cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.oracle", description=__doc__)
    parser.add_argument("folders", metavar="DIR", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print a JSON array, not a table")
    parser.add_argument(
        "--as-koordinator",
        action="store_true",
        help="answer as Koordinator also where cpupool differs on purpose",
    )
    options = parser.parse_args(arguments)
    try:
        results = [
            run_file(file, as_koordinator=options.as_koordinator)
            for folder in options.folders
            for file in files_in(folder)
        ]
    except BrokenRecording as error:
        print(error, file=sys.stderr)  # noqa: T201  # a command's own output
        return 2
    if options.json:
        text = json.dumps([_object(result) for result in results], indent=2)
    else:
        text = "\n".join(_table(results))
    print(text)  # noqa: T201
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
