"""The number of CPUs that a pool needs, from a measured indicator of its load.

The controller turns the distance between an indicator and its target into more or fewer CPUs; the
regulator lets a pool grow quickly and shrink slowly.

The results equal those of Katalyst, `PIDController` in pkg/agent/sysadvisor/plugin/qosaware/
resource/helper/pid.go and the CPU regulator in resource/cpu/region/regulator of katalyst-core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

_NEVER_S: Final = -math.inf


@dataclass(frozen=True, slots=True)
class Gains:
    """The strength with which a controller reacts to an indicator.

    Attributes:
        above: how strongly while the indicator is above its target.
        below: how strongly while it is below.
        dead_above: a part of the target by which the indicator may exceed it without effect.
        dead_below: the same below the target.
        rising: how strongly on a distance that grows above the target, or shrinks below it.
        falling: how strongly on the opposite.
        most_cpus: the most CPUs above the present size.
        least_cpus: the most CPUs below it, as a number less than 0.
    """

    above: float
    below: float
    dead_above: float
    dead_below: float
    rising: float = 0.0
    falling: float = 0.0
    most_cpus: float = 10.0
    least_cpus: float = -2.0

    def weight(self, sign: float) -> float:
        """Return the weight of a distance with this sign."""
        return self.above if sign >= 0 else self.below

    def slope(self, sign: float) -> float:
        """Return the weight of a change of the distance with this sign."""
        return self.rising if sign >= 0 else self.falling


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller, with its memory between two measurements.

    Attributes:
        cpus: the size of the pool at the last measurement.
        more_cpus: how many CPUs more it needs.
        distance: between indicator and target, as a logarithm.
    """

    cpus: float = 0.0
    more_cpus: float = 0.0
    distance: float = 0.0

    def after(
        self, gains: Gains, *, cpus: float, current: float, target: float, upper: float
    ) -> Controller:
        """Return the controller after a measurement.

        Args:
            gains: how it reacts.
            cpus: the size of the pool now.
            current: the indicator, more than 0.
            target: the right value of the indicator, more than 0.
            upper: the most CPUs that the pool can have.
        """
        distance = math.log(current) - math.log(target)
        change = abs(distance) - abs(self.distance)
        sign = math.copysign(1.0, distance)
        more = 0.0
        if not -gains.dead_below <= (current - target) / target <= gains.dead_above:
            turn = sign if change >= 0 else -sign
            more = gains.weight(sign) * upper * distance + turn * gains.slope(turn) * abs(change)
        before = self.more_cpus if cpus == self.cpus else 0.0
        total = min(max(before + more, gains.least_cpus), gains.most_cpus)
        return Controller(cpus, total, distance)

    def needed(self, *, lower: float, upper: float, inverse: bool = False) -> float:
        """Return how many CPUs the pool needs.

        Args:
            lower: the fewest CPUs that it may have.
            upper: the most.
            inverse: whether more CPUs raise the indicator.
        """
        more = -self.more_cpus if inverse else self.more_cpus
        return min(max(self.cpus + more, lower), upper)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for a pool's size and its changes.

    Attributes:
        lower: the fewest CPUs; it and `upper` prevail over the other limits.
        upper: the most CPUs.
        spare_cpus: CPUs above what the pool needs, for pods that start.
        even: whether the size is a multiple of two, for whole cores.
        most_up: the most CPUs that it grows at once.
        most_down: the most CPUs that it shrinks at once.
        pause_s: how long a pool that has shrunk does not shrink again.
    """

    lower: int
    upper: int
    spare_cpus: int = 4
    even: bool = False
    most_up: int = 10
    most_down: int = 2
    pause_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Regulator:
    """A regulator, with its memory between two decisions.

    Attributes:
        size: the last size; None before the first.
        shrunk_s: when the pool has shrunk last.
    """

    size: int | None = None
    shrunk_s: float = _NEVER_S

    def after(
        self, limits: Limits, needed: float, *, in_force: int | None, now_s: float
    ) -> Regulator:
        """Return the regulator after a decision; its `size` is the pool's.

        Args:
            limits: how the size may change.
            needed: how many CPUs the pool needs.
            in_force: how many CPUs it has; None for none yet.
            now_s: a monotonic clock.
        """
        size = math.ceil(needed + limits.spare_cpus)
        if limits.even:
            size += size % 2
        if in_force is not None and size < in_force:
            waits = now_s - self.shrunk_s < limits.pause_s
            size = in_force if waits else max(size, in_force - limits.most_down)
        elif in_force is not None:
            size = min(size, in_force + limits.most_up)
        size = min(max(size, limits.lower), limits.upper)
        shrinks = self.size is not None and size < self.size
        return replace(self, size=size, shrunk_s=now_s if shrinks else self.shrunk_s)
