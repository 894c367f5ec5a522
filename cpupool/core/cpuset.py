"""CPUSet: an immutable set of logical CPU ids in the kernel's list format.

The format is that of cpuset(7) and of `bitmap_parselist()` in the kernel's lib/bitmap-str.c:
`0-3,8`, with the strided forms `0-31:2` (every second, as taskset(1) has it) and `0-31:2/8`
(the first two of each eight) accepted on input.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUSetParseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_CPU: Final = 8191
"""The largest CPU id: x86's CONFIG_NR_CPUS goes up to 8192."""

_PIECE: Final = re.compile(
    r"([0-9]+)(?:\s*-\s*([0-9]+)(?:\s*:\s*([0-9]+)(?:\s*/\s*([0-9]+))?)?)?", re.ASCII
)
_MASK_WORD: Final = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)


class CPUSet:
    """An immutable set of CPU ids from 0 to 8191.

    Supports the operators of a frozen set between CPUSets (`|`, `&`, `-`, `^`, `<=`, `in`, `len`),
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
        """Make a set of the ids given one by one."""
        return cls(cpus)

    @classmethod
    def union(cls, sets: Iterable[CPUSet]) -> CPUSet:
        """Join any number of sets."""
        bits = 0
        for one in sets:
            bits |= one._bits
        return cls._from_bits(bits)

    @classmethod
    def parse(cls, text: str) -> CPUSet:
        """Read the kernel's list format; blanks around pieces are tolerated, "" is the empty set.

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
    def parse_mask(cls, text: str) -> CPUSet:
        """Read the kernel's hexadecimal mask, as in `cpumap`: words, highest first, by commas.

        Raises:
            CPUSetParseError: names the word that is wrong.
        """
        words = text.strip().split(",")
        for word in words:
            if not _MASK_WORD.fullmatch(word):
                raise CPUSetParseError(text, word, "is not a word of a hexadecimal mask")
        # Every word but the first is written in full: eight digits on every architecture.
        bits = int("".join([words[0], *(word.rjust(8, "0") for word in words[1:])]), 16)
        if bits >> (MAX_CPU + 1):
            raise CPUSetParseError(text, words[0], f"names a CPU above {MAX_CPU}")
        return cls._from_bits(bits)

    @classmethod
    def _from_bits(cls, bits: int) -> CPUSet:
        made = cls.__new__(cls)
        made._bits = bits
        return made

    @property
    def first(self) -> int:
        """The lowest id; ValueError if there is none."""
        if not self._bits:
            raise ValueError("an empty CPUSet has no first CPU")
        return (self._bits & -self._bits).bit_length() - 1

    def isdisjoint(self, other: CPUSet) -> bool:
        """Tell whether no CPU is in both."""
        return not self._bits & other._bits

    def __or__(self, other: CPUSet) -> CPUSet:
        return self._from_bits(self._bits | other._bits)

    def __and__(self, other: CPUSet) -> CPUSet:
        return self._from_bits(self._bits & other._bits)

    def __sub__(self, other: CPUSet) -> CPUSet:
        return self._from_bits(self._bits & ~other._bits)

    def __xor__(self, other: CPUSet) -> CPUSet:
        return self._from_bits(self._bits ^ other._bits)

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
        return format_ids(self)

    def __repr__(self) -> str:
        return f"CPUSet.parse({str(self)!r})"


def format_ids(ids: Iterable[int]) -> str:
    """Write ascending ids in the list format: `0-3,8`."""
    runs: list[str] = []
    start = previous = -1
    # The end mark closes the last run in the loop itself.
    for number in chain(ids, (-1,)):
        if start >= 0 and number == previous + 1:
            previous = number
            continue
        if start >= 0:
            runs.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ",".join(runs)


def _piece_bits(text: str, piece: str) -> int:
    if not piece:
        raise CPUSetParseError(text, piece, "is an empty piece: remove the extra comma")
    match = _PIECE.fullmatch(piece)
    if match is None:
        raise CPUSetParseError(text, piece, "is neither a CPU, as 4, nor a range, as 4-7 or 0-31:2")
    if any(len(number.lstrip("0")) > 4 for number in match.groups(default="0")):
        raise CPUSetParseError(text, piece, f"goes beyond CPU {MAX_CPU}")
    first, last, used, group = (int(number) if number else None for number in match.groups())
    if first is None or first > MAX_CPU or (last or 0) > MAX_CPU:
        raise CPUSetParseError(text, piece, f"goes beyond CPU {MAX_CPU}")
    if last is None:
        return 1 << first
    if last < first:
        raise CPUSetParseError(text, piece, "ends before it starts")
    if used is None:
        return (1 << last + 1) - (1 << first)
    # `a-b:s` is the first one of each s; `a-b:u/g` the first u of each g.
    used, group = (1, used) if group is None else (used, group)
    if not 0 < used <= group:
        raise CPUSetParseError(text, piece, "has a stride that is zero or larger than its group")
    return sum(1 << cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
