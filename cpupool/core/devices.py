"""Devices: how a pool's CPUs are offered to the kubelet.

An exclusive pool offers each listed CPU under its own id with its NUMA node; a shared pool offers
the ids 0 to 1000·n-1, one per milli-CPU. Both are CPU-Pooler's ids: the kubelet's checkpoint of
pods that already run holds them. A pool of units offers the ids 0 to units-1, one per container.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from cpupool.core.cpuset import MAX_CPU, CPUSet, format_ids
from cpupool.core.errors import (
    AllocationError,
    SMTAlignmentError,
    UnavailableDevices,
    UnknownDevices,
)
from cpupool.core.names import ENABLE_SHARED_CPUS, resource_named
from cpupool.core.pools import MILLI_PER_CPU, Pool, PoolKind, is_name
from cpupool.core.requests import Resource
from cpupool.core.workloads import ContainerRef

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from cpupool.core.names import Names
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

MAX_DEVICE_LIST_BYTES: Final = 4 * 1024 * 1024
"""The kubelet's gRPC client takes no larger message (grpc-go's default)."""
_DEVICE_BYTES: Final = 13
"""One healthy device in ListAndWatchResponse beside its id: tags, lengths and `Healthy`."""
_CANONICAL_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
"""The one spelling in which an id is given out: `007` and `+7` are nobody's."""
_RUN: Final = rf"(?:{_CANONICAL_NUMBER.pattern})(?:-(?:{_CANONICAL_NUMBER.pattern}))?"
_DESCRIPTION: Final = re.compile(rf"{_RUN}(?:,{_RUN})*", re.ASCII)
_LONGEST_DESCRIPTION: Final = 256 * 1024
_MOST_DEVICES: Final = 250_000
"""A text of a few characters must not become a list that fills the memory."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a pool.

    Attributes:
        id: what the kubelet hands back in Allocate.
        healthy: whether it can be given out.
        node: its NUMA node id; None for what is no one CPU, and for CPUs without one.
    """

    id: str
    healthy: bool
    node: int | None


@dataclass(frozen=True, slots=True)
class AllocatedDevices:
    """What the kubelet gave one container of one resource.

    Attributes:
        ids: the device ids.
        told: the CPUs that the container was told when it got them, siblings included; empty where
            nobody remembers.
        hint: only the container's annotation names the devices: the kubelet's records correct it.
    """

    ids: frozenset[str]
    told: CPUSet = field(default_factory=CPUSet)
    hint: bool = False


DeviceAssignments = Mapping[ContainerRef, Mapping[Resource, AllocatedDevices]]
"""Container → resource → what the kubelet gave it."""
PodDevices = Mapping[str, Mapping[str, AllocatedDevices]]
"""One pod, as the kubelet tells it: container name → resource name → what it was given."""
NATIVE_CPU: Final = "cpu"
"""The resource under which the kubelet tells the CPUs that its static CPU manager gave out."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """A resource as the kubelet knows it.

    Attributes:
        name: which.
        pool: whose CPUs come with it; without CPUs where it is configured no longer.
        units: how many devices there are, where that does not follow from the CPUs: so many
            containers may use them, whatever each runs there.
    """

    name: Resource
    pool: Pool
    units: int | None = None

    @classmethod
    def gone(cls, name: Resource) -> Self:
        """Return a resource that is configured no longer."""
        kind = PoolKind.EXCLUSIVE if name.kind.exclusive else PoolKind.SHARED
        return cls(name, Pool(name, kind, CPUSet()))

    @property
    def capacity(self) -> int:
        """How many devices there are."""
        return capacity(self.pool) if self.units is None else self.units

    def offline(self, topology: CPUTopology) -> int:
        """Count the devices whose CPU is offline; a unit stands for all of them together."""
        gone = self.pool.offered - topology.online
        if self.units is not None:
            return self.units if gone == self.pool.offered else 0
        return capacity(replace(self.pool, cpus=gone))

    def unlisted(self, ids: Iterable[str]) -> list[str]:
        """Return those of some device ids that it does not have."""
        if self.pool.kind is PoolKind.SHARED:
            count = self.capacity
            return [one for one in ids if not _is_number_below(one, count)]
        cpus = self.pool.offered
        return [
            one for one in ids if not _is_number_below(one, MAX_CPU + 1) or int(one) not in cpus
        ]


def advertised(pools: NodePools) -> tuple[Advertised, ...]:
    """Return what the kubelet is to know: each pool but the default one, and OpenShift's if on."""
    named = ((resource_named(pool.name), pool) for pool in pools)
    found = tuple(Advertised(name, pool) for name, pool in named if name is not None)
    behind = pools.behind(ENABLE_SHARED_CPUS)
    if pools.mixed is None or behind is None:
        return found
    return (*found, Advertised(ENABLE_SHARED_CPUS, behind, pools.mixed.containers_limit))


