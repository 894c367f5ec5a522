"""The websocket of `pods/exec`: RFC 6455, with the channels of v4 and v5.channel.k8s.io."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.apiserver.objects import refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.apiserver.http import Handler

_KEY = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING = 2, 8, 9
_STDOUT, _STDERR, _ERROR, _CLOSED = 1, 2, 3, 255
_NORMAL = struct.pack("!H", 1000)
_PIECE_BYTES = 7
"""Short, so that characters are cut in two."""


@dataclass(frozen=True)
class Execution:
    """What comes of a command.

    Attributes:
        stdout: what it writes.
        stderr: what it writes there.
        code: its exit code; a text says why it could not be run.
        ends: whether it ends; otherwise the server is silent after its output.
        lost: whether the connection breaks off after the output.
        frames: what the server sends instead of all this; empty for nothing.
        again: what it sends then again and again, until the client has closed its side.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    code: int | str = 0
    ends: bool = True
    lost: bool = False
    frames: bytes = b""
    again: bytes = b""


def serve(handler: Handler, protocols: Sequence[str], execution: Execution) -> None:
    """Switch to the websocket, and send what comes of the command."""
    offered = [each.strip() for each in _header(handler, "Sec-WebSocket-Protocol").split(",")]
    protocol = next(each for each in protocols if each in offered)
    key = _header(handler, "Sec-WebSocket-Key").encode()
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    accepted = base64.b64encode(hashlib.sha1(key + _KEY).digest()).decode()
    handler.send_header("Sec-WebSocket-Accept", accepted)
    handler.send_header("Sec-WebSocket-Protocol", protocol)
    handler.end_headers()
    handler.close_connection = True
    # In one piece: with TLS the client has the frames before it waits for them.
    handler.wfile.write(execution.frames or b"".join(_frames(protocol, execution)))
    if execution.lost:
        handler.drop()
    # Until the client has closed its side.
    with suppress(OSError):
        while execution.again:
            handler.wfile.write(execution.again)
        while handler.rfile.read(1):
            pass


def _header(handler: Handler, name: str) -> str:
    return str(handler.headers.get(name, ""))


def _frames(protocol: str, execution: Execution) -> Iterator[bytes]:
    yield _frame(_PING, b"there?")
    if execution.ends:
        # Before the last of stdout, as the streams of a real server overtake one another.
        yield _frame(_BINARY, bytes([_ERROR]) + json.dumps(_status(execution.code)).encode())
    for channel, text in ((_STDOUT, execution.stdout), (_STDERR, execution.stderr)):
        for at in range(0, len(text), _PIECE_BYTES):
            yield _frame(_BINARY, bytes([channel]) + text[at : at + _PIECE_BYTES])
        if protocol.startswith("v5"):
            yield _frame(_BINARY, bytes([_CLOSED, channel]))
    if execution.ends and not execution.lost:
        yield _frame(_CLOSE, _NORMAL)


def ends_with(status: bytes) -> bytes:
    """Return the frames of a server that ends a command with these bytes in place of a Status."""
    return _frame(_BINARY, bytes([_ERROR]) + status) + _frame(_CLOSE, _NORMAL)


def writes(text: bytes, size: int | None = None) -> bytes:
    """Return a frame with standard output, or the beginning of one of `size` bytes."""
    return _frame(_BINARY, bytes([_STDOUT]) + text, size)


def _frame(opcode: int, payload: bytes, size: int | None = None) -> bytes:
    size = len(payload) if size is None else size
    if size < 126:
        length = bytes([size])
    elif size < 1 << 16:
        length = b"\x7e" + struct.pack("!H", size)
    else:
        length = b"\x7f" + struct.pack("!Q", size)
    return bytes([0x80 | opcode]) + length + payload


def _status(code: int | str) -> Mapping[str, Any]:
    """Give a Status as the kubelet writes it (pkg/kubelet/cri/streaming/remotecommand)."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    if isinstance(code, str):
        return refusal(500, "InternalError", code)
    causes = [{"reason": "ExitCode", "message": str(code)}]
    said = f"command terminated with non-zero exit code: exit status {code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": said,
        "reason": "NonZeroExitCode",
        "details": {"causes": causes},
    }
