from __future__ import annotations

import json

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.plugin_facts import AnswerPart
from cpupool.core.workloads import ContainerRef
from cpupool.plugins import state_codec
from cpupool.plugins.state import PluginState, ServedContainer
from cpupool.policies.qrm.questions import ContainerRole, Question
from cpupool.wire.checkpoint_checksum import Reader
from cpupool.wire.sealed import Sealed

QUESTION = Question(
    ContainerRef("a", "main"),
    "default",
    "web",
    ContainerRole.SIDECAR,
    3,
    "cpu",
    2.5,
    "role",
    "type",
    {"l": "1"},
    {"a": "2"},
    "Burstable",
)
STATE = PluginState(
    {
        QUESTION.container: ServedContainer(
            QUESTION, AnswerPart("CpusetCpus", "1-2", by_node={0: 2})
        )
    },
    {"online": CPUSet.parse("0-3"), "none": CPUSet()},
    4.5,
)


def test_a_state_is_read_as_it_was_written() -> None:
    assert state_codec.parse(state_codec.encode(STATE)) == STATE


def test_a_damaged_state_is_refused() -> None:
    damaged = state_codec.encode(STATE).replace(b'"1-2"', b'"1-3"')
    with pytest.raises(RemoteProtocolError, match=r"its checksum is not.+remove it"):
        state_codec.parse(damaged)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"quantity": 2.5', '"quantity": NaN'),
        ('"quantity": 2.5', '"quantity": -1'),
        ('"role": "SIDECAR"', '"role": "KING"'),
        ('"role": "SIDECAR"', '"role": []'),
        ('"cpus": "0-3"', '"cpus": "x"'),
        ('"cpus": "0-3"', '"cups": "0-3"'),
        ('"headroomCPUs": 4.5', '"headroomCPUs": "4"'),
        ('"labels": {"l": "1"}', '"labels": ["l"]'),
        ('"answer": {', '"answers": {'),
        ('"question": {', '"questions": {'),
    ],
)
def test_a_forged_state_with_the_right_checksum_is_refused(old: str, new: str) -> None:
    entries = json.dumps(json.loads(state_codec.encode(STATE))["entries"])
    assert entries.count(old)
    sealed = Sealed(Reader("a test", "nothing"), 1)
    forged = sealed.encode(json.loads(entries.replace(old, new)))
    with pytest.raises(RemoteProtocolError, match="the state of the plugin is not readable"):
        state_codec.parse(forged)
