"""The record of what plugins of the QoS Resource Manager have answered: JSON with a checksum.

The agent writes an answer here before a container gets it. A plugin that has answered is not asked
again, so the file outlives the agent and, as the plugins' own state, a reboot.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.resource_plugins import Answer, Given
from cpupool.core.workloads import ContainerRef
from cpupool.wire.checkpoints import Reader
from cpupool.wire.sealed import Sealed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.resource_plugins import Record

_FILE: Final = Sealed(
    Reader("the record of answers", "the plugins are asked again; remove it if that repeats"), 1
)


def encode(record: Record) -> bytes:
    """Write a record."""
    return _FILE.encode(
        [
            {
                "pod": ref.pod,
                "container": ref.name,
                "resource": resource,
                "quantity": given.quantity,
                "exclusive": given.exclusive,
                "refused": given.refused,
                "hint": None if given.hint is None else _hint(given.hint),
                "answers": {name: written(answer) for name, answer in given.answers.items()},
            }
            for ref, by_resource in record.items()
            for resource, given in by_resource.items()
        ]
    )


def parse(data: bytes) -> Record:
    """Read a record.

    Raises:
        RemoteProtocolError: the file is damaged, or is not such a file.
    """
    record: defaultdict[ContainerRef, dict[str, Given]] = defaultdict(dict)
    for entry in _FILE.entries(data):
        # The checksum is right: an agent of this version has written every entry.
        given = Given(
            entry["quantity"],
            {name: read(each) for name, each in entry["answers"].items()},
            None if entry["hint"] is None else _hint_of(entry["hint"]),
            exclusive=entry["exclusive"],
            refused=entry["refused"],
        )
        record[ContainerRef(entry["pod"], entry["container"])][entry["resource"]] = given
    return dict(record)


def _hint(hint: TopologyHint) -> dict[str, Any]:
    return {"nodes": None if hint.nodes is None else sorted(hint.nodes), "wish": hint.preferred}


def _hint_of(written: Mapping[str, Any]) -> TopologyHint:
    nodes: Iterable[int] | None = written["nodes"]
    return TopologyHint(None if nodes is None else frozenset(nodes), written["wish"])


def written(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values."""
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


def read(entry: Mapping[str, Any]) -> Answer:
    """Return an answer from the values that `written` has returned."""
    hints = entry["hints"]
    return Answer(
        entry["property"],
        entry["value"],
        entry["quantity"],
        scalar=entry["scalar"],
        of_node=entry["ofNode"],
        env=entry["env"],
        annotations=entry["annotations"],
        hints=None if hints is None else tuple(_hint_of(hint) for hint in hints),
        by_node=dict(entry["byNode"]),
    )
