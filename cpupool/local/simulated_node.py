"""A node of which nothing is real: who holds which CPUs, and how the next pod would be placed.

It decides as the real one does: the scheduler counts, the kubelet's Topology Manager aligns, its
device manager uses init containers' devices again and asks for advice about the rest
(`local/devices.py` and `policies/hints.py` name the sources). The advice comes from a chooser, so
that choosers can be compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cpupool.core.cpuset import CPUSet, format_ids
from cpupool.core.devices import advertised, exclusive_cpus, unaligned
from cpupool.core.errors import AllocationError, PodRefused, SMTAlignmentError
from cpupool.core.workloads import ContainerKind
from cpupool.local import devices, workload
from cpupool.local.alignment import Alignment
from cpupool.local.simulated_pool import SimulatedPool
from cpupool.policies.base import Step
from cpupool.policies.layout import Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.pools import NodePools, Pool
    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, Pod, PodUID
    from cpupool.local.devices import IDs, Want
    from cpupool.policies.base import Choice
    from cpupool.policies.hints import TopologyPolicy


class Chooser(Protocol):
    """Chooses CPUs of an exclusive pool, as `policies.pool_choice.prefer` does."""

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
class Placement:
    """What a container gets of one pool, or why it gets nothing.

    Attributes:
        at_s: when its pod came.
        container: `namespace/pod/container`.
        pool: the pool.
        requested: CPUs of an exclusive pool, milli-CPUs of a shared one; 1 of OpenShift's.
        cpus: where it runs.
        nodes: the NUMA nodes of these.
        caches: the indices of their L3 caches.
        steps: how the CPUs were chosen.
        refused: why the pod was refused; empty where it was not.
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


@dataclass(frozen=True, slots=True)
class Moment:
    """The node after something has happened.

    Attributes:
        at_s: when.
        utilisation: the share of the exclusive pools' CPUs that pods hold.
        fragmentation: how scattered the free ones are over NUMA nodes
            (`policies.fragmentation.score`); of several pools the mean by size.
        largest_block: the most CPUs of one pool that are free on one NUMA node.
        on_one_node: of the running containers that could be on one NUMA node if the pool were
            empty, the share that is; None without any.
        behind_one_cache: likewise for L3 caches.
    """

    at_s: float
    utilisation: float
    fragmentation: float
    largest_block: int
    on_one_node: float | None
    behind_one_cache: float | None


def called(pod: Pod, container: Container) -> str:
    """Name a container of the node."""
    return f"{pod.namespace}/{pod.name}/{container.name}"


@dataclass(slots=True)
class Admitted:
    """A pod and what it holds.

    Attributes:
        pod: the pod.
        at_s: when it came.
        promised: what the scheduler counts for it, per pool.
        devices: pool → ids that it holds, of exclusive pools.
        reusable: pool → those of them that its finished init containers had.
        placements: what each container got.
        alignment: how its containers lie.
    """

    pod: Pod
    at_s: float
    promised: Counter[Resource]
    devices: dict[str, IDs] = field(default_factory=dict)
    reusable: dict[str, IDs] = field(default_factory=dict)
    placements: list[Placement] = field(default_factory=list)
    alignment: Alignment = field(default_factory=Alignment)

    def refusal(self, container: Container, reason: str, what: str) -> PodRefused:
        """Say why the pod does not come in."""
        name = f"{self.pod.namespace}/{self.pod.name}"
        return PodRefused(name, reason, f"{container.name}: {what}")

    def take(self, pool: str, kind: ContainerKind, ids: IDs) -> None:
        """Give a container devices; those of a plain init container can be used again."""
        self.devices[pool] = self.devices.get(pool, frozenset()) | ids
        known = self.reusable.get(pool, frozenset())
        self.reusable[pool] = known | ids if kind is ContainerKind.INIT else known - ids


