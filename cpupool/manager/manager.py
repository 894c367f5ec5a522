"""The Manager: one state per node, one lock, every door asks it.

Doors bring facts (pools, topology, pods, device assignments) and ask for answers (device lists,
allocations, where each container belongs). Deciding is pure and in `resolve`; no I/O happens here.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    AllocationError,
    NoDevicesAsked,
    NotEnoughDevices,
    Problem,
    errors_in,
    refuse_errors,
)
from cpupool.core.names import EXCLUSIVE_CPUS, SHARED_CPUS, Names, pool_variable
from cpupool.core.pools import NodePools, Pool, PoolKind, validate
from cpupool.manager import resolve
from cpupool.manager.resolve import NodeFacts
from cpupool.policies import pooled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cpupool.core.assignments import DeviceAssignments
    from cpupool.core.devices import Device
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Resolution

_WAIT_S = 5.0
"""A waiter looks at its own cancellation at least this often."""


@dataclass(frozen=True, slots=True)
class DeviceList:
    """What a pool offers the kubelet at one moment; iterates over its devices.

    Attributes:
        generation: differs from an earlier list of this pool where a device differs.
        pool: the pool.
        topology: the machine, for NUMA nodes and offline CPUs.
        held: CPUs that cannot be given out although they are online.
    """

    generation: int
    pool: Pool
    topology: CPUTopology
    held: CPUSet

    def __iter__(self) -> Iterator[Device]:
        return devices.devices_of(self.pool, self.topology, self.held)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Allocate answers: environment variables and annotations of the container."""

    environment: Mapping[str, str]
    annotations: Mapping[str, str]


