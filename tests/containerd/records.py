"""What the program in a container (`probe.c`) has told, read from the container's CRI log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LINE = re.compile(r"^\S+ stdout F (\w+) (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sighting:
    """The affinity from a moment on.

    Attributes:
        at_ns: on CLOCK_MONOTONIC.
        cpus: the affinity.
    """

    at_ns: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Record:
    """One life of one container.

    Attributes:
        sightings: at the first instruction, and at each change.
        environment: its variables.
        ended: whether it was told to end, and has.
    """

    sightings: tuple[Sighting, ...]
    environment: Mapping[str, str]
    ended: bool

    def always(self, cpus: CPUSet) -> bool:
        """Tell whether it ran on these CPUs at its first instruction and ever after."""
        return all(one.cpus == cpus for one in self.sightings)

    def wrong_ns(self, cpus: CPUSet) -> int | None:
        """Give how long after its first instruction it was on these CPUs for good.

        Zero if it always was, None if it is not.
        """
        if self.sightings[-1].cpus != cpus:
            return None
        return 0 if self.always(cpus) else self.sightings[-1].at_ns - self.sightings[0].at_ns


def record(log: Path) -> Record:
    """Wait for a container's first instruction, and give what it has told until now."""
    eventually(lambda: log.exists() and " env HOME=" in log.read_text(), f"{log} begins")
    told = _LINE.findall(log.read_text())
    return Record(
        sightings=tuple(_sighting(text) for what, text in told if what in ("first", "now")),
        environment=dict(text.partition("=")[::2] for what, text in told if what == "env"),
        ended=any(what == "end" for what, _ in told),
    )


def _sighting(text: str) -> Sighting:
    at_ns, mask = text.split()
    bits = int(mask, 16)
    return Sighting(int(at_ns), CPUSet(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1))
