"""Requests to the API server: lists, watches, single objects and patches, with bodies as dicts.

Requests are rare (a watch lives for minutes), so each has a connection of its own: nothing goes
stale, and a renewed token or CA is in use from the next request on.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final

from urllib3.exceptions import HTTPError

from cpupool.kube import pages
from cpupool.kube.client import APIError, NoAPIServer
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from urllib3 import HTTPResponse

    from cpupool.kube.client import APIServer
    from cpupool.kube.resources import APIPath

LONGEST_PAUSE_S: Final = 10.0
LONGEST_LINE_BYTES: Final = 16 << 20

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_RETRY_S: Final = 3600.0
"""No server is left alone for longer; a wait of 300 years is an error of Python."""
_READ_BYTES: Final = 1 << 16
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
"""YAML is the only text that every API server takes here; JSON is YAML."""


class APIConnection:
    """The requests of one thread, one after the other; any other thread may interrupt them.

    A loop makes its requests in `turns`. An interruption ends what it meets: the request, the next
    one, or the pause.

    Args:
        server: the API server.
    """

    def __init__(self, server: APIServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._interrupted = threading.Event()

    @property
    def interrupted(self) -> bool:
        """Whether another thread has called `interrupt` since `resume`."""
        return self._interrupted.is_set()

    def interrupt(self) -> None:
        """End the request or the pause that is going on, at once; for other threads."""
        with self._lock:
            self._interrupted.set()
            if self._socket is not None:
                # Not SSLSocket.shutdown: it would let the reader take ciphertext for a response.
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def turns(self, stop: threading.Event, beat: Callable[[], None]) -> Iterator[None]:
        """Yield for each turn of a loop until `stop` is set; each turn begins uninterrupted.

        Args:
            stop: set before `interrupt` is called, so that no turn misses it.
            beat: called before each turn.
        """
        while True:
            beat()
            self.resume()
            # Later than `resume`: an interruption after this look ends the turn.
            if stop.is_set():
                return
            yield

    def resume(self) -> None:
        """Go on after an interruption."""
        self._interrupted.clear()

    def pause(self, failures: int, at_least_s: float = 0.0) -> None:
        """Wait before the next try: a random time whose limit doubles with each failure in a row.

        Args:
            failures: how many tries have failed in a row.
            at_least_s: the time that the server asked for.
        """
        limit_s = min(_FIRST_PAUSE_S * 2 ** min(failures, 20), LONGEST_PAUSE_S)
        chosen_s = random.uniform(0, limit_s)  # noqa: S311 - it parts the agents of many nodes
        self._interrupted.wait(min(max(chosen_s, at_least_s), LONGEST_PAUSE_S))

    def page(self, collection: APIPath, parameters: Mapping[str, str]) -> dict[str, Any]:
        """List one page of a collection.

        Args:
            collection: which objects.
            parameters: of the query.

        Raises:
            APIError: there is no response, or it is a refusal.
        """
        items: list[Any] = []
        page = self.visit(collection, parameters, items.append)
        return {"items": items, **page}

    def visit(
        self, collection: APIPath, parameters: Mapping[str, str], take: Callable[[Any], None]
    ) -> dict[str, Any]:
        """List one page of a collection, and return it without its objects.

        Args:
            collection: which objects.
            parameters: of the query.
            take: called with each object as it comes; the others need not be in memory.

        Raises:
            APIError: there is no response, or it is a refusal; some objects may have been taken.
        """
        with self._answer("list", collection, parameters) as response:
            try:
                return pages.read(_pieces(response), LONGEST_LINE_BYTES, take)
            except pages.PageError as error:
                raise APIError("list", collection.resource, "malformed", str(error)) from error

    @contextmanager
    def watch(
        self, collection: APIPath, parameters: Mapping[str, str], silence_s: float
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Open a watch as a context, which gives its events until the server ends it.

        Args:
            collection: which objects.
            parameters: of the query; `watch` is added.
            silence_s: how long the server may be silent between two events.

        Raises:
            APIError: there is no response, it is a refusal, or the watch broke off.
        """
        asked = {**parameters, "watch": "1"}
        resource = collection.resource
        with self._answer("watch", collection, asked, silence_s=silence_s) as response:
            yield (_decoded("watch", resource, line) for line in _lines(resource, response))

    def create(
        self, collection: APIPath, body: Mapping[str, Any], timeout_s: float | None = None
    ) -> None:
        """Create an object.

        Args:
            collection: where.
            body: as in k8s.io/api/core/v1/types.go.
            timeout_s: shorter than the server's usual times, where this is urgent.

        Raises:
            APIError: there is no response, or it is a refusal.
        """
        with self._answer(
            "create", collection, {}, method="POST", body=body, timeout_s=timeout_s
        ) as response:
            response.read()

    def get(self, target: APIPath, timeout_s: float | None = None) -> dict[str, Any]:
        """Read one object.

        Args:
            target: the object, or a subresource of it.
            timeout_s: shorter than the server's usual times, where this is urgent.

        Raises:
            APIError: there is no response, or it is a refusal.
        """
        with self._answer("get", target, {}, timeout_s=timeout_s) as response:
            return _decoded("get", target.resource, response.read())

    def update(self, target: APIPath, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace one object, and return the new version.

        Args:
            target: the object, or a subresource of it.
            body: with the `resourceVersion` that was read: where the object has changed since, the
                answer is 409.

        Raises:
            APIError: there is no response, or it is a refusal.
        """
        with self._answer("update", target, {}, method="PUT", body=body) as response:
            return _decoded("update", target.resource, response.read())

    def merge_patch(self, target: APIPath, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of one object, and return the new version.

        Args:
            target: the object, or a subresource of it.
            patch: the fields with their new values; null deletes one (RFC 7386).

        Raises:
            APIError: there is no response, or it is a refusal.
        """
        return self._patch(target, patch, _MERGE, {})

    def json_patch(
        self, target: APIPath, operations: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Apply operations to one object, all or none, and return the new version.

        Args:
            target: the object, or a subresource of it.
            operations: as in RFC 6902; after a `test` that fails the response is 422.

        Raises:
            APIError: there is no response, or it is a refusal.
        """
        return self._patch(target, operations, _JSON_PATCH, {})

    def apply(
        self, target: APIPath, body: Mapping[str, Any], *, manager: str, force: bool = False
    ) -> dict[str, Any]:
        """Apply fields to one object, which is created where there is none, and return it.

        Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/.

        Args:
            target: the object, or a subresource of it.
            body: with `apiVersion`, `kind` and the name, and every field that is to be the
                manager's; one that it applied before and leaves out is deleted.
            manager: the owner of these fields.
            force: whether to take fields from other managers; otherwise one of theirs that would
                get another value makes the response 409.

        Raises:
            APIError: there is no response, or it is a refusal.
        """
        forced = {"force": "true"} if force else {}
        return self._patch(target, body, _APPLY, {"fieldManager": manager, **forced})

    def _patch(
        self,
        target: APIPath,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        content_type: str,
        parameters: Mapping[str, str],
    ) -> dict[str, Any]:
        with self._answer(
            "patch", target, parameters, method="PATCH", body=body, content_type=content_type
        ) as response:
            return _decoded("patch", target.resource, response.read())

    @contextmanager
    def _answer(
        self,
        verb: str,
        path: APIPath,
        parameters: Mapping[str, str],
        *,
        method: str = "GET",
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
        silence_s: float | None = None,
    ) -> Iterator[HTTPResponse]:
        server, resource = self._server, path.resource
        try:
            connection, headers = server.connection(), server.headers()
        except NoAPIServer as error:
            again = "it is tried again"
            raise APIError(verb, resource, "unreachable", str(error), remedy=again) from error
        connection.timeout = min(server.connect_s, timeout_s or server.connect_s)
        try:
            connection.connect()
            begun = self._begin(connection.sock)
            connection.timeout = timeout_s or server.answer_s
            connection.request(
                method,
                server.target(path.text, parameters),
                body=None if body is None else json.dumps(body).encode(),
                headers={**headers, "Content-Type": content_type},
                preload_content=False,
            )
            with connection.getresponse() as response:
                if response.status == 401:
                    server.unauthorized()
                if response.status >= 300:
                    raise _refusal(verb, resource, response)
                begun.settimeout(silence_s or connection.timeout)
                yield response
        except ssl.SSLCertVerificationError as error:
            what, remedy = error.verify_message.rstrip("."), server.untrusted(error)
            raise APIError(verb, resource, "untrusted", what, remedy=remedy) from error
        except (OSError, HTTPException, HTTPError) as error:
            kind = "broken" if self._socket else "unreachable"
            raise APIError(verb, resource, kind, str(error) or type(error).__name__) from error
        finally:
            with self._lock:
                self._socket = None
            connection.close()

    def _begin(self, connected: socket.socket) -> socket.socket:
        with self._lock:
            if self._interrupted.is_set():
                raise ConnectionAbortedError("interrupted")
            self._socket = connected
        return connected


def _refusal(verb: str, resource: str, response: HTTPResponse) -> APIError:
    after = response.headers.get("Retry-After", "")
    after_s = min(float(after), _LONGEST_RETRY_S) if after.isdecimal() else 0.0
    text = response.read(_READ_BYTES)
    try:
        body = json_text.load(text)
    except JSONRefused:
        body = None
    if not isinstance(body, dict):
        # A proxy's own page, or nothing.
        body = {"reason": response.reason, "message": text.decode(errors="replace")}
    return APIError.refused(verb, resource, body, code=response.status, after_s=after_s)


def _pieces(response: HTTPResponse) -> Iterator[bytes]:
    while piece := response.read1(_READ_BYTES):
        yield piece


def _lines(resource: str, response: HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a response, without a last one that was cut off."""
    line = bytearray()
    for piece in _pieces(response):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield bytes(line + end)
            line.clear()
        line += rest
        if len(line) > LONGEST_LINE_BYTES:
            what = f"an event is longer than {LONGEST_LINE_BYTES} bytes"
            raise APIError("watch", resource, "malformed", what)


def _decoded(verb: str, resource: str, text: bytes) -> dict[str, Any]:
    try:
        # To count the levels of a line takes as long as to read them, and a pod has seven lines.
        value = json_text.load(text, bounded=verb != "watch")
    except JSONRefused as error:
        raise APIError(verb, resource, "malformed", f"this is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise APIError(verb, resource, "malformed", "this is not a JSON object")
    return value
