"""The devices that containers hold, in the kubelet's device manager and in its checkpoint.

Source: kubernetes pkg/kubelet/cm/devicemanager/pod_devices.go.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cpupool.core.workloads import ContainerRef, PodUID
from cpupool.host import files
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import Checkpoint, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.local.devices import IDs


class Ledger:
    """The admitted pods, and the devices of each container; safe to use from any thread.

    Args:
        checkpoint: the checkpoint file.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._saving = threading.Lock()
        self._lock = threading.Lock()
        self._grants: dict[ContainerRef, dict[str, Entry]] = {}
        self._active: dict[PodUID, Pod] = {}

    def restore(self) -> tuple[str, ...]:
        """Read devices from the checkpoint; return the resources that it knows.

        Raises:
            RemoteProtocolError: it is damaged.
        """
        if not self._checkpoint.exists():
            return ()
        saved = device_checkpoint.parse(self._checkpoint.read_bytes())
        with self._lock:
            for entry in saved.entries:
                ref = ContainerRef(PodUID(entry.pod_uid), entry.container)
                self._grants.setdefault(ref, {})[entry.resource] = entry
        return tuple(saved.registered)

    def restart(self) -> None:
        """Forget all devices except those in the checkpoint of admitted pods.

        Raises:
            RemoteProtocolError: it is damaged.
        """
        with self._lock:
            self._grants.clear()
        self.restore()
        with self._lock:
            # The checkpoint may still name pods that have ended.
            for ref in [ref for ref in self._grants if ref.pod not in self._active]:
                del self._grants[ref]

    def save(self, registered: Callable[[], Mapping[str, IDs]]) -> None:
        """Write the checkpoint.

        Args:
            registered: returns resource → its healthy ids.

        Raises:
            HostFileError: it cannot be written.
        """
        # A later caller has newer facts, so each caller reads them in its turn.
        with self._saving:
            healthy = {resource: tuple(ids) for resource, ids in registered().items()}
            with self._lock:
                entries = [entry for held in self._grants.values() for entry in held.values()]
            data = device_checkpoint.encode(Checkpoint(tuple(entries), healthy))
            files.write_atomically(self._checkpoint, data)

    def enter(self, pod: Pod) -> None:
        """Add an admitted pod."""
        with self._lock:
            self._active[pod.uid] = pod

    def remove(self, uid: PodUID) -> None:
        """Remove a pod, and free its devices."""
        with self._lock:
            self._active.pop(uid, None)
            for ref in [ref for ref in self._grants if ref.pod == uid]:
                del self._grants[ref]

    def give(self, ref: ContainerRef, entry: Entry) -> None:
        """Record a container's devices of one resource."""
        with self._lock:
            self._grants.setdefault(ref, {})[entry.resource] = entry

    def of(self, ref: ContainerRef) -> dict[str, Entry]:
        """Return resource → the devices that a container holds."""
        with self._lock:
            return dict(self._grants.get(ref, {}))

    def knows(self, uid: PodUID) -> bool:
        """Return whether a pod holds anything."""
        with self._lock:
            return any(ref.pod == uid for ref in self._grants)

    def taken(self, resource: str) -> IDs:
        """Return the ids of a resource that containers hold."""
        with self._lock:
            held = [held[resource].ids for held in self._grants.values() if resource in held]
        return frozenset().union(*held)

    def pods(self) -> list[tuple[Pod, dict[str, tuple[Entry, ...]]]]:
        """Return the admitted pods, each with container name → its devices."""
        with self._lock:
            return [
                (
                    pod,
                    {
                        container.name: tuple(
                            self._grants.get(ContainerRef(uid, container.name), {}).values()
                        )
                        for container in pod.containers
                    },
                )
                for uid, pod in self._active.items()
            ]
