"""An API server in small, over real HTTP: pods, nodes and Events, watches, and every way to fail.

It answers as kube-apiserver does where cpupool asks (lists in pages, watches from a version,
bookmarks, 410, Status bodies, validation of Events, updates of single objects from a version), and
refuses what cpupool must not ask.
"""

from __future__ import annotations

import copy
import json
import os
import re
import select
import socket
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, urlsplit

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping

Body = dict[str, Any]

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "configmaps": "ConfigMap",
    "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
}
"""What may be listed and watched."""
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_EVENTS = re.compile(r"/api/v1/namespaces/([^/]+)/events")
_SINGLE = re.compile(
    r"/(?:api/v1/(?=namesp)|api/v1/namespaces/[^/]+/(?=sec)|apis/admissionregistration\.k8s\.io/v1/)"
    r"(namespaces|secrets|mutatingwebhookconfigurations)/[^/]+"
)
_DROP = object()
_END = object()


@dataclass(frozen=True)
class Request:
    """What was asked, in the words of RBAC."""

    verb: str
    resource: str
    parameters: Mapping[str, str]


class _Watch:
    """One open watch, and what is to be written into it."""

    def __init__(self, collection: str, selector: str) -> None:
        self.collection = collection
        self.selector = selector
        self._lines: deque[object] = deque()
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, line: object) -> None:
        self._lines.append(line)
        os.eventfd_write(self._news, 1)

    def next(self, connection: socket.socket, ends_s: float) -> object:
        """Wait for a line until the time is over or the client, who has nothing to say, is gone."""
        poll = select.poll()
        poll.register(self._news, select.POLLIN)
        poll.register(connection, select.POLLIN)
        while not self._lines:
            ready = [fd for fd, _ in poll.poll(max(ends_s - time.monotonic(), 0) * 1000)]
            if self._news not in ready:
                return _DROP if ready else _END
            os.eventfd_read(self._news)
        return self._lines.popleft()

    def close(self) -> None:
        os.close(self._news)


@dataclass(frozen=True)
class _Change:
    version: int
    kind: str
    collection: str
    body: Body

    def line(self) -> bytes:
        kind = KINDS.get(_resource(self.collection))
        return _line(self.kind, {"kind": kind, "apiVersion": "v1", **self.body})