class Manager:
    """The node's state.

    Safe to call from any thread; every call is short.

    Args:
        names: the public strings, with the resource domain.
    """

    def __init__(self, names: Names | None = None) -> None:
        self.names = names or Names()
        self._changed = threading.Condition()
        self._facts = NodeFacts()
        self._resolution = resolve.resolve(self._facts, {})
        self._lists: dict[str, DeviceList] = {}
        self._generations = count()

    def reconfigure(self, pools: NodePools, topology: CPUTopology) -> tuple[Problem, ...]:
        """Take new pools, checked against the machine; refused pools change nothing.

        Returns:
            The warnings.

        Raises:
            ConfigError: the pools are not safe on this machine.
        """
        with self._changed:
            topology = topology.remembering(self._facts.topology)
            problems = validate(pools, topology)
            refuse_errors(problems)
            kept = {pool.name for pool in pools}
            known = (*self._facts.retired, *self._facts.pools)
            retired = {pool.name: pool for pool in known if pool.name not in kept}
            self._take(
                replace(
                    self._facts,
                    pools=pools,
                    topology=topology,
                    retired=tuple(retired.values()),
                    blocked=CPUSet(),
                )
            )
            return problems

    def update_topology(self, topology: CPUTopology) -> tuple[Problem, ...]:
        """Take a new reading of the machine: CPUs went offline or came back.

        A CPU whose return shows that two pools share its core is given to nobody until the pools
        are mended; pods that own CPUs keep them.

        Returns:
            What the pools' validation says now.
        """
        with self._changed:
            topology = topology.remembering(self._facts.topology)
            problems = validate(self._facts.pools, topology)
            conflicts = CPUSet.union(problem.cpus or CPUSet() for problem in errors_in(problems))
            blocked = conflicts - resolve.owned_cpus(self._resolution.owned)
            self._take(replace(self._facts, topology=topology, blocked=blocked))
            return problems

    def set_pods(self, pods: Iterable[Pod]) -> None:
        """Take the complete list of this node's pods."""
        with self._changed:
            listed = tuple(pods)
            alive = {pod.uid for pod in listed if not pod.finished}
            kept = {ref: ids for ref, ids in self._facts.devices.items() if ref.pod in alive}
            self._take(replace(self._facts, pods=listed, devices=kept))

    def record_devices(self, found: DeviceAssignments) -> None:
        """Take what the kubelet says of its device assignments.

        What is known of a living pod is never forgotten: a kubelet that restarts or does not
        answer takes no CPU from anybody.
        """
        with self._changed:
            merged = dict(self._facts.devices)
            for ref, by_pool in found.items():
                merged[ref] = {**merged.get(ref, {}), **by_pool}
            if merged != self._facts.devices:
                self._take(replace(self._facts, devices=merged))

    def pools(self) -> NodePools:
        """Give the pools in force."""
        with self._changed:
            return self._facts.pools

    def state(self) -> tuple[NodeFacts, Resolution]:
        """Give the facts and what follows from them, as of one moment."""
        with self._changed:
            return self._facts, self._resolution

    def devices(self, pool: str) -> DeviceList:
        """Give what a pool offers now.

        Raises:
            AllocationError: there is no such pool.
        """
        with self._changed:
            return self._list_of(pool)

    def wait_for_devices(
        self, pool: str, seen: int, cancelled: Callable[[], bool]
    ) -> DeviceList | None:
        """Wait until a pool's list differs from the one with the generation `seen`.

        Returns:
            The new list at once if it already differs; None when cancelled, or when the pool has
            gone.
        """
        with self._changed:
            while not cancelled():
                current = self._lists.get(pool)
                if current is None:
                    return None
                if current.generation != seen:
                    return current
                self._changed.wait(_WAIT_S)
            return None

    def notify(self) -> None:
        """Wake every waiter so that it looks at its cancellation."""
        with self._changed:
            self._changed.notify_all()

    def preferred(
        self, pool: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Choose good devices of an exclusive pool for a container of `size` CPUs.

        Raises:
            AllocationError: an id is unknown, or there are fewer than `size` to choose from.
        """
        with self._changed:
            listed = self._list_of(pool)
        devices.check_ids(listed.pool, available)
        devices.check_ids(listed.pool, must_include)
        required = devices.exclusive_cpus(must_include)
        offered = devices.exclusive_cpus(available) | required
        if not len(required) <= size <= len(offered):
            raise NotEnoughDevices(pool, size, len(offered))
        chosen = pooled.prefer(offered, required, size, listed.topology)
        return tuple(str(cpu) for cpu in chosen)

    def allocate(self, pool: str, ids: Sequence[str]) -> Allocation:
        """Answer Allocate for one container; the kubelet names no pod, so nothing is recorded.

        Raises:
            AllocationError: no ids, unknown ids, the same twice, or CPUs that cannot be given out.
        """
        with self._changed:
            listed = self._list_of(pool)
        if not ids:
            raise NoDevicesAsked(pool, "no devices requested", "name at least one")
        devices.check_ids(listed.pool, ids)
        devices.check_available(listed.pool, ids, listed.topology, listed.held)
        if listed.pool.kind is PoolKind.SHARED:
            variable, cpus = SHARED_CPUS, listed.pool.cpus
        else:
            granted = listed.pool.granted(devices.exclusive_cpus(ids), listed.topology)
            variable, cpus = EXCLUSIVE_CPUS, granted & listed.topology.online
        return Allocation(
            environment={variable: str(cpus), pool_variable(pool): str(cpus)},
            annotations={self.names.allocated(pool): devices.describe_ids(ids)},
        )

    def _list_of(self, pool: str) -> DeviceList:
        listed = self._lists.get(pool)
        if listed is None:
            raise AllocationError(pool, "this node has no such pool", "look at its pool file")
        return listed

    def _take(self, facts: NodeFacts) -> None:
        self._facts = facts
        self._resolution = resolve.resolve(facts, self._resolution.owned)
        self._lists = {pool.name: self._fresh_list(pool) for pool in self._facts.pools.advertised}
        self._changed.notify_all()

    def _fresh_list(self, pool: Pool) -> DeviceList:
        held = self._resolution.held_elsewhere(pool.name) | self._facts.blocked
        before = self._lists.get(pool.name)
        fresh = DeviceList(next(self._generations), pool, self._facts.topology, held)
        if before is None or _offer(before) != _offer(fresh):
            return fresh
        return replace(fresh, generation=before.generation)


def _offer(listed: DeviceList) -> object:
    """What the kubelet sees of a list, without spelling out a shared pool's milli-CPUs."""
    if listed.pool.kind is PoolKind.SHARED:
        return devices.capacity(listed.pool), listed.pool.cpus.isdisjoint(listed.topology.online)
    return tuple(listed)
