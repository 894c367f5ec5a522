"""The number of CPUs that reclaimed pods may request.

It is more than their pool has while they use little of the pool.

The result equals that of Katalyst with its defaults, EstimateUtilBasedCapacity in
pkg/agent/sysadvisor/plugin/qosaware/resource/helper of katalyst-core: it grows with what the pods
leave idle and does not fall by itself, between the pool's size and a fifth more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_USE: Final = 0.6
_MOST: Final = 1.2
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Headroom:
    """The number of CPUs that reclaimed pods may request together, with the inputs behind it.

    Attributes:
        supply: how many CPUs their pool has.
        used_cpus: how many they use; None where that was not measured.
        before: the last result.
        cpus: how many CPUs they may request.
    """

    supply: int
    used_cpus: float | None
    before: float
    cpus: float

    def __str__(self) -> str:
        """Return the inputs and the result as one line."""
        used = "not measured" if self.used_cpus is None else f"{self.used_cpus:.1f} in use"
        changes = f"from {self.before:g} to " if self.cpus != self.before else ""
        return f"{used} of {self.supply}: {changes}{self.cpus:g} CPUs for reclaimed pods"


def estimated(
    supply: int, used_cpus: float | None, before: float | None, machine_cpus: int
) -> Headroom:
    """Return how many CPUs reclaimed pods may request, after a period.

    Args:
        supply: how many CPUs their pool has.
        used_cpus: how many they use; None where that was not measured: the result does not grow.
        before: the last result; None for the first, which begins with the supply.
        machine_cpus: how many CPUs the machine has: the result is not more.
    """
    last = supply if before is None else before
    idle = 0.0 if used_cpus is None else max(0.0, supply * _USE - used_cpus)
    cpus = min(max(last + idle, supply), supply * _MOST, machine_cpus)
    return Headroom(supply, used_cpus, float(last), round(float(cpus), _DIGITS))
