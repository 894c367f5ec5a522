from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.resource_plugins import Answer, Given
from cpupool.core.workloads import ContainerRef
from cpupool.wire import answer_record

if TYPE_CHECKING:
    from collections.abc import Callable

ANY = TopologyHint(None, preferred=False)
NODES = TopologyHint(frozenset({0, 1}), preferred=True)
CPUS = Answer(
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
        "cpu": Given(2.5, {"cpu": CPUS, "extra": Answer()}, NODES, exclusive=True),
        "nic": Given(1.0, {}, None, refused="it is no CPU list"),
    },
    ContainerRef("b", "main"): {"cpu": Given(1.0, {"cpu": Answer(hints=())}, ANY)},
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
