"""CPU time: the use of CPUs and pods up to a moment, and between two moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cpupool.core.errors import CPUPoolError

if TYPE_CHECKING:
    from collections.abc import Mapping

_Key = TypeVar("_Key")

_MILLI_PER_CPU: Final = 1000
_US_PER_S: Final = 1_000_000
_TOLERANCE: Final = 1.25
"""The files of CPUs and pods are not read at the same moment."""


class MeasurementError(CPUPoolError):
    """Two readings of CPU time that do not fit together.

    Attributes:
        elapsed_s: the time between them.
    """

    def __init__(self, what: str, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s
        # Without the time: a message that repeats is logged once.
        super().__init__(f"{what} between two readings; this measurement is not used")


@dataclass(frozen=True, slots=True)
class CPUUse:
    """The use of the CPUs in milli-CPUs, a mean over some time.

    Attributes:
        by_cpu_milli: CPU that is online → how busy it is.
        by_pod_milli: the id in a pod's cgroup name → what its containers use.
        waiting: the same id → the share of the time in which a thread of it waited for a CPU; only
            the pods with a measurement that no limit has throttled.
    """

    by_cpu_milli: Mapping[int, int]
    by_pod_milli: Mapping[str, int]
    waiting: Mapping[str, float] = field(default_factory=dict)


class Waited(NamedTuple):
    """The time for which a pod waited for CPUs since it started.

    Attributes:
        us: the time in which a thread of it waited.
        throttled: how often its limit, or that of a container, has stopped it: it waited then, too.
    """

    us: int
    throttled: int


@dataclass(frozen=True, slots=True)
class CPUTime:
    """One reading of CPU time.

    Attributes:
        by_cpu_us: CPU that is online → how long it was busy since the machine started.
        by_pod_us: the id in a pod's cgroup name → how long its containers ran since it started.
        waited: the same id → how long it waited; only the pods with a reading.
    """

    by_cpu_us: Mapping[int, int]
    by_pod_us: Mapping[str, int]
    waited: Mapping[str, Waited] = field(default_factory=dict)

    def since(self, earlier: CPUTime, elapsed_s: float) -> CPUUse:
        """Return the use between an earlier reading and this one.

        The result is without CPUs that were offline at one of the readings, and without pods that
        have ended. Of a pod that has started since, it has the use since the pod's start.

        Raises:
            MeasurementError: a time has decreased, or pods used more time than there was.
        """
        cpus_us = {
            cpu: us - earlier.by_cpu_us[cpu]
            for cpu, us in self.by_cpu_us.items()
            if cpu in earlier.by_cpu_us
        }
        pods_us = {pod: us - earlier.by_pod_us.get(pod, 0) for pod, us in self.by_pod_us.items()}
        if any(us < 0 for us in (*cpus_us.values(), *pods_us.values())):
            raise MeasurementError("a CPU time has decreased", elapsed_s)
        room_us = elapsed_s * _US_PER_S * len(self.by_cpu_us)
        if elapsed_s <= 0 or sum(pods_us.values()) > room_us * _TOLERANCE:
            raise MeasurementError("pods used more CPU time than the CPUs have", elapsed_s)
        waiting = {
            pod: min(max(now.us - then.us, 0) / (elapsed_s * _US_PER_S), 1.0)
            for pod, now in self.waited.items()
            if (then := earlier.waited.get(pod)) and then.throttled == now.throttled
        }
        return CPUUse(_milli(cpus_us, elapsed_s), _milli(pods_us, elapsed_s), waiting)


def _milli(used_us: Mapping[_Key, int], elapsed_s: float) -> dict[_Key, int]:
    per_us = _MILLI_PER_CPU / (elapsed_s * _US_PER_S)
    return {key: round(us * per_us) for key, us in used_us.items()}
