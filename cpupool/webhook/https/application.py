"""The ASGI application: it reads a JSON document, calls the function of the path, and answers.

Starlette finds the path. A bad request fails alone: it never affects the requests of others.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from cpupool.core.errors import CPUPoolError, RemoteProtocolError
from cpupool.telemetry import log as logs
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    Function = Callable[[object], object]

log = logs.get(__name__)

_SMALL_BYTES: Final = 64 * 1024
"""A body of this size is always accepted: uvicorn reads as much in advance. It is also the size of
the pieces of a response."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server.

    Attributes:
        connections: the most connections, more than an API server has open requests
            (`--max-mutating-requests-inflight`, 200); each costs about 300 KiB.
        queued: the most connections without a slot: silent, waiting for one, or evicted; each costs
            some KiB of the kernel.
        reading_s: how long a client without a whole request keeps its slot while others wait; a
            handshake and a request take some ms.
        stay_s: how long any other client keeps its slot from its first request on, while others
            wait. The server never evicts a client that waits for its response.
        body_bytes: the body of one request; an API server accepts objects of 3 MiB.
        held_bytes: all requests without a response, and all responses that are not sent yet.
        readable: how many of the queued may have sent something; each costs up to 64 KiB of the
            kernel.
        silent_s: how long a queued connection may send nothing.
        handshake_s: for the TLS handshake.
        request_s: from the first byte until the response; an API server waits for 5 s here.
        idle_s: between two requests; longer than the 90 s after which an API server closes, so that
            it sends no request into a connection that the server closes.
        linger_s: how long to accept new connections after the stop; kube-proxies and API servers
            learn late that a pod ends.
    """

    connections: int = 256
    queued: int = 14_336
    readable: int = 1024
    reading_s: float = 0.25
    stay_s: float = 1.0
    body_bytes: int = 4 * 2**20
    held_bytes: int = 32 * 2**20
    silent_s: float = 60.0
    handshake_s: float = 5.0
    request_s: float = 10.0
    idle_s: float = 120.0
    linger_s: float = 5.0


class _Refused(CPUPoolError):
    """A request that the application refuses.

    Attributes:
        status: the HTTP status of the reason.
        headers: more response headers.
    """

    def __init__(self, status: HTTPStatus, what: str, **headers: str) -> None:
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(what)


class JSONApplication:
    """The application; it bounds the memory of all requests together.

    Args:
        functions: path → function from a document to its response.
        refused: called for each refused request, with its HTTP status.
        limits: the limits of the server.

    Attributes:
        held_bytes: the bytes of requests and responses that are being read, computed or sent.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        refused: Callable[[HTTPStatus], None],
        limits: Limits,
    ) -> None:
        self._functions = functions
        self._limits = limits
        self._refused = refused
        self.held_bytes = 0

    def router(self) -> Router:
        """Return the ASGI application."""
        routes = [
            Route(path, partial(self._answer, function), methods=["POST"])
            for path, function in self._functions.items()
        ]
        return Router(routes, redirect_slashes=False)

    async def _answer(self, function: Function, request: Request) -> Response:
        try:
            self._check(request)
            body = await self._read(request)
            self.held_bytes += len(body)
            try:
                answer = await asyncio.to_thread(_answered, function, body)
            finally:
                self.held_bytes -= len(body)
            return _Answer(answer, self)
        except _Refused as refused:
            self._refused(refused.status)
            return PlainTextResponse(f"{refused}\n", refused.status, refused.headers)
        except ClientDisconnect:
            return Response()

    def _check(self, request: Request) -> None:
        media_type = request.headers.get("content-type", "").partition(";")[0]
        if media_type.strip().lower() != "application/json":
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        if int(request.headers.get("content-length", "0")) > self._limits.body_bytes:
            raise self._too_large()

    async def _read(self, request: Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                self.held_bytes += len(part)
                parts.append(part)
                if size > self._limits.body_bytes:
                    raise self._too_large()
                if self.held_bytes > self._limits.held_bytes and size > _SMALL_BYTES:
                    what = "too much is sent at one time; send this again"
                    raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, what, Retry_After="1")
            return b"".join(parts)
        finally:
            self.held_bytes -= size

    def _too_large(self) -> _Refused:
        what = f"a request has at most {self._limits.body_bytes} bytes; send less"
        return _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)


class _Answer(Response):
    """A JSON document, sent no faster than the client reads it, and counted until it is sent."""

    def __init__(self, body: bytes, application: JSONApplication) -> None:
        super().__init__(body, media_type="application/json")
        self._application = application

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self._application.held_bytes += len(self.body)
        try:
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
            for begin in range(0, len(self.body), _SMALL_BYTES):
                piece = self.body[begin : begin + _SMALL_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            self._application.held_bytes -= len(self.body)


def _answered(function: Function, body: bytes) -> bytes:
    try:
        document = json_text.load(body)
    except JSONRefused as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"this is no JSON: {error}; correct it") from error
    try:
        return json.dumps(function(document)).encode()
    except RemoteProtocolError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
    except Exception as error:  # a request's edge: the next one must find the server alive
        log.exception("request failed")
        what = "the server has a bug; see its log"
        raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR, what) from error
