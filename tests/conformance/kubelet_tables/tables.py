"""The tables as values, and cpupool's answers to their rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.conformance.kubelet_tables import checkpoints, nodes, policies
from tests.conformance.kubelet_tables.machines import document, read_machines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.conformance.kubelet_tables.machines import Judge, Machines, Row

FOLDER: Final = Path(__file__).parents[2] / "data/kubelet_tables"
_JUDGES: Final[Mapping[str, Judge]] = {
    "configured": policies.configured,
    "hinted": policies.hinted,
    "placed": nodes.placed,
    "read": checkpoints.read,
    "restored": nodes.restored,
    "worded": policies.worded,
    "written": checkpoints.written,
}
"""What a table calls its judge → what answers its rows."""


class Verdict(Enum):
    """How a row's answer compares with the kubelet's."""

    EQUAL = "equal"
    DIFFERENT = "different"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table.

    Attributes:
        table: the name of the kubelet's test.
        judge: what answers the row.
        row: the facts; `kubelet` and `ours` are the answers.
    """

    table: str
    judge: Judge
    row: Row

    @property
    def number(self) -> int:
        """The row's place in the kubelet's table, from 1."""
        return int(self.row["row"])

    @property
    def verdict(self) -> Verdict:
        """What the row says of itself."""
        if "kubelet" not in self.row:
            return Verdict.LEFT_OUT
        return Verdict.DIFFERENT if "ours" in self.row else Verdict.EQUAL

    @property
    def reason(self) -> str | None:
        """The key of the reason, if the row is not equal."""
        return self.row.get("because")

    @property
    def expected(self) -> Mapping[str, Any]:
        """The answer that cpupool must give."""
        found: Mapping[str, Any] = self.row.get("ours", self.row["kubelet"])
        return found

    def flaw(self, machines: Machines) -> str:
        """Return in what cpupool's answer is not the listed one; empty if nothing."""
        given = self.judge(self.row, machines)
        answer = {key: given.get(key) for key in self.expected}
        if answer == self.row["kubelet"] and self.verdict is Verdict.DIFFERENT:
            return f"{answer}, equal to the kubelet's answer, and listed as different"
        return "" if answer == self.expected else f"{answer} instead of {dict(self.expected)}"


@dataclass(frozen=True, slots=True)
class TableFile:
    """The tables of one file of the kubelet.

    Attributes:
        path: the file, in the kubelet's repository.
        tables: name of the test → its rows.
    """

    path: str
    tables: Mapping[str, tuple[Entry, ...]]


def read_files() -> tuple[TableFile, ...]:
    """Return all tables."""
    return tuple(
        _file(document(FOLDER / f"{name}.yaml"))
        for name in (
            "policy_static",
            "cpu_manager",
            "topology_hints",
            "policy_options",
            "state_checkpoint",
        )
    )


def entries() -> Iterator[Entry]:
    """Yield every row of every table."""
    for file in read_files():
        for rows in file.tables.values():
            yield from rows


def reasons() -> dict[str, str]:
    """Return key → why rows differ, or are left out."""
    found: dict[str, str] = document(FOLDER / "reasons.yaml")
    return found


def machines() -> Machines:
    """Return the machines of the tables."""
    return read_machines(FOLDER)


def _file(document: Mapping[str, Any]) -> TableFile:
    return TableFile(
        document["file"],
        {
            name: tuple(Entry(name, _JUDGES[table["judge"]], row) for row in table["rows"])
            for name, table in document["tables"].items()
        },
    )
