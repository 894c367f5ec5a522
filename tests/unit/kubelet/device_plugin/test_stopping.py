from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.api.deviceplugin_pb2 import Empty
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.errors import HostFileError
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.manager.manager import Manager
from cpupool.rpc.serving import ServingLoop
from tests import builders
from tests.kubelets import dial
from tests.unit.kubelet.device_plugin.served import SINGLE, serving_pools, workers
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_stopping_ends_the_streams_and_leaves_no_socket_and_no_thread(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        streams = [served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S) for _ in range(3)]
        for stream in streams:
            next(stream)
        eventually(lambda: len(workers(served.server)) >= 3, "a thread for each stream")
        served.server.stop()
        assert workers(served.server) == []
        assert list(folder.iterdir()) == []
        assert not served.server.listening
        for stream in streams:
            with pytest.raises(grpc.RpcError):
                next(stream)


def test_a_cancelled_stream_gives_its_thread_back(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        # More streams one after the other than there are threads.
        for _ in range(40):
            stream = served.stub.ListAndWatch(Empty(), timeout=DEADLINE_S)
            next(stream)
            assert served.server.watched
            stream.cancel()
        assert served.stub.GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)


def test_a_server_starts_again_on_its_socket_after_a_stop(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        for _ in range(3):
            served.server.stop()
            served.server.start()
            assert served.server.listening
            with dial(served.socket) as channel:
                stub = DevicePluginStub(channel)
                assert len(next(stub.ListAndWatch(Empty(), timeout=DEADLINE_S)).devices) == 3


def test_stopping_cuts_off_a_client_that_asks_nothing(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(served.socket))
        assert client.recv(1)
        served.server.stop()
        while client.recv(1 << 16):
            pass


def test_a_server_that_was_not_started_stops_quietly(folder: Path) -> None:
    DevicePluginServer(Manager(), builders.resource(SINGLE.name), folder, ServingLoop()).stop()


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    (folder / "cpupool-exclusive_a.sock").touch()
    with serving_pools(folder, SINGLE) as served:
        assert served.socket.is_socket()
        assert served.stub.GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)


def test_a_wiped_socket_is_noticed(folder: Path) -> None:
    with serving_pools(folder, SINGLE) as served:
        served.socket.unlink()
        assert not served.server.listening


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False)])
def test_a_socket_path_has_at_most_107_bytes(folder: Path, length: int, fits: bool) -> None:
    name = "exclusive" + "x" * (length - len(f"{folder}/cpupool-exclusive.sock"))
    with ServingLoop() as loop:
        server = DevicePluginServer(Manager(), builders.resource(name), folder, loop)
        if fits:
            server.start()
            server.stop()
            return
        words = "at most 107 bytes, this one 108; shorten the pool"
        with pytest.raises(HostFileError, match=words):
            server.start()


def test_a_missing_folder_is_one_clear_error(folder: Path) -> None:
    words = r"cannot be bound .*; check that the kubelet's"
    with ServingLoop() as loop, pytest.raises(HostFileError, match=words):
        DevicePluginServer(Manager(), builders.resource(SINGLE.name), folder / "none", loop).start()