@dataclass(frozen=True, slots=True)
class Offer:
    """What a resource offers the kubelet at one moment; iterates over its devices.

    A device that a pod holds stays listed and healthy after its CPU has left the pool: the kubelet
    admits a pod again, after its own restart or a reboot, only while every device that the pod
    holds is healthy. Such a device is draining: it is given to nobody, and goes when the pod ends.

    Attributes:
        resource: which.
        topology: the machine, for NUMA nodes and offline CPUs.
        taken: CPUs that cannot be given out although they are online: pods hold them through
            another pool.
        beside: CPUs that cannot be given out although their cores may: siblings that pods have with
            devices of this pool, where it did not always list them, and what is blocked.
        draining: ids that pods hold and the pool lists no longer.
        withdrawn: free ids of a shared pool that are left out in their place.
    """

    resource: Advertised
    topology: CPUTopology
    taken: CPUSet
    beside: CPUSet = field(default_factory=CPUSet)
    draining: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        resource: Advertised,
        topology: CPUTopology,
        taken: CPUSet,
        held: Collection[str],
        beside: CPUSet | None = None,
    ) -> Self:
        """Make the offer of a resource.

        Args:
            resource: which.
            topology: the machine.
            taken: as the attribute.
            held: its ids that pods hold.
            beside: as the attribute.
        """
        draining = frozenset(filter(_is_id, resource.unlisted(held)))
        withdrawn: Iterator[str] = iter(())
        if resource.pool.kind is PoolKind.SHARED:
            # The highest free ids make room for those that drain, so that no milli-CPU is
            # promised twice.
            numbers = map(str, range(resource.capacity - 1, -1, -1))
            withdrawn = (number for number in numbers if number not in held)
        room = frozenset(islice(withdrawn, len(draining)))
        return cls(resource, topology, taken, beside or CPUSet(), draining, room)

    @property
    def pool(self) -> Pool:
        """The pool whose CPUs come with the resource."""
        return self.resource.pool

    def __iter__(self) -> Iterator[Device]:
        if self.pool.kind is PoolKind.SHARED:
            # A milli-CPU is no particular CPU, so all of them are healthy while one CPU runs.
            healthy = self.some_cpu_runs
            ids = (
                one for one in map(str, range(self.resource.capacity)) if one not in self.withdrawn
            )
            for identifier in (*ids, *sorted(self.draining, key=int)):
                yield Device(identifier, healthy, None)
            return
        for cpu in self.pool.offered | exclusive_cpus(self.draining):
            yield Device(str(cpu), self._available(cpu), self.topology.node_of(cpu))

    def looks_like(self, other: Offer) -> bool:
        """Tell whether the kubelet sees the same in both."""
        if self.pool.kind is PoolKind.EXCLUSIVE or other.pool.kind is PoolKind.EXCLUSIVE:
            return tuple(self) == tuple(other)
        # A shared pool's milli-CPUs need not be spelled out for that.
        return (self.resource.capacity, self.some_cpu_runs, self.draining, self.withdrawn) == (
            other.resource.capacity,
            other.some_cpu_runs,
            other.draining,
            other.withdrawn,
        )

    def check_listed(self, ids: Collection[str]) -> None:
        """Accept only ids that are listed, each once.

        Raises:
            UnknownDevices: with those that are not.
            AllocationError: with those that are named again.
        """
        others = {*self.resource.unlisted(ids), *self.withdrawn.intersection(ids)}
        if unknown := [one for one in ids if one in others and one not in self.draining]:
            raise UnknownDevices(
                self.resource.name, "no such devices", "use the ids that it lists", unknown
            )
        if len(set(ids)) < len(ids):
            again = [one for one, times in Counter(ids).items() if times > 1]
            raise AllocationError(
                self.resource.name, "devices are named twice", "name each once", again
            )

    def check_free(self, ids: Collection[str]) -> None:
        """Accept only listed devices that can be given out now.

        Raises:
            UnavailableDevices: with those that cannot.
            AllocationError: as `check_listed`.
        """
        self.check_listed(ids)
        if draining := [one for one in ids if one in self.draining]:
            raise UnavailableDevices(
                self.resource.name,
                "these devices have left the pool, or are reserved, and stay listed for the pods"
                " that hold them",
                "start the pod again: another device will be chosen",
                draining,
            )
        if self.pool.kind is PoolKind.SHARED:
            return
        if gone := [one for one in ids if not self._available(int(one))]:
            raise UnavailableDevices(
                self.resource.name,
                "these CPUs are offline, or pods still have them or their cores",
                "wait until they are back",
                gone,
            )
        if self.pool.policy.whole_cores:
            self._check_whole_cores(ids)

    @property
    def some_cpu_runs(self) -> bool:
        """Whether a CPU of the pool is online; one that is configured no longer counts as such."""
        return not self.pool.cpus or not self.pool.cpus.isdisjoint(self.topology.online)

    def _available(self, cpu: int) -> bool:
        # The whole core counts: an exclusive CPU is bought against a neighbour on its sibling.
        free = self.topology.core_of(cpu).isdisjoint(self.taken) and cpu not in self.beside
        return free and cpu in self.topology.online

    def _check_whole_cores(self, ids: Collection[str]) -> None:
        given = exclusive_cpus(ids)
        cores = {one: self.topology.core_of(int(one)) & self.pool.offered for one in ids}
        split = [one for one, core in cores.items() if not core <= given]
        if not split:
            return
        per_core = max(map(len, cores.values()))
        if len(given) % per_core:
            raise unaligned(self.resource.name, SMTAlignmentError(len(given), per_core))
        raise UnavailableDevices(
            self.resource.name,
            "these CPUs are parts of cores, and the pool hands out whole ones",
            "start the pod again: other devices will be chosen",
            split,
        )


