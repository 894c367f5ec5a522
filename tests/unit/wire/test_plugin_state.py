from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.plugin_state import PluginState, ServedContainer
from cpupool.core.resource_plugins import Answer, ContainerRole, Question
from cpupool.core.workloads import ContainerRef
from cpupool.wire import plugin_state

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
    {QUESTION.container: ServedContainer(QUESTION, Answer("CpusetCpus", "1-2", by_node={0: 2}))},
    {"online": CPUSet.parse("0-3"), "none": CPUSet()},
    4.5,
)


def test_a_state_is_read_as_it_was_written() -> None:
    assert plugin_state.parse(plugin_state.encode(STATE)) == STATE


def test_a_damaged_state_is_refused() -> None:
    damaged = plugin_state.encode(STATE).replace(b'"1-2"', b'"1-3"')
    with pytest.raises(RemoteProtocolError, match=r"its checksum is not.+remove it"):
        plugin_state.parse(damaged)
