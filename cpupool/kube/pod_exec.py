"""Runs a command in a container, over the websocket of `pods/exec`.

This is the only module that imports `websocket`, which comes with the extra `cluster`. The socket
below it is `APIServer`'s, so all requests have the same TLS settings, credentials and address.

Source: the channels and protocols of k8s.io/apimachinery/pkg/util/remotecommand/constants.go, and
https://kubernetes.io/docs/reference/using-api/api-concepts/ for the websocket.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from urllib3.exceptions import HTTPError
from websocket import (
    ABNF,
    WebSocket,
    WebSocketBadStatusException,
    WebSocketException,
    WebSocketTimeoutException,
)

from cpupool.core.errors import CPUPoolError
from cpupool.kube.client import APIError, NoAPIServer
from cpupool.wire import json_text
from cpupool.wire.json_text import Fields, JSONRefused

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from cpupool.kube.client import APIServer
    from cpupool.kube.resources import APIPath

LIMIT_S: Final = 60.0
"""The longest time that a command may take."""
_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDOUT: Final = 1
_STDERR: Final = 2
_ERROR: Final = 3
_DATA: Final = (ABNF.OPCODE_TEXT, ABNF.OPCODE_BINARY)
_RIGHTS: Final = "give this user the verbs get and create on pods/exec, in the namespace of the pod"
_REFUSED: Final = "look at the pod with `kubectl describe pod`, and try again"
_LOST: Final = "try again"
_LARGEST_CODE: Final = 255
_LONGEST_BYTES: Final = 16 << 20
"""The status of a node with 500 containers takes a fiftieth of it."""


class _AnswerTooLong(CPUPoolError):
    """A server that sends without an end."""

    def __init__(self) -> None:
        super().__init__(f"the answer has more than {_LONGEST_BYTES >> 20} MiB")


class _Bounded:
    """The socket of a websocket, whose server can send neither without an end nor too slowly.

    Args:
        connected: the socket.
        ends_s: when the whole answer must be there, on the monotonic clock.
    """

    def __init__(self, connected: socket.socket, ends_s: float) -> None:
        self._socket = connected
        self._ends_s = ends_s
        self._room_bytes = _LONGEST_BYTES

    def recv(self, size: int) -> bytes:
        """Return some of the response.

        Raises:
            TimeoutError: the time is over.
            _AnswerTooLong: it has too many bytes.
        """
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        received = self._socket.recv(size)
        self._room_bytes -= len(received)
        if self._room_bytes < 0:
            raise _AnswerTooLong
        return received

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the other methods of a socket
        return getattr(self._socket, name)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended.

    Attributes:
        stdout: its output.
        stderr: its error output.
        code: its exit code.
    """

    stdout: str
    stderr: str
    code: int


def run(
    server: APIServer,
    target: APIPath,
    container: str,
    command: Sequence[str],
    limit_s: float = LIMIT_S,
) -> Ended:
    """Run a command in a running container, without standard input.

    Args:
        server: the API server.
        target: the subresource `exec` of the pod.
        container: the container.
        command: the program and its arguments; no shell reads them.
        limit_s: how long it may take, with the connection.

    Raises:
        APIError: there is no response, it is a refusal, the command could not be started, or has
            not ended in time, or the connection broke off.
    """
    asked = {"command": command, "container": container, "stdout": "true", "stderr": "true"}
    ends_s = time.monotonic() + limit_s
    try:
        with closing(server.connection()) as connection:
            connection.timeout = min(server.connect_s, limit_s)
            connection.connect()
            websocket = WebSocket()
            websocket.connect(
                f"ws://{urlsplit(str(server)).netloc}{server.target(target.text, asked)}",
                socket=_Bounded(connection.sock, ends_s),
                header=server.headers(),
                subprotocols=_PROTOCOLS,
                suppress_origin=True,
                # Another server has no business with our credentials.
                redirect_limit=0,
            )
            return _ended(target, _read(websocket))
    except WebSocketBadStatusException as error:
        if error.status_code == 401:
            server.unauthorized()
        raise _refusal(target, error) from error
    except (TimeoutError, WebSocketTimeoutException) as error:
        what = f"the command has not ended within {limit_s:g} s"
        raise _broken(target, what, _REFUSED) from error
    except _AnswerTooLong as error:
        raise _broken(target, str(error), _REFUSED) from error
    except (NoAPIServer, OSError, HTTPError, WebSocketException) as error:
        what = str(error).rstrip(".") or type(error).__name__
        raise _broken(target, what, _LOST) from error


def _read(websocket: WebSocket) -> Mapping[int, bytearray]:
    """Return the bytes of each channel, until the server has closed the websocket.

    A response that ends before is cut off: the server may send the exit code before the last of
    stdout.
    """
    said: dict[int, bytearray] = {}
    while True:
        opcode, frame = websocket.recv_data_frame(control_frame=True)
        if opcode == ABNF.OPCODE_CLOSE:
            return said
        if opcode in _DATA and frame.data:
            said.setdefault(frame.data[0], bytearray()).extend(frame.data[1:])


def _ended(target: APIPath, said: Mapping[int, bytearray]) -> Ended:
    try:
        status = Fields.of(json_text.load(bytes(said.get(_ERROR, b""))))
        code = 0 if status.get("status", str) == "Success" else _exit_code(status)
        why = "" if code is not None else status.get("message", str, "it does not say why")
    except JSONRefused as error:
        raise _broken(target, "it does not say how the command has ended", _LOST) from error
    if code is None:
        raise _broken(target, why, _REFUSED)
    stdout, stderr = (
        said.get(each, bytearray()).decode(errors="replace") for each in (_STDOUT, _STDERR)
    )
    return Ended(stdout, stderr, code)


def _exit_code(status: Fields) -> int | None:
    """Return the exit code in a failure; None where the command was not run."""
    details = status.part("details")
    causes = [] if details is None else list(details.objects("causes", optional=True))
    codes = [
        cause.read("message", _code)
        for cause in causes
        if cause.get("reason", str, "") == "ExitCode"
    ]
    return codes[0] if codes else None


def _code(text: str) -> int:
    # A process that ends with 256 ends with 0.
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) > _LARGEST_CODE:
        raise ValueError(f"{text[:20]!r} is no exit code")
    return int(text)


def _refusal(target: APIPath, error: WebSocketBadStatusException) -> APIError:
    text = error.resp_body or b""
    try:
        body = json_text.load(text)
    except JSONRefused:
        body = None
    if not isinstance(body, dict):
        # The kubelet's own words, or a proxy's page.
        body = {"reason": error.status_message, "message": text.decode(errors="replace").strip()}
    return APIError.refused(
        "create",
        target.resource,
        body,
        code=error.status_code,
        remedy={403: _RIGHTS, 401: ""}.get(error.status_code, _REFUSED),
    )


def _broken(target: APIPath, what: str, remedy: str) -> APIError:
    return APIError("create", target.resource, "broken", what, remedy=remedy)
