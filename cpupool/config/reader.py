"""A reader that takes a document's values as the types that they should have, and notes faults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.config.document import Table, Text
from cpupool.core import pools
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, Problem
from cpupool.core.suggestions import hint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cpupool.config.document import Value
    from cpupool.core.errors import Location

_Meaning = TypeVar("_Meaning")

WHOLE_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
"""A count from 1 to 999999999."""
SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
"""The name of an object, or the domain of a label."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Takes values for maps, texts and CPU lists.

    Attributes:
        problems: the problems found so far.
    """

    problems: list[Problem]

    def table(self, value: Value, known: Collection[str] = ()) -> Table | None:
        """Take a value for a map, a null for an empty one; None for anything else.

        Args:
            value: the value.
            known: the keys that it may have; any where none is given.
        """
        if isinstance(value, Text) and not value.text:
            return Table(value.path, value.key, value.location, {})
        if not isinstance(value, Table):
            self.refuse(value, "this must be a map", "write key: value on lines of their own")
            return None
        for key, entry in value.entries.items():
            if known and key not in known:
                self.refuse(entry, "unknown key", hint(key, known), entry.key)
        return value

    def part(self, value: Value) -> Table:
        """Take a value for a map with any keys; an empty one for another value."""
        return self.table(value) or Table(value.path, value.key, value.location, {})

    def text(self, value: Value) -> Text | None:
        """Take a value for text; None for anything else."""
        if isinstance(value, Text):
            return value
        self.refuse(value, "this must be text", "write a single value")
        return None

    def word(self, value: Value) -> str:
        """Take a value for text; an empty one for another value."""
        text = self.text(value)
        return text.text if text else ""

    def words(self, value: Value) -> dict[str, str]:
        """Take a value for a map of texts; an empty one for another value."""
        return {key: self.word(each) for key, each in self.part(value).entries.items()}

    def choice(self, value: Value, known: Mapping[str, _Meaning], absent: _Meaning) -> _Meaning:
        """Take a value for one of the known words; `absent` for a null and for another value."""
        text = self.text(value)
        if text is None or not text.text:
            return absent
        if text.text not in known:
            self.refuse(value, f"unknown value {text.text[:63]!r}", hint(text.text, known))
            return absent
        return known[text.text]

    def cpus(self, value: Value) -> CPUSet | None:
        """Take a value for a CPU list, a null for an empty one; None for anything else."""
        text = self.text(value)
        if text is None:
            return None
        try:
            return CPUSet.parse(text.text)
        except CPUSetParseError as error:
            self.refuse(value, str(error), "write the CPUs as in 2-7,12")
            return None

    def refuse(
        self, value: Value, what: str, remedy: str, location: Location | None = None
    ) -> None:
        """Note a problem with a value, at its place or at another one."""
        self.problems.append(
            Problem(what, remedy, path=value.path, location=location or value.location)
        )


def entries(table: Table | None) -> Iterable[tuple[str, Value]]:
    """Return key and value of each entry; nothing for no map."""
    return table.entries.items() if table else ()


def is_label(key: str, value: str) -> bool:
    """Return whether a node can have a label (apimachinery, pkg/util/validation)."""
    domain, slash, name = key.rpartition("/")
    known_domain = not slash or SUBDOMAIN.fullmatch(domain)
    return bool(known_domain and pools.is_name(name) and (not value or pools.is_name(value)))
