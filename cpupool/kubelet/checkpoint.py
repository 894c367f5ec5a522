"""The kubelet's device checkpoint file, which this module reads again only when it has changed.

The file says which devices the kubelet gave to each container, also to init containers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from cpupool.api.deviceplugin_pb2 import ContainerAllocateResponse
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices, nodes_of
from cpupool.core.errors import CPUSetParseError, HostFileError, RemoteProtocolError
from cpupool.core.names import EXCLUSIVE_CPUS, SHARED_CPUS
from cpupool.telemetry import log as logs
from cpupool.wire import device_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.devices import PodDevices
    from cpupool.wire.device_checkpoint import Checkpoint, Entry

    _Stamp = tuple[int, int, int]

log = logs.get(__name__)


class CheckpointFile:
    """The device assignments in the kubelet's checkpoint, as a `CheckpointSource`.

    Args:
        path: the file, usually `device-plugins/kubelet_internal_checkpoint`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: _Stamp | None = None
        self._found: Mapping[str, PodDevices] = {}

    def by_pod_uid(self) -> Mapping[str, PodDevices]:
        """Return pod UID → container name → resource name → its devices.

        Raises:
            HostFileError: the file cannot be read.
            RemoteProtocolError: it is damaged.
        """
        now, data = self._read(self._seen)
        if now != self._seen:
            checkpoint = device_checkpoint.parse(data)
            if not checkpoint.verified:
                log.warning("kubelet checkpoint has a wrong checksum", path=self._path)
            self._found, self._seen = _by_pod_uid(checkpoint), now
        return self._found

    def mounted(self) -> frozenset[str]:
        """Return the host paths that device plugins have had mounted into containers.

        The kubelet starts a container with the stored reply each time until its pod has ended.

        Raises:
            HostFileError: the file cannot be read.
            RemoteProtocolError: it, or a reply in it, is damaged.
        """
        _, data = self._read(None)
        try:
            replies = [
                ContainerAllocateResponse.FromString(entry.alloc_resp)
                for entry in device_checkpoint.parse(data).entries
            ]
        except DecodeError as error:
            raise RemoteProtocolError(
                "a reply in the kubelet's device checkpoint is damaged; it goes with its pod"
            ) from error
        return frozenset(mount.host_path for reply in replies for mount in reply.mounts)

    def _read(self, seen: _Stamp | None) -> tuple[_Stamp, bytes]:
        """Read the file unless it is as it was when seen."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                now = (status.st_mtime_ns, status.st_ino, status.st_size)
                return now, b"" if now == seen else file.read()
        except OSError as error:
            raise HostFileError(
                str(self._path),
                f"the kubelet's device checkpoint cannot be read ({error.strerror})",
                "check that the kubelet's folder is mounted and that a pod has had devices",
            ) from error


def _by_pod_uid(checkpoint: Checkpoint) -> Mapping[str, PodDevices]:
    found: dict[str, dict[str, dict[str, AllocatedDevices]]] = {}
    for entry in checkpoint.entries:
        of_container = found.setdefault(entry.pod_uid, {}).setdefault(entry.container, {})
        before = of_container.get(entry.resource, AllocatedDevices(frozenset()))
        of_container[entry.resource] = AllocatedDevices(
            before.ids | entry.ids,
            before.announced | _announced(entry),
            nodes=before.nodes | nodes_of(entry.nodes.values()),
        )
    return found


def _announced(entry: Entry) -> CPUSet:
    """Return the CPUs that the container has in its environment, from us or CPU-Pooler."""
    try:
        variables = ContainerAllocateResponse.FromString(entry.alloc_resp).envs
        return CPUSet.parse(variables.get(EXCLUSIVE_CPUS) or variables.get(SHARED_CPUS, ""))
    except (DecodeError, CPUSetParseError):
        # The reply of another plugin, or a damaged reply: the device ids say enough.
        return CPUSet()
