from __future__ import annotations

import ssl
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.webhook.https.server import HTTPSServer
from tests.unit.webhook.https.clients import (
    FUNCTIONS,
    HEAD,
    LONG,
    WHOLE,
    answered_by,
    answers,
    connected_to,
    lost_by,
    plain_to,
    rest_of,
    serving_with,
    status_of,
)
from tests.waiting import DEADLINE_S, eventually
from tests.webhooks import LOCALHOST, PATIENT, Secret, serving

if TYPE_CHECKING:
    import socket

ELSEWHERE = "127.0.0.2"
LATE_S = 2 * DEADLINE_S
FEW = replace(PATIENT, connections=3, request_s=LATE_S, stay_s=LATE_S)
"""A client that has sent a whole request has one slot, and others have two."""
HASTY = replace(FEW, reading_s=0.0)
STEADY = replace(FEW, reading_s=LATE_S)


class TestFloods:
    def test_silent_clients_take_no_slot(self, secret: Secret) -> None:
        with serving_with(secret, STEADY) as server, ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(plain_to(server))
            assert answered_by(server, secret)

    @pytest.mark.parametrize("said", [b"", HEAD, WHOLE[:-1]])
    def test_reading_clients_do_not_take_the_slot_of_one_with_a_whole_request(
        self, secret: Secret, said: bytes
    ) -> None:
        with serving_with(secret, HASTY) as server, ExitStack() as stack:
            kept = stack.enter_context(connected_to(server, secret))
            assert answers(kept)
            for _ in range(20):
                lost_by(stack.enter_context(connected_to(server, secret)), said)
            assert answered_by(server, secret)
            assert answers(kept)

    def test_many_clients_of_one_address_do_not_make_others_wait(self, secret: Secret) -> None:
        with serving_with(secret, STEADY) as server, ExitStack() as stack:
            for _ in range(2):
                newest = stack.enter_context(connected_to(server, secret, ELSEWHERE))
            waiting = stack.enter_context(plain_to(server, ELSEWHERE))
            waiting.sendall(b"\x16")
            assert answered_by(server, secret)
            assert answers(newest), "the oldest had to go"

    def test_a_reading_client_that_is_evicted_is_not_hung_up_on(self, secret: Secret) -> None:
        """It would be back at once."""
        with serving_with(secret, HASTY) as server, ExitStack() as stack:
            flood = [stack.enter_context(connected_to(server, secret)) for _ in range(20)]
            assert answered_by(server, secret)
            for connection in flood[:10]:
                connection.setblocking(False)
                with pytest.raises(ssl.SSLWantReadError):
                    connection.recv(1)

    def test_a_client_with_a_whole_request_that_is_evicted_is_hung_up_on(
        self, secret: Secret
    ) -> None:
        """An API server would wait for its next answer in vain."""
        limits = replace(HASTY, stay_s=0.0, silent_s=LATE_S)
        with serving_with(secret, limits) as server, ExitStack() as stack:
            idle, *_, newest = (
                answering(stack.enter_context(connected_to(server, secret))) for _ in range(4)
            )
            assert rest_of(idle) == b""
            assert answers(newest)

    def test_a_client_has_its_answer_before_it_is_evicted(self, secret: Secret) -> None:
        asked, answer = threading.Semaphore(0), threading.Event()

        def wait(_document: object) -> object:
            asked.release()
            return answer.wait(DEADLINE_S)

        limits = replace(PATIENT, connections=4, stay_s=0.0)
        server = HTTPSServer(LOCALHOST, 0, {**FUNCTIONS, "/wait": wait}, limits=limits)
        server.present(secret.certificate, secret.key)
        with serving(server), ExitStack() as stack:
            waiting = [stack.enter_context(connected_to(server, secret)) for _ in range(3)]
            for connection in waiting:
                connection.sendall(WHOLE.replace(b"/echo", b"/wait"))
                assert asked.acquire(timeout=DEADLINE_S)
            idle = answering(stack.enter_context(connected_to(server, secret)))
            newest = stack.enter_context(connected_to(server, secret))
            assert rest_of(idle) == b"", "it is the youngest, and has its answer"
            answer.set()
            assert [status_of(connection) for connection in waiting] == [200] * 3
            assert answers(newest)

    def test_of_an_answer_that_is_not_read_the_kernel_holds_little(self, secret: Secret) -> None:
        with serving_with(secret, STEADY) as server, ExitStack() as stack:
            deaf = stack.enter_context(connected_to(server, secret))
            deaf.sendall(LONG)
            eventually(lambda: unsent(server, deaf) > 0, "its answer is on the way")
            kept = stack.enter_context(connected_to(server, secret))
            assert all(answers(kept) for _ in range(100))
            assert unsent(server, deaf) < 2**18

    def test_of_clients_that_cannot_all_wait_the_oldest_have_to_go(self, secret: Secret) -> None:
        with serving_with(secret, replace(HASTY, queued=10)) as server, ExitStack() as stack:
            flood = [stack.enter_context(connected_to(server, secret)) for _ in range(20)]
            assert answered_by(server, secret)
            assert rest_of(flood[0]) == b""

    def test_few_readable_clients_wait_for_a_slot(self, secret: Secret) -> None:
        """The kernel holds what they send."""
        with serving_with(secret, replace(STEADY, readable=5)) as server, ExitStack() as stack:
            flood = [stack.enter_context(plain_to(server)) for _ in range(8)]
            for connection in flood[:2]:
                connection.sendall(b"\x16")
            eventually(lambda: len(server._slots) == 2, "they have the slots")
            for connection in flood[2:]:
                connection.sendall(b"no TLS")
            flood[0].close()
            for connection in flood[3:]:
                assert rest_of(connection) == b"", "in its turn, its handshake fails"
            # Of the others, one has a slot, and one was too many to wait for it.
            for connection in flood[1:3]:
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)

    def test_of_a_client_that_is_not_read_any_more_the_kernel_holds_nothing(
        self, secret: Secret
    ) -> None:
        with serving_with(secret, replace(STEADY, readable=1)) as server, ExitStack() as stack:
            flood = [stack.enter_context(plain_to(server)) for _ in range(4)]
            flood[0].sendall(b"\x16")
            eventually(lambda: len(server._slots) == 1, "it has a slot")
            flood[1].sendall(b"\x16")
            eventually(lambda: len(server._slots) == 2, "it has the other one")
            flood[2].sendall(bytes(20_000))
            eventually(lambda: unread(server, flood[2]) == 20_000, "it waits for a slot")
            flood[3].sendall(b"\x16")
            eventually(lambda: unread(server, flood[2]) == 0, "it was too many")


def answering(connection: socket.socket) -> socket.socket:
    """Return a connection after an answer."""
    assert answers(connection)
    return connection


def unsent(server: HTTPSServer, client: socket.socket) -> int:
    """Return how many bytes of its answer the kernel holds for a client."""
    return _queued(server, client)[0]


def unread(server: HTTPSServer, client: socket.socket) -> int:
    """Return how many bytes of a client the kernel holds."""
    return _queued(server, client)[1]


def _queued(server: HTTPSServer, client: socket.socket) -> tuple[int, int]:
    """Return how many bytes the kernel holds for a client, and of it: proc_net_tcp.rst."""
    ports = [f":{port:04X}" for port in (server.port, client.getsockname()[1])]
    for line in Path("/proc/net/tcp").read_text().splitlines():
        _, ours, theirs, _, queues, *_ = line.split()
        if [ours[-5:], theirs[-5:]] == ports:
            to_send, to_read = queues.split(":")
            return int(to_send, 16), int(to_read, 16)
    raise AssertionError("the client is not connected")
