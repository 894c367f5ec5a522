"""Promises: devices that the kubelet gave to a pod which is not known yet.

The kubelet asks Allocate for devices and names no pod. Its records name the container later. In
between, the response to Allocate is a promise:

* Made: Allocate answers, or the kubelet's checkpoint names a running pod that is not listed yet. A
  promise has a higher number than those before it (`Maker`).
* Kept: the promise owns its CPUs (`ownership.promised`), so no pod gets them, and its devices stay
  listed (`offers.held_ids`).
* Confirmed: a record of the kubelet names devices of the promise. The container then has these
  devices and the CPUs that the answer announced (`as_announced`), and the promise has the rest
  (`unconfirmed`). An annotation that names the devices is no record: the agent believes it where a
  promise gave exactly these devices (`gave`), and it confirms nothing.
* Expired: a pod appears within a minute after the kubelet gave it devices, or never (`Expiry`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.devices import AllocatedDevices, DevicesByContainer
    from cpupool.core.requests import Resource

LAST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Promise:
    """Devices of one response to Allocate.

    Attributes:
        number: the number of the promise.
        resource: the resource of the devices.
        ids: the devices.
        announced: the CPUs that Allocate announced to the container.
    """

    number: int
    resource: Resource
    ids: frozenset[str]
    announced: CPUSet = field(default_factory=CPUSet)


class Maker:
    """Makes promises.

    Attributes:
        last: the number of the last promise; 0 before the first.
    """

    def __init__(self) -> None:
        self.last = 0

    def make(self, resource: Resource, ids: Iterable[str], announced: CPUSet) -> Promise:
        """Return a promise with the next number."""
        self.last += 1
        return Promise(self.last, resource, frozenset(ids), announced)


class Expiry:
    """Finds the promises that have expired, by the time at which it first hears of them."""

    def __init__(self) -> None:
        self._heard = 0
        self._due: deque[tuple[float, int]] = deque()

    def expired(self, last: int, now_s: float) -> int:
        """Return the number up to which promises have expired since the last call; 0 for none.

        Args:
            last: the number of the last promise.
            now_s: the time on a monotonic clock.
        """
        if last != self._heard:
            self._heard = last
            self._due.append((now_s + LAST_S, last))
        until = 0
        while self._due and now_s >= self._due[0][0]:
            until = self._due.popleft()[1]
        return until


def unconfirmed(promises: tuple[Promise, ...], found: DevicesByContainer) -> tuple[Promise, ...]:
    """Return the promises without the devices that the kubelet's records name."""
    if not (promises and found):
        return promises
    confirmed: defaultdict[Resource, set[str]] = defaultdict(set)
    for held in found.values():
        for resource, allocated in held.items():
            confirmed[resource] |= allocated.ids
    left = (replace(promise, ids=promise.ids - confirmed[promise.resource]) for promise in promises)
    return tuple(promise for promise in left if promise.ids)


def as_announced(
    promises: Iterable[Promise], resource: Resource, given: AllocatedDevices
) -> AllocatedDevices:
    """Return the kubelet's record of devices with the CPUs that Allocate announced."""
    cpus = given.announced or announced(promises, resource, given.ids)
    return replace(given, announced=cpus)


def announced(promises: Iterable[Promise], resource: Resource, ids: frozenset[str]) -> CPUSet:
    """Return the CPUs that Allocate announced to a container with these devices."""
    return CPUSet.union(
        promise.announced
        for promise in promises
        if promise.resource == resource and ids <= promise.ids
    )


def gave(
    promises: Iterable[Promise],
    known: DevicesByContainer,
    pod: str,
    resource: Resource,
    ids: frozenset[str],
) -> bool:
    """Return whether Allocate gave exactly these devices to a pod, and no other has one of them.

    The kubelet also gives the devices of a pod's init containers to its other containers.

    Args:
        promises: the promises.
        known: the known devices of containers.
        pod: the id in the pod's cgroup name.
        resource: the resource of the devices.
        ids: the devices.
    """
    of_pod: set[str] = set()
    for ref, held in known.items():
        if (allocated := held.get(resource)) is None:
            continue
        if ref.pod == pod:
            of_pod |= allocated.ids
        elif not allocated.ids.isdisjoint(ids):
            return False
    answers = (promise.ids for promise in promises if promise.resource == resource)
    return ids <= of_pod or any(answer <= ids <= answer | of_pod for answer in answers)