class Node:
    """The node as it is now."""

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
        self._chooser = chooser
        self._manager = manager
        self._promised: Counter[Resource] = Counter()
        self._running: dict[PodUID, Admitted] = {}
        self._alignment = Alignment()

    def admit(self, pod: Pod, at_s: float) -> Admitted:
        """Give a pod what it asks for.

        Raises:
            PodRefused: it does not fit; nothing is changed.
        """
        admitted = Admitted(pod, at_s, devices.total_requests(pod))
        self._check_fit(admitted)
        for container in pod.containers:
            try:
                self._place(admitted, container)
            except AllocationError as error:
                raise admitted.refusal(container, "UnexpectedAdmissionError", str(error)) from error
        for pool, ids in admitted.devices.items():
            self._exclusive[pool].take(ids)
        self._promised.update(admitted.promised)
        self._alignment.add(admitted.alignment)
        self._running[pod.uid] = admitted
        return admitted

    def end(self, pod: Pod) -> None:
        """Free what a pod holds; one that was refused holds nothing."""
        if admitted := self._running.pop(pod.uid, None):
            for pool, ids in admitted.devices.items():
                self._exclusive[pool].give_back(ids)
            self._promised.subtract(admitted.promised)
            self._alignment.remove(admitted.alignment)

    def placements(self) -> Iterator[Placement]:
        """List what is in place."""
        for admitted in self._running.values():
            yield from admitted.placements

    def moment(self, at_s: float) -> Moment:
        """Measure."""
        pools = self._exclusive.values()
        size = sum(pool.size for pool in pools) or 1
        return Moment(
            at_s,
            sum(pool.size - len(pool.free) for pool in pools) / size,
            sum(pool.fragmentation() * pool.size for pool in pools) / size,
            max((pool.largest_block() for pool in pools), default=0),
            self._alignment.share(Level.NODE),
            self._alignment.share(Level.UNCORE),
        )

    def _check_fit(self, admitted: Admitted) -> None:
        """Do the scheduler's part: compare counts."""
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

    def _place(self, admitted: Admitted, container: Container) -> None:
        """Choose the CPUs of one container.

        Raises:
            PodRefused: the Topology Manager does not let it in.
            AllocationError: a pool cannot give what it promises.
        """
        wants = [
            self._exclusive[pool].want(
                count,
                admitted.devices.get(pool, frozenset()),
                admitted.reusable.get(pool, frozenset()),
            )
            for pool, count in sorted(container.requests.items())
            if pool in self._exclusive
        ]
        merged = devices.affinity(wants, self._topology.nodes, self._manager)
        if not merged.admit:
            why = devices.unaligned(wants, self._manager)
            raise admitted.refusal(container, "TopologyAffinityError", why)
        chosen: dict[str, CPUSet] = {}
        for want in wants:
            ids, steps = self._choose(want, merged.hint.nodes)
            admitted.take(want.resource, container.kind, ids)
            chosen[want.resource] = exclusive_cpus(ids)
            granted = self._pools[want.resource].granted(chosen[want.resource], self._topology)
            self._note(admitted, container, want.resource, granted, steps, count=want.count)
        for pool in sorted(container.requests.keys() - chosen.keys()):
            cpus = self._pools[pool].cpus
            everyone = Step("shared", "every container of the pool runs on all its CPUs", cpus)
            count = container.requests[pool]
            self._note(admitted, container, pool, cpus, (everyone,), count=count)
        if chosen:
            layouts = {pool: self._exclusive[pool].layout for pool in chosen}
            admitted.alignment.add(Alignment.of(chosen, layouts))

    def _choose(self, want: Want, nodes: frozenset[int] | None) -> tuple[IDs, tuple[Step, ...]]:
        pool = self._exclusive[want.resource]
        steps: list[Step] = []
        if nodes is not None:
            found = exclusive_cpus(want.on(nodes) | want.reusable)
            at = f"{self._manager.value}: NUMA nodes {format_ids(sorted(nodes))}"
            steps.append(Step("topologyManagerPolicy", at, found))
        # Which pod holds a device no plugin is told: one's own other containers are others, too.
        held = pool.layout.cpus - exclusive_cpus(want.free)
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
            ids = devices.choose(want, nodes, prefer)
        except SMTAlignmentError as error:
            raise unaligned(want.resource, error) from error
        pool.offer.check_free(ids)
        if not advised:
            unasked = "takes these without asking for advice"
            advised.append(Step("kubelet", unasked, exclusive_cpus(ids)))
        return ids, (*steps, *advised)

    def _note(
        self,
        admitted: Admitted,
        container: Container,
        pool: str,
        cpus: CPUSet,
        steps: tuple[Step, ...],
        *,
        count: int,
    ) -> None:
        running = cpus & self._topology.online
        infos = [self._topology.cpus[cpu] for cpu in running]
        admitted.placements.append(
            Placement(
                admitted.at_s,
                called(admitted.pod, container),
                pool,
                count,
                running,
                tuple(sorted({info.node for info in infos if info.node is not None})),
                tuple(sorted({info.l3 for info in infos if info.l3 is not None})),
                steps,
            )
        )
