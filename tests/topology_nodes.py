"""Nodes for what schedulers read: the real Manager, below a kubelet by `local/devices.py`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from cpupool.config import kubelet_config
from cpupool.core import default_pool
from cpupool.core.cpu_manager import Scope
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import AllocationError
from cpupool.core.names import Names
from cpupool.core.node_topology import NodeMemory, TopologyManager
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.workloads import ContainerID, ContainerKind, ContainerRef
from cpupool.kube import views
from cpupool.local import devices
from cpupool.local.devices import DeviceRequest, Listing
from cpupool.manager.manager import Manager
from cpupool.manager.node_topology import Surroundings, node_topology
from cpupool.policies.built_in import assignable
from cpupool.wire import node_topology as wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.node_topology import NodeTopology
    from cpupool.core.pools import NodePools
    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, Pod

    Chosen = list[tuple[Container, Resource, devices.IDs]]

NAMES: Final = Names()
MEMORY_BYTES: Final = 64 * 2**30
"""The memory of each NUMA node."""


def pod_body(
    name: str, *requests: Mapping[str, str], init: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Make a pod: for each container its limits, a pool named without its domain.

    Args:
        name: the pod's name and UID.
        requests: one for each container.
        init: the limits of an init container; None for no such container.
    """

    def container(name: str, limits: Mapping[str, str]) -> dict[str, Any]:
        own = {
            key if key in {"cpu", "memory"} else NAMES.resource(key): limits[key] for key in limits
        }
        return {"name": name, "resources": {"limits": own}}

    spec: dict[str, Any] = {
        "containers": [container(f"c{number}", one) for number, one in enumerate(requests)]
    }
    if init is not None:
        spec["initContainers"] = [container("init", init)]
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}


