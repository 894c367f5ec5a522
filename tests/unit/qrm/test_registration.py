from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.resourceplugin_pb2 import RegisterRequest, ResourcePluginOptions
from cpupool.api.resourceplugin_pb2_grpc import RegistrationStub
from cpupool.core.errors import HostFileError
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm import registration
from cpupool.qrm.plugin_client import Introduction
from cpupool.qrm.registration import REGISTRATION_SOCKET
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Door:
    """A door, and who has come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.came: list[Introduction] = []
        self.refuses = ""
        self.door = registration.registration_socket(folder, self._take)

    def _take(self, known: Introduction) -> str:
        if not self.refuses:
            self.came.append(known)
        return self.refuses

    def register(self, **fields: Any) -> None:
        request = {
            "version": "v1alpha1",
            "endpoint": "p.sock",
            "resource_name": "cpu",
            "options": ResourcePluginOptions(need_reconcile=True),
            **fields,
        }
        with grpc.insecure_channel(f"unix:{self.folder / REGISTRATION_SOCKET}") as channel:
            # Where the kernel's queue is full, a client comes again.
            RegistrationStub(channel).Register(
                RegisterRequest(**request), timeout=DEADLINE_S, wait_for_ready=True
            )


@pytest.fixture
def door(folder: Path) -> Iterator[Door]:
    made = Door(folder / "plugins")
    with made.door:
        made.door.ensure()
        yield made


def test_a_plugin_registers_by_a_call(door: Door) -> None:
    door.register()
    assert door.came == [
        Introduction("cpu", door.folder / "p.sock", PluginOptions(reconciled=True))
    ]
    assert door.folder.stat().st_mode & 0o777 == 0o750
    assert (door.folder / REGISTRATION_SOCKET).stat().st_mode & 0o777 == 0o600


def test_a_deleted_door_is_made_again(door: Door) -> None:
    (door.folder / REGISTRATION_SOCKET).unlink()
    door.door.ensure()
    door.door.ensure()
    door.register()
    assert len(door.came) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": "v1"}, "version v1alpha1, not 'v1'"),
        ({"resource_name": ""}, "'' is no name of a resource"),
        ({"resource_name": "a\nb"}, "is no name of a resource"),
        ({"resource_name": "n" * 318}, "is no name of a resource"),
        ({"endpoint": "/tmp/p.sock"}, "is not the name of a socket"),
        ({"endpoint": ""}, "is not the name of a socket"),
        ({"endpoint": REGISTRATION_SOCKET}, "is not the name of a socket"),
    ],
)
def test_a_wrong_registration_is_refused(door: Door, fields: dict[str, str], words: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        door.register(**fields)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (error.value.details() or "")
    assert not door.came


def test_a_plugin_that_is_refused_hears_why(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    door.refuses = "too many"
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="too many") as error:
            door.register()
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert not door.came
    assert caplog.text.count("too many") == 1
    door.refuses = ""
    door.register()
    door.refuses = "too many"
    with pytest.raises(grpc.RpcError, match="too many"):
        door.register()
    assert caplog.text.count("too many") == 2


def test_a_door_that_cannot_be_made_is_an_error(folder: Path) -> None:
    (folder / "plugins").write_text("")
    with (
        registration.registration_socket(folder / "plugins", lambda _known: "") as door,
        pytest.raises(HostFileError, match="door"),
    ):
        door.ensure()


MANY, KEPT = 300, 64 + 100
"""Connections, and the most that the door keeps: asyncio accepts up to a hundred at a time."""


def test_clients_that_say_nothing_keep_nobody_from_registering(door: Door) -> None:
    with ExitStack() as opened:
        silent = [opened.enter_context(connected(door)) for _ in range(MANY)]
        door.register()
        eventually(lambda: sum(map(is_cut_off, silent)) >= MANY - KEPT, "the oldest are cut off")
    assert len(door.came) == 1


def test_a_connection_that_lasts_is_cut_off(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_OPEN_S", 0.1)
    with connected(door) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        while client.recv(4096):
            pass
    door.register()
    assert len(door.came) == 1


@contextmanager
def connected(door: Door) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        # With a deadline it would not wait for a place in the kernel's queue.
        client.connect(str(door.folder / REGISTRATION_SOCKET))
        client.settimeout(DEADLINE_S)
        yield client


def is_cut_off(client: socket.socket) -> bool:
    """Return whether nothing more comes from the door."""
    client.setblocking(False)
    try:
        while client.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True
