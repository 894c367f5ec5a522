"""The kubelet's device checkpoint, which says which devices the kubelet gave to each container.

Source: kubernetes pkg/kubelet/cm/devicemanager/checkpoint (checkpoint.go and checkpointv1.go). The
checksum covers the data part (`checkpoints`).
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from cpupool.wire.checkpoint_checksum import Reader, dump_map, dump_slice

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_NODE: Final = -1
"""The NUMA node id that the kubelet writes for devices without topology."""

_NODE_KEY: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_READER: Final = Reader(
    "the kubelet's device checkpoint",
    "the kubelet writes it again when it next admits a pod with devices",
)


class Generation(Enum):
    """The kubelet versions that write a file of this shape."""

    FLAT = "before 1.20"
    PER_NODE = "since 1.20"


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one resource that one container has.

    Attributes:
        pod_uid: the pod.
        container: the container's name in it.
        resource: the extended resource.
        device_ids: NUMA node id → device ids; all under NO_NODE in a file of a kubelet before 1.20.
        alloc_resp: the plugin's ContainerAllocateResponse, serialised.
    """

    pod_uid: str
    container: str
    resource: str
    device_ids: Mapping[int, tuple[str, ...]]
    alloc_resp: bytes = b""

    @property
    def ids(self) -> frozenset[str]:
        """The device ids of every NUMA node together."""
        return frozenset().union(*self.device_ids.values())

    @property
    def nodes(self) -> Mapping[str, frozenset[int]]:
        """Device id → its NUMA nodes, for the ids that have any."""
        found: defaultdict[str, frozenset[int]] = defaultdict(frozenset)
        for node, ids in self.device_ids.items():
            for identifier in ids if node != NO_NODE else ():
                found[identifier] |= {node}
        return found


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole file.

    Attributes:
        entries: in the order of the file.
        registered: resource → the ids of its healthy devices.
        generation: the shape of the file.
        verified: whether the checksum is right; only a file of a kubelet before 1.20 may be
            without.
    """

    entries: tuple[Entry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    generation: Generation = Generation.PER_NODE
    verified: bool = True


def parse(data: bytes) -> Checkpoint:
    """Read a checkpoint of either generation and verify its checksum.

    Raises:
        RemoteProtocolError: the file is damaged, or is not a checkpoint.
    """
    document = _READER.document(data)
    checksum = _READER.typed(document.get("Checksum"), int, "Checksum")
    body = _READER.typed(document.get("Data"), dict, "Data")
    found = _READER.optional(body.get("PodDeviceEntries"), list, "PodDeviceEntries")
    entries = tuple(_entry(raw, f"PodDeviceEntries[{at}]") for at, raw in enumerate(found))
    registered = {
        name: _texts(ids, f"RegisteredDevices.{name}")
        for name, ids in _READER.optional(
            body.get("RegisteredDevices"), dict, "RegisteredDevices"
        ).items()
    }
    expected = _checksum(body)
    flat = bool(found) and all(isinstance(raw.get("DeviceIDs"), list) for raw in found)
    if checksum != expected and not flat:
        raise _READER.damaged(f"its checksum is {checksum}, and its content has {expected}")
    return Checkpoint(
        entries=entries,
        registered=registered,
        generation=Generation.FLAT if flat else Generation.PER_NODE,
        verified=checksum == expected,
    )


def encode(checkpoint: Checkpoint) -> bytes:
    """Write a checkpoint in its generation's shape, with the right checksum."""
    flat = checkpoint.generation is Generation.FLAT
    body = {
        "PodDeviceEntries": [
            {
                "PodUID": entry.pod_uid,
                "ContainerName": entry.container,
                "ResourceName": entry.resource,
                "DeviceIDs": [name for ids in entry.device_ids.values() for name in ids]
                if flat
                else {str(node): list(ids) for node, ids in entry.device_ids.items()},
                "AllocResp": base64.b64encode(entry.alloc_resp).decode(),
            }
            for entry in checkpoint.entries
        ],
        "RegisteredDevices": {name: list(ids) for name, ids in checkpoint.registered.items()},
    }
    document = {"Data": body, "Checksum": _checksum(body)}
    return json.dumps(document, separators=(",", ":")).encode()


def _texts(value: object, where: str) -> tuple[str, ...]:
    texts = _READER.optional(value, list, where)
    if not all(isinstance(text, str) for text in texts):
        raise _READER.damaged(f"{where[:80]} holds something else than device ids")
    return tuple(texts)


def _entry(raw: object, where: str) -> Entry:
    members = _READER.typed(raw, dict, where)
    try:
        response = base64.b64decode(
            _READER.optional(members.get("AllocResp"), str, f"{where}.AllocResp"), validate=True
        )
    except ValueError as error:
        raise _READER.damaged(f"{where}.AllocResp is not base64") from error
    return Entry(
        pod_uid=_READER.typed(members.get("PodUID"), str, f"{where}.PodUID"),
        container=_READER.typed(members.get("ContainerName"), str, f"{where}.ContainerName"),
        resource=_READER.typed(members.get("ResourceName"), str, f"{where}.ResourceName"),
        device_ids=_device_ids(members.get("DeviceIDs"), f"{where}.DeviceIDs"),
        alloc_resp=response,
    )


def _device_ids(value: object, where: str) -> dict[int, tuple[str, ...]]:
    if isinstance(value, list):
        return {NO_NODE: _texts(value, where)}
    by_node = _READER.optional(value, dict, where)
    if not all(_NODE_KEY.fullmatch(node) and str(int(node)) == node for node in by_node):
        raise _READER.damaged(f"{where} has a key that is no NUMA node")
    return {int(node): _texts(ids, where) for node, ids in by_node.items()}


def _checksum(body: Mapping[str, Any]) -> int:
    """Return the checksum of a data part whose types have been checked."""
    entries = body.get("PodDeviceEntries")
    text = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        + dump_slice(None if entries is None else map(_entry_text, entries))
        + " RegisteredDevices:(map[string][]string)"
        + dump_map(body.get("RegisteredDevices"), dump_slice)
        + "}"
    )
    return _READER.checksum(text)


def _entry_text(entry: Mapping[str, Any]) -> str:
    ids, response = entry.get("DeviceIDs"), entry.get("AllocResp")
    if isinstance(ids, list):
        devices = f"([]string){dump_slice(ids)}"
    else:
        by_node = None if ids is None else {int(node): listed for node, listed in ids.items()}
        devices = f"(checkpoint.DevicesPerNUMA){dump_map(by_node, dump_slice)}"
    octets = None if response is None else map(str, base64.b64decode(response))
    return (
        f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']}"
        f" ResourceName:(string){entry['ResourceName']} DeviceIDs:{devices}"
        f" AllocResp:([]uint8){dump_slice(octets)}}}"
    )
