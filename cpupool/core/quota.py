"""CFS bandwidth: how long the threads of a cgroup may run in each period.

Source: Documentation/scheduler/sched-bwc.rst of the kernel, and what the kubelet makes of a cpu
limit (kubernetes: pkg/kubelet/cm/helpers_linux.go, `MilliCPUToQuota` and `ResourceConfigForPod`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PERIOD_US: Final = 100_000
"""The kernel's usual period, and the kubelet's."""
UNLIMITED_US: Final = -1
_LEAST_US: Final = 1_000
"""The kernel takes no smaller quota."""
_MILLI: Final = 1_000


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How long the threads of a cgroup may run together, in each period.

    Attributes:
        quota_us: the time; `UNLIMITED_US` for no limit.
        period_us: the period.
    """

    quota_us: int = UNLIMITED_US
    period_us: int = PERIOD_US

    def __str__(self) -> str:
        """Write it as `cpu.max` of cgroup v2 does: `200000 100000`, or `max 100000`."""
        return f"{'max' if self.cpus is None else self.quota_us} {self.period_us}"

    @property
    def cpus(self) -> Fraction | None:
        """How many CPUs that comes to; None for no limit."""
        return None if self.quota_us < 0 else Fraction(self.quota_us, self.period_us)

    def holds(self, other: Bandwidth) -> bool:
        """Tell whether a cgroup of this bandwidth does not limit one of the other below it."""
        return self.cpus is None or (other.cpus is not None and other.cpus <= self.cpus)

    def of_milli(self, milli: int | None, *, at_least: Fraction = Fraction()) -> Bandwidth:
        """Give so many milli-CPUs, None for no limit, in the same period, as the kubelet rounds.

        Args:
            milli: how many.
            at_least: CPUs below which rounding must not lead.
        """
        if milli is None:
            return Bandwidth(UNLIMITED_US, self.period_us)
        quota_us = milli * self.period_us // _MILLI
        least_us = math.ceil(at_least * self.period_us)
        return Bandwidth(max(_LEAST_US, quota_us, least_us), self.period_us)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much CPU time a container is to have.

    Attributes:
        milli: in milli-CPUs; None for no limit.
        or_unlimited: no limit is right as well: whoever else has lifted it knows why.
        own_milli: what the kubelet limits the container to, and its pod's cgroup reckons with; None
            for no limit.
    """

    milli: int | None
    or_unlimited: bool = False
    own_milli: int | None = None

    @property
    def added_milli(self) -> int:
        """By how much the container is to have more than the kubelet reckons with."""
        if self.milli is None or self.own_milli is None:
            return 0
        return max(0, self.milli - self.own_milli)

    def settle(self, found: Bandwidth) -> Bandwidth:
        """Give what a container must have where it has this: the same, if that is right."""
        if self.or_unlimited and found.cpus is None:
            return found
        return found.of_milli(self.milli)

    def start(self, asked: Bandwidth) -> Bandwidth:
        """Give what a container can be created with, where a runtime is asked for this.

        Only less, or no limit at all: the pod's own cgroup has the sum of what its containers were
        limited to, and on cgroup v1 it refuses them more.
        """
        wanted = self.settle(asked)
        return wanted if wanted.cpus is None or asked.holds(wanted) else asked


def settle_pod(
    found: Bandwidth,
    base_milli: int | None,
    containers: Iterable[tuple[Limit, Bandwidth]],
    *,
    lifts: bool,
) -> Bandwidth:
    """Give what a pod's own cgroup must have, where it has this: the same, if that is right.

    It has no limit while a container of it is to have none; never less than its containers need;
    and otherwise what the kubelet gives it, with what is added to its containers.

    Args:
        found: what it has.
        base_milli: what the kubelet limits the pod to; None for no limit, or where it is not known.
        containers: those for whom cpupool has a say: their limit and what they have.
        lifts: having no limit may be cpupool's doing, and is left to others where it is not.
    """
    settled = tuple(containers)
    limits = tuple(limit for limit, _ in settled)
    if any(limit.milli is None for limit in limits):
        return found.of_milli(None)
    # Each container's quota is rounded in its own period, and the kernel compares the shares.
    shares = (has.of_milli(limit.milli).cpus for limit, has in settled)
    needed = sum(filter(None, shares), Fraction())
    if found.cpus is None and not (lifts and base_milli is not None):
        return found
    if base_milli is None:
        return found if found.cpus is None or found.cpus >= needed else found.of_milli(None)
    added_milli = sum(limit.added_milli for limit in limits)
    return found.of_milli(base_milli + added_milli, at_least=needed)
