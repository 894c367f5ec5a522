"""A kubelet's device manager and podresources service, in small.

It speaks the real protocols over real sockets and decides as the kubelet does, so the production
roles run against it unchanged. It is a stand-in: it knows no resources but pools, keeps a lost
plugin's devices for ever, and does not limit the rate of podresources calls.

Sources: kubernetes pkg/kubelet/cm/devicemanager (manager.go, pod_devices.go) and
pkg/kubelet/apis/podresources/server_v1.go.
"""

from __future__ import annotations

import stat
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from cpupool.api import deviceplugin_pb2_grpc, podresources_pb2, podresources_pb2_grpc
from cpupool.api.deviceplugin_pb2 import ContainerAllocateResponse
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    AllocationError,
    HostFileError,
    PodRefused,
    RemoteProtocolError,
)
from cpupool.core.workloads import ContainerKind, ContainerRef, PodUID
from cpupool.host import files
from cpupool.kubelet.registration import VERSION
from cpupool.local import devices, services
from cpupool.local.devices import IDs, Listing, Want
from cpupool.local.plugins import Plugin
from cpupool.telemetry import log as logs
from cpupool.wire import kubelet_checkpoint
from cpupool.wire.kubelet_checkpoint import Checkpoint, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cpupool.core.names import Names
    from cpupool.core.workloads import Container, Pod

log = logs.get(__name__)

