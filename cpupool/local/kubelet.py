"""A small kubelet: the device manager and the podresources service.

This kubelet speaks the real protocols over real sockets, and decides as the real kubelet does. So
the roles of the agent run with it unchanged. It differs from the real kubelet in three points: it
ignores extended resources without a plugin, it keeps the devices of a lost plugin for ever, and it
does not limit the rate of podresources calls.

Sources: kubernetes pkg/kubelet/cm/devicemanager (manager.go, pod_devices.go) and
pkg/kubelet/apis/podresources/server_v1.go.
"""

from __future__ import annotations

import stat
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from cpupool.api import deviceplugin_pb2_grpc, podresources_pb2_grpc
from cpupool.api.deviceplugin_pb2 import ContainerAllocateResponse
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    AllocationError,
    HostFileError,
    PodRefused,
    RemoteProtocolError,
)
from cpupool.core.workloads import ContainerKind, ContainerRef, PodUID
from cpupool.kubelet.registration import VERSION
from cpupool.local import devices, services
from cpupool.local.devices import DeviceRequest, IDs, Listing
from cpupool.local.ledger import Ledger
from cpupool.local.node_fit import pending
from cpupool.local.plugins import Plugin
from cpupool.telemetry import log as logs
from cpupool.wire.device_checkpoint import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from cpupool.core.names import Names
    from cpupool.core.workloads import Container, Pod
    from cpupool.local.node_fit import ResizePending

log = logs.get(__name__)

