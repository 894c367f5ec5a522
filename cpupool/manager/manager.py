"""The Manager: one state per node, one lock, every door asks it.

Doors bring facts (pools, topology, pods, device assignments) and ask for answers (device lists,
allocations, where each container belongs). Deciding is pure and in `resolve`; no I/O happens here.
Every question has its method in this one class, under its one lock: that makes the module long.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from cpupool.config.pool_rules import validate
from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    AllocationError,
    ConfigError,
    NoDevicesAsked,
    NotEnoughDevices,
    Problem,
    SMTAlignmentError,
    errors_in,
    refuse_errors,
)
from cpupool.core.grants import Grants
from cpupool.core.names import Names
from cpupool.core.pools import NodePools
from cpupool.manager import choosing, offers, ownership, pinned, resolve, sightings
from cpupool.manager.answers import Allocation, PoolChange
from cpupool.manager.facts import NodeFacts, Promise
from cpupool.manager.resolve import Snapshot
from cpupool.manager.static_pods import Identity
from cpupool.policies.base import Ask
from cpupool.policies.none import BUILT_IN
from cpupool.policies.pools import PoolsPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cpupool.core.devices import Advertised, AllocatedDevices, DeviceAssignments
    from cpupool.core.pools import NodePools
    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import ContainerID, ContainerRef, Pod, RuntimeContainer
    from cpupool.manager.offers import DeviceList
    from cpupool.manager.ports import FoundContainer
    from cpupool.manager.resolve import Resolution
    from cpupool.manager.static_pods import PodName
    from cpupool.policies.base import Choice, CPUManagerPolicies, CPUManagerPolicy

_WAIT_S = 5.0
"""A waiter looks at its own cancellation at least this often."""


class Manager:
    """The node's state.

    Safe to call from any thread; every call is short.

    Args:
        names: the public strings, with the resource domain.
        moves_pinned: a container that has CPUs of its own follows changes of its shared pools;
            false where the kernel would then forget to which CPUs its threads are pinned.
        cpu_managers: the CPU manager policies that a configuration can name.
    """

    def __init__(
        self,
        names: Names | None = None,
        *,
        moves_pinned: bool = True,
        cpu_managers: CPUManagerPolicies = BUILT_IN,
    ) -> None:
        self.names = names or Names()
        self.cpu_managers = cpu_managers
        self._moves_pinned = moves_pinned
        self._changed = threading.Condition()
        self._decided = NodeFacts()
        self._followed = resolve.resolve(self._decided, (), Grants())
        self._recovered = False
        self._lists: dict[str, DeviceList] = {}
        self._holdings: tuple[DeviceAssignments, tuple[Promise, ...]] = ({}, ())
        self._held: Mapping[Resource, frozenset[str]] = {}
        self._generations = count()
        self._promises = count(1)
        self._promised = 0
        self._answered: list[Promise] = []
        self._choices: dict[tuple[str, int], Choice] = {}

    def reconfigure(self, pools: NodePools, topology: CPUTopology) -> PoolChange:
        """Take new pools, checked against the machine; refused pools change nothing.

        CPUs that a pod owns stay its own until it ends, and its devices stay listed.

        Raises:
            ConfigError: the pools are not safe on this machine.
        """
        with self._changed:
            topology = topology.remembering(self._facts.topology)
            problems = validate(pools, topology)
            refuse_errors(problems)
            policy = self._made(pools, topology)
            before = self._facts.pools
            placed = self._resolution.containers
            kept = {} if self._moves_pinned else pinned.concerned(placed, before, pools)
            self._take(
                replace(
                    self._facts,
                    pools=pools,
                    configured=True,
                    topology=topology,
                    policy=policy,
                    devices=self._as_granted(),
                    kept_shared={**kept, **self._facts.kept_shared},
                    blocked=CPUSet(),
                )
            )
            return PoolChange.between(before, pools, problems)

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
            owned = CPUSet.union(grant.cpus for _, grant in self._resolution.grants.of_pods)
            blocked = conflicts - owned
            policy = self._facts.policy
            try:
                policy = self._made(self._facts.pools, topology)
            except ConfigError as error:
                problems = (*problems, *error.problems)
            self._take(replace(self._facts, topology=topology, policy=policy, blocked=blocked))
            return problems

    def observe(
        self,
        *,
        pods: Iterable[Pod] | None = None,
        static_cpus: CPUSet | None = None,
        idle: frozenset[str] | None = None,
    ) -> None:
        """Take facts that have been read anew; None for one that has not.

        Args:
            pods: the complete list of this node's pods.
            static_cpus: the CPUs that the kubelet's static CPU manager gives out; none under its
                policy none.
            idle: the pods that have no container's cgroup, where two pods claim a CPU.
        """
        with self._changed:
            facts = self._facts
            if static_cpus is not None:
                facts = replace(facts, static_cpus=static_cpus)
            if idle is not None:
                facts = replace(facts, idle=idle)
            if pods is not None:
                facts = sightings.joined(replace(facts, pods=tuple(pods)))
            if facts != self._facts:
                self._take(facts)

    def name_static_pods(self, names: Mapping[str, PodName]) -> None:
        """Take the kubelet's word on the static pods for which hashes stand."""
        with self._changed:
            certain = {one: Identity(name, certain=True) for one, name in names.items()}
            if not certain.items() <= self._facts.static.items():
                static = {**self._facts.static, **certain}
                self._take(sightings.joined(replace(self._facts, static=static)))

    def observe_containers(self, found: Iterable[RuntimeContainer], *, every: bool = False) -> None:
        """Take what the container runtime tells of containers and sandboxes.

        Args:
            found: some of them.
            every: there are no others.
        """
        with self._changed:
            told = {container.id: container for container in found}
            sighted = told if every else {**self._facts.sighted, **told}
            if sighted != self._facts.sighted:
                self._take(sightings.joined(replace(self._facts, sighted=sighted)))

    def forget_containers(self, ids: Iterable[ContainerID]) -> None:
        """Forget containers and sandboxes that the container runtime has no longer."""
        with self._changed:
            gone = self._facts.sighted.keys() & set(ids)
            if gone:
                left = {key: one for key, one in self._facts.sighted.items() if key not in gone}
                self._take(sightings.joined(replace(self._facts, sighted=left)))

    def accept(self, found: DeviceAssignments) -> None:
        """Take what the kubelet says of its device assignments.

        What is known of a living pod is never forgotten, but for hints that are contradicted: a
        kubelet that restarts or does not answer takes no CPU from anybody.
        """
        with self._changed:
            merged = dict(sightings.corrected(self._facts.devices, found))
            for ref, by_pool in found.items():
                known = merged.get(ref, {})
                merged[ref] = {
                    **known,
                    **{
                        pool: _joined(known.get(pool), self._as_told(pool, grant))
                        for pool, grant in by_pool.items()
                    },
                }
            if merged != self._facts.devices:
                promises = sightings.unfulfilled(self._facts.promises, found)
                self._take(replace(self._facts, devices=merged, promises=promises))

    def promise(self, resource: Resource, ids: Iterable[str], told: CPUSet | None = None) -> None:
        """Note devices that the kubelet has given to a pod which is not known yet.

        Nobody else gets them, and they stay listed, until a pod is known to hold them or
        `release` says that none ever will.

        Args:
            resource: which.
            ids: the devices.
            told: the CPUs that the container was told.
        """
        with self._changed:
            promise = self._new_promise(resource, ids, told or CPUSet())
            self._take(replace(self._facts, promises=(*self._facts.promises, promise)))

    def promised_until(self) -> int:
        """Give the number of the last promise."""
        with self._changed:
            return self._promised

    def release(self, until: int) -> None:
        """Forget the promises up to this number: their pods will not appear."""
        with self._changed:
            kept = tuple(promise for promise in self._facts.promises if promise.number > until)
            if kept != self._facts.promises:
                self._take(replace(self._facts, promises=kept))

    def adopt(self, found: Iterable[FoundContainer]) -> None:
        """Take over what an earlier agent has decided; from then on this one decides.

        A container of the CPU manager policy owns the CPUs that it runs on. One that kept an older
        shared part runs on exactly its own CPUs and those that its shared pools had when it was
        started.
        """
        with self._changed:
            found = tuple(found)
            facts, grants = self._facts, self._resolution.grants
            self._recovered = True
            grants = choosing.recover(facts, self._resolution.view.pods, grants, found)
            if not self._moves_pinned:
                kept = pinned.found_stale(facts, self._resolution, found)
                facts = replace(facts, kept_shared={**facts.kept_shared, **kept})
            self._take(facts, grants)

    def advertised(self) -> tuple[Advertised, ...]:
        """Return the resources that have devices to list.

        One that is configured no longer is among them, without CPUs, while a pod holds devices of
        it.
        """
        with self._changed:
            return tuple(listed.offer.resource for listed in self._lists.values())

    def pools(self) -> NodePools:
        """Give the pools in force."""
        with self._changed:
            return self._facts.pools

    def snapshot(self) -> Snapshot:
        """Return the facts and what follows from them, as of one moment."""
        with self._changed:
            return Snapshot(self._facts, self._resolution)

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
            AllocationError: an id is unknown, there are fewer than `size` to choose from, or whole
                cores cannot serve it.
        """
        with self._changed:
            listed, view = self._list_of(pool), self._resolution.view
            # Of a burst of pods the last is asked for before the first is seen.
            promised = [promise.ids for promise in self._facts.promises if promise.resource == pool]
        offer = listed.offer
        offer.check_listed(available)
        offer.check_listed(must_include)
        required = devices.exclusive_cpus(must_include)
        draining = devices.exclusive_cpus(offer.draining) - required
        free = devices.exclusive_cpus(available) - draining | required
        if not len(required) <= size <= len(free):
            raise NotEnoughDevices(pool, size, len(free))
        # The kubelet knows first that a pod has ended: what it calls free nobody holds.
        held = devices.exclusive_cpus(listed.held.union(*promised)) - free
        ask = Ask(offer.resource.name, size, free, required, others=held)
        try:
            choice = PoolsPolicy().choose(view, ask)
        except SMTAlignmentError as error:
            raise devices.unaligned(pool, error) from error
        with self._changed:
            self._choices.update(dict.fromkeys(((pool, cpu) for cpu in choice.cpus), choice))
        return tuple(str(cpu) for cpu in choice.cpus)

    def choices(self) -> Mapping[tuple[str, int], Choice]:
        """Give what was chosen last, by pool and CPU, until a pod that had the CPU has ended.

        The kubelet may have taken other devices.
        """
        with self._changed:
            return dict(self._choices)

    def allocate(self, pool: str, ids: Sequence[str]) -> Allocation:
        """Answer Allocate for one container; the kubelet names no pod, so this is a promise.

        Raises:
            AllocationError: no ids, unknown ids, the same twice, CPUs that cannot be given out, or
                parts of cores of a pool that gives whole ones.
        """
        with self._changed:
            offer = self._list_of(pool).offer
            if not ids:
                raise NoDevicesAsked(pool, "no devices requested", "name at least one")
            offer.check_free(ids)
            mixed = self._decided.pools.mixed is not None
            allocation = Allocation.of(offer, ids, self.names, mixed=mixed)
            promise = self._new_promise(offer.resource.name, ids, allocation.cpus)
            # It moves no container, so no waiter wakes; the next reader of the facts merges it.
            self._answered.append(promise)
        return allocation

    @property
    def _facts(self) -> NodeFacts:
        """What is known, every answer of Allocate included."""
        self._read_answers()
        return self._decided

    @property
    def _resolution(self) -> Resolution:
        """What follows from that."""
        self._read_answers()
        return self._followed

    def _read_answers(self) -> None:
        if answered := self._answered:
            promises = (*self._decided.promises, *answered)
            self._decided, self._answered = replace(self._decided, promises=promises), []
            self._followed = resolve.promised(self._decided, self._followed, answered)

    def _made(self, pools: NodePools, topology: CPUTopology) -> CPUManagerPolicy:
        """Make the CPU manager policy of a configuration.

        Raises:
            ConfigError: it is not lawful on this machine, or no policy has its name.
        """
        asked = pools.cpu_manager
        factory = self.cpu_managers.get(asked.policy)
        if factory is None:
            known = ", ".join(self.cpu_managers)
            what = f"there is no CPU manager policy {asked.policy!r}"
            raise ConfigError([Problem(what, f"use {known}", path="cpuManager.policy")])
        return factory(asked, topology)

    def _as_told(self, resource: Resource, given: AllocatedDevices) -> AllocatedDevices:
        # podresources does not say what a container was told.
        told = given.told or sightings.told(self._facts.promises, resource, given.ids)
        return replace(given, told=told)

    def _new_promise(self, resource: Resource, ids: Iterable[str], told: CPUSet) -> Promise:
        self._promised = next(self._promises)
        return Promise(self._promised, resource, frozenset(ids), told)

    def _as_granted(self) -> DeviceAssignments:
        """Write down what each grant comes to under the pools in force, before they change.

        Of a pool that is not in force it is not known whether siblings belong to it; and what a pod
        does not own nobody has given to it.
        """
        in_force = {pool.name for pool in self._facts.pools}
        grants = self._resolution.grants

        def written(
            ref: ContainerRef, resource: Resource, given: AllocatedDevices
        ) -> AllocatedDevices:
            if resource not in in_force:
                return given
            return replace(given, told=grants.part(ref.pod, resource, ref.name) or given.told)

        return {
            ref: {resource: written(ref, resource, given) for resource, given in held.items()}
            for ref, held in self._facts.devices.items()
        }

    def _list_of(self, pool: str) -> DeviceList:
        listed = self._lists.get(pool)
        if listed is None:
            raise AllocationError(pool, "this node has no such pool", "look at its pool file")
        return listed

    def _take(self, facts: NodeFacts, grants: Grants | None = None) -> None:
        """Decide anew by these facts.

        Args:
            facts: what is known now.
            grants: who owned which CPUs until now; None for what was decided last.
        """
        pods = sightings.present(facts)
        if grants is None:
            grants = self._resolution.grants
        grants = ownership.settle(facts, pods, grants)
        if self._recovered:
            grants = choosing.admit(facts, pods, grants)
        resolution = resolve.resolve(facts, pods, grants)
        stale = pinned.still_stale(facts, resolution)
        if stale != facts.kept_shared:
            facts = replace(facts, kept_shared=stale)
            resolution = resolve.resolve(facts, pods, grants)
        holdings = (facts.devices, facts.promises)
        if holdings != self._holdings:
            self._holdings = holdings
            # An offer is made anew for another set only.
            held = {
                pool: before if (before := self._held.get(pool)) == ids else ids
                for pool, ids in offers.held_ids(facts).items()
            }
            self._forget_choices(held)
            self._held = held
        self._decided, self._followed = facts, resolution
        self._lists = offers.lists(facts, resolution, self._held, self._lists, self._generations)
        self._changed.notify_all()

    def _forget_choices(self, held: Mapping[Resource, frozenset[str]]) -> None:
        """Forget what was chosen for pods that have ended: whoever comes next is asked for anew."""
        for resource, ids in self._held.items():
            for cpu in devices.exclusive_cpus(ids - held.get(resource, frozenset())):
                self._choices.pop((resource, cpu), None)


def _joined(known: AllocatedDevices | None, grant: AllocatedDevices) -> AllocatedDevices:
    if known is None or known.ids != grant.ids:
        return grant
    return replace(grant, told=known.told | grant.told)
