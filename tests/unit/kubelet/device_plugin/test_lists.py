from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from cpupool.api.deviceplugin_pb2 import Empty
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.host.sysfs import RecordedTree, Sysfs
from cpupool.kubelet import device_plugin
from tests import http2_frames as frames
from tests.http2_frames import Frames, connected
from tests.unit.kubelet.device_plugin.served import (
    MACHINE,
    POOLS,
    SHARED,
    SINGLE,
    TELCO,
    WHOLE,
    serving_pools,
)
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.devices import Offer


def test_an_exclusive_pool_lists_each_cpu_with_its_numa_node(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    listed = [
        (one.ID, one.health, [node.ID for node in one.topology.nodes]) for one in message.devices
    ]
    assert listed == [("2", "Healthy", [0]), ("3", "Healthy", [0]), ("8", "Healthy", [1])]


def test_a_pool_of_whole_cores_lists_every_thread_without_the_reserved_ones(folder: Path) -> None:
    with serving_pools(folder, WHOLE) as served:
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert [one.ID for one in message.devices] == ["7", "13", "14", "23", "29", "30"]


def test_a_shared_pool_lists_a_device_per_milli_cpu_without_topology(folder: Path) -> None:
    with serving_pools(folder, SHARED) as served:
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert [one.ID for one in message.devices] == [str(number) for number in range(4000)]
    assert {one.health for one in message.devices} == {"Healthy"}
    assert not any(one.HasField("topology") for one in message.devices)


def test_a_cpu_without_a_numa_node_has_no_topology(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        bare = TELCO.files(CPUSet())
        without = {path: text for path, text in bare.items() if "/node/" not in path}
        served.manager.reconfigure(POOLS, Sysfs(RecordedTree("bare", without)).topology())
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert not any(one.HasField("topology") for one in message.devices)


def test_a_new_list_comes_whenever_a_cpu_goes_or_returns(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        stream = served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S)
        health = [{one.ID: one.health for one in next(stream).devices}]
        for topology in (TELCO.without("3").topology(), MACHINE):
            served.manager.update_topology(topology)
            health.append({one.ID: one.health for one in next(stream).devices})
    assert health == [
        {"2": "Healthy", "3": "Healthy", "8": "Healthy"},
        {"2": "Healthy", "3": "Unhealthy", "8": "Healthy"},
        {"2": "Healthy", "3": "Healthy", "8": "Healthy"},
    ]


def test_a_list_is_encoded_once_for_all_streams_and_kept_by_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []
    encode = device_plugin._encoded

    def counted(offer: Offer) -> bytes:
        made.append(encode(offer))
        return made[-1]

    monkeypatch.setattr(device_plugin, "_encoded", counted)
    with serving_pools(folder, SHARED) as served, connected(served.socket) as client:
        plugin = served.server._plugin
        assert plugin is not None
        answers, calls = Frames(client), (1, 3, 5)
        more = struct.pack(">I", 1_000_000)
        client.sendall(frames.frame(frames.WINDOW_UPDATE, content=more))
        for number in calls:
            client.sendall(frames.call(number, "/v1beta1.DevicePlugin/ListAndWatch"))
            answers.until(frames.DATA, number)
        # The list is longer than what a client reads without saying so.
        assert [len(made), len(plugin._lists)] == [1, 1]
        assert len(made[0]) > 64 * 1024
        for number in calls:
            client.sendall(frames.frame(frames.WINDOW_UPDATE, stream=number, content=more))
        eventually(lambda: not plugin._lists, "its end")
        assert plugin.watched


def test_an_offline_cpu_has_no_numa_node(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        served.manager.update_topology(TELCO.without("8").topology())
        message = next(served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S))
    assert [one.ID for one in message.devices if not one.HasField("topology")] == ["8"]


def test_the_stream_ends_when_the_pool_has_gone(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        stream = served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S)
        next(stream)
        served.manager.reconfigure(NodePools.of(SHARED), MACHINE)
        assert list(stream) == []


@pytest.mark.parametrize(
    ("pool", "available"),
    [
        pytest.param(SINGLE, True, id="an exclusive pool chooses"),
        pytest.param(SHARED, False, id="a shared pool does not"),
    ],
)
def test_the_options_say_whether_the_pool_chooses_devices(
    folder: Path, pool: Pool, available: bool
) -> None:
    with serving_pools(folder, pool) as served:
        options = served.stub.GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)
        assert options == served.server.options
    assert options.get_preferred_allocation_available is available
    assert not options.pre_start_required
