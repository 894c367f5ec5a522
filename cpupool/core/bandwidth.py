"""CFS bandwidth: how long the threads of a cgroup may run in each period.

Source: Documentation/scheduler/sched-bwc.rst of the kernel, and the kubelet's quota for a cpu limit
(kubernetes: pkg/kubelet/cm/helpers_linux.go, `MilliCPUToQuota` and `ResourceConfigForPod`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PERIOD_US: Final = 100_000
"""The kernel's default period, and the kubelet's."""
UNLIMITED_US: Final = -1
_LEAST_US: Final = 1_000
"""The smallest quota that the kernel accepts."""
_MILLI: Final = 1_000


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The time for which all threads of a cgroup together may run in each period.

    Attributes:
        quota_us: the time; `UNLIMITED_US` for no limit.
        period_us: the period.
    """

    quota_us: int = UNLIMITED_US
    period_us: int = PERIOD_US

    def __str__(self) -> str:
        """Return the text of `cpu.max` of cgroup v2: `200000 100000`, or `max 100000`."""
        return f"{'max' if self.cpus is None else self.quota_us} {self.period_us}"

    @property
    def cpus(self) -> Fraction | None:
        """The limit in CPUs; None for no limit."""
        return None if self.quota_us < 0 else Fraction(self.quota_us, self.period_us)

    def holds(self, other: Bandwidth) -> bool:
        """Return whether this bandwidth is at least the other; no limit is the most."""
        return self.cpus is None or (other.cpus is not None and other.cpus <= self.cpus)

    def of_milli(self, milli: int | None, *, at_least: Fraction = Fraction()) -> Bandwidth:
        """Return the bandwidth of `milli` milli-CPUs in the same period, rounded as by the kubelet.

        Args:
            milli: milli-CPUs; None for no limit.
            at_least: CPUs; rounding must not lead below.
        """
        if milli is None:
            return Bandwidth(UNLIMITED_US, self.period_us)
        quota_us = milli * self.period_us // _MILLI
        least_us = math.ceil(at_least * self.period_us)
        return Bandwidth(max(_LEAST_US, quota_us, least_us), self.period_us)


@dataclass(frozen=True, slots=True)
class Limit:
    """The CPU time that a container must have.

    Attributes:
        milli: in milli-CPUs; None for no limit.
        or_unlimited: no limit is right as well: cpupool leaves a limit that others have lifted.
        own_milli: the container's limit by the kubelet, which its pod's cgroup includes; None for
            no limit.
    """

    milli: int | None
    or_unlimited: bool = False
    own_milli: int | None = None

    @property
    def added_milli(self) -> int:
        """The milli-CPUs that the container must have in addition to the kubelet's limit."""
        if self.milli is None or self.own_milli is None:
            return 0
        return max(0, self.milli - self.own_milli)

    def settle(self, found: Bandwidth) -> Bandwidth:
        """Return the bandwidth that a container must have; `found` itself if it is right."""
        if self.or_unlimited and found.cpus is None:
            return found
        return found.of_milli(self.milli)

    def start(self, asked: Bandwidth) -> Bandwidth:
        """Return the bandwidth for a container's creation, where the kubelet asks for `asked`.

        It is not more than `asked`, or no limit: the pod's own cgroup has the sum of the
        containers' limits, and on cgroup v1 the kernel refuses more below it.
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
    """Return the bandwidth that a pod's own cgroup must have; `found` itself if it is right.

    The cgroup has no limit while one of its containers must have none. Otherwise it has the
    kubelet's limit and what cpupool adds to the containers, never less than the containers need.

    Args:
        found: the bandwidth that the cgroup has.
        base_milli: the kubelet's limit for the pod; None for no limit, or where it is not known.
        containers: the containers that cpupool limits: their limit and the bandwidth they have.
        lifts: cpupool may have lifted the cgroup's limit; otherwise a lifted limit stays.
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