class FakeAPIServer:
    """Use it as a context manager. Any thread, and any process that knows `url`, may use it.

    Args:
        node: the one node that there is; a pod that names none is bound to it.
        labels: its labels.
        tls: serve https with this context.

    Attributes:
        url: where it listens; the same all its life.
        requests: every request, refused ones included.
        events: the Events that were created.
        updates: the path and the new body of every update that was taken, in their order.
        tokens: the bearer tokens that it takes; None for all and none.
        forbidden: every (verb, resource) that is refused for want of a right.
        page: the most objects that a list gives at once, whatever was asked for.
    """

    def __init__(
        self,
        node: str = "node-a",
        labels: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.node = node
        self.requests: list[Request] = []
        self.events: list[Body] = []
        self.updates: list[tuple[str, Body]] = []
        self.tokens: set[str] | None = None
        self.forbidden: set[tuple[str, str]] = set()
        self.page = 500
        self._tls = tls
        self._lock = threading.Condition()
        # By the path of the collection, and there by UID or, what a test keeps, by name.
        self._objects: defaultdict[str, dict[str, Body]] = defaultdict(dict)
        self._version = 100
        self._compacted = 0
        self._history: list[_Change] = []
        self._pages: dict[str, tuple[str, list[Body]]] = {}
        self._watches: list[_Watch] = []
        self._refusals: deque[tuple[int, dict[str, str], Body | bytes]] = deque()
        self._gone_as_status = False
        self._slow: Callable[[str], bool] = _none
        self._closing = False
        self._sockets: set[socket.socket] = set()
        self._server = self._bound(0)
        self._port = self._server.server_port
        self._serving: threading.Thread | None = None
        self.set_labels(labels or {})

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    # -- what the cluster holds ------------------------------------------------------------------

    def set_pods(self, bodies: Iterable[Body]) -> None:
        """Make these the pods, and tell the watches of every difference."""
        given = {body["metadata"]["uid"]: self._bound_to_node(body) for body in bodies}
        with self._lock:
            for uid in self._objects[PODS].keys() - given:
                self._change("DELETED", PODS, uid, self._objects[PODS][uid])
            for uid, body in given.items():
                known = self._objects[PODS].get(uid)
                if known is None:
                    self._change("ADDED", PODS, uid, body)
                elif _unversioned(known) != _unversioned(body):
                    self._change("MODIFIED", PODS, uid, body)

    def set_labels(self, labels: Mapping[str, str]) -> None:
        """Give the node these labels."""
        uid = f"{self.node}-uid"
        body = {"metadata": {"name": self.node, "uid": uid, "labels": dict(labels)}}
        with self._lock:
            known = uid in self._objects[NODES]
            self._change("MODIFIED" if known else "ADDED", NODES, uid, body)

    def keep(self, path: str, body: Body) -> None:
        """Hold this object at its path, as a new version of the one that is there, if there is."""
        collection, _, name = path.rpartition("/")
        with self._lock:
            known = self._objects[collection].get(name)
            uid = known["metadata"]["uid"] if known else f"{name}-{self._version}"
            metadata = {**body.get("metadata", {}), "name": name, "uid": uid}
            self._change(
                "MODIFIED" if known else "ADDED", collection, name, {**body, "metadata": metadata}
            )

    def keep_config_map(self, path: str, **files: str) -> None:
        """Hold a ConfigMap at this path, with these texts as `poolconfig-<name>.yaml`."""
        data = {f"poolconfig-{name}.yaml": text for name, text in files.items()}
        self.keep(path, {"kind": "ConfigMap", "data": data})

    def kept(self, path: str) -> Body:
        """Give what is held at a path."""
        collection, _, name = path.rpartition("/")
        with self._lock:
            return copy.deepcopy(self._objects[collection][name])

    def forget(self, path: str) -> None:
        """Delete what is held at a path."""
        collection, _, name = path.rpartition("/")
        with self._lock:
            self._change("DELETED", collection, name, self._objects[collection][name])

    def verbs(self) -> set[tuple[str, str]]:
        """Give every (verb, resource) that was asked for."""
        return {(asked.verb, asked.resource) for asked in list(self.requests)}

    def count(self, verb: str, resource: str) -> int:
        counts = Counter((asked.verb, asked.resource) for asked in list(self.requests))
        return counts[verb, resource]

    def watching(self, resource: str) -> int:
        """Say how many watches of a resource are open."""
        with self._lock:
            return sum(_resource(watch.collection) == resource for watch in self._watches)

    # -- how it fails ----------------------------------------------------------------------------

    def down(self) -> None:
        """Refuse connections, and end those that are open."""
        self._close()
        self._server = self._bound(self._port)

    def up(self) -> None:
        """Answer, and well."""
        with self._lock:
            self._slow = _none
            self._refusals.clear()
            self._lock.notify_all()
        if self._serving is None:
            self._server.server_activate()
            self._serving = threading.Thread(
                target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
            )
            self._serving.start()

    def slow(self, only: str = "") -> None:
        """Take connections and requests and answer nothing, and stay silent in watches.

        Args:
            only: the resource for which this holds; empty for all.
        """
        with self._lock:
            self._slow = lambda resource: only in {"", resource}
            self._lock.notify_all()

    def refuse(
        self,
        status: int,
        reason: str = "",
        *,
        times: int = 1,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        """Answer the next requests with an error: a Status, or this body."""
        answer = _status(status, reason, "refused by the test") if body is None else body
        with self._lock:
            self._refusals.extend([(status, headers or {}, answer)] * times)

    def gone(self, *, as_status: bool = False) -> None:
        """Forget every older version: watches end with 410, and so do those that ask for one.

        Args:
            as_status: with the HTTP status 410, not with an ERROR event after 200.
        """
        with self._lock:
            # Something nobody watches happens, so that even the newest version known is too old.
            self._version += 1
            self._compacted = self._version
            self._history.clear()
            self._pages.clear()
            self._gone_as_status = as_status
            for watch in self._watches:
                watch.put(_line("ERROR", _status(410, "Expired", "too old version")))
                watch.put(_END)

    def drop_watches(self, mid_line: bytes = b"") -> None:
        """Cut the connection of every watch, perhaps in the middle of an event."""
        with self._lock:
            for watch in self._watches:
                if mid_line:
                    watch.put(mid_line)
                watch.put(_DROP)

    def end_watches(self) -> None:
        """End every watch in order, as at its timeout."""
        with self._lock:
            for watch in self._watches:
                watch.put(_END)

    def send(self, resource: str, line: bytes) -> None:
        """Write this into every open watch of a resource."""
        with self._lock:
            for watch in self._watches:
                if _resource(watch.collection) == resource:
                    watch.put(line + b"\n")

    def bookmark(self, resource: str) -> None:
        """Tell every open watch of a resource the newest version, which is a new one."""
        with self._lock:
            self._version += 1
            version = str(self._version)
        body = {"kind": KINDS[resource], "metadata": {"resourceVersion": version}}
        self.send(resource, _line("BOOKMARK", body).rstrip())

    # -- inside ----------------------------------------------------------------------------------

    def _bound(self, port: int) -> ThreadingHTTPServer:
        """Keep the port: bound and not listening, it refuses connections."""
        server = _Server(("127.0.0.1", port), self)
        server.server_bind()
        return server

    def _close(self) -> None:
        if self._serving is not None:
            self._server.shutdown()
            self._serving.join(DEADLINE_S)
            self._serving = None
        with self._lock:
            self._closing = True
            for watch in self._watches:
                watch.put(_DROP)
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._lock.notify_all()
        self._server.server_close()
        self._closing = False

    def _bound_to_node(self, body: Body) -> Body:
        bound = copy.deepcopy(body)
        bound.setdefault("spec", {}).setdefault("nodeName", self.node)
        return bound

    def _change(self, kind: str, collection: str, key: str, body: Body) -> None:
        self._version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self._version)
        if kind == "DELETED":
            del self._objects[collection][key]
        else:
            self._objects[collection][key] = body
        change = _Change(self._version, kind, collection, body)
        self._history.append(change)
        for watch in self._watches:
            if watch.collection == collection and _matches(body, watch.selector):
                watch.put(change.line())

    def opened(self, connection: socket.socket) -> socket.socket:
        # The handshake is the handler's, so that one client cannot hold up the others.
        if self._tls:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        with self._lock:
            self._sockets.add(connection)
        return connection

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(connection)

    def answer(self, handler: _Handler, method: str) -> None:
        """Answer one request, on a thread of its own."""
        split = urlsplit(handler.path)
        parameters = dict(parse_qsl(split.query))
        resource = _resource(split.path)
        events = _EVENTS.fullmatch(split.path)
        single = _SINGLE.fullmatch(split.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        verb = "create" if method == "POST" else "watch" if "watch" in parameters else "list"
        if single:
            resource, verb = single[1], {"GET": "get", "PUT": "update"}.get(method, verb)
        with self._lock:
            self.requests.append(Request(verb, resource, parameters))
            while self._slow(resource) and not self._closing:
                self._lock.wait(DEADLINE_S)
            refusal = self._refusals.popleft() if self._refusals else None
        token = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        if refusal is not None:
            handler.reply(*refusal)
        elif self.tokens is not None and token not in self.tokens:
            handler.reply(401, {}, _status(401, "Unauthorized", "Unauthorized"))
        elif (verb, resource) in self.forbidden:
            handler.reply(403, {}, _status(403, "Forbidden", f"{verb} {resource} is forbidden"))
        elif verb in {"get", "update"}:
            handler.reply(*self._single(split.path, body))
        elif method == "POST" and events:
            handler.reply(*self._create_event(events[1], json.loads(body)))
        elif method != "GET" or not _may_be_listed(split.path, parameters):
            handler.reply(403, {}, _status(403, "Forbidden", f"{verb} {resource} is forbidden"))
        elif verb == "watch":
            self._stream(handler, split.path, parameters)
        else:
            handler.reply(*self._list(split.path, parameters))

    def _single(self, path: str, text: bytes) -> tuple[int, dict[str, str], Body]:
        """Read one object, or replace it if there is a body."""
        collection, _, name = path.rpartition("/")
        with self._lock:
            known = self._objects[collection].get(name)
            if known is None:
                return 404, {}, _status(404, "NotFound", f"{path} not found")
            if not text:
                return 200, {}, known
            body = json.loads(text)
            if body["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
                return 409, {}, _status(409, "Conflict", "the object has been modified")
            self._change("MODIFIED", collection, name, body)
            body = self._objects[collection][name]
            self.updates.append((path, body))
            return 200, {}, body

    def _list(
        self, collection: str, parameters: Mapping[str, str]
    ) -> tuple[int, dict[str, str], Body]:
        selector = parameters.get("fieldSelector", "")
        limit = min(int(parameters.get("limit", "500")), self.page)
        with self._lock:
            if token := parameters.get("continue"):
                if token not in self._pages:
                    return 410, {}, _status(410, "Expired", "the continue token is too old")
                version, left = self._pages.pop(token)
            else:
                version = str(self._version)
                objects = self._objects[collection].values()
                left = [body for body in objects if _matches(body, selector)]
            metadata = {"resourceVersion": version}
            if left[limit:]:
                metadata["continue"] = f"{version}-{len(left)}"
                self._pages[metadata["continue"]] = (version, left[limit:])
        kind = f"{KINDS[_resource(collection)]}List"
        whole = {"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": left[:limit]}
        return 200, {}, whole

    def _stream(self, handler: _Handler, collection: str, parameters: Mapping[str, str]) -> None:
        since = int(parameters["resourceVersion"])
        watch = _Watch(collection, parameters.get("fieldSelector", ""))
        with self._lock:
            gone = since < self._compacted
            if gone and self._gone_as_status:
                watch.close()
                handler.reply(410, {}, _status(410, "Expired", f"too old version: {since}"))
                return
            if gone:
                watch.put(_line("ERROR", _status(410, "Expired", f"too old: {since}")))
                watch.put(_END)
            for change in self._history:
                wanted = change.collection == collection and _matches(change.body, watch.selector)
                if wanted and change.version > since:
                    watch.put(change.line())
            self._watches.append(watch)
        try:
            self._write_lines(handler, watch, float(parameters.get("timeoutSeconds", "1800")))
        finally:
            with self._lock:
                self._watches.remove(watch)
                watch.close()

    def _write_lines(self, handler: _Handler, watch: _Watch, lasts_s: float) -> None:
        ends_s = time.monotonic() + lasts_s
        handler.begin_chunks()
        while True:
            line = watch.next(handler.connection, ends_s)
            with self._lock:
                while self._slow(_resource(watch.collection)) and not self._closing:
                    self._lock.wait(DEADLINE_S)
            if line is _DROP:
                handler.drop()
                return
            if line is _END:
                handler.write_chunk(b"")
                return
            assert isinstance(line, bytes)
            handler.write_chunk(line)

    def _create_event(self, namespace: str, event: Body) -> tuple[int, dict[str, str], Body]:
        """Validate as pkg/apis/core/validation/events.go does."""
        metadata, about = event["metadata"], event["involvedObject"]
        problems = []
        if not _SUBDOMAIN.fullmatch(metadata["name"]):
            problems.append("metadata.name is no DNS subdomain")
        if metadata["namespace"] != namespace:
            problems.append("metadata.namespace is another than the request's")
        if about.get("namespace", "default") != namespace:
            problems.append("involvedObject.namespace does not match metadata.namespace")
        if len(event["message"].encode()) > 1024:
            problems.append("message has more than 1024 bytes")
        if event["type"] not in {"Normal", "Warning"}:
            problems.append("type is neither Normal nor Warning")
        if problems:
            return 422, {}, _status(422, "Invalid", "; ".join(problems))
        with self._lock:
            if any(known["metadata"]["name"] == metadata["name"] for known in self.events):
                return 409, {}, _status(409, "AlreadyExists", metadata["name"])
            self.events.append(event)
        return 201, {}, event


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, address: tuple[str, int], fake: FakeAPIServer) -> None:
        super().__init__(address, _Handler, bind_and_activate=False)
        self.fake = fake

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        return self.fake.opened(connection), address

    def shutdown_request(self, request: Any) -> None:
        self.fake.closed(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away or that trust another CA."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.fake.answer(self, "GET")

    def do_POST(self) -> None:
        self.server.fake.answer(self, "POST")

    def do_PUT(self) -> None:
        self.server.fake.answer(self, "PUT")

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, headers: Mapping[str, str], body: Body | bytes) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def begin_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def write_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def drop(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _none(_resource: str) -> bool:
    return False


def _resource(collection: str) -> str:
    return collection.rpartition("/")[2]


def _may_be_listed(path: str, parameters: Mapping[str, str]) -> bool:
    """Return whether RBAC lets cpupool list and watch this."""
    # Beside this node and its pods only single objects, by `resourceNames`.
    single = parameters.get("fieldSelector", "").startswith("metadata.name=")
    return path in {PODS, NODES} or (_resource(path) in KINDS and single)


def _matches(body: Body, selector: str) -> bool:
    """Apply a field selector of the form `a.b=c,d.e=f`."""
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.partition("=")
        value: Any = body
        for key in path.split("."):
            value = value.get(key, {}) if isinstance(value, dict) else {}
        if value != wanted:
            return False
    return True


def _unversioned(body: Body) -> Body:
    metadata = {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
    return {**body, "metadata": metadata}


def _line(kind: str, body: Body) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


def _status(code: int, reason: str, message: str) -> Body:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
