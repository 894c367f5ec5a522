"""The Manager: one state per node, under one lock, for all roles.

Roles bring facts (pools, topology, pods, device assignments) and ask for answers (device lists,
allocations, the placement of each container). The decisions are pure and in `resolve`; no I/O
happens here. The module is long because every question has its method in this class, under its
lock.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from cpupool.core import devices
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    AllocationError,
    NoDevicesRequested,
    NotEnoughDevices,
    SMTAlignmentError,
)
from cpupool.core.names import Names
from cpupool.core.pools import NodePools
from cpupool.core.workloads import ContainerRef
from cpupool.manager import (
    after_restart,
    believed_annotations,
    choosing,
    compacting,
    deferrable,
    kept_shared,
    offers,
    ownership,
    promises,
    resizing,
    resolve,
    sightings,
)
from cpupool.manager.allocation import Allocation
from cpupool.manager.choosing import Choices
from cpupool.manager.facts import NodeFacts
from cpupool.manager.mirror_pods import Identity
from cpupool.manager.pool_edit_report import PoolDifference
from cpupool.manager.pools_in_force import in_force, of_edit, of_restart
from cpupool.manager.resolve import Snapshot
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.pools.policy import PoolsPolicy
from cpupool.wire.cpu_manager_state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.cpu_time import CPUUse
    from cpupool.core.devices import Advertised, DevicesByContainer, NodesOfDevices
    from cpupool.core.errors import Problem
    from cpupool.core.grants import Grants
    from cpupool.core.orchestration import NodeRules
    from cpupool.core.plugin_facts import PluginFacts
    from cpupool.core.pools import NodePools
    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import ContainerID, Pod, RuntimeContainer
    from cpupool.manager.compacting import PlannedMove
    from cpupool.manager.mirror_pods import PodName
    from cpupool.manager.offers import DeviceList
    from cpupool.manager.promises import Promise
    from cpupool.manager.resolve import Resolution
    from cpupool.policies.base import Choice


class Manager:
    """The node's state.

    Safe to call from any thread; every call is short.

    Args:
        names: the public names, with the resource domain.
        moves_pinned: whether a container with CPUs of its own follows changes of its shared pools;
            false where the kernel would then forget the CPUs to which its threads are pinned.
    """

    def __init__(self, names: Names | None = None, *, moves_pinned: bool = True) -> None:
        self.names = names or Names()
        self._moves_pinned = moves_pinned
        self._changed = threading.Condition()
        facts = NodeFacts()
        # Replaced as a whole, so that `snapshot` needs no lock.
        self._now = Snapshot(facts, resolve.resolve(facts, (), Choices()))
        self._lists: dict[str, DeviceList] = {}
        self._holdings: tuple[DevicesByContainer, tuple[Promise, ...]] = ({}, ())
        self._held: Mapping[Resource, frozenset[str]] = {}
        self._generations = count()
        self._promises = promises.Maker()
        self._answered: list[Promise] = []
        self._choices: dict[tuple[str, int], Choice] = {}

    def reconfigure(
        self, pools: NodePools, topology: CPUTopology, *, again: bool = False
    ) -> PoolDifference:
        """Put new pools in force; refused pools change nothing.

        A pod keeps its CPUs until it ends, and its devices stay listed.

        Args:
            pools: the pools.
            topology: the machine.
            again: whether an earlier agent had these pools in force: then they may contradict the
                machine, as after `update_topology`.

        Raises:
            ConfigError: the pools are not valid on this machine.
        """
        with self._changed:
            topology = topology.remembering(self._facts.topology)
            fit = (of_restart if again else of_edit)(pools, topology)
            before = self._facts.pools
            placed = self._resolution.containers
            kept = {} if self._moves_pinned else kept_shared.concerned(placed, before, pools)
            self._take(
                replace(
                    self._facts,
                    pools=pools,
                    configured=True,
                    topology=topology,
                    policy=fit.policy.remembering(self._facts.policy.settled),
                    devices=ownership.as_granted(self._facts, self._resolution.grants),
                    kept_shared={**kept, **self._facts.kept_shared},
                    blocked=fit.blocked,
                    sizes=self._facts.sizes if pools.cpu_manager.follows_load else {},
                ),
                all_run=True,
            )
            return PoolDifference.between(before, pools, fit.problems)

    def update_topology(self, topology: CPUTopology) -> tuple[Problem, ...]:
        """Take a new reading of the machine: CPUs went offline or came back.

        If a CPU's return shows that two pools share its core, no container gets the core until the
        pools are corrected; pods that own CPUs keep them until they end.

        Returns:
            The problems of the pools on the new topology.
        """
        with self._changed:
            facts = self._facts
            topology = topology.remembering(facts.topology)
            fit = in_force(facts.pools, topology)
            policy = fit.policy.remembering(facts.policy.settled)
            self._take(replace(facts, topology=topology, policy=policy, blocked=fit.blocked))
            return fit.problems

    def observe(
        self,
        *,
        pods: Iterable[Pod] | None = None,
        static_cpus: CPUSet | None = None,
        idle: frozenset[str] | None = None,
        device_nodes: NodesOfDevices | None = None,
        rules: NodeRules | None = None,
        plugins: PluginFacts | None = None,
    ) -> None:
        """Take new facts; None for a fact that was not read.

        Args:
            pods: the complete list of this node's pods.
            static_cpus: the CPUs that the kubelet's static CPU manager gives out; empty under its
                policy none.
            idle: pods without a container's cgroup, as in `NodeFacts`.
            device_nodes: the NUMA nodes of pods that have started; others keep theirs.
            rules: the rules for its CPUs in labels and annotations of the node.
            plugins: the plugins for resources, and their answers.
        """
        with self._changed:
            facts = self._facts
            brought: dict[str, Any] = {"static_cpus": static_cpus, "idle": idle}
            brought |= {"rules": rules, "plugins": plugins}
            new = {n: f for n, f in brought.items() if f is not None and f != getattr(facts, n)}
            facts = replace(facts, **new) if new else facts
            if device_nodes is not None:
                facts = replace(facts, device_nodes={**facts.device_nodes, **device_nodes})
            if pods is not None:
                facts = sightings.joined(replace(facts, pods=tuple(pods)))
            if facts != self._facts:
                self._take(facts)

    def measure(self, use: CPUUse) -> bool:
        """Size the shared sets that follow the load by what CPUs and pods use now.

        Returns:
            Whether a set has another size.
        """
        with self._changed:
            facts, view = self._facts, self._resolution.view
            known = facts.recovered and facts.pods is not None
            sizes = facts.policy.sizes(view, use) if known else facts.sizes
            if different := sizes != facts.sizes:
                self._take(replace(facts, sizes=sizes))
            return different

    def name_static_pods(self, names: Mapping[str, PodName]) -> None:
        """Take the kubelet's names of static pods: hash → pod."""
        with self._changed:
            certain = {
                static_hash: Identity(name, certain=True) for static_hash, name in names.items()
            }
            if not certain.items() <= self._facts.static.items():
                static = {**self._facts.static, **certain}
                self._take(sightings.joined(replace(self._facts, static=static)))

    def observe_containers(self, found: Iterable[RuntimeContainer], *, every: bool = False) -> None:
        """Take the container runtime's facts about containers and sandboxes.

        Args:
            found: some containers and sandboxes.
            every: whether `found` has all of them.
        """
        with self._changed:
            seen, before = {container.id: container for container in found}, self._facts.sighted
            self._sight(seen if every else {**before, **seen})

    def forget_containers(self, ids: Iterable[ContainerID]) -> None:
        """Forget containers and sandboxes that the container runtime no longer has."""
        with self._changed:
            gone, before = set(ids), self._facts.sighted
            if not gone.isdisjoint(before):
                self._sight({key: found for key, found in before.items() if key not in gone})

    def accept(self, found: DevicesByContainer) -> None:
        """Take the kubelet's device assignments.

        The manager never forgets facts about a living pod, except contradicted hints: a kubelet
        that restarts or does not answer takes no CPU from any pod.
        """
        with self._changed:
            merged = believed_annotations.merged(self._facts.devices, found, self._facts.promises)
            if merged != self._facts.devices:
                left = promises.unconfirmed(self._facts.promises, found)
                self._take(replace(self._facts, devices=merged, promises=left))

    def promise(
        self, resource: Resource, ids: Iterable[str], announced: CPUSet | None = None
    ) -> None:
        """Record devices that the kubelet gave to a pod which is not known yet.

        No other pod gets them, and they stay listed, until a known pod holds them or `release`
        forgets them.

        Args:
            resource: the resource.
            ids: the devices.
            announced: the CPUs that Allocate announced to the container.
        """
        with self._changed:
            promise = self._promises.make(resource, ids, announced or CPUSet())
            self._take(replace(self._facts, promises=(*self._facts.promises, promise)))

    def promised_until(self) -> int:
        """Return the number of the last promise."""
        with self._changed:
            return self._promises.last

    def release(self, until: int) -> None:
        """Forget the promises up to this number: their pods will not appear."""
        with self._changed:
            kept = tuple(promise for promise in self._facts.promises if promise.number > until)
            if kept != self._facts.promises:
                self._take(replace(self._facts, promises=kept))

    def adopt(
        self,
        found: Iterable[FoundContainer],
        recorded: State | None = None,
    ) -> None:
        """Take over the decisions of an earlier agent; after this call this agent decides.

        A container of the CPU manager policy owns the CPUs that are recorded for it, or else the
        CPUs that it runs on. A container that kept older shared CPUs runs on exactly its own CPUs
        and the CPUs that its shared pools had when the container started.

        Args:
            found: every container that has a cgroup.
            recorded: an earlier agent's record of its choices; None for no record.
        """
        with self._changed:
            found = tuple(found)
            recorded = recorded or State("")
            policy = self._facts.policy.remembering(recorded.settled)
            moves = recorded.moved_unix_s
            facts = replace(self._facts, recovered=True, policy=policy, moved_unix_s=moves)
            seen = self._resolution.view
            before = after_restart.recover(facts, seen, found, recorded)
            if not self._moves_pinned:
                kept = kept_shared.found_stale(facts, self._resolution, found)
                facts = replace(facts, kept_shared={**facts.kept_shared, **kept})
            self._take(facts, before, all_run=True)

    def resize(self, ref: ContainerRef, count: int, unix_s: int | None = None) -> None:
        """Give a running container another number of CPUs of its own, or change nothing.

        Args:
            ref: the container.
            count: how many CPUs it requests; 0 for no whole number.
            unix_s: the time now, if it is known.

        Raises:
            PlacementError: it keeps the CPUs that it has.
        """
        with self._changed:
            facts, view = self._facts, self._resolution.view
            grants = resizing.resized(facts, view, ref, count, unix_s=unix_s, names=self.names)
            self._take(
                replace(facts, sighted=resizing.answered(facts.sighted, ref, count)),
                replace(Choices.of(view), grants=grants),
            )

    def begin(self, ref: ContainerRef, count: int, unix_s: int | None = None) -> None:
        """Give a container that is created next as many CPUs of its own as it requests.

        No thread of it runs. So it leaves at once what it gives back, and keeps no CPU because it
        began there. A number that does not fit changes nothing.

        Args:
            ref: the container.
            count: how many CPUs it requests; 0 for no whole number.
            unix_s: the time now, if it is known.
        """
        with self._changed:
            facts, view = self._facts, self._resolution.view
            if not facts.recovered:
                return
            grants = resizing.begun(facts, view, ref, count, unix_s=unix_s)
            if grants is not view.grants:
                self._take_grants(grants)

    def move(self, planned: PlannedMove, unix_s: int) -> bool:
        """Begin to move a container to other CPUs of its own, or change nothing.

        Args:
            planned: the container, its CPUs and the reason.
            unix_s: the time now.

        Returns:
            Whether it moves; not if the node has changed since the plan.
        """
        with self._changed:
            facts, view = self._facts, self._resolution.view
            begun = compacting.moved(facts, view, planned, unix_s)
            if begun is None:
                return False
            grants, times = begun
            choices = replace(Choices.of(view), grants=grants)
            self._take(replace(facts, moved_unix_s=times), choices)
            return True

    def narrow(self, ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        """End a container's notice: it must leave the CPUs that it gives back.

        Args:
            ref: the container.
            assigned: the CPUs that the notice announced as those that stay.
            leaving: the CPUs that it announced as those that leave. Two resizes together may change
                these alone.

        Returns:
            Whether it does; not if other CPUs stay or leave by now.
        """
        with self._changed:
            grants = self._resolution.grants
            grant = grants.chosen.get(ref.pod)
            gone = grant.leaving.get(ref.name) if grant else None
            if grant is None or gone is None:
                return False
            if (grant.part(ref.name), gone.cpus) != (assigned, leaving):
                return False
            if gone.in_force:
                self._take_grants(grants.replacing(grant.narrowed(ref.name)))
            return True

    def settle(self, found: Mapping[ContainerRef, CPUSet]) -> bool:
        """Free the CPUs that containers have given back, by the kernel's report.

        Args:
            found: each container that runs → the CPUs on which it runs.

        Returns:
            Whether some are free now.
        """
        with self._changed:
            grants = self._resolution.grants
            for uid, grant in grants.chosen.items():
                now = grant
                for name in grant.leaving:
                    now = now.settled(name, found.get(ContainerRef(uid, name), CPUSet()))
                grants = grants if now is grant else grants.replacing(now)
            if settled := grants is not self._resolution.grants:
                self._take_grants(grants)
            return settled

    def advertised(self) -> tuple[Advertised, ...]:
        """Return the resources that have devices to list.

        A resource that is no longer configured is included, without CPUs, while a pod holds its
        devices.
        """
        with self._changed:
            return tuple(listed.offer.resource for listed in self._lists.values())

    def pools(self) -> NodePools:
        """Return the pools in force."""
        with self._changed:
            return self._facts.pools

    def snapshot(self) -> Snapshot:
        """Return the facts and the decisions of one moment."""
        if not self._answered:
            return self._now
        with self._changed:
            return self._read()

    def devices(self, pool: str) -> DeviceList:
        """Return the devices that a pool offers now.

        Raises:
            AllocationError: there is no such pool.
        """
        with self._changed:
            return self._list_of(pool)

    def wait_for_devices(
        self, pool: str, seen: int, cancelled: Callable[[], bool]
    ) -> DeviceList | None:
        """Wait until a pool's list differs from the list with the generation `seen`.

        Returns:
            The new list, at once if it already differs; None when cancelled, or when the pool no
            longer exists.
        """
        with self._changed:
            while not cancelled():
                current = self._lists.get(pool)
                if current is None:
                    return None
                if current.generation != seen:
                    return current
                self._changed.wait()
            return None

    def notify(self) -> None:
        """Wake every waiter so that it checks for its cancellation."""
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
            # In a burst of pods the kubelet asks for the last before the agent knows the first.
            promised = [promise.ids for promise in self._facts.promises if promise.resource == pool]
        offer = listed.offer
        offer.check_listed(available)
        offer.check_listed(must_include)
        required = devices.exclusive_cpus(must_include)
        draining = devices.exclusive_cpus(offer.draining) - required
        free = devices.exclusive_cpus(available) - draining | required
        if not len(required) <= size <= len(free):
            raise NotEnoughDevices(pool, size, len(free))
        # The kubelet knows first that a pod has ended: no pod holds the devices it calls free.
        held = devices.exclusive_cpus(listed.held.union(*promised)) - free
        request = ChoiceRequest(offer.resource.name, size, free, required, others=held)
        try:
            choice = PoolsPolicy().choose(view, request)
        except SMTAlignmentError as error:
            raise devices.unaligned(pool, error) from error
        with self._changed:
            self._choices.update(dict.fromkeys(((pool, cpu) for cpu in choice.cpus), choice))
        return tuple(str(cpu) for cpu in choice.cpus)

    def choices(self) -> Mapping[tuple[str, int], Choice]:
        """Return pool and CPU → the last choice, until a pod that had the CPU has ended.

        The kubelet may have taken other devices.
        """
        with self._changed:
            return dict(self._choices)

    def allocate(self, pool: str, ids: Sequence[str]) -> Allocation:
        """Answer Allocate for one container; the kubelet names no pod, so this is a promise.

        Raises:
            AllocationError: no ids, unknown ids, an id twice, CPUs that are not available, or
                parts of cores of a pool that gives whole cores.
        """
        with self._changed:
            offer = self._list_of(pool).offer
            if not ids:
                raise NoDevicesRequested(pool, "no devices requested", "name at least one")
            offer.check_free(ids)
            mixed = self._now.facts.pools.mixed is not None
            allocation = Allocation.of(offer, ids, self.names, mixed=mixed)
            promise = self._promises.make(offer.resource.name, ids, allocation.cpus)
            # An answer moves no container, so no waiter wakes; the next reader merges it.
            self._answered.append(promise)
        return allocation

    @property
    def _facts(self) -> NodeFacts:
        """The facts, every response to Allocate included."""
        return self._read().facts

    @property
    def _resolution(self) -> Resolution:
        """The decisions that follow from the facts."""
        return self._read().resolution

    def _read(self) -> Snapshot:
        """Return the facts and the decisions, the responses to Allocate among them."""
        if answered := self._answered:
            facts, resolution = self._now
            facts = replace(facts, promises=(*facts.promises, *answered))
            # In this order: `snapshot` has each answer here or there.
            self._now = Snapshot(facts, resolve.promised(facts, resolution, answered))
            self._answered = []
        return self._now

    def _take_grants(self, grants: Grants) -> None:
        """Decide again with these owners of the policy's CPUs."""
        self._take(self._facts, replace(Choices.of(self._resolution.view), grants=grants))

    def _list_of(self, pool: str) -> DeviceList:
        listed = self._lists.get(pool)
        if listed is None:
            raise AllocationError(pool, "this node has no such pool", "look at its pool file")
        return listed

    def _take(
        self, facts: NodeFacts, decided: Choices | None = None, *, all_run: bool = False
    ) -> None:
        """Decide again with these facts.

        Args:
            facts: the facts now.
            decided: the decisions until now; None for the last ones.
            all_run: whether the known containers run already, as in `choosing.choose`.
        """
        earlier = self._read()
        pods = earlier.resolution.view.pods
        choices = decided or Choices.of(earlier.resolution.view)
        stay = resolve.owners_stay(earlier, facts)
        if decided or all_run or not stay or any(resizing.unanswered(facts, choices.grants)):
            pods = sightings.present(facts)
            grants = ownership.settle(facts, pods, choices.grants)
            choices = replace(choices, grants=grants)
            if facts.recovered:
                choices = choosing.choose(facts, pods, choices, all_run=all_run)
                choices = resizing.followed(facts, pods, choices)
        resolution = resolve.resolve(facts, pods, choices, earlier)
        stale = kept_shared.still_stale(facts, resolution)
        if stale != facts.kept_shared:
            facts = replace(facts, kept_shared=stale)
            resolution = resolve.resolve(facts, pods, choices)
        holdings = (facts.devices, facts.promises)
        if holdings != self._holdings:
            self._holdings = holdings
            held = offers.held_ids(facts, self._held)
            self._forget_choices(held)
            self._held = held
        self._now = Snapshot(facts, resolution)
        before = self._lists
        self._lists = offers.lists(facts, resolution, self._held, before, self._generations)
        if offers.numbers(self._lists) != offers.numbers(before):
            self._changed.notify_all()

    def _sight(self, sighted: Mapping[ContainerID, RuntimeContainer]) -> None:
        """Take the containers and sandboxes of the runtime."""
        before = self._facts.sighted
        if sighted == before:
            return
        brought = replace(self._facts, sighted=sighted)
        facts = sightings.joined(brought)
        new = [found for key, found in sighted.items() if before.get(key) is not found]
        gone = [found for key, found in before.items() if sighted.get(key) is not found]
        stays = deferrable.stays(self._now, new, gone) if facts is brought else None
        if stays is None:
            self._take(facts)
        else:
            self._now = Snapshot(facts, stays)

    def _forget_choices(self, held: Mapping[Resource, frozenset[str]]) -> None:
        """Forget the choices for pods that have ended: the kubelet asks again for the next pod."""
        for resource, ids in self._held.items():
            for cpu in devices.exclusive_cpus(ids - held.get(resource, frozenset())):
                self._choices.pop((resource, cpu), None)
