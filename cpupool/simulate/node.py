"""A simulated node: the pods with their CPUs, and the placement of the next pod.

It decides as a real node does: the scheduler counts, the kubelet's Topology Manager aligns, its
device manager reuses init containers' devices and asks for advice about the rest
(`local/devices.py` and `policies/hints.py` name the sources). The advice comes from a chooser, so
that a simulation can compare choosers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from cpupool.core.assignments import Step
from cpupool.core.cpuset import CPUSet, format_ids
from cpupool.core.devices import advertised, exclusive_cpus, unaligned
from cpupool.core.errors import AllocationError, PodRefused, SMTAlignmentError
from cpupool.core.grants import CHANGES, RESIZE
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.quantity import as_quantity
from cpupool.core.workloads import ContainerKind, PodUID
from cpupool.local import devices, node_fit
from cpupool.policies.layout import Level
from cpupool.simulate import workload
from cpupool.simulate.alignment import Alignment
from cpupool.simulate.cpu_manager import SimulatedCPUManager
from cpupool.simulate.pool import SimulatedPool

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from cpupool.core.cpu_manager import TopologyPolicy
    from cpupool.core.pools import NodePools, Pool
    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, Pod
    from cpupool.local.devices import DeviceRequest, IDs
    from cpupool.policies.base import Choice
    from cpupool.simulate.cpu_manager import MoveRecord, Served


class Chooser(Protocol):
    """A function that chooses CPUs of an exclusive pool, as `policies.pool_choice.prefer` does."""

    def __call__(
        self,
        pool: Pool,
        topology: CPUTopology,
        free: CPUSet,
        count: int,
        *,
        required: CPUSet | None = None,
        held: CPUSet | None = None,
    ) -> Choice:
        """Choose `count` CPUs; the arguments are those of `policies.pool_choice.prefer`."""


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """A container's CPUs of one pool, or why it gets none.

    Attributes:
        at_s: when its pod came.
        container: `namespace/pod/container`.
        pool: the pool.
        requested: CPUs of an exclusive pool, milli-CPUs of a shared pool; 1 of OpenShift's.
        cpus: the CPUs that it runs on.
        nodes: the NUMA nodes of these CPUs.
        caches: the indices of their L3 caches.
        steps: the reasons of the choice.
        refused: why the pod was refused; empty for an admitted pod.
        waited_s: how long its pod waited for CPUs of the CPU manager policy.
        held: why its pod still waits at the end; empty for a pod that does not.
        shares: why its pod shares CPUs for good instead of owning some; empty for other pods.
    """

    at_s: float
    container: str
    pool: str
    requested: int
    cpus: CPUSet = field(default_factory=CPUSet)
    nodes: tuple[int, ...] = ()
    caches: tuple[int, ...] = ()
    steps: tuple[Step, ...] = ()
    refused: str = ""
    waited_s: float = 0.0
    held: str = ""
    shares: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """The node after an event.

    Attributes:
        at_s: the time of the event.
        utilisation: the share of the CPUs of exclusive pools and of the CPU manager that pods own.
        fragmentation: how scattered the free CPUs are over NUMA nodes
            (`policies.fragmentation.score`); for several pools the mean by size.
        largest_block: the most CPUs of one pool, or of the CPU manager, that are free on one NUMA
            node.
        on_one_node: the share of containers on one NUMA node, among the running containers that
            could be on one node if the pool were empty; None without such containers.
        behind_one_cache: the same for L3 caches.
    """

    at_s: float
    utilisation: float
    fragmentation: float
    largest_block: int
    on_one_node: float | None
    behind_one_cache: float | None


class Outcome(Enum):
    """How a resize of a container ended."""

    SERVED = "served"
    """It has the cpu that it requests."""
    REFUSED = "refused"
    """It keeps what it has, because it cannot have what it requests."""
    IGNORED = "ignored"
    """It keeps the CPUs that it owns, because the policy resizes no container."""


@dataclass(frozen=True, slots=True)
class ResizeRecord:
    """A resize of a container in place.

    Attributes:
        at_s: the time.
        container: `namespace/pod/container`.
        had_milli: its cpu request before, in milli-CPUs.
        requested_milli: its cpu request from now on.
        owned: how many CPUs of its own it had before.
        outcome: how the resize ended.
        why: why it was refused; empty for another outcome.
    """

    at_s: float
    container: str
    had_milli: int
    requested_milli: int
    owned: int
    outcome: Outcome
    why: str = ""


def container_name(pod: Pod, container: Container) -> str:
    """Return `namespace/pod/container`."""
    return f"{pod.namespace}/{pod.name}/{container.name}"


@dataclass(slots=True)
class SimulatedPod:
    """A pod and its devices.

    Attributes:
        pod: the pod.
        at_s: when it came.
        promised: pool → the amount that the scheduler counts for it.
        devices: exclusive pool → ids that it holds.
        reusable: exclusive pool → the ids that its finished init containers had.
        placements: the CPUs of each container.
        alignment: the alignment of its containers.
        own_alignment: the part of it that comes from CPUs of the CPU manager policy.
        refusals: container → the steps that say which resizes were refused.
    """

    pod: Pod
    at_s: float
    promised: Counter[Resource]
    devices: dict[str, IDs] = field(default_factory=dict)
    reusable: dict[str, IDs] = field(default_factory=dict)
    placements: list[PlacementRecord] = field(default_factory=list)
    alignment: Alignment = field(default_factory=Alignment)
    own_alignment: Alignment = field(default_factory=Alignment)
    refusals: defaultdict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))

    @property
    def wait_s(self) -> float | None:
        """The time that it waited for CPUs of the CPU manager policy; None if it did not wait."""
        waits_s = [placed.waited_s for placed in self.placements if placed.waited_s or placed.held]
        return max(waits_s, default=None)

    def refuse_resize(self, container: str, at_s: float, why: str) -> None:
        """Give a refused resize a place among the reasons why a container has its CPUs."""
        for at, placed in enumerate(self.placements):
            if (placed.container, placed.pool) == (container, POLICY_CPUS):
                step = Step(RESIZE, f"refused at {at_s:g} s: {why}", placed.cpus)
                self.refusals[container].append(step)
                *chosen, last = placed.steps
                self.placements[at] = replace(placed, steps=(*chosen, step, last))

    def refusal(self, container: Container, reason: str, what: str) -> PodRefused:
        """Return the error for a refused pod."""
        name = f"{self.pod.namespace}/{self.pod.name}"
        return PodRefused(name, reason, f"{container.name}: {what}")

    def take(self, pool: str, kind: ContainerKind, ids: IDs) -> None:
        """Add a container's devices; the pod can reuse those of a plain init container."""
        self.devices[pool] = self.devices.get(pool, frozenset()) | ids
        known = self.reusable.get(pool, frozenset())
        self.reusable[pool] = known | ids if kind is ContainerKind.INIT else known - ids


