"""What a plugin answers has bounds before it is parsed, and leaves nothing where it is refused."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api import resourceplugin_pb2
from cpupool.api.resourceplugin_pb2 import (
    AllocationEntry,
    ListOfTopologyHints,
    ResourceAllocation,
    ResourceAllocationInfo,
)
from cpupool.api.resourceplugin_pb2 import TopologyHint as HintMessage
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.plugin_client import Introduction, PluginError, ResourcePlugin
from tests.resource_plugins import PluginDouble, Refusal, entry
from tests.unit.qrm.test_plugin_client import ASKED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def double(tmp_path: Path) -> Iterator[PluginDouble]:
    with PluginDouble(tmp_path / "p.sock") as plugin:
        yield plugin


@pytest.fixture
def plugin(double: PluginDouble) -> Iterator[ResourcePlugin]:
    plugin = ResourcePlugin(Introduction("cpu", double.socket, PluginOptions()))
    yield plugin
    plugin.close()


def test_a_list_of_8000_containers_is_taken(double: PluginDouble, plugin: ResourcePlugin) -> None:
    found = resourceplugin_pb2.GetResourcesAllocationResponse()
    hints = ListOfTopologyHints(hints=[HintMessage(nodes=[node]) for node in range(2)])
    info = ResourceAllocationInfo(
        oci_property_name="CpusetCpus",
        allocation_result="0-3,8-11",
        is_scalar_resource=True,
        allocated_quantity=8,
        resource_hints=hints,
        topology_assignments={0: 4, 1: 4},
        envs={"A": "b"},
        annotations={"katalyst/numa": "{}", "katalyst/pool": "share"},
    )
    for pod in range(4000):
        uid = f"0b5e1f3c-7f2e-4c9b-9d53-1d2c{pod:08x}"
        for name in ("main", "sidecar"):
            allocation = found.pod_resources[uid].container_resources[name]
            allocation.resource_allocation.add(key="cpu").value.CopyFrom(info)
    assert found.ByteSize() > 1_000_000
    double.answers("GetResourcesAllocation", found)
    assert len(plugin.allocations()) == 8000


def entries(key: bytes, count: int) -> bytes:
    """Return a map of a message with one entry again and again, each with an empty value."""
    return (key + b"\x04\x0a\x00\x12\x00") * count


@pytest.mark.parametrize(
    "answered",
    # Millions of bytes, made by the process that sends them, not by each that finds the tests.
    [
        pytest.param(lambda: entries(b"\x0a", 460_000), id="one pod again and again"),
        pytest.param(
            lambda: b"".join(entry(1, f"{pod}", b"") for pod in range(200_000)), id="too many pods"
        ),
        pytest.param(
            lambda: b"".join(
                entry(1, f"{pod}", entry(1, "", b"\x0a\x04\x12\x02\x42\x00" * 5))
                for pod in range(60_000)
            ),
            id="too many containers, each with answers",
        ),
        pytest.param(lambda: b"\x0a\x00" * 1_400_000, id="pods without a name"),
        pytest.param(
            lambda: b"".join(entry(1, f"{pod}", b"") for pod in range(150_000)) + b"\xff",
            id="no message at its end",
        ),
        pytest.param(lambda: b"\xff" * 2_800_000, id="no message"),
        pytest.param(lambda: b"\x0a\x00" * 2_200_000, id="too long"),
    ],
)
def test_a_list_that_is_refused_leaves_nothing(
    double: PluginDouble, plugin: ResourcePlugin, answered: Callable[[], bytes]
) -> None:
    """Without the collector: an error may be kept, but not what its frames have."""
    double.answers("GetResourcesAllocation", answered())
    errors, resident = list[PluginError](), list[int]()
    gc.collect()
    gc.disable()
    try:
        for number in range(5):
            with pytest.raises(PluginError) as refused:
                plugin.allocations()
            errors.append(refused.value)
            if number in {1, 4}:
                resident.append(int(Path("/proc/self/statm").read_text().split()[1]))
    finally:
        gc.enable()
    pages = resident[1] - resident[0]
    # Each answer has 2.8 MB, and ten times as much once parsed.
    assert pages * os.sysconf("SC_PAGE_SIZE") < 5 * 1_000_000


@pytest.mark.parametrize(
    ("method", "ask", "answer"),
    [
        pytest.param(
            "GetTopologyHints",
            lambda plugin: plugin.hints(ASKED),
            b"\x52\x00" * 1_000_000,
            id="hints",
        ),
        pytest.param(
            "Allocate",
            lambda plugin: plugin.allocate(ASKED),
            entries(b"\x62", 400_000),
            id="annotations beside an answer",
        ),
        pytest.param(
            "GetTopologyAwareAllocatableResources",
            lambda plugin: plugin.node_resources(),
            entries(b"\x0a", 400_000),
            id="resources of the node",
        ),
        pytest.param(
            "RemovePod", lambda plugin: plugin.remove("uid"), b"\x0a\x00" * 2_200_000, id="nothing"
        ),
    ],
)
def test_other_answers_have_the_same_bounds(
    double: PluginDouble,
    plugin: ResourcePlugin,
    method: str,
    ask: Callable[[ResourcePlugin], object],
    answer: bytes,
) -> None:
    double.answers(method, answer)
    with pytest.raises(
        PluginError, match=r"more than \d+ messages in one|bytes, more than"
    ) as many:
        ask(plugin)
    assert many.value.refused


@pytest.mark.parametrize(
    "fields",
    [
        {"envs": {f"{number}": "" for number in range(4097)}},
        {"annotations": {f"{number}": "" for number in range(4097)}},
        {"topology_assignments": dict.fromkeys(range(4097), 1)},
        {"resource_hints": ListOfTopologyHints(hints=[HintMessage()] * 4097)},
        {"resource_hints": ListOfTopologyHints(hints=[HintMessage(nodes=range(1024))] * 4)},
    ],
    ids=["variables", "annotations", "nodes", "hints", "nodes of hints"],
)
def test_an_answer_has_no_more_entries_than_a_machine_needs(
    double: PluginDouble, plugin: ResourcePlugin, fields: dict[str, Any]
) -> None:
    info = ResourceAllocationInfo(**fields)
    given = ResourceAllocation(resource_allocation=[AllocationEntry(key="cpu", value=info)])
    answer = resourceplugin_pb2.ResourceAllocationResponse(allocation_result=given)
    double.answers("Allocate", answer)
    with pytest.raises(PluginError, match="entries for one container, more than 4096"):
        plugin.allocate(ASKED)


def test_a_reason_without_an_end_is_cut(double: PluginDouble, plugin: ResourcePlugin) -> None:
    double.answers("Allocate", Refusal(grpc.StatusCode.INTERNAL, "no " * 5000))
    with pytest.raises(PluginError) as refused:
        plugin.allocate(ASKED)
    assert len(str(refused.value)) < 1200
