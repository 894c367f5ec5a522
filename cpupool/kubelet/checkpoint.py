"""The kubelet's device checkpoint file, read again only when it has changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from cpupool.api.deviceplugin_pb2 import ContainerAllocateResponse
from cpupool.core.assignments import Grant
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, HostFileError
from cpupool.core.names import EXCLUSIVE_CPUS, SHARED_CPUS
from cpupool.telemetry import log as logs
from cpupool.wire import kubelet_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.assignments import PodDevices
    from cpupool.wire.kubelet_checkpoint import Checkpoint, Entry

log = logs.get(__name__)


class CheckpointFile:
    """The device assignments in the kubelet's checkpoint, as a `CheckpointSource`.

    Args:
        path: the file, usually `device-plugins/kubelet_internal_checkpoint`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._found: Mapping[str, PodDevices] = {}

    def by_pod_uid(self) -> Mapping[str, PodDevices]:
        """Give pod UID → container name → resource name → what it was given.

        Raises:
            HostFileError: the file cannot be read.
            RemoteProtocolError: it is damaged.
        """
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                now = (status.st_mtime_ns, status.st_ino, status.st_size)
                if now == self._seen:
                    return self._found
                data = file.read()
        except OSError as error:
            raise HostFileError(
                str(self._path),
                f"the kubelet's device checkpoint cannot be read ({error.strerror})",
                "check that the kubelet's folder is mounted and that a pod has had devices",
            ) from error
        checkpoint = kubelet_checkpoint.parse(data)
        if not checkpoint.verified:
            log.warning("kubelet checkpoint has a wrong checksum", path=self._path)
        self._found, self._seen = _by_pod_uid(checkpoint), now
        return self._found


def _by_pod_uid(checkpoint: Checkpoint) -> Mapping[str, PodDevices]:
    found: dict[str, dict[str, dict[str, Grant]]] = {}
    for entry in checkpoint.entries:
        of_container = found.setdefault(entry.pod_uid, {}).setdefault(entry.container, {})
        before = of_container.get(entry.resource, Grant(frozenset()))
        of_container[entry.resource] = Grant(before.ids | entry.ids, before.cpus | _told(entry))
    return found


def _told(entry: Entry) -> CPUSet:
    """Read which CPUs the device plugin told the container, ours or CPU-Pooler."""
    try:
        told = ContainerAllocateResponse.FromString(entry.alloc_resp).envs
        return CPUSet.parse(told.get(EXCLUSIVE_CPUS) or told.get(SHARED_CPUS, ""))
    except (DecodeError, CPUSetParseError):
        # Another plugin's reply, or a damaged one: the device ids say enough.
        return CPUSet()