class SimulatedNode:
    """The present state of the simulated node."""

    def __init__(
        self,
        topology: CPUTopology,
        node_pools: NodePools,
        chooser: Chooser,
        manager: TopologyPolicy,
    ) -> None:
        self._topology = topology
        resources = advertised(node_pools)
        self._pools: Mapping[str, Pool] = {resource.name: resource.pool for resource in resources}
        self._capacity: Mapping[str, int] = {
            resource.name: workload.capacity_of(resource, topology) for resource in resources
        }
        self._exclusive: Mapping[str, SimulatedPool] = {
            resource.name: SimulatedPool.of(resource, topology)
            for resource in resources
            if resource.name.kind.exclusive
        }
        chooses = node_pools.cpu_manager.chooses
        self._cpu_manager = SimulatedCPUManager(topology, node_pools) if chooses else None
        self._named = f"the policy {node_pools.cpu_manager.named}"
        self._chooses = f"{self._named} decides for the whole pod"
        self._rooms = {name: pool.room for name, pool in self._exclusive.items()}
        if self._cpu_manager:
            self._rooms[POLICY_CPUS] = self._cpu_manager.room
        self._chooser = chooser
        self._manager = manager
        self._promised: Counter[Resource] = Counter()
        self._promised_milli = 0
        self._running: dict[PodUID, SimulatedPod] = {}
        self._alignment = Alignment()

    def admit(self, pod: Pod, at_s: float) -> SimulatedPod:
        """Admit a pod; if the CPU manager policy has no CPUs for it, it waits for them.

        Raises:
            PodRefused: it does not fit; nothing is changed.
        """
        admitted = SimulatedPod(pod, at_s, devices.total_requests(pod))
        self._check_fit(admitted)
        for container in pod.containers:
            try:
                self._place(admitted, container)
            except AllocationError as error:
                raise admitted.refusal(container, "UnexpectedAdmissionError", str(error)) from error
        served = tuple(self._cpu_manager.start(pod, at_s)) if self._cpu_manager else ()
        for pool, ids in admitted.devices.items():
            self._exclusive[pool].take(ids)
        self._promised.update(admitted.promised)
        self._promised_milli += pod.request_milli
        self._alignment.add(admitted.alignment)
        self._running[pod.uid] = admitted
        self._serve(served, at_s)
        self._compact(at_s)
        return admitted

    def end(self, pod: Pod, at_s: float) -> None:
        """Free a pod's devices and CPUs; a refused pod has none."""
        if admitted := self._running.pop(pod.uid, None):
            for pool, ids in admitted.devices.items():
                self._exclusive[pool].give_back(ids)
            self._promised.subtract(admitted.promised)
            self._promised_milli -= admitted.pod.request_milli
            self._alignment.remove(admitted.alignment)
            if self._cpu_manager:
                self._note_misfit(admitted, at_s)
                self._serve(tuple(self._cpu_manager.end(pod)), at_s)
                self._compact(at_s)

    def resize(self, pod: Pod, containers: Collection[str], at_s: float) -> Iterator[ResizeRecord]:
        """Resize containers of a pod as the kubelet does: decreases first, up to the first error.

        Args:
            pod: the pod with its new requests; a refused pod is not there.
            containers: the containers with another request.
            at_s: the time.
        """
        if (admitted := self._running.get(pod.uid)) is None:
            return
        before = {each.name: each.request_milli for each in admitted.pod.containers}
        asked = {each.name: each.request_milli for each in pod.containers}
        why = self._misfit_of_resize(admitted.pod, pod)
        if not why:
            self._promised_milli += pod.request_milli - admitted.pod.request_milli
            admitted.pod = pod
        ordered: list[str] = []
        for name in (each.name for each in pod.containers if each.name in containers):
            ordered.insert(0 if asked[name] < before[name] else len(ordered), name)
        for name in ordered:
            full_name = f"{pod.namespace}/{pod.name}/{name}"
            owned = sum(
                len(placed.cpus)
                for placed in admitted.placements
                if (placed.container, placed.pool) == (full_name, POLICY_CPUS)
            )
            outcome, refused = Outcome.REFUSED, why
            if not why:
                outcome, refused = self._resize_one(pod, name, at_s)
                why = refused and f"container {name} is resized first"
            if refused:
                admitted.refuse_resize(full_name, at_s, refused)
            yield ResizeRecord(at_s, full_name, before[name], asked[name], owned, outcome, refused)

    def _misfit_of_resize(self, before: Pod, pod: Pod) -> str:
        """Return why the kubelet does not take the new requests of a pod; empty if it does."""
        if not self._cpu_manager:
            return ""
        capacity_milli = self._cpu_manager.room.size * MILLI_PER_CPU
        used_milli = self._promised_milli - before.request_milli
        misfit = node_fit.pending(pod.request_milli, used_milli, capacity_milli)
        return f"{misfit.reason}: {misfit.message} (in milli-CPUs)" if misfit else ""

    def _resize_one(self, pod: Pod, name: str, at_s: float) -> tuple[Outcome, str]:
        if not self._cpu_manager:
            return Outcome.SERVED, ""
        resized = self._cpu_manager.resize(pod, name, at_s)
        self._serve(resized.served, at_s)
        self._compact(at_s)
        if resized.ignored:
            return Outcome.IGNORED, ""
        return (Outcome.REFUSED if resized.refused else Outcome.SERVED), resized.refused

    def end_notices(self, until_s: float) -> Iterator[float]:
        """End the notices of resizes and moves until a time; yield the time of each change."""
        while self._cpu_manager and (at_s := self._cpu_manager.next_change_s) <= until_s:
            self._serve(tuple(self._cpu_manager.end_notices(at_s)), at_s)
            self._compact(at_s)
            yield at_s

    def _compact(self, at_s: float) -> None:
        """Begin the moves that are worth their cost."""
        if self._cpu_manager:
            self._serve(tuple(self._cpu_manager.compact(at_s)), at_s)

    def end_moves(self) -> Iterator[float]:
        """End the notices that last, if containers have moved; yield the time of each end."""
        while self._cpu_manager and self.moves and self._cpu_manager.next_notice_s < math.inf:
            yield from self.end_notices(self._cpu_manager.next_notice_s)

    @property
    def moves(self) -> tuple[MoveRecord, ...]:
        """The moves of containers, in the order of time."""
        return tuple(self._cpu_manager.moves) if self._cpu_manager else ()

    def finish(self, at_s: float) -> int:
        """Note the pods that still wait; return how many these are."""
        for admitted in self._running.values():
            self._note_misfit(admitted, at_s)
        return len(self._cpu_manager.waiting) if self._cpu_manager else 0

    def requests(self, pod: Pod) -> Mapping[str, int]:
        """Return container → how many CPUs the CPU manager policy gives it."""
        return self._cpu_manager.requests(pod) if self._cpu_manager else {}

    def placements(self) -> Iterator[PlacementRecord]:
        """Yield the CPUs of each running container."""
        for admitted in self._running.values():
            yield from admitted.placements

    def without_cpus(self) -> Iterator[str]:
        """Yield the running containers that request no pool, and have no CPUs of their own."""
        for admitted in self._running.values():
            placed = {placement.container for placement in admitted.placements}
            names = (container_name(admitted.pod, each) for each in admitted.pod.containers)
            yield from (name for name in names if name not in placed)

    def moment(self, at_s: float) -> Moment:
        """Return the present measurements."""
        rooms = self._rooms.values()
        size = sum(room.size for room in rooms) or 1
        return Moment(
            at_s,
            sum(room.size - len(room.free) for room in rooms) / size,
            sum(room.fragmentation() * room.size for room in rooms) / size,
            max((room.largest_block() for room in rooms), default=0),
            self._alignment.share(Level.NODE),
            self._alignment.share(Level.UNCORE),
        )

    def _serve(self, served: Iterable[Served], at_s: float) -> None:
        """Note the CPUs that the CPU manager policy has given to pods."""
        for now in served:
            admitted = self._running[now.pod.uid]
            waited_s = self._forget_own(admitted)
            if now.waited_for:
                waited_s = at_s - admitted.at_s
            layout = self._rooms[POLICY_CPUS].layout
            found = Alignment()
            for container in now.pod.containers:
                if not (cpus := now.cpus.get(container.name)):
                    continue
                steps = []
                if now.waited_for:
                    waited = f"its pod waits {waited_s:g} s: {now.waited_for}"
                    steps = [Step("onMisfit", waited, CPUSet())]
                reasons = now.reasons[container.name]
                steps += [step for step in reasons if step.rule not in CHANGES]
                # The CPUs that remain are those of the last change.
                steps += admitted.refusals[container_name(admitted.pod, container)]
                steps += [step for step in reasons if step.rule in CHANGES]
                place = now.bubbles.get(container.name)
                why = f"{self._named} has chosen {place.why}" if place else self._chooses
                steps.append(Step("cpuManager", why, cpus))
                self._note(
                    admitted,
                    container,
                    POLICY_CPUS,
                    cpus,
                    steps,
                    count=len(cpus) if place is None or place.owns else 0,
                    waited_s=waited_s,
                )
                found.add(Alignment.of({POLICY_CPUS: cpus}, {POLICY_CPUS: layout}))
            admitted.alignment.add(found)
            admitted.own_alignment = found
            self._alignment.add(found)

    def _forget_own(self, admitted: SimulatedPod) -> float:
        """Forget the CPUs that the policy gave a pod before; return how long the pod waited."""
        own = [each for each in admitted.placements if each.pool == POLICY_CPUS]
        admitted.placements[:] = [each for each in admitted.placements if each.pool != POLICY_CPUS]
        admitted.alignment.remove(admitted.own_alignment)
        self._alignment.remove(admitted.own_alignment)
        return max((each.waited_s for each in own), default=0.0)

    def _note_misfit(self, admitted: SimulatedPod, at_s: float) -> None:
        """Note a pod that still waits, or shares for good."""
        if not self._cpu_manager:
            return
        held = self._cpu_manager.waiting.get(admitted.pod.uid, "")
        shares = self._cpu_manager.sharing.get(admitted.pod.uid, "")
        if not (held or shares):
            return
        requests = self.requests(admitted.pod)
        for container in admitted.pod.containers:
            if container.name in requests:
                self._note(
                    admitted,
                    container,
                    POLICY_CPUS,
                    CPUSet(),
                    (),
                    count=requests[container.name],
                    waited_s=at_s - admitted.at_s if held else 0.0,
                    held=held,
                    shares=shares,
                )

    def _check_fit(self, admitted: SimulatedPod) -> None:
        """Check as the scheduler does: compare counts."""
        name = f"{admitted.pod.namespace}/{admitted.pod.name}"
        for pool, count in sorted(admitted.promised.items()):
            capacity = self._capacity.get(pool)
            if capacity is None:
                known = ", ".join(self._capacity) or "no pool at all"
                what = f"{pool}: {count} requested, but this node has {known}"
                raise PodRefused(name, "Unschedulable", what)
            free = capacity - self._promised[pool]
            if count > free:
                what = f"{pool}: {count} requested, {free} free of {capacity}"
                raise PodRefused(name, "Unschedulable", what)
        if not self._cpu_manager:
            return
        # The kubelet is set up so that allocatable cpu is what the CPU manager can give.
        capacity_milli = self._cpu_manager.room.size * MILLI_PER_CPU
        free_milli = capacity_milli - self._promised_milli
        if (milli := admitted.pod.request_milli) > free_milli:
            asked, left, all_cpus = map(as_quantity, (milli, free_milli, capacity_milli))
            what = f"cpu: {asked} requested, {left} free of {all_cpus}"
            raise PodRefused(name, "Unschedulable", what)

    def _place(self, admitted: SimulatedPod, container: Container) -> None:
        """Choose the CPUs of one container.

        Raises:
            PodRefused: the Topology Manager refuses it.
            AllocationError: a pool cannot serve the request.
        """
        requests = [
            self._exclusive[pool].request(
                count,
                admitted.devices.get(pool, frozenset()),
                admitted.reusable.get(pool, frozenset()),
            )
            for pool, count in sorted(container.requests.items())
            if pool in self._exclusive
        ]
        merged = devices.affinity(requests, self._topology.nodes, self._manager)
        if not merged.admit:
            why = devices.unaligned(requests, self._manager)
            raise admitted.refusal(container, "TopologyAffinityError", why)
        chosen: dict[str, CPUSet] = {}
        for request in requests:
            ids, steps = self._choose(request, merged.hint.nodes)
            admitted.take(request.resource, container.kind, ids)
            chosen[request.resource] = exclusive_cpus(ids)
            granted = self._pools[request.resource].granted(
                chosen[request.resource], self._topology
            )
            self._note(admitted, container, request.resource, granted, steps, count=request.count)
        for pool in sorted(container.requests.keys() - chosen.keys()):
            cpus = self._pools[pool].cpus
            everyone = Step("shared", "every container of the pool runs on all its CPUs", cpus)
            count = container.requests[pool]
            self._note(admitted, container, pool, cpus, (everyone,), count=count)
        if chosen:
            layouts = {pool: self._rooms[pool].layout for pool in chosen}
            admitted.alignment.add(Alignment.of(chosen, layouts))

    def _choose(
        self, request: DeviceRequest, nodes: frozenset[int] | None
    ) -> tuple[IDs, tuple[Step, ...]]:
        pool = self._exclusive[request.resource]
        steps: list[Step] = []
        if nodes is not None:
            found = exclusive_cpus(request.on(nodes) | request.reusable)
            at = f"{self._manager.value}: NUMA nodes {format_ids(sorted(nodes))}"
            steps.append(Step("topologyManagerPolicy", at, found))
        # A plugin does not know which pod holds a device: it takes the pod's own containers for
        # others.
        held = pool.room.layout.cpus - exclusive_cpus(request.free)
        advised: list[Step] = []

        def prefer(available: IDs, required: IDs, count: int) -> IDs:
            choice = self._chooser(
                pool.offer.pool,
                self._topology,
                exclusive_cpus(available),
                count,
                required=exclusive_cpus(required),
                held=held - exclusive_cpus(required),
            )
            advised.extend(choice.steps)
            return frozenset(map(str, choice.cpus))

        try:
            ids = devices.choose(request, nodes, prefer)
        except SMTAlignmentError as error:
            raise unaligned(request.resource, error) from error
        pool.offer.check_free(ids)
        if not advised:
            unasked = "takes these without asking for advice"
            advised.append(Step("kubelet", unasked, exclusive_cpus(ids)))
        return ids, (*steps, *advised)

    def _note(
        self,
        admitted: SimulatedPod,
        container: Container,
        pool: str,
        cpus: CPUSet,
        steps: Sequence[Step],
        *,
        count: int,
        waited_s: float = 0.0,
        held: str = "",
        shares: str = "",
    ) -> None:
        running = cpus & self._topology.online
        infos = [self._topology.cpus[cpu] for cpu in running]
        admitted.placements.append(
            PlacementRecord(
                admitted.at_s,
                container_name(admitted.pod, container),
                pool,
                count,
                running,
                tuple(sorted({info.node for info in infos if info.node is not None})),
                tuple(sorted({info.l3 for info in infos if info.l3 is not None})),
                tuple(steps),
                waited_s=waited_s,
                held=held,
                shares=shares,
            )
        )
