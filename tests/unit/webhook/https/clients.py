"""A server whose functions wait, refuse or fail, and its clients."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from cpupool.core.errors import RemoteProtocolError
from cpupool.webhook.https.server import HTTPSServer
from tests.waiting import DEADLINE_S
from tests.webhooks import LOCALHOST, PATIENT, Client, Secret, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.webhook.https.application import Limits

# No limit of time that a test could meet on a slow machine.
SHORT_S = 0.2
ROOMS_S = (1.0, 4.0, 16.0, 64.0)
"""Where something is done within the limit, which is met afterwards; a busy machine needs
a longer one."""
BODY = b'{"a": 1}'
HEAD = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: 8\r\n\r\n" + BODY
LONG = WHOLE.replace(b"/echo", b"/long")


def _refuse(_document: object) -> object:
    raise RemoteProtocolError("this is not what was agreed; send something else")


def _fail(_document: object) -> object:
    raise ZeroDivisionError


FUNCTIONS = {
    "/echo": lambda document: document,
    "/refuse": _refuse,
    "/fail": _fail,
    "/long": lambda _document: "x" * 2**25,
}


@contextmanager
def serving_with(secret: Secret, limits: Limits = PATIENT) -> Iterator[HTTPSServer]:
    server = HTTPSServer(LOCALHOST, 0, FUNCTIONS, limits=limits)
    server.present(secret.certificate, secret.key)
    with serving(server):
        yield server


def client_of(server: HTTPSServer, secret: Secret) -> closing[Client]:
    return closing(Client(server.port, secret.trusting()))


def plain_to(server: HTTPSServer, origin: str = LOCALHOST) -> socket.socket:
    address = (LOCALHOST, server.port)
    return socket.create_connection(address, timeout=DEADLINE_S, source_address=(origin, 0))


def connected_to(server: HTTPSServer, secret: Secret, origin: str = LOCALHOST) -> ssl.SSLSocket:
    plain = plain_to(server, origin)
    return secret.trusting().wrap_socket(plain, server_hostname=LOCALHOST)


def rest_of(connection: socket.socket) -> bytes:
    """Read what the server still says before it hangs up."""
    said = b""
    with suppress(ssl.SSLError, ConnectionError):
        while part := connection.recv(65536):
            said += part
    return said


def lost_by(connection: socket.socket, more: bytes) -> bool:
    """Send something more, and tell whether the server has hung up."""
    try:
        connection.sendall(more)
    except (ConnectionError, ssl.SSLError):
        return True
    return False


def status_of(connection: socket.socket) -> int:
    """Read one answer."""
    with closing(http.client.HTTPResponse(connection)) as response:
        response.begin()
        response.read()
        return response.status


def answers(connection: socket.socket) -> bool:
    """Send a request, and tell whether it is answered before the server hangs up."""
    with suppress(OSError, http.client.HTTPException):
        connection.sendall(WHOLE)
        return status_of(connection) == 200
    return False


def answered_by(server: HTTPSServer, secret: Secret) -> bool:
    with client_of(server, secret) as client:
        return client.post("/echo", {"a": 1}).text == '{"a": 1}'


def end_of(connection: socket.socket, *, reset: bool) -> None:
    if reset:
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


def locked_pem(key: str) -> str:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    loaded = load_pem_private_key(key.encode(), None)
    encryption = BestAvailableEncryption(b"secret")
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()
