"""Devices: the form in which the agent offers the CPUs of a pool to the kubelet.

An exclusive pool offers one device for each listed CPU: its id is the CPU's, and it has the CPU's
NUMA node. A shared pool of n CPUs offers the ids 0 to 1000·n-1, one for each milli-CPU. Both are
the ids of CPU-Pooler, because the kubelet's checkpoint has them for pods that run already. A pool
of units offers the ids 0 to units-1, one for each container.
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

_CANONICAL_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
"""The only spelling of an id: `007` and `+7` are not ids."""
_RUN: Final = rf"(?:{_CANONICAL_NUMBER.pattern})(?:-(?:{_CANONICAL_NUMBER.pattern}))?"
_DESCRIPTION: Final = re.compile(rf"{_RUN}(?:,{_RUN})*", re.ASCII)
_LONGEST_DESCRIPTION: Final = 256 * 1024
_MOST_DEVICES: Final = 250_000
"""A limit: a text of a few characters must not become a list that fills the memory."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a pool.

    Attributes:
        id: the id that the kubelet passes to Allocate.
        healthy: whether the kubelet can give the device out.
        node: its NUMA node id; None where the device is not a particular CPU, where the CPU is
            offline, or has no node.
    """

    id: str
    healthy: bool
    node: int | None


DeviceNodes = frozenset[frozenset[int]]
"""The NUMA nodes of one resource's devices: the nodes of each device that has some."""


@dataclass(frozen=True, slots=True)
class AllocatedDevices:
    """The devices of one resource that the kubelet gave to one container.

    Attributes:
        ids: the device ids; empty for memory, which the kubelet reports in the same way.
        announced: the CPUs that Allocate announced to the container, siblings included; empty where
            they are not known.
        hint: only the container's annotation names the devices: the kubelet's records correct it.
        nodes: the NUMA nodes of the devices.
    """

    ids: frozenset[str]
    announced: CPUSet = field(default_factory=CPUSet)
    hint: bool = False
    nodes: DeviceNodes = frozenset()


DevicesByContainer = Mapping[ContainerRef, Mapping[Resource, AllocatedDevices]]
"""Container → resource → the devices that the kubelet gave it."""
PodDevices = Mapping[str, Mapping[str, AllocatedDevices]]
"""One pod in the kubelet's records: container name → resource name → its devices."""
NodesOfDevices = Mapping[str, Mapping[str, frozenset[DeviceNodes]]]
"""The id in a pod's cgroup name → container name → the NUMA nodes of each of its resources."""
NATIVE_CPU: Final = "cpu"
"""The resource under which the kubelet reports the CPUs that its static CPU manager gave out."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """A resource that the agent registers with the kubelet.

    Attributes:
        name: its name.
        pool: the pool of its CPUs; has no CPUs where it is no longer configured.
        units: how many devices there are, where the number does not follow from the CPUs: each
            device lets one container use all the CPUs.
    """

    name: Resource
    pool: Pool
    units: int | None = None

    @classmethod
    def gone(cls, name: Resource) -> Self:
        """Return a resource whose pool is no longer configured."""
        kind = PoolKind.EXCLUSIVE if name.kind.exclusive else PoolKind.SHARED
        return cls(name, Pool(name, kind, CPUSet()))

    @property
    def capacity(self) -> int:
        """The number of devices."""
        return capacity(self.pool) if self.units is None else self.units

    def offline(self, topology: CPUTopology) -> int:
        """Count the devices whose CPU is offline; a unit is offline when all CPUs are."""
        gone = self.pool.offered - topology.online
        if self.units is not None:
            return self.units if gone == self.pool.offered else 0
        return capacity(replace(self.pool, cpus=gone))

    def drained(self, held: Iterable[str]) -> frozenset[str]:
        """Return the ids that pods hold and that this resource does not have."""
        return frozenset(filter(_is_id, self.unlisted(held)))

    def unlisted(self, ids: Iterable[str]) -> list[str]:
        """Return the device ids that this resource does not have."""
        # A node may hold a hundred thousand: no function of ours is called for each.
        is_number = _CANONICAL_NUMBER.fullmatch
        if self.pool.kind is PoolKind.SHARED:
            count = self.capacity
            return [each for each in ids if not (is_number(each) and int(each) < count)]
        cpus = self.pool.offered
        return [
            each
            for each in ids
            if not (is_number(each) and int(each) <= MAX_CPU and int(each) in cpus)
        ]


def advertised(pools: NodePools) -> tuple[Advertised, ...]:
    """Return the resources of all pools but the default pool, and OpenShift's resource if on."""
    named = ((resource_named(pool.name), pool) for pool in pools)
    found = tuple(Advertised(name, pool) for name, pool in named if name is not None)
    behind = pools.behind(ENABLE_SHARED_CPUS)
    if pools.mixed is None or behind is None:
        return found
    return (*found, Advertised(ENABLE_SHARED_CPUS, behind, pools.mixed.containers_limit))


