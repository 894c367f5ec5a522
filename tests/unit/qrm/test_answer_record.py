from __future__ import annotations

import copy
import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.qrm import answer_record
from cpupool.wire.checkpoint_checksum import Reader
from cpupool.wire.sealed import Sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ANY = TopologyHint(None, preferred=False)
NODES = TopologyHint(frozenset({0, 1}), preferred=True)
CPUS = AnswerPart(
    "CpusetCpus",
    "1-2",
    0.3,
    scalar=True,
    of_node=True,
    env={"E": "é"},
    annotations={"a": "1"},
    hints=(NODES, ANY),
    by_node={0: 2, 1: 237182648320},
)
RECORD = {
    ContainerRef("a", "main"): {
        "cpu": RecordedAnswer(2.5, {"cpu": CPUS, "extra": AnswerPart()}, NODES, exclusive=True),
        "nic": RecordedAnswer(1.0, {}, None, refused="it is no CPU list"),
    },
    ContainerRef("b", "main"): {"cpu": RecordedAnswer(1.0, {"cpu": AnswerPart(hints=())}, ANY)},
}


def test_a_record_is_read_as_it_was_written() -> None:
    assert answer_record.parse(answer_record.encode(RECORD)) == RECORD
    assert answer_record.parse(answer_record.encode({})) == {}


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda _text: "{", "it is not JSON"),
        (lambda text: text.replace('"version":1', '"version":2'), "its version is 2, and not 1"),
        (lambda text: text.replace('"1-2"', '"1-3"'), "its checksum is not"),
        (lambda _text: json.dumps({"version": 1}), "entries is not of type list"),
    ],
)
def test_a_damaged_record_is_refused(damage: Callable[[str], str], what: str) -> None:
    text = damage(answer_record.encode(RECORD).decode())

    with pytest.raises(RemoteProtocolError, match=what) as error:
        answer_record.parse(text.encode())

    assert "the plugins are asked again" in str(error.value)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a document."""
    yield path
    items: Iterable[Any] = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        yield from _places(each, (*path, key))


def _with(entries: list[Any], path: tuple[Any, ...], other: object) -> list[Any]:
    """Return entries with another value at a path; without the key for `...`."""
    made = copy.deepcopy(entries)
    *above, last = path
    place: Any = made
    for key in above:
        place = place[key]
    if other is ...:
        del place[last]
    else:
        place[last] = other
    return made


NESTED: Any = []
for _ in range(400):
    NESTED = [NESTED]
FORGED: tuple[object, ...] = (
    ...,
    None,
    True,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    "x",
    "\ud800",
    [],
    {},
    [[0]],
    NESTED,
)


def test_a_forged_record_with_the_right_checksum_is_refused_or_read_as_it_is_written() -> None:
    entries = json.loads(answer_record.encode(RECORD))["entries"]
    sealed = Sealed(Reader("a test", "nothing"), 1)
    refused = read = 0
    for path in _places(entries):
        for other in FORGED if path else ():
            data = sealed.encode(_with(entries, path, other))
            try:
                record = answer_record.parse(data)
            except RemoteProtocolError:
                refused += 1
            else:
                read += 1
                assert answer_record.parse(answer_record.encode(record)) == record
                given = [each for of in record.values() for each in of.values()]
                assert all(
                    each.serves(1.0) in {True, False} and each.texts is not None for each in given
                )
    assert refused > read > 0, (refused, read)


def test_a_record_that_is_nested_too_deeply_is_refused() -> None:
    deep = "[" * 90_000 + "]" * 90_000
    for text in (deep, f'{{"version":1,"checksum":0,"entries":[{deep}]}}'):
        with pytest.raises(RemoteProtocolError):
            answer_record.parse(text.encode())


def test_an_earlier_agents_refused_answer_with_any_amount_leaves_the_others() -> None:
    bad = replace(CPUS, quantity=-1.0)
    of_a = {
        **RECORD[ContainerRef("a", "main")],
        "x": RecordedAnswer(1.0, {"x": bad}, refused="it is bad"),
    }
    record = answer_record.parse(answer_record.encode({ContainerRef("a", "main"): of_a}))
    kept = record[ContainerRef("a", "main")]
    assert kept == {**of_a, "x": RecordedAnswer(1.0, {}, refused="it is bad")}


def test_what_a_container_keeps_is_recorded_and_an_earlier_agents_record_has_none_of_it() -> None:
    record = {ContainerRef("a", "main"): {"cpu": RecordedAnswer(0.0, {"cpu": CPUS}, kept=True)}}
    assert answer_record.parse(answer_record.encode(record)) == record
    sealed = Sealed(Reader("a test", "nothing"), 1)
    entries = json.loads(answer_record.encode(RECORD))["entries"]
    for entry in entries:
        del entry["kept"]
    assert answer_record.parse(sealed.encode(entries)) == RECORD


@pytest.mark.parametrize("count", [0, 1, 3])
def test_entries_that_are_written_one_by_one_make_one_document(count: int) -> None:
    entries = [{"pod": "ü", "more": {"b": None, "a": [number]}} for number in range(count)]
    in_order = json.dumps(entries, separators=(",", ":"), sort_keys=True).encode()
    document = {"version": 1, "checksum": zlib.crc32(in_order), "entries": entries}

    data = Sealed(Reader("a test", "nothing"), 1).encode(iter(entries))

    assert data == json.dumps(document, separators=(",", ":")).encode()
