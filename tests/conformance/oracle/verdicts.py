"""What a suite says of a case, and the reading of the recordings."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.topology import CPUFacts, CPUTopology, assemble
from cpupool.policies.layout import Layout, Place

if TYPE_CHECKING:
    from pathlib import Path

TOPOLOGIES: Final = "topologies.jsonl.gz"


class Verdict(Enum):
    """How cpupool's answer to a case compares with the recorded one.

    HANG, UNSAFE, WRONG_SIZE and PANIC name what the recorded program did wrong; cpupool's answer
    to such a case is lawful: a refusal is, where fewer CPUs are usable than are asked for. NOALIAS
    is equal to `result_noalias`. MAP_ORDER is the answer to another order of the resources: the
    recorded program walks through a Go map. ON_PURPOSE is a difference that the documentation
    names, and its text says which; as Koordinator cpupool gives the recorded answer.
    """

    EQUAL = "equal"
    HANG = "hang"
    UNSAFE = "unsafe"
    WRONG_SIZE = "wrong size"
    PANIC = "panic"
    NOALIAS = "noalias"
    MAP_ORDER = "map order"
    ON_PURPOSE = "on purpose"
    DIFFERENT = "different"


class BrokenRecording(Exception):
    """A folder, a file or a line that is no recording."""


class Case(dict[str, Any]):
    """One line of a recording, or an object within it."""

    def __missing__(self, key: str) -> Any:
        raise BrokenRecording(f"there is no {key!r}")


class _Machines(dict[str, Layout]):
    def __missing__(self, name: str) -> Layout:
        raise BrokenRecording(f"machine {name!r} is not in {TOPOLOGIES}")


Machines = Mapping[str, Layout]
Suite = Callable[[Case, Machines], tuple[Verdict, str]]
"""Judges one case; the text tells the difference, or why it is on purpose."""


def read_cases(file: Path) -> Iterator[tuple[str, Case]]:
    """Give each line's place and object.

    Raises:
        BrokenRecording: the file cannot be read, or a line is no JSON object.
    """
    where = str(file)
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{file}:{number}"
                case = json.loads(line, object_pairs_hook=Case)
                if not isinstance(case, Case):
                    raise BrokenRecording(f"{where}: is no JSON object")
                yield where, case
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BrokenRecording(f"{where}: {error}") from error


def read_machines(folder: Path) -> Machines:
    """Read a folder's machines: name → layout; a folder may have none.

    A row is CPU, core, socket, NUMA node and, in the kubelet's recordings only, L3 group.

    Raises:
        BrokenRecording: as `read_cases`, or a machine's rows are none.
    """
    machines = _Machines()
    if not (folder / TOPOLOGIES).exists():
        return machines
    for where, case in read_cases(folder / TOPOLOGIES):
        try:
            machines[case["id"]] = Layout.of(
                {
                    cpu: Place(core, socket, node, *(cache or [socket]))
                    for cpu, core, socket, node, *cache in case["cpus"]
                }
            )
        except (TypeError, ValueError) as error:
            raise BrokenRecording(f"{where}: {error}") from error
    return machines


_FLAWS: Final[Mapping[str, Verdict]] = {
    "hang": Verdict.HANG,
    "unsafe": Verdict.UNSAFE,
    "wrong_size": Verdict.WRONG_SIZE,
}


def refusal(count: int, usable: CPUSet) -> str:
    """Say what is unlawful in a refusal: that there are CPUs enough."""
    return f"refused {count} CPUs of {usable}" if count <= len(usable) else ""


def misfit(taken: CPUSet, count: int, usable: CPUSet) -> str:
    """Say what is unlawful in CPUs that were taken: their number, or that some are not usable."""
    lawful = len(taken) == count and taken <= usable
    return "" if lawful else f"{taken} are no {count} CPUs of {usable}"


def judge_taken(case: Case, layout: Layout, taken: CPUSet | None) -> tuple[Verdict, str]:
    """Compare CPUs that were taken, None for a refusal, with what the case records."""
    flaw = next((flaw for key, flaw in _FLAWS.items() if case.get(key)), None)
    if case.get("error", "").startswith("PANIC"):
        flaw = Verdict.PANIC
    if flaw is not None:
        count, usable = case["n"], CPUSet.parse(case["avail"]) & layout.cpus
        wrong = refusal(count, usable) if taken is None else misfit(taken, count, usable)
        return (Verdict.DIFFERENT, wrong) if wrong else (flaw, "")
    noalias: str | None = case.get("result_noalias")
    recorded: str | None = case.get("result") if noalias is None else noalias
    if recorded is None or recorded.startswith("error:"):
        recorded = "error"
    given = "error" if taken is None else str(taken)
    if given != recorded:
        return Verdict.DIFFERENT, f"{given} instead of {recorded}"
    return (Verdict.EQUAL if noalias is None else Verdict.NOALIAS), ""


def machine_of(rows: list[list[int]]) -> CPUTopology:
    """Make the machine of a case: CPU, core, socket and NUMA node in each row."""
    cores, sockets, nodes = (_grouped(rows, level) for level in (1, 2, 3))
    online = CPUSet(row[0] for row in rows)
    facts = {
        cpu: CPUFacts(core=cores[core], socket=sockets[socket]) for cpu, core, socket, _ in rows
    }
    return assemble(
        online=online,
        present=online,
        isolated=CPUSet(),
        facts=facts,
        nodes=nodes,
        distances={},
        hybrid={},
    )


def _grouped(rows: list[list[int]], level: int) -> dict[int, CPUSet]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        found[row[level]].append(row[0])
    return {group: CPUSet(cpus) for group, cpus in found.items()}
