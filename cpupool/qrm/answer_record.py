"""The record of what plugins of the QoS Resource Manager have answered: JSON with a checksum.

The agent writes an answer here before a container gets it. A plugin that has answered is not asked
again, so the file outlives the agent and, as the plugins' own state, a reboot.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.wire.checkpoint_checksum import Reader
from cpupool.wire.sealed import Sealed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.plugin_facts import AnswerParts, Record

_READER: Final = Reader("the record of answers", "the plugins are asked again")
_FILE: Final = Sealed(_READER, 1)
_PAIR: Final = 2


def encode(record: Record) -> bytes:
    """Write a record."""
    return _FILE.encode(
        {
            "pod": ref.pod,
            "container": ref.name,
            "resource": resource,
            "quantity": given.quantity,
            "exclusive": given.exclusive,
            "refused": given.refused,
            "kept": given.kept,
            "hint": None if given.hint is None else _hint(given.hint),
            "answers": {name: written(answer) for name, answer in given.parts.items()},
        }
        for ref, by_resource in record.items()
        for resource, given in by_resource.items()
    )


def parse(data: bytes) -> Record:
    """Read a record.

    Raises:
        RemoteProtocolError: the file is damaged, or is not such a file.
    """
    record: defaultdict[ContainerRef, dict[str, RecordedAnswer]] = defaultdict(dict)
    for entry in _FILE.entries(data):
        pod, name = (_READER.text(entry.get(key), key) for key in ("pod", "container"))
        resource = _READER.text(entry.get("resource"), "resource")
        record[ContainerRef(pod, name)][resource] = _given(entry)
    return dict(record)


def _given(entry: Mapping[str, Any]) -> RecordedAnswer:
    refused = _READER.text(entry.get("refused"), "refused")
    answers: AnswerParts = {}
    try:
        answers = {
            _READER.text(name, "answers"): read(_READER, each)
            for name, each in _READER.typed(entry.get("answers"), dict, "answers").items()
        }
    except RemoteProtocolError:
        # Earlier agents have kept what they refused with any amount.
        if not refused:
            raise
    hint = entry.get("hint")
    return RecordedAnswer(
        _READER.amount(entry.get("quantity"), "quantity"),
        answers,
        None if hint is None else _hint_of(_READER, hint),
        exclusive=_READER.flag(entry.get("exclusive"), "exclusive"),
        refused=refused,
        # Earlier agents have not written it.
        kept=_READER.flag(entry.get("kept", False), "kept"),
    )


def _hint(hint: TopologyHint) -> dict[str, Any]:
    return {"nodes": None if hint.nodes is None else sorted(hint.nodes), "wish": hint.preferred}


def _hint_of(reader: Reader, value: object) -> TopologyHint:
    written = reader.typed(value, dict, "hint")
    nodes = written.get("nodes")
    return TopologyHint(
        None
        if nodes is None
        else frozenset(reader.whole(node, "nodes") for node in reader.typed(nodes, list, "nodes")),
        reader.flag(written.get("wish"), "wish"),
    )


def written(answer: AnswerPart) -> dict[str, Any]:
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


def read(reader: Reader, value: object) -> AnswerPart:
    """Return an answer from the values that `written` has returned.

    Args:
        reader: names the file in errors.
        value: the values.

    Raises:
        RemoteProtocolError: they are something else.
    """
    entry = reader.typed(value, dict, "an answer")
    hints, by_node = entry.get("hints"), reader.typed(entry.get("byNode"), list, "byNode")
    return AnswerPart(
        reader.text(entry.get("property"), "property"),
        reader.text(entry.get("value"), "value"),
        reader.amount(entry.get("quantity"), "quantity"),
        scalar=reader.flag(entry.get("scalar"), "scalar"),
        of_node=reader.flag(entry.get("ofNode"), "ofNode"),
        env=reader.texts(entry.get("env"), "env"),
        annotations=reader.texts(entry.get("annotations"), "annotations"),
        hints=None
        if hints is None
        else tuple(_hint_of(reader, hint) for hint in reader.typed(hints, list, "hints")),
        by_node=dict(_pair(reader, pair) for pair in by_node),
    )


def _pair(reader: Reader, value: object) -> tuple[int, int]:
    pair = reader.typed(value, list, "byNode")
    if len(pair) != _PAIR:
        raise reader.damaged("byNode is no list of pairs")
    node, amount = (reader.whole(number, "byNode") for number in pair)
    return node, amount
