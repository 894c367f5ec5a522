"""The one event loop of all device plugins outlives every server, and never ends in silence."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from cpupool.api.deviceplugin_pb2 import Empty
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.loops.threads import ThreadFailed
from cpupool.manager.manager import Manager
from cpupool.rpc import serving
from cpupool.rpc.serving import Server, ServingFailed, ServingLoop
from tests import builders, searching
from tests.kubelets import dial
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from grpclib.const import Handler

RESTARTS = searching.times(20)


@pytest.fixture
def _hurried() -> Iterator[None]:
    """Let threads change places after each microsecond."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("_hurried")
def test_servers_that_come_and_go_leave_the_loop_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = "exclusive_a"
    with ServingLoop() as loop:
        for _ in range(RESTARTS):
            server = DevicePluginServer(Manager(), builders.resource(pool), folder, loop)
            server.start()
            with dial(folder / server.endpoint) as channel:
                DevicePluginStub(channel).GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)
            server.stop()
            del server
            gc.collect()
    assert caplog.messages == []


async def _later(work: Callable[[], object]) -> None:
    """Let the loop do something once the call of this has been answered."""
    asyncio.get_running_loop().call_later(0, work)


def see_a_loop_end(folder: Path) -> None:
    """Let a loop that serves end by an error, and see that everybody hears of it."""
    failed = threading.Event()
    with ServingLoop(failed.set) as loop:
        loop.check()
        server = DevicePluginServer(Manager(), builders.resource("exclusive_a"), folder, loop)
        server.start()
        loop.call(_later(sys.exit))
        assert failed.wait(DEADLINE_S)
        with pytest.raises(ThreadFailed, match=r"'device plugins' has ended: SystemExit; .* again"):
            loop.check()
        with pytest.raises(ServingFailed, match=r"does not run; if this repeats, start the agent"):
            server.stop()
        with pytest.raises(ServingFailed):
            server.start()


def test_a_loop_that_has_ended_is_an_error_of_its_own(folder: Path) -> None:
    # What it has served ends with the process only.
    code = f"from pathlib import Path; from {__name__} import see_a_loop_end as see; "
    code += f"see(Path({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


def test_a_loop_that_has_not_begun_is_an_error_of_its_own(folder: Path) -> None:
    server = DevicePluginServer(Manager(), builders.resource("exclusive_a"), folder, ServingLoop())
    with pytest.raises(ServingFailed, match="does not run"):
        server.start()


def test_a_loop_that_hangs_is_no_fault_of_the_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, release = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        release.wait(DEADLINE_S)

    with ServingLoop() as loop:
        server = DevicePluginServer(Manager(), builders.resource("exclusive_a"), folder, loop)
        loop.call(_later(hang))
        assert hanging.wait(DEADLINE_S)
        with monkeypatch.context() as patched:
            patched.setattr(serving, "_CALL_S", 0.01)
            with pytest.raises(ServingFailed, match=r"has not answered for 0\.01 s"):
                server.start()
        release.set()
        server.start()
        server.stop()
        assert not server.listening


class Nothing:
    """A service without methods."""

    def __mapping__(self) -> dict[str, Handler]:
        return {}


def test_a_socket_has_its_name_once_clients_can_connect(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there_before: list[bool] = []
    listen = socket.socket.listen

    def listens(listening: socket.socket, *backlog: int) -> None:
        there_before.append((folder / "a.sock").exists())
        listen(listening, *backlog)

    monkeypatch.setattr(socket.socket, "listen", listens)

    async def begun() -> None:
        server = Server(Nothing())
        await server.begin(folder / "a.sock")
        await server.end()

    with ServingLoop() as loop:
        loop.call(begun())
    assert there_before[0] is False
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("turns", range(6))
def test_a_server_that_ends_cuts_off_who_has_just_connected(folder: Path, turns: int) -> None:
    async def meet(client: socket.socket) -> None:
        server = Server(Nothing())
        await server.begin(folder / "a.sock")
        client.connect(str(folder / "a.sock"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.end()

    with ServingLoop() as loop, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        loop.call(meet(client))
        with suppress(ConnectionError):
            while client.recv(1 << 16):
                pass