_UNEXPECTED: Final = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The environment and annotations that device plugins add to a container."""

    environment: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class EmbeddedKubelet:
    """The small kubelet. Use it as a context manager, or `start` and `stop` it.

    Safe to call from any thread; admissions happen one after the other.

    Args:
        folder: the folder that stands for /var/lib/kubelet; `start` reads a checkpoint in it.
        names: the resource of each pool.
        manager: its `topologyManagerPolicy`; the scope is the container. It knows only the NUMA
            nodes of devices.

    Attributes:
        static_cpus: the CPUs that its CPU manager gives out; empty under its policy none. The CPU
            manager reports which container has which CPUs, and writes no cpuset.
        allocatable_milli: the cpu that pods may request; None for no limit. Only a resize is
            checked against it: a scheduler would have checked the pods that come.
    """

    def __init__(
        self, folder: Path, names: Names, *, manager: TopologyPolicy = TopologyPolicy.BEST_EFFORT
    ) -> None:
        self.static_cpus = CPUSet()
        self.allocatable_milli: int | None = None
        self._plugins_folder = folder / "device-plugins"
        self._registration_socket = self._plugins_folder / "kubelet.sock"
        self._podresources_socket = folder / "pod-resources" / "kubelet.sock"
        self._ledger = Ledger(self._plugins_folder / "kubelet_internal_checkpoint")
        self._alone: dict[ContainerRef, CPUSet] = {}
        self._names = names
        self._manager = manager
        self._serving = ExitStack()
        self._admission = threading.Lock()
        self._changed = threading.Condition()
        self._plugins: dict[str, Plugin] = {}
        self._listings: dict[str, Listing] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Remove every plugin's socket, read the checkpoint back and serve.

        Raises:
            HostFileError: a socket cannot be made.
            RemoteProtocolError: the checkpoint is damaged.
        """
        for resource in self._ledger.restore():
            self._listings.setdefault(resource, Listing())
        self._serve()

    def _serve(self) -> None:
        for socket in (self._registration_socket, self._podresources_socket):
            socket.parent.mkdir(parents=True, exist_ok=True)
        _remove_sockets((*self._plugins_folder.iterdir(), self._podresources_socket))
        with ExitStack() as opened:
            # Plugins wait for the registration socket, so it comes last.
            with services.serving(self._podresources_socket, opened) as server:
                podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(
                    services.PodResources(
                        self._ledger.pods,
                        self._listed_now,
                        lambda: self.static_cpus,
                        lambda ref: self._alone.get(ref, CPUSet()),
                    ),
                    server,
                )
            with services.serving(self._registration_socket, opened) as server:
                deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(
                    services.Registration(self._register), server
                )
            self._serving = opened.pop_all()

    def stop(self) -> None:
        """Close both sockets and the connection to every plugin; the checkpoint stays."""
        self._serving.close()
        with self._changed:
            plugins = tuple(self._plugins.values())
            self._plugins.clear()
        for plugin in plugins:
            plugin.stop()

    def restart(self) -> None:
        """Restart as the kubelet does: plugins must register again.

        Known resources have no devices until then. Pods stay, with the devices in the checkpoint;
        call `admit` for each pod again to check whether it may stay.
        """
        self.stop()
        with self._changed:
            self._listings = dict.fromkeys(self._listings, Listing())
        self._ledger.restart()
        self._serve()

    def listing(self, resource: str) -> Listing:
        """Return a resource's listed devices; none for a resource that no plugin has registered."""
        with self._changed:
            return self._listings.get(resource, Listing())

    def wait_for(
        self, resource: str, condition: Callable[[Listing], bool], timeout_s: float
    ) -> Listing:
        """Wait until a resource's listed devices meet a condition.

        Raises:
            RemoteProtocolError: they do not meet it in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.listing(resource)), timeout_s):
                found = self.listing(resource)
                raise RemoteProtocolError(
                    f"{resource}: after {timeout_s:g} s {found.allocatable} of {found.capacity}"
                    " devices are healthy, which is not what is waited for; look at the log of its"
                    " device plugin"
                )
            return self.listing(resource)

    def admit(self, pod: Pod, others: Mapping[str, Mapping[str, int]] | None = None) -> None:
        """Allocate a pod's devices; if it has devices already, check that all are healthy.

        Args:
            pod: the pod.
            others: container name → extended resource that is not a pool → number of devices.

        Raises:
            PodRefused: the pod does not fit, a plugin refuses, or a device that it holds is no
                longer healthy. The pod then holds nothing.
        """
        with self._admission:
            try:
                if not self._ledger.knows(pod.uid):
                    _check_fit(pod, self._ledger.pods(), self._names, self._listed_now())
                reusable: dict[str, IDs] = {}
                for container in pod.containers:
                    self._allocate(pod, container, reusable, (others or {}).get(container.name, {}))
                    self._give_alone(pod, container)
            except PodRefused:
                self.remove_pod(pod.uid)
                raise
            except (AllocationError, HostFileError, RemoteProtocolError) as error:
                self.remove_pod(pod.uid)
                raise _refused(pod, _UNEXPECTED, f"Allocate failed: {error}") from error
            self._ledger.enter(pod)

    def resize(self, pod: Pod) -> ResizePending | None:
        """Take another cpu request of an admitted pod; return why not, if it does not fit."""
        with self._admission:
            capacity = self.allocatable_milli
            others = (known for known, _ in self._ledger.pods() if known.uid != pod.uid)
            used = sum(other.request_milli for other in others)
            misfit = None if capacity is None else pending(pod.request_milli, used, capacity)
            if misfit is None:
                self._ledger.enter(pod)
            return misfit

    def remove_pod(self, uid: str) -> None:
        """Free the devices of a pod that has ended.

        As with the kubelet, the checkpoint names the pod until the next list or allocation.
        """
        self._ledger.remove(PodUID(uid))
        for ref in [ref for ref in self._alone if ref.pod == uid]:
            del self._alone[ref]

    def forget_cpus(self) -> None:
        """Forget the own CPUs of all containers, as a start without the CPU manager's state."""
        self._alone.clear()

    def run_options(self, ref: ContainerRef) -> RunOptions:
        """Return a container's options from the stored answers, and announce its start to plugins.

        If two resources set the same variable or annotation, the first resource by name wins.

        Raises:
            RemoteProtocolError: a plugin fails to prepare the start.
        """
        grants = sorted(self._ledger.of(ref).items(), reverse=True)
        with self._changed:
            plugins = dict(self._plugins)
        environment: dict[str, str] = {}
        annotations: dict[str, str] = {}
        for resource, entry in grants:
            if resource in plugins:
                plugins[resource].pre_start(entry.ids)
            reply = ContainerAllocateResponse.FromString(entry.alloc_resp)
            environment |= reply.envs
            annotations |= reply.annotations
        return RunOptions(environment, annotations)

    def _save(self) -> None:
        self._ledger.save(
            lambda: {name: found.healthy for name, found in self._listed_now().items()}
        )

    def _register(self, version: str, endpoint: str, resource: str) -> None:
        if version != VERSION:
            raise RemoteProtocolError(f"version {version!r} is not supported; use {VERSION!r}")
        domain, _, name = resource.partition("/")
        if not domain or not name or domain.endswith("kubernetes.io"):
            raise RemoteProtocolError(f"{resource!r} is not the name of an extended resource")
        plugin = Plugin(resource, self._plugins_folder / endpoint, self._listed)
        try:
            plugin.ask_options()
        except RemoteProtocolError:
            plugin.stop()
            raise
        with self._changed:
            before = self._plugins.get(resource)
            self._plugins[resource] = plugin
        plugin.watch()
        log.info("device plugin registered", resource=resource, endpoint=endpoint)
        if before:
            before.stop()

    def _listed(self, plugin: Plugin, found: Listing | None) -> None:
        with self._changed:
            if self._plugins.get(plugin.resource) is not plugin:
                return
            before = self._listings.get(plugin.resource, Listing())
            self._listings[plugin.resource] = before.all_unhealthy() if found is None else found
            self._changed.notify_all()
        try:
            self._save()
        except HostFileError as error:
            # As in the kubelet, a full disk takes no device from a container.
            log.warning("checkpoint not saved", error=error)

    def _allocate(
        self,
        pod: Pod,
        container: Container,
        reusable: dict[str, IDs],
        others: Mapping[str, int],
    ) -> None:
        ref = ContainerRef(pod.uid, container.name)
        held = self._ledger.of(ref)
        listings = self._listed_now()
        requested = {
            self._names.resource(pool): count for pool, count in container.requests.items()
        }
        requested |= {resource: count for resource, count in others.items() if resource in listings}
        for resource in requested.keys() & held.keys():
            if lost := held[resource].ids - self.listing(resource).healthy:
                raise _refused(
                    pod,
                    _UNEXPECTED,
                    "Allocate failed: previously allocated devices are no longer healthy;"
                    f" {container.name} holds {', '.join(sorted(lost))} of {resource}",
                )
        requests = [
            self._request(resource, requested[resource], reusable.get(resource, frozenset()))
            for resource in sorted(requested.keys() - held.keys())
        ]
        listed = [own for found in listings.values() for own in found.nodes.values()]
        merged = devices.affinity(requests, frozenset().union(*listed), self._manager)
        if not merged.admit:
            why = devices.unaligned(requests, self._manager)
            raise _refused(pod, "TopologyAffinityError", f"{container.name}: {why}")
        for request in requests:
            held[request.resource] = self._allocate_devices(ref, request, merged.hint.nodes)
        if requests:
            self._save()
        for resource, entry in held.items():
            known = reusable.get(resource, frozenset())
            plain = container.kind is ContainerKind.INIT
            reusable[resource] = known | entry.ids if plain else known - entry.ids

    def _give_alone(self, pod: Pod, container: Container) -> None:
        """Allocate a container's own CPUs, if it gets some: the first free CPUs."""
        ref, count = ContainerRef(pod.uid, container.name), container.whole_cpus
        if not (self.static_cpus and count) or ref in self._alone:
            return
        free = self.static_cpus - CPUSet.union(self._alone.values())
        if len(free) < count:
            why = "not enough cpus available to satisfy request"
            raise _refused(pod, _UNEXPECTED, f"{why}: {count} requested, {len(free)} free")
        self._alone[ref] = CPUSet(list(free)[:count])

    def _request(self, resource: str, count: int, reusable: IDs) -> DeviceRequest:
        listing = self.listing(resource)
        free = listing.healthy - self._ledger.taken(resource)
        return DeviceRequest(resource, count, listing, free, reusable)

    def _allocate_devices(
        self, ref: ContainerRef, request: DeviceRequest, nodes: frozenset[int] | None
    ) -> Entry:
        plugin = self._plugin(request.resource)
        try:
            ids = devices.choose(request, nodes, plugin.prefer)
            reply = plugin.allocate(ids).SerializeToString()
        except RemoteProtocolError:
            if self._plugin(request.resource) is plugin:
                raise
            # A plugin that registers again closes its earlier connection during this call.
            return self._allocate_devices(ref, request, nodes)
        by_node = devices.by_node(ids, request.listing)
        entry = Entry(ref.pod, ref.name, request.resource, by_node, reply)
        self._ledger.give(ref, entry)
        return entry

    def _plugin(self, resource: str) -> Plugin:
        with self._changed:
            plugin = self._plugins.get(resource)
        if plugin is None:
            raise RemoteProtocolError(f"{resource}: no device plugin has registered it")
        return plugin

    def _listed_now(self) -> dict[str, Listing]:
        with self._changed:
            return dict(self._listings)


def _check_fit(
    pod: Pod, known: Iterable[tuple[Pod, object]], names: Names, listings: Mapping[str, Listing]
) -> None:
    """Check as the scheduler does: compare counts with the node's allocatable amounts."""
    others = [devices.total_requests(other) for other, _ in known]
    for pool, count in sorted(devices.total_requests(pod).items()):
        resource = names.resource(pool)
        advertised = listings.get(resource, Listing()).allocatable
        free = advertised - sum(other[pool] for other in others)
        if count > free:
            what = f"Insufficient {resource}: {count} requested, {free} free of {advertised}"
            raise _refused(pod, "Unschedulable", what)


def _refused(pod: Pod, reason: str, what: str) -> PodRefused:
    return PodRefused(f"{pod.namespace}/{pod.name}", reason, what)


def _remove_sockets(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