def capacity(pool: Pool) -> int:
    """Count a pool's devices: CPUs, or milli-CPUs of a shared pool."""
    return len(pool.offered) * (MILLI_PER_CPU if pool.kind is PoolKind.SHARED else 1)


def device_list_bytes(count: int) -> int:
    """Size the ListAndWatch message of a pool whose devices have the ids 0 to count-1."""
    # Every id has a first digit, those from 10 on a second one, those from 100 on a third, ...
    further_digits: int = sum(count - 10**power for power in range(1, len(str(count))))
    return count * (_DEVICE_BYTES + 1) + further_digits


def unaligned(pool: str, error: SMTAlignmentError) -> AllocationError:
    """Say for a pool what whole cores cannot serve."""
    if error.available is None:
        return AllocationError(
            pool,
            f"{error.requested} CPUs requested of cores with {error.cpus_per_core}",
            f"request a multiple of {error.cpus_per_core}",
        )
    return AllocationError(
        pool,
        f"{error.requested} CPUs requested, {error.available} free on whole cores",
        "request fewer, or wait until other pods end",
    )


def exclusive_cpus(ids: Iterable[str]) -> CPUSet:
    """Read the CPUs that exclusive device ids name; ids that are no CPU ids are left out."""
    return CPUSet(
        int(identifier) for identifier in ids if _is_number_below(identifier, MAX_CPU + 1)
    )


def describe_ids(ids: Iterable[str]) -> str:
    """Write device ids in the list format, for the annotation that a container carries."""
    return format_ids(sorted(int(identifier) for identifier in ids))


def allocated(
    annotations: Mapping[str, str], of_pod: Mapping[str, str], names: Names
) -> dict[Resource, frozenset[str]]:
    """Read what Allocate's replies wrote on a container: resource → device ids.

    An annotation that holds something else counts as none, and so does one that the pod carries:
    its author wrote that, and some runtimes copy the pod's annotations onto its containers.

    Args:
        annotations: the container's, as the runtime has them.
        of_pod: those of its pod, as the runtime has them for the sandbox.
        names: of the annotations.
    """
    found = {}
    for key in annotations.keys() - of_pod.keys():
        pool = names.allocated_pool(key)
        if pool is not None and is_name(pool) and (ids := _described(annotations[key])):
            found[pool] = ids
    return found


def _described(text: str) -> frozenset[str]:
    if len(text) > _LONGEST_DESCRIPTION or _DESCRIPTION.fullmatch(text) is None:
        return frozenset()
    bounds = [[int(bound) for bound in run.split("-")] for run in text.split(",")]
    steps = [run[-1] - run[0] for run in bounds]
    if min(steps) < 0 or sum(steps) > _MOST_DEVICES:
        return frozenset()
    return frozenset(str(number) for run in bounds for number in range(run[0], run[-1] + 1))


def _is_id(text: str) -> bool:
    return _CANONICAL_NUMBER.fullmatch(text) is not None


def _is_number_below(text: str, limit: int) -> bool:
    return _is_id(text) and int(text) < limit
