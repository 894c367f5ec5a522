"""A pod author's words about changes of the pod's CPUs: how long before, and how far they move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.core.cpu_manager import DYNAMIC, MAX_NOTICE, USUAL_NOTICE_S, notice_seconds
from cpupool.core.errors import Problem
from cpupool.core.names import MOVES, NOTICE
from cpupool.core.suggestions import hint
from cpupool.core.visible import shown
from cpupool.core.workloads import CPUMoves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.names import Names

_MOVES: Final = {moves.value: moves for moves in CPUMoves}


class PodWords(NamedTuple):
    """The words of one pod; the attributes are those of `Pod`."""

    notice_s: int | None
    moves: CPUMoves
    misread: tuple[str, ...]


def of_pod(annotations: Mapping[str, str], names: Names) -> PodWords:
    """Read the words of a pod; an unreadable word has no effect."""
    notice_s = notice_seconds(annotations.get(names.notice, ""))
    moves = _MOVES.get(annotations.get(names.moves, ""))
    misread = [NOTICE] if notice_s is None and names.notice in annotations else []
    misread += [MOVES] if moves is None and names.moves in annotations else []
    return PodWords(notice_s, moves or CPUMoves.NEVER, tuple(misread))


def problems(
    annotations: Mapping[str, str], names: Names, max_notice_s: int | None
) -> Iterator[Problem]:
    """Find a word that no node can follow.

    Args:
        annotations: the pod's.
        names: for the resource domain.
        max_notice_s: the longest notice that any node gives; None where no pool file is known that
            says it.
    """
    written = annotations.get(names.notice)
    if written is not None:
        seconds = notice_seconds(written)
        most_s = USUAL_NOTICE_S if max_notice_s is None else max_notice_s
        if seconds is None or seconds > most_s:
            number = written.isascii() and written.isdigit()
            zeros = " without leading zeros" if number and written[0] == "0" else ""
            bound = f"the largest {MAX_NOTICE} of the pool files"
            if max_notice_s is None:
                bound = f"the default of {MAX_NOTICE}: no pool file with policy: {DYNAMIC} is known"
            yield Problem(
                f"{shown(written)} is no notice that a node can give",
                f"write a whole number of seconds{zeros}, from 0 to {most_s}, {bound}",
                path=f"metadata.annotations[{names.notice}]",
            )
    word, path = annotations.get(names.moves), f"metadata.annotations[{names.moves}]"
    if word is not None and word not in _MOVES:
        yield Problem(f"unknown value {shown(word)}", hint(word, _MOVES), path=path)
