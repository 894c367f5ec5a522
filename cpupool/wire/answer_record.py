"""The record of what plugins of the QoS Resource Manager have answered: JSON with a checksum.

The agent writes an answer here before a container gets it. A plugin that has answered is not asked
again, so the file outlives the agent and, as the plugins' own state, a reboot.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.resource_plugins import Answer, Given
from cpupool.core.workloads import ContainerRef
from cpupool.wire.checkpoints import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.resource_plugins import Record

_READER: Final = Reader(
    "the record of answers", "the plugins are asked again; remove it if that repeats"
)
_VERSION: Final = 1


def encode(record: Record) -> bytes:
    """Write a record."""
    entries = [
        {
            "pod": ref.pod,
            "container": ref.name,
            "resource": resource,
            "quantity": given.quantity,
            "exclusive": given.exclusive,
            "refused": given.refused,
            "hint": None if given.hint is None else _hint(given.hint),
            "answers": {name: _answer(answer) for name, answer in given.answers.items()},
        }
        for ref, by_resource in record.items()
        for resource, given in by_resource.items()
    ]
    return json.dumps(
        {"version": _VERSION, "checksum": _checksum(entries), "entries": entries},
        separators=(",", ":"),
    ).encode()


def parse(data: bytes) -> Record:
    """Read a record.

    Raises:
        RemoteProtocolError: the file is damaged, or is not such a file.
    """
    document = _READER.document(data)
    version = document.get("version")
    if version != _VERSION:
        raise _READER.damaged(f"its version is {str(version)[:20]}, and not {_VERSION}")
    entries = _READER.typed(document.get("entries"), list, "entries")
    if document.get("checksum") != (right := _checksum(entries)):
        raise _READER.damaged(f"its checksum is not {right}, that of its content")
    record: defaultdict[ContainerRef, dict[str, Given]] = defaultdict(dict)
    for entry in entries:
        # The checksum is right: an agent of this version has written every entry.
        given = Given(
            entry["quantity"],
            {name: _answer_of(written) for name, written in entry["answers"].items()},
            None if entry["hint"] is None else _hint_of(entry["hint"]),
            exclusive=entry["exclusive"],
            refused=entry["refused"],
        )
        record[ContainerRef(entry["pod"], entry["container"])][entry["resource"]] = given
    return dict(record)


def _checksum(entries: object) -> int:
    return zlib.crc32(json.dumps(entries, separators=(",", ":"), sort_keys=True).encode())


def _hint(hint: TopologyHint) -> dict[str, Any]:
    return {"nodes": None if hint.nodes is None else sorted(hint.nodes), "wish": hint.preferred}


def _hint_of(written: Mapping[str, Any]) -> TopologyHint:
    nodes: Iterable[int] | None = written["nodes"]
    return TopologyHint(None if nodes is None else frozenset(nodes), written["wish"])


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "property": answer.oci_property,
        "value": answer.value,
        "quantity": answer.quantity,
        "scalar": answer.scalar,
        "ofNode": answer.of_node,
        "env": dict(answer.env),
        "annotations": dict(answer.annotations),
        "hints": None if answer.hints is None else [_hint(hint) for hint in answer.hints],
        "byNode": sorted(answer.by_node.items()),
    }


def _answer_of(written: Mapping[str, Any]) -> Answer:
    hints = written["hints"]
    return Answer(
        written["property"],
        written["value"],
        written["quantity"],
        scalar=written["scalar"],
        of_node=written["ofNode"],
        env=written["env"],
        annotations=written["annotations"],
        hints=None if hints is None else tuple(_hint_of(hint) for hint in hints),
        by_node=dict(written["byNode"]),
    )
