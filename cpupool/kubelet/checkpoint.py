"""The kubelet's device checkpoint file, read again only when it has changed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from cpupool.core.errors import HostFileError
from cpupool.wire import kubelet_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.assignments import PodDevices
    from cpupool.wire.kubelet_checkpoint import Checkpoint

log = logging.getLogger(__name__)


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
        """Give pod UID → container name → resource name → device ids.

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
            log.warning("kubelet checkpoint has a wrong checksum path=%s", self._path)
        self._found, self._seen = _by_pod_uid(checkpoint), now
        return self._found


def _by_pod_uid(checkpoint: Checkpoint) -> Mapping[str, PodDevices]:
    found: dict[str, dict[str, dict[str, frozenset[str]]]] = {}
    for entry in checkpoint.entries:
        of_container = found.setdefault(entry.pod_uid, {}).setdefault(entry.container, {})
        of_container[entry.resource] = of_container.get(entry.resource, frozenset()) | entry.ids
    return found
