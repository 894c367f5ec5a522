from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import RemoteProtocolError
from cpupool.runtime.nri.connection import Connection, Launch, inherited
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the runtime's end of it."""
    near, far = socket.socketpair()
    with closing(Connection(near)) as connection, far:
        far.settimeout(DEADLINE_S)
        yield connection, far


def test_bytes_go_both_ways_over_the_runtimes_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "nri.sock"))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        with closing(Connection.to(folder / "nri.sock", DEADLINE_S)) as connection:
            far, _ = listener.accept()
            with far:
                connection.send(b"ping")
                assert far.recv(10) == b"ping"
                far.sendall(b"pong")
                assert connection.receive(DEADLINE_S) == b"pong"


@pytest.mark.parametrize("there", ["nothing", "a file", "a socket without a listener"])
def test_without_a_runtime_it_says_how_nri_is_switched_on(folder: Path, there: str) -> None:
    path = folder / "nri.sock"
    if there == "a file":
        path.touch()
    with socket.socket(socket.AF_UNIX) as unheard:
        if there == "a socket without a listener":
            unheard.bind(str(path))

        with pytest.raises(RemoteProtocolError, match=r"nri\.sock failed .* disable = false"):
            Connection.to(path, DEADLINE_S)


def test_nothing_comes_within_the_time(pair: tuple[Connection, socket.socket]) -> None:
    connection, _ = pair

    assert connection.receive(0.001) is None
    assert connection.receive(0) is None


def test_the_runtimes_end_is_reported_after_what_it_said(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, far = pair
    far.sendall(b"last words")
    far.close()

    assert connection.receive(None) == b"last words"
    assert connection.receive(None) == b""
    with pytest.raises(RemoteProtocolError, match=r"connection has failed .*runtime's log"):
        connection.send(b"too late")


def test_a_runtime_that_drops_what_it_was_sent_has_broken_the_connection(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, far = pair
    connection.send(b"unread")
    far.close()

    with pytest.raises(RemoteProtocolError, match="connection has failed"):
        connection.receive(None)


def test_who_receives_can_be_woken(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connection.receive, None)
        connection.wake()
        assert waiting.result(DEADLINE_S) is None

    connection.wake()
    connection.wake()
    far.sendall(b"news")
    assert connection.receive(None) is None, "woken before it came"
    assert connection.receive(None) == b"news"


def test_many_threads_send_whole_messages(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    messages = [bytes([number]) * 200_000 for number in range(8)]

    with ThreadPoolExecutor(len(messages)) as pool:
        sending = [pool.submit(connection.send, message) for message in messages]
        came = b""
        while len(came) < sum(map(len, messages)):
            came += far.recv(1 << 20)
        for one in sending:
            one.result(DEADLINE_S)

    assert sorted(came[at : at + 200_000] for at in range(0, len(came), 200_000)) == messages


def test_a_runtime_that_does_not_read_is_given_up(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, _ = pair
    monkeypatch.setattr("cpupool.runtime.nri.connection._SEND_TIMEOUT_S", 0.01)

    with pytest.raises(RemoteProtocolError, match="it reads nothing"):
        connection.send(bytes(1 << 24))


def test_nothing_follows_what_was_cut_short(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, far = pair
    monkeypatch.setattr("cpupool.runtime.nri.connection._SEND_TIMEOUT_S", 0.01)
    with pytest.raises(RemoteProtocolError):
        connection.send(bytes(1 << 24))
    while far.recv(1 << 20):
        pass

    assert connection.receive(DEADLINE_S) == b"", "who receives hears of the end"
    with pytest.raises(RemoteProtocolError):
        connection.send(b"more")


def test_after_the_end_nothing_is_woken_and_no_stranger_is_written_to() -> None:
    near, far = socket.socketpair()
    with far:
        connection = Connection(near)
        connection.close()
        # The numbers of closed descriptors are given out again.
        strangers = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(8)]

        connection.wake()
        connection.close()
        with pytest.raises(RemoteProtocolError):
            connection.send(b"x")

        assert far.recv(1) == b""
    for stranger in strangers:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(stranger)
        os.close(stranger)


def test_a_plugin_started_by_the_runtime_talks_over_the_socket_it_was_given() -> None:
    near, far = socket.socketpair()
    fd = near.detach()
    os.set_inheritable(fd, True)
    launch = inherited(
        {"NRI_PLUGIN_SOCKET": str(fd), "NRI_PLUGIN_NAME": "cpupool", "NRI_PLUGIN_IDX": "10"}
    )

    assert launch == Launch(fd, "cpupool", "10")
    with far, closing(Connection.inherited(launch.fd)) as connection:
        connection.send(b"ping")
        assert far.recv(10) == b"ping"
        assert not os.get_inheritable(fd), "the processes that it starts do not keep it open"


def test_a_descriptor_that_is_no_socket_is_refused(folder: Path) -> None:
    with (folder / "file").open("w") as file, pytest.raises(RemoteProtocolError, match="no socket"):
        Connection.inherited(file.fileno())


def test_no_runtime_has_started_this_process() -> None:
    assert inherited({"PATH": "/bin"}) is None


@pytest.mark.parametrize(
    "environment",
    [
        {"NRI_PLUGIN_SOCKET": "three", "NRI_PLUGIN_NAME": "cpupool", "NRI_PLUGIN_IDX": "10"},
        {"NRI_PLUGIN_SOCKET": "3", "NRI_PLUGIN_IDX": "10"},
        {"NRI_PLUGIN_SOCKET": "3", "NRI_PLUGIN_NAME": "cpupool"},
    ],
)
def test_half_a_launch_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError, match="not what a container runtime gives"):
        inherited(environment)