@dataclass(frozen=True, slots=True)
class Offer:
    """The devices of a resource that the agent offers the kubelet at one moment; iterable.

    A device that a pod holds stays listed and healthy after its CPU has left the pool: the kubelet
    admits a pod again, after its own restart or a reboot, only while every device that the pod
    holds is healthy. Such a device is draining: no other pod gets it, and it goes when the pod
    ends.

    Attributes:
        resource: the resource.
        topology: the machine, for NUMA nodes and offline CPUs.
        taken: online CPUs that the kubelet cannot give out, and no CPU of their cores either: pods
            hold them through another pool.
        withheld: CPUs that the kubelet cannot give out, while it can give out others of their
            cores: siblings that pods have with devices of this pool, where it did not always list
            them, blocked CPUs, and parts of cores where the pool gives whole ones.
        draining: ids that pods hold and that the pool no longer lists.
        withdrawn: as many free ids of a shared pool, which the list leaves out.
    """

    resource: Advertised
    topology: CPUTopology
    taken: CPUSet
    withheld: CPUSet = field(default_factory=CPUSet)
    draining: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        resource: Advertised,
        topology: CPUTopology,
        taken: CPUSet,
        held: Collection[str],
        withheld: CPUSet | None = None,
    ) -> Self:
        """Return the offer of a resource.

        Args:
            resource: the resource.
            topology: the machine.
            taken: as the attribute.
            held: its ids that pods hold.
            withheld: as the attribute.
        """
        offer = cls(resource, topology, taken, withheld or CPUSet())
        return offer.holding(frozenset(held), since=frozenset())

    def holding(self, held: frozenset[str], since: frozenset[str]) -> Self:
        """Return the offer once pods hold other ids.

        Args:
            held: the ids that pods hold.
            since: the ids that they held at the time of this offer.
        """
        # A pod comes or goes, and the others may hold thousands of ids.
        draining = (self.draining & held) | self.resource.drained(held - since)
        withdrawn: Iterator[str] = iter(())
        if self.pool.kind is PoolKind.SHARED:
            # The highest free ids make room for the draining ids: the kubelet must not give out
            # a milli-CPU twice.
            numbers = map(str, range(self.resource.capacity - 1, -1, -1))
            withdrawn = (number for number in numbers if number not in held)
        room = frozenset(islice(withdrawn, len(draining)))
        return replace(self, draining=draining, withdrawn=room)

    @property
    def pool(self) -> Pool:
        """The pool whose CPUs come with the resource."""
        return self.resource.pool

    def __iter__(self) -> Iterator[Device]:
        if self.pool.kind is PoolKind.SHARED:
            # A milli-CPU is no particular CPU, so all of them are healthy while one CPU runs.
            healthy = self.some_cpu_runs
            ids = (
                number
                for number in map(str, range(self.resource.capacity))
                if number not in self.withdrawn
            )
            for identifier in (*ids, *sorted(self.draining, key=int)):
                yield Device(identifier, healthy, None)
            return
        for cpu in self.pool.offered | exclusive_cpus(self.draining):
            # The kubelet takes each node's devices, also unhealthy ones, for what an idle node can
            # give. So an offline CPU must have no node (generateDeviceTopologyHints in the
            # kubelet's pkg/kubelet/cm/devicemanager/topology_hints.go).
            info = self.topology.cpus.get(cpu)
            yield Device(str(cpu), self._available(cpu), info.node if info else None)

    def looks_like(self, other: Offer) -> bool:
        """Return whether the kubelet sees the same in both."""
        if self.pool.kind is PoolKind.EXCLUSIVE or other.pool.kind is PoolKind.EXCLUSIVE:
            return tuple(self) == tuple(other)
        # A shared pool has thousands of devices: comparing their ids takes too long.
        return (self.resource.capacity, self.some_cpu_runs, self.draining, self.withdrawn) == (
            other.resource.capacity,
            other.some_cpu_runs,
            other.draining,
            other.withdrawn,
        )

    def check_listed(self, ids: Collection[str]) -> None:
        """Accept only listed ids, each once.

        Raises:
            UnknownDevices: with the ids that are not listed.
            AllocationError: with the ids that are named twice.
        """
        others = {*self.resource.unlisted(ids), *self.withdrawn.intersection(ids)}
        if unknown := [
            identifier
            for identifier in ids
            if identifier in others and identifier not in self.draining
        ]:
            raise UnknownDevices(
                self.resource.name, "no such devices", "use the ids that it lists", unknown
            )
        if len(set(ids)) < len(ids):
            again = [identifier for identifier, times in Counter(ids).items() if times > 1]
            raise AllocationError(
                self.resource.name, "devices are named twice", "name each once", again
            )

    def check_free(self, ids: Collection[str]) -> None:
        """Accept only listed devices that the kubelet can give out now.

        Raises:
            UnavailableDevices: with the other devices.
            AllocationError: as `check_listed`.
        """
        self.check_listed(ids)
        if draining := [identifier for identifier in ids if identifier in self.draining]:
            raise UnavailableDevices(
                self.resource.name,
                "these devices have left the pool, or are reserved, and stay listed for the pods"
                " that hold them",
                "start the pod again: another device will be chosen",
                draining,
            )
        if self.pool.kind is PoolKind.SHARED:
            return
        if gone := [identifier for identifier in ids if not self._available(int(identifier))]:
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
        """Whether a CPU of the pool is online; true for a pool that is no longer configured."""
        return not self.pool.cpus or not self.pool.cpus.isdisjoint(self.topology.online)

    def _available(self, cpu: int) -> bool:
        # An exclusive CPU must have no foreign load on its sibling, so the whole core must be free.
        free = self.topology.core_of(cpu).isdisjoint(self.taken) and cpu not in self.withheld
        return free and cpu in self.topology.online

    def _check_whole_cores(self, ids: Collection[str]) -> None:
        given, offered = exclusive_cpus(ids), self.pool.offered & self.topology.online
        cores = {str(cpu): self.topology.running_core_of(cpu) & offered for cpu in offered}
        per_core = max(map(len, cores.values()))
        split = [cpu for cpu in ids if len(cores[cpu]) < per_core or not cores[cpu] <= given]
        if not split:
            return
        if len(given) % per_core:
            raise unaligned(self.resource.name, SMTAlignmentError(len(given), per_core))
        raise UnavailableDevices(
            self.resource.name,
            "these CPUs are parts of cores, and the pool hands out whole ones",
            "start the pod again: other devices will be chosen",
            split,
        )


