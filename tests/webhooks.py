"""Certificates for a server, and a client that speaks to it."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trustme

from cpupool.webhook.https.application import Limits
from tests.loops import running
from tests.mounts import Mount
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cpupool.webhook.https.server import HTTPSServer

LOCALHOST = "127.0.0.1"
PATIENT = Limits(
    handshake_s=DEADLINE_S / 2, request_s=DEADLINE_S / 2, idle_s=2 * DEADLINE_S, linger_s=0.0
)
"""A server that waits for clients on a busy machine, and ends before a test's deadline."""
JSON = {"Content-Type": "application/json"}


class Secret:
    """A mounted Secret, empty at first, and the CA that all its certificates come from."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self._mount = Mount(folder)
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"

    def rotate(self) -> bytes:
        """Show another certificate, and give it as DER."""
        pair = self._ca.issue_cert(LOCALHOST)
        certificate = pair.cert_chain_pems[0].bytes().decode()
        self.show(certificate, pair.private_key_pem.bytes().decode())
        return ssl.PEM_cert_to_DER_cert(certificate)

    def show(self, certificate: str, key: str) -> None:
        self._mount.put({"tls.crt": certificate, "tls.key": key})

    def trusting(self) -> ssl.SSLContext:
        """Make what a client needs to trust every certificate of this Secret."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._ca.configure_trust(context)
        return context


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)


class Client:
    """One connection, which is kept for as long as both sides like."""

    def __init__(self, port: int, trusting: ssl.SSLContext) -> None:
        self.connection = http.client.HTTPSConnection(
            LOCALHOST, port, timeout=DEADLINE_S, context=trusting
        )

    def post(self, path: str, body: Any, headers: Mapping[str, str] = JSON) -> Answer:
        """Send a document, or bytes as they are, or an iterator of bytes in chunks."""
        raw = json.dumps(body).encode() if isinstance(body, dict | list | str) else body
        return self.ask("POST", path, raw, headers)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = JSON
    ) -> Answer:
        self.connection.request(method, path, body, dict(headers))
        return self.answer()

    def answer(self) -> Answer:
        # A response whose end does not come keeps the socket open.
        with self.connection.getresponse() as response:
            return Answer(response.status, dict(response.getheaders()), response.read().decode())

    def shown(self) -> bytes:
        """Give the certificate that the server shows on this connection, as DER."""
        if self.connection.sock is None:
            self.connection.connect()
        shown = self.connection.sock.getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown

    def close(self) -> None:
        self.connection.close()


def serving(server: HTTPSServer) -> AbstractContextManager[threading.Event]:
    """Run a server in a thread; what is given ends it."""
    return running(server.run)
