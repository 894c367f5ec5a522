"""CPUSet: an immutable set of logical CPU ids in the kernel's list format.

The format is that of cpuset(7) and of `bitmap_parselist()` in the kernel's lib/bitmap-str.c:
`0-3,8`, with the strided forms `0-31:2` (every second, as taskset(1) has it) and `0-31:2/8`
(the first two of each eight) accepted on input.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUSetParseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_CPU: Final = 8191
"""The largest CPU id: x86's CONFIG_NR_CPUS goes up to 8192."""

_PIECE: Final = re.compile(
    r"([0-9]+)(?:\s*-\s*([0-9]+)(?:\s*:\s*([0-9]+)(?:\s*/\s*([0-9]+))?)?)?", re.ASCII
)
_MASK_WORD: Final = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)


class CPUSet:
    """An immutable set of CPU ids from 0 to 8191.

    Supports the operators of a frozen set between CPUSets (`|`, `&`, `-`, `<=`, `in`, `len`),
    iterates in ascending order, and prints itself in the kernel's list format.

    Raises:
        ValueError: an id is outside 0 to 8191.
    """

    __slots__ = ("_bits",)
    _bits: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        bits = 0
        for cpu in cpus:
            if not 0 <= cpu <= MAX_CPU:
                raise ValueError(f"CPU {cpu} is outside 0-{MAX_CPU}")
            bits |= 1 << cpu
        self._bits = bits

    @classmethod
    def of(cls, *cpus: int) -> CPUSet:
        """Return the set of these ids."""
        return cls(cpus)

    @staticmethod
    def overlap(sets: Iterable[CPUSet]) -> bool:
        """Return whether any two of some sets share a CPU."""
        sets = tuple(sets)
        return sum(map(len, sets)) > len(CPUSet.union(sets))

    @classmethod
    def union(cls, sets: Iterable[CPUSet]) -> CPUSet:
        """Return the union of any number of sets."""
        joined = cls()
        for cpus in sets:
            joined |= cpus
        return joined

    @classmethod
    def parse(cls, text: str) -> CPUSet:
        """Read the kernel's list format; blanks around pieces are allowed, "" is the empty set.

        Raises:
            CPUSetParseError: names the piece that is wrong.
        """
        if not text.strip():
            return cls()
        bits = 0
        for piece in text.split(","):
            bits |= _piece_bits(text, piece.strip())
        return cls._from_bits(bits)

    @classmethod
    def parse_or_empty(cls, text: str) -> CPUSet:
        """Read a CPU list that another program has written; return no CPUs if it is none."""
        try:
            return cls.parse(text)
        except CPUSetParseError:
            return cls()

    @classmethod
    def parse_mask(cls, text: str) -> CPUSet:
        """Read the kernel's hexadecimal mask: words of 32 bits, highest first, between commas.

        Raises:
            CPUSetParseError: names the word that is wrong.
        """
        words = text.strip().split(",")
        for word in words:
            if not _MASK_WORD.fullmatch(word):
                raise CPUSetParseError(text, word, "is not a word of a hexadecimal mask")
        bits = int("".join(word.rjust(8, "0") for word in words), 16)
        if bits >> (MAX_CPU + 1):
            raise CPUSetParseError(text, words[0], f"names a CPU above {MAX_CPU}")
        return cls._from_bits(bits)

    @classmethod
    def _from_bits(cls, bits: int) -> CPUSet:
        made = cls.__new__(cls)
        made._bits = bits  # noqa: SLF001  # its own class: a second constructor
        return made

    @property
    def first(self) -> int:
        """The lowest id; ValueError if there is none."""
        if not self._bits:
            raise ValueError("an empty CPUSet has no first CPU")
        return (self._bits & -self._bits).bit_length() - 1

    def isdisjoint(self, other: CPUSet) -> bool:
        """Return whether no CPU is in both."""
        return not self._bits & other._bits

    def __or__(self, other: CPUSet) -> CPUSet:
        return self._from_bits(self._bits | other._bits)

    def __and__(self, other: CPUSet) -> CPUSet:
        return self._from_bits(self._bits & other._bits)

    def __sub__(self, other: CPUSet) -> CPUSet:
        return self._from_bits(self._bits & ~other._bits)

    def __le__(self, other: CPUSet) -> bool:
        return not self._bits & ~other._bits

    def __lt__(self, other: CPUSet) -> bool:
        return self <= other and self._bits != other._bits

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and bool(self._bits >> cpu & 1)

    def __iter__(self) -> Iterator[int]:
        bits = self._bits
        while bits:
            lowest = bits & -bits
            yield lowest.bit_length() - 1
            bits ^= lowest

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CPUSet) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash((CPUSet, self._bits))

    def __str__(self) -> str:
        runs = []
        bits = self._bits
        while bits:
            lowest = bits & -bits
            # One carry passes the whole run; a step for each CPU takes ten times as long.
            carried = bits + lowest
            end = (carried & -carried).bit_length() - 1
            runs.append(_run(lowest.bit_length() - 1, end - 1))
            bits = carried & (carried - 1)
        return ",".join(runs)

    def __repr__(self) -> str:
        return f"CPUSet.parse({str(self)!r})"


def format_ids(ids: Iterable[int]) -> str:
    """Return ascending ids in the list format: `0-3,8`."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(_run(first, last) for first, last in runs)


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _piece_bits(text: str, piece: str) -> int:
    if not piece:
        raise CPUSetParseError(text, piece, "is an empty piece: remove the extra comma")
    match = _PIECE.fullmatch(piece)
    if match is None:
        raise CPUSetParseError(text, piece, "is neither a CPU, as 4, nor a range, as 4-7 or 0-31:2")
    # A number alone is a range of one; `a-b:s` takes the first one of each s, `a-b:u/g` the first
    # u of each g.
    start, end, used, group = match.groups()
    if used is not None and group is None:
        used, group = "1", used
    first, last = _number(start), _number(end or start)
    taken, size = _number(used or "1"), _number(group or "1")
    if max(first, last, taken, size) > MAX_CPU:
        raise CPUSetParseError(text, piece, f"goes beyond CPU {MAX_CPU}")
    if last < first:
        raise CPUSetParseError(text, piece, "ends before it starts")
    if not 0 < taken <= size:
        raise CPUSetParseError(text, piece, "has a stride that is zero or larger than its group")
    run = (1 << last + 1) - (1 << first)
    if size == 1:
        return run
    every = (1 << taken) - 1
    return run & sum(every << cpu for cpu in range(first, last + 1, size))


def _number(digits: str) -> int:
    # Five digits are more than MAX_CPU has, and int() refuses thousands of them.
    return int(digits.lstrip("0")[:5] or "0")
