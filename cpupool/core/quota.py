"""CFS bandwidth: how long the threads of a cgroup may run in each period.

Source: Documentation/scheduler/sched-bwc.rst of the kernel.
"""

from __future__ import annotations

from typing import Final

PERIOD_US: Final = 100_000
"""The kernel's usual period, and the kubelet's."""
UNLIMITED_US: Final = -1
_LEAST_US: Final = 1_000
"""The kernel takes no smaller quota."""


def quota_us(milli: int) -> int:
    """Give the time per `PERIOD_US` that so many milli-CPUs come to."""
    return max(_LEAST_US, milli * PERIOD_US // 1000)


def stricter_us(wanted_us: int | None, asked_us: int | None, period_us: int | None) -> int | None:
    """Give the quota to set instead of the one that a runtime was asked for.

    A quota is only ever made smaller, or lifted: the pod's own cgroup has the sum of what its
    containers were limited to, and refuses them more.

    Args:
        wanted_us: per `PERIOD_US`; None for no opinion.
        asked_us: per `period_us`; None, 0 or less for no limit.
        period_us: None or 0 for the usual.

    Returns:
        The quota per `PERIOD_US`, or None to leave what was asked for.
    """
    limit_us = asked_us if asked_us and asked_us > 0 else None
    if wanted_us is None or (limit_us is None and wanted_us == UNLIMITED_US):
        return None
    within = limit_us is not None and limit_us * PERIOD_US <= wanted_us * (period_us or PERIOD_US)
    return None if within else wanted_us
