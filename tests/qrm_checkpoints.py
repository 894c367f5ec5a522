"""The file of Katalyst's managers, written as Go does."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cpupool.api.resourceplugin_pb2 import ResourceAllocationInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

_NOT_UTF8 = re.compile("[\udc80-\udcff]")


class Recorded(NamedTuple):
    """What a manager has recorded of a container."""

    pod: str
    container: str
    resource: str
    message: bytes

    @classmethod
    def of(
        cls, pod: str, resource: str = "cpu", container: str = "main", **fields: Any
    ) -> Recorded:
        """Make it from the fields of an answer."""
        message = ResourceAllocationInfo(**fields).SerializeToString()
        return cls(pod, container, resource, message)

    @classmethod
    def cpus(cls, pod: str, cpus: str, quantity: float = 2.0) -> Recorded:
        """Make it for CPUs."""
        return cls.of(
            pod,
            oci_property_name="CpusetCpus",
            allocation_result=cpus,
            allocated_quantity=quantity,
            is_scalar_resource=True,
        )


def text(message: bytes) -> str:
    """Return bytes as a JSON string has them: Go replaces each byte that is not UTF-8."""
    return _NOT_UTF8.sub("\ufffd", message.decode("utf-8", "surrogateescape"))


def checksum(entries: Iterable[Recorded]) -> int:
    """Return FNV-1a of Go's dump, as its authors publish it, over the true bytes."""
    dumped = b" ".join(
        b"{PodUID:(string)%s ContainerName:(string)%s ResourceName:(string)%s"
        b" AllocationInfo:(string)%s}"
        % (each.pod.encode(), each.container.encode(), each.resource.encode(), each.message)
        for each in entries
    )
    value = 0x811C9DC5
    for byte in (
        b"(checkpoint.checkpointData){PodResourceEntries:([]checkpoint.PodResourcesEntry)["
        b"%s]}" % dumped
    ):
        value = ((value ^ byte) * 0x01000193) % 2**32
    return value


def written(*entries: Recorded) -> bytes:
    """Return the file."""
    listed = [
        {
            "PodUID": each.pod,
            "ContainerName": each.container,
            "ResourceName": each.resource,
            "AllocationInfo": text(each.message),
        }
        for each in entries
    ]
    document = {"Data": {"PodResourceEntries": listed}, "Checksum": checksum(entries)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