def capacity(pool: Pool) -> int:
    """Return the number of a pool's devices: CPUs, or milli-CPUs of a shared pool."""
    return len(pool.offered) * (MILLI_PER_CPU if pool.kind is PoolKind.SHARED else 1)


def unaligned(pool: str, error: SMTAlignmentError) -> AllocationError:
    """Return the error for a pool that cannot serve a request with whole cores."""
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


def nodes_of(by_device: Iterable[Iterable[int]]) -> DeviceNodes:
    """Return the NUMA nodes of devices, without devices that have none.

    A device plugin may report the kernel's -1 for a device without a node.
    """
    found = (frozenset(node for node in nodes if node >= 0) for nodes in by_device)
    return frozenset(nodes for nodes in found if nodes)


def exclusive_cpus(ids: Iterable[str]) -> CPUSet:
    """Return the CPUs that exclusive device ids name; leave out ids that are not CPU ids."""
    return CPUSet(
        int(identifier) for identifier in ids if _is_number_below(identifier, MAX_CPU + 1)
    )


def describe_ids(ids: Iterable[str]) -> str:
    """Return device ids in the list format, for the container's annotation."""
    return format_ids(sorted(int(identifier) for identifier in ids))


def allocated(
    annotations: Mapping[str, str], of_pod: Mapping[str, str], names: Names
) -> dict[Resource, frozenset[str]]:
    """Read the annotations that Allocate's responses wrote on a container: resource → device ids.

    The function ignores an annotation with another content, and one that the pod has, too: its
    author wrote it, and some runtimes copy the pod's annotations to its containers.

    Args:
        annotations: the container's annotations in the runtime.
        of_pod: the annotations of its pod's sandbox in the runtime.
        names: the names of the annotations.
    """
    found = {}
    for key, text in annotations.items():
        pool = None if key in of_pod else names.allocated_pool(key)
        if pool is not None and is_name(pool) and (ids := _described(text)):
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