class ModelNode:
    """A node on which pods run, or are tried without effect.

    Args:
        topology: the machine.
        pools: its pools.
        aligning: the kubelet's Topology Manager.
    """

    def __init__(
        self, topology: CPUTopology, pools: NodePools, aligning: TopologyManager | None = None
    ) -> None:
        self.topology = topology
        self.aligning = aligning or TopologyManager()
        self.manager = Manager(NAMES)
        self.manager.reconfigure(pools, topology)
        self.manager.observe(pods=())
        self.manager.adopt(())
        self.bodies: dict[str, dict[str, Any]] = {}
        self.held: dict[str, Chosen] = {}
        self._pods: dict[str, Pod] = {}
        self._trials = count()

    @property
    def pools(self) -> NodePools:
        """The pools in force."""
        return self.manager.pools()

    def listing(self, resource: str) -> Listing:
        """Return what the kubelet knows of a resource's devices."""
        listed = tuple(self.manager.devices(resource).offer)
        healthy = frozenset(one.id for one in listed if one.healthy)
        nodes = {one.id: (one.node,) for one in listed if one.node is not None}
        return Listing(healthy, frozenset(one.id for one in listed) - healthy, nodes)

    def free(self, resource: str) -> devices.IDs:
        """Return the devices that the kubelet can give out."""
        return self.listing(resource).healthy - self._taken(resource)

    def _taken(self, resource: str) -> devices.IDs:
        given = (ids for held in self.held.values() for _, name, ids in held if name == resource)
        return frozenset().union(*given)

    def allocatable(self) -> dict[str, int]:
        """Return the Node's allocatable amounts; cpu in thousandths."""
        own = assignable(self.pools, self.topology)
        cpus = default_pool.online(self.pools, self.topology) if own is None else own
        found = {
            "cpu": len(cpus) * MILLI_PER_CPU,
            "memory": MEMORY_BYTES * len(self.topology.nodes),
        }
        for each in self.manager.advertised():
            found[NAMES.resource(each.name)] = self.listing(each.name).allocatable
        return found

    def fits(self, pod: Pod) -> bool:
        """Return whether the scheduler finds the sums small enough (NodeResourcesFit)."""
        known = self.allocatable()
        used = sum(map(_sums, self._pods.values()), Counter[str]())
        return all(n <= known.get(name, 0) - used[name] for name, n in _sums(pod).items())

    def topology_object(self) -> dict[str, Any]:
        """Return the object that an agent publishes, in v1alpha2."""
        version = wire.V1ALPHA2
        return wire.applied("node", "uid", version, wire.values(self.published(), version))

    def published(self) -> NodeTopology:
        """Return what an agent publishes."""
        written = (
            f"kind: KubeletConfiguration\ntopologyManagerPolicy: {self.aligning.policy.value}\n"
            f"topologyManagerScope: {self.aligning.scope.value}\n"
        )
        around = Surroundings(
            memory={node: NodeMemory(MEMORY_BYTES) for node in self.topology.nodes},
            kubelet=kubelet_config.parse("kubelet", written.encode()),
        )
        return node_topology(self.manager.snapshot(), NAMES, around, annotated=False)

    def refusal(self, body: dict[str, Any]) -> str:
        """Return why the node refuses a pod; empty if it does not. Nothing changes."""
        name = f"trial-{next(self._trials)}"
        pod = self._read(body, name)
        try:
            self._choose(pod)
        except AllocationError as error:
            return str(error)
        if not any(container.whole_cpus for container in pod.containers):
            return ""
        why = self._enter(name, pod, body, [])
        self.end(name)
        return why

    def run(self, body: dict[str, Any], *, shown: bool = True) -> str:
        """Run a pod; return why it is refused.

        Args:
            body: the pod.
            shown: whether the API server shows already that it runs.
        """
        name = body["metadata"]["name"]
        pod = replace(self._read(body, name), running=shown)
        try:
            chosen = self._choose(pod)
        except AllocationError as error:
            return str(error)
        for _, resource, ids in chosen:
            self.manager.allocate(resource, sorted(ids))
        if why := self._enter(name, pod, body, chosen):
            self.end(name)
        return why

    def shows(self, name: str) -> None:
        """Show that a pod runs."""
        self._pods[name] = replace(self._pods[name], running=True)
        self.manager.observe(pods=self._pods.values())

    def end(self, name: str) -> None:
        """End a pod."""
        pod = self._pods.pop(name)
        self.bodies.pop(name)
        self.held.pop(name)
        self.manager.observe(pods=self._pods.values(), idle=frozenset([pod.cgroup_uid]))

    def _read(self, body: dict[str, Any], name: str) -> Pod:
        pod = views.pod({**body, "metadata": {**body["metadata"], "uid": name}}, NAMES)
        running = (replace(one, id=ContainerID(f"{name}-{one.name}")) for one in pod.containers)
        return replace(pod, containers=tuple(running), running=True)

    def _enter(self, name: str, pod: Pod, body: dict[str, Any], chosen: Chosen) -> str:
        self._pods[name], self.bodies[name], self.held[name] = pod, body, chosen
        self.manager.observe(pods=self._pods.values(), device_nodes={name: {}})
        if chosen:
            given: dict[ContainerRef, dict[Resource, AllocatedDevices]] = {}
            for container, resource, ids in chosen:
                of_container = given.setdefault(ContainerRef(name, container.name), {})
                of_container[resource] = AllocatedDevices(ids)
            self.manager.accept(given)
        refused = self.manager.snapshot().resolution.view.refused.get(name)
        return str(refused.error) if refused else ""

    def _choose(self, pod: Pod) -> Chosen:
        """Choose devices as the kubelet does.

        Raises:
            AllocationError: the pod is refused.
        """
        chosen: Chosen = []
        reusable: dict[str, devices.IDs] = {}
        nodes: frozenset[int] | None = None
        if self.aligning.scope is Scope.POD:
            together = _exclusive(devices.total_requests(pod))
            nodes = self._affinity(
                [self._request(pool, together[pool], chosen, {}) for pool in sorted(together)]
            )
        for container in pod.containers:
            requests = {
                pool: self._request(pool, asked, chosen, reusable)
                for pool, asked in sorted(_exclusive(container.requests).items())
            }
            if self.aligning.scope is Scope.CONTAINER:
                nodes = self._affinity([*requests.values()])
            for pool, request in requests.items():
                ids = devices.choose(request, nodes, partial(self._prefer, pool))
                self.manager.devices(pool).offer.check_free(ids)
                chosen.append((container, pool, ids))
                known = reusable.get(pool, frozenset())
                plain = container.kind is ContainerKind.INIT
                reusable[pool] = known | ids if plain else known - ids
        return chosen

    def _prefer(
        self, pool: str, available: devices.IDs, required: devices.IDs, size: int
    ) -> devices.IDs:
        chosen = self.manager.preferred(pool, sorted(available), sorted(required), size)
        return frozenset(chosen)

    def _request(
        self, pool: Resource, asked: int, chosen: Chosen, reusable: Mapping[str, devices.IDs]
    ) -> DeviceRequest:
        listing = self.listing(pool)
        own = frozenset[str]().union(*(ids for _, name, ids in chosen if name == pool))
        free = listing.healthy - self._taken(pool) - own
        return DeviceRequest(pool, asked, listing, free, reusable.get(pool, frozenset()))

    def _affinity(self, requests: list[DeviceRequest]) -> frozenset[int] | None:
        merged = devices.affinity(requests, self.topology.nodes, self.aligning.policy)
        if not merged.admit:
            why = devices.unaligned(requests, self.aligning.policy)
            raise AllocationError(requests[0].resource, why, "ask for less")
        return merged.hint.nodes


def _exclusive(requests: Mapping[Resource, int]) -> dict[Resource, int]:
    """Leave out shared pools: each device of them suits, and there are thousands."""
    return {pool: asked for pool, asked in requests.items() if pool.kind.exclusive}


def _sums(pod: Pod) -> Counter[str]:
    pools = devices.total_requests(pod).items()
    return Counter({NAMES.resource(pool): n for pool, n in pools} | {"cpu": pod.request_milli})
