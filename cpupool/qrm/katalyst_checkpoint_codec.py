"""The answers of plugins that Katalyst's managers keep in the file `kubelet_qrm_checkpoint`.

Source: kubewharf/kubelet, pkg/kubelet/cm/qosresourcemanager/checkpoint; Katalyst's own manager has
the same file. The checksum covers the data part (`checkpoints`). The file has one entry for each
resource that a container has, with a protobuf message in a JSON string: Go's JSON replaces each
byte that is not UTF-8, while the checksum is that of the true bytes. So the checksum of a file with
a replaced byte says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cpupool.wire.checkpoint_checksum import Reader, dump_slice

_REPLACED: Final = "\ufffd"
_MEMBERS: Final = ("PodUID", "ContainerName", "ResourceName", "AllocationInfo")
_READER: Final = Reader(
    "kubelet_qrm_checkpoint",
    "the agent imports nothing: remove the file, and it asks plugins for every container",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The part of one resource that a container has.

    Attributes:
        pod_uid: the pod.
        container: the container's name in it.
        resource: the plugin's resource.
        text: the plugin's ResourceAllocationInfo, as JSON has kept it.
    """

    pod_uid: str
    container: str
    resource: str
    text: str

    @property
    def whole(self) -> bool:
        """Whether JSON has kept every byte."""
        return _REPLACED not in self.text

    def message(self, lost: int) -> bytes:
        """Return the plugin's message, with `lost` for each byte that JSON has replaced."""
        parts = self.text.split(_REPLACED)
        return bytes((lost,)).join(part.encode() for part in parts)


def parse(data: bytes) -> tuple[Entry, ...]:
    """Read a file, and verify its checksum if every entry is whole.

    Raises:
        RemoteProtocolError: the file is damaged, or is not such a file.
    """
    document = _READER.document(data)
    checksum = _READER.typed(document.get("Checksum"), int, "Checksum")
    body = _READER.typed(document.get("Data"), dict, "Data")
    listed = body.get("PodResourceEntries")
    entries = tuple(
        _entry(raw, f"PodResourceEntries[{at}]")
        for at, raw in enumerate(_READER.optional(listed, list, "PodResourceEntries"))
    )
    # The dump of a text that is no Unicode fails here, also in a file with replaced bytes.
    expected = _READER.checksum(
        "(checkpoint.checkpointData){PodResourceEntries:([]checkpoint.PodResourcesEntry)"
        f"{dump_slice(None if listed is None else map(_dump, entries))}}}"
    )
    if checksum != expected and all(entry.whole for entry in entries):
        raise _READER.damaged(f"its checksum is {checksum}, and its content has {expected}")
    return entries


def _entry(raw: object, where: str) -> Entry:
    entry = _READER.typed(raw, dict, where)
    return Entry(*(_READER.typed(entry.get(name), str, f"{where}.{name}") for name in _MEMBERS))


def _dump(entry: Entry) -> str:
    texts = (entry.pod_uid, entry.container, entry.resource, entry.text)
    members = zip(_MEMBERS, texts, strict=True)
    return f"{{{' '.join(f'{name}:(string){text}' for name, text in members)}}}"