_UNEXPECTED: Final = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What device plugins add to a container."""

    environment: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class EmbeddedKubelet:
    """The stand-in. Use it as a context manager, or `start` and `stop` it.

    Safe to call from any thread; admissions happen one after the other.

    Args:
        folder: plays /var/lib/kubelet. A checkpoint in it is read at the start.
        names: the resource of each pool.
        single_numa_node: refuse a container that does not fit on one NUMA node, as the topology
            manager's policy of that name does; otherwise best effort.

    Attributes:
        static_cpus: what its CPU manager hands out; none while its policy is none. It only says so.
    """

    def __init__(self, folder: Path, names: Names, *, single_numa_node: bool = False) -> None:
        self.static_cpus = CPUSet()
        self._plugins_folder = folder / "device-plugins"
        self._registration_socket = self._plugins_folder / "kubelet.sock"
        self._podresources_socket = folder / "pod-resources" / "kubelet.sock"
        self._checkpoint = self._plugins_folder / "kubelet_internal_checkpoint"
        self._names = names
        self._single_numa_node = single_numa_node
        self._serving = ExitStack()
        self._admission = threading.Lock()
        self._saving = threading.Lock()
        self._changed = threading.Condition()
        self._plugins: dict[str, Plugin] = {}
        self._listings: dict[str, Listing] = {}
        self._grants: dict[ContainerRef, dict[str, Entry]] = {}
        self._active: dict[PodUID, Pod] = {}

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
        self._restore()
        self._serve()

    def _serve(self) -> None:
        for socket in (self._registration_socket, self._podresources_socket):
            socket.parent.mkdir(parents=True, exist_ok=True)
        self._remove_sockets()
        with ExitStack() as opened:
            # Plugins wait for the registration socket, so it comes last.
            with services.serving(self._podresources_socket, opened) as server:
                podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(
                    services.PodResources(
                        self._pod_resources, self._allocatable_devices, lambda: self.static_cpus
                    ),
                    server,
                )
            with services.serving(self._registration_socket, opened) as server:
                deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(
                    services.Registration(self._register), server
                )
            self._serving = opened.pop_all()

    def stop(self) -> None:
        """Close both sockets and hang up on every plugin; the checkpoint stays."""
        self._serving.close()
        with self._changed:
            plugins = tuple(self._plugins.values())
            self._plugins.clear()
        for plugin in plugins:
            plugin.stop()

    def restart(self) -> None:
        """Do what a restart of the kubelet does to plugins: they must register again.

        Known resources are at 0 until then. Pods stay, with the devices that the checkpoint names;
        `admit` each of them again to see whether they may.
        """
        self.stop()
        with self._changed:
            self._listings = dict.fromkeys(self._listings, Listing())
            self._grants.clear()
        self._restore()
        with self._changed:
            # The checkpoint may still name pods that have ended.
            ended = [ref for ref in self._grants if ref.pod not in self._active]
            for ref in ended:
                del self._grants[ref]
        self._serve()

    def listing(self, resource: str) -> Listing:
        """Give what is listed for a resource; empty for one that nobody has registered."""
        with self._changed:
            return self._listings.get(resource, Listing())

    def wait_for(
        self, resource: str, condition: Callable[[Listing], bool], timeout_s: float
    ) -> Listing:
        """Wait until what is listed for a resource meets a condition.

        Raises:
            RemoteProtocolError: it does not in time.
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

    def admit(self, pod: Pod) -> None:
        """Give a pod its devices; of a pod that has them already, check that all are healthy.

        Raises:
            PodRefused: it does not fit, a plugin refuses, or a device that it holds is no longer
                healthy. It holds nothing then.
        """
        with self._admission:
            try:
                if not self._holds_devices(pod):
                    self._check_fit(pod)
                reusable: dict[str, IDs] = {}
                for container in pod.containers:
                    self._allocate(pod, container, reusable)
            except PodRefused:
                self.remove_pod(pod.uid)
                raise
            except (AllocationError, HostFileError, RemoteProtocolError) as error:
                self.remove_pod(pod.uid)
                raise _refused(pod, _UNEXPECTED, f"Allocate failed: {error}") from error
            with self._changed:
                self._active[pod.uid] = pod

    def remove_pod(self, uid: str) -> None:
        """Free the devices of a pod that has ended.

        As with the kubelet, the checkpoint names it until the next list or allocation is saved.
        """
        with self._changed:
            self._active.pop(PodUID(uid), None)
            for ref in [ref for ref in self._grants if ref.pod == uid]:
                del self._grants[ref]

    def run_options(self, ref: ContainerRef) -> RunOptions:
        """Give what a container starts with, from the stored replies, and tell the plugins.

        Of a variable or annotation that two resources set, the first by name wins.

        Raises:
            RemoteProtocolError: a plugin that wants to prepare the start does not.
        """
        with self._changed:
            grants = sorted(self._grants.get(ref, {}).items(), reverse=True)
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

    def _remove_sockets(self) -> None:
        for path in (*self._plugins_folder.iterdir(), self._podresources_socket):
            if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()

    def _restore(self) -> None:
        if not self._checkpoint.exists():
            return
        saved = kubelet_checkpoint.parse(self._checkpoint.read_bytes())
        with self._changed:
            for entry in saved.entries:
                ref = ContainerRef(PodUID(entry.pod_uid), entry.container)
                self._grants.setdefault(ref, {})[entry.resource] = entry
            for resource in saved.registered:
                self._listings.setdefault(resource, Listing())

    def _save(self) -> None:
        with self._saving:
            with self._changed:
                entries = [entry for held in self._grants.values() for entry in held.values()]
                healthy = {name: found.healthy for name, found in self._listings.items()}
            registered = {name: tuple(ids) for name, ids in healthy.items()}
            data = kubelet_checkpoint.encode(Checkpoint(tuple(entries), registered))
            files.write_atomically(self._checkpoint, data)

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
            # As the kubelet does: a full disk takes no device from anybody.
            log.warning("checkpoint not saved", error=error)

    def _holds_devices(self, pod: Pod) -> bool:
        with self._changed:
            return any(ref.pod == pod.uid for ref in self._grants)

    def _check_fit(self, pod: Pod) -> None:
        """Do the scheduler's part: compare counts with what the node advertises."""
        with self._changed:
            others = [devices.total_requests(other) for other in self._active.values()]
        for pool, count in sorted(devices.total_requests(pod).items()):
            resource = self._names.resource(pool)
            advertised = self.listing(resource).allocatable
            free = advertised - sum(other[pool] for other in others)
            if count > free:
                raise _refused(
                    pod,
                    "Unschedulable",
                    f"Insufficient {resource}: {count} requested, {free} free of {advertised}",
                )

    def _allocate(self, pod: Pod, container: Container, reusable: dict[str, IDs]) -> None:
        ref = ContainerRef(pod.uid, container.name)
        with self._changed:
            held = dict(self._grants.get(ref, {}))
        asked = {self._names.resource(pool): count for pool, count in container.requests.items()}
        for resource in asked.keys() & held.keys():
            if lost := held[resource].ids - self.listing(resource).healthy:
                raise _refused(
                    pod,
                    _UNEXPECTED,
                    "Allocate failed: previously allocated devices are no longer healthy;"
                    f" {container.name} holds {', '.join(sorted(lost))} of {resource}",
                )
        wants = [
            self._want(resource, asked[resource], reusable.get(resource, frozenset()))
            for resource in sorted(asked.keys() - held.keys())
        ]
        nodes = devices.affinity(wants)
        if self._single_numa_node and nodes is not None and len(nodes) > 1:
            raise _refused(
                pod,
                "TopologyAffinityError",
                f"Resources cannot be allocated with Topology locality: {container.name} needs"
                f" NUMA nodes {', '.join(map(str, sorted(nodes)))}",
            )
        for want in wants:
            held[want.resource] = self._grant(ref, want, nodes)
        if wants:
            self._save()
        for resource, entry in held.items():
            known = reusable.get(resource, frozenset())
            plain = container.kind is ContainerKind.INIT
            reusable[resource] = known | entry.ids if plain else known - entry.ids

    def _want(self, resource: str, count: int, reusable: IDs) -> Want:
        with self._changed:
            listing = self.listing(resource)
            taken: IDs = frozenset().union(
                *(held[resource].ids for held in self._grants.values() if resource in held)
            )
        return Want(resource, count, listing, listing.healthy - taken, reusable)

    def _grant(self, ref: ContainerRef, want: Want, nodes: frozenset[int] | None) -> Entry:
        with self._changed:
            plugin = self._plugins.get(want.resource)
        if plugin is None:
            raise RemoteProtocolError(f"{want.resource}: no device plugin has registered it")
        ids = devices.choose(want, nodes, plugin.prefer)
        reply = plugin.allocate(ids).SerializeToString()
        by_node = devices.by_node(ids, want.listing)
        entry = Entry(ref.pod, ref.name, want.resource, by_node, reply)
        with self._changed:
            self._grants.setdefault(ref, {})[want.resource] = entry
        return entry

    def _pod_resources(self) -> Iterator[podresources_pb2.PodResources]:
        """List the active pods as the kubelet does: plain init containers are left out."""
        with self._changed:
            active = tuple(self._active.values())
            grants = {ref: tuple(held.values()) for ref, held in self._grants.items()}
        for pod in active:
            yield podresources_pb2.PodResources(
                name=pod.name,
                namespace=pod.namespace,
                containers=[
                    podresources_pb2.ContainerResources(
                        name=container.name,
                        devices=services.container_devices(
                            (entry.resource, entry.device_ids)
                            for entry in grants.get(ContainerRef(pod.uid, container.name), ())
                        ),
                    )
                    for container in pod.containers
                    if container.kind in (ContainerKind.APP, ContainerKind.SIDECAR)
                ],
            )

    def _allocatable_devices(self) -> Iterator[podresources_pb2.ContainerDevices]:
        with self._changed:
            listings = dict(self._listings)
        return services.container_devices(
            (resource, devices.by_node(found.healthy, found))
            for resource, found in listings.items()
        )


def _refused(pod: Pod, reason: str, what: str) -> PodRefused:
    return PodRefused(f"{pod.namespace}/{pod.name}", reason, what)
