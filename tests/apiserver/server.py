"""The API server that a test uses: what it holds, what was asked of it, and how it fails."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from tests.apiserver import executions
from tests.apiserver.cluster import Cluster, Request
from tests.apiserver.events import problems_of_event
from tests.apiserver.http import Listener
from tests.apiserver.objects import refusal
from tests.apiserver.patches import APPLY
from tests.apiserver.paths import CUSTOM, KINDS, Path, is_granted, verb
from tests.apiserver.watches import DROP, END, Watch, line
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from tests.apiserver.executions import Execution
    from tests.apiserver.http import Handler
    from tests.apiserver.objects import Answer

Body = dict[str, Any]


class FakeAPIServer(Cluster):
    """Use it as a context manager. Any thread, and any process that knows `url`, may use it.

    Args:
        node: the one node that there is; a pod that names none is bound to it.
        labels: its labels.
        tls: serve https with this context.
        admin: answer what cpupool's parts have no right to, too.

    Attributes:
        url: where it listens; the same all its life.
        requests: every request, refused ones included.
        events: the Events that were created.
        updates: the path and the new body of every update and patch that was taken, in their order.
        tokens: the bearer tokens that it takes; None for all and none.
        forbidden: every (verb, resource) that is refused for want of a right.
        created: the resources of which an apply has created an object.
        proxied: what is behind the proxy of a node or a pod, by path.
        containers: what runs a command in a container, by the path of its pod and its name.
        protocols: of the websocket for that, the first that a client offers counts.
        page: the most objects that a list gives at once, whatever was asked for.
        crds: group → the versions that it serves.
    """

    def __init__(
        self,
        node: str = "node-a",
        labels: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        admin: bool = False,
    ) -> None:
        super().__init__(node, labels or {})
        self.events: list[Body] = []
        self.updates: list[tuple[str, Body]] = []
        self.tokens: set[str] | None = None
        self.forbidden: set[tuple[str, str]] = set()
        self.proxied: dict[str, Body] = {}
        self.containers: dict[tuple[str, str], Callable[[Sequence[str]], Execution]] = {}
        self.protocols = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
        self.page = 500
        self.crds: dict[str, list[str]] = {}
        self._admin = admin
        self._refusals: deque[tuple[int, dict[str, str], Body | bytes]] = deque()
        self._gone_as_status = False
        self._slow: Callable[[str], bool] = _none
        self._closing = False
        self._listener = Listener(self._answer, tls)
        self.url = self._listener.url

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    # -- how it fails ----------------------------------------------------------------------------

    def down(self) -> None:
        """Refuse connections, and end those that are open."""
        self._close()
        self._listener.bind()

    def up(self) -> None:
        """Answer, and well."""
        with self._lock:
            self._slow = _none
            self._refusals.clear()
            self._lock.notify_all()
        self._listener.start()

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
        answer = refusal(status, reason, "refused by the test") if body is None else body
        with self._lock:
            self._refusals.extend([(status, headers or {}, answer)] * times)

    def gone(self, *, as_status: bool = False) -> None:
        """Forget every older version: watches end with 410, and so do those that ask for one.

        Args:
            as_status: with the HTTP status 410, not with an ERROR event after 200.
        """
        with self._lock:
            self._objects.compact()
            self._gone_as_status = as_status
            self._objects.tell(line("ERROR", refusal(410, "Expired", "too old version")), END)

    def drop_watches(self, mid_line: bytes = b"") -> None:
        """Cut the connection of every watch, perhaps in the middle of an event."""
        with self._lock:
            self._objects.tell(*([mid_line] if mid_line else []), DROP)

    def end_watches(self) -> None:
        """End every watch in order, as at its timeout."""
        with self._lock:
            self._objects.tell(END)

    def send(self, resource: str, text: bytes) -> None:
        """Write this into every open watch of a resource."""
        with self._lock:
            self._objects.tell(text + b"\n", resource=resource)

    def bookmark(self, resource: str) -> None:
        """Tell every open watch of a resource the newest version, which is a new one."""
        with self._lock:
            self._objects.version += 1
            version = str(self._objects.version)
        body = {"kind": KINDS[resource], "metadata": {"resourceVersion": version}}
        self.send(resource, line("BOOKMARK", body).rstrip())

    # -- inside ----------------------------------------------------------------------------------

    def _close(self) -> None:
        self._listener.stop()
        with self._lock:
            self._closing = True
            self._objects.tell(DROP)
            self._lock.notify_all()
        self._listener.hang_up()
        self._closing = False

    def _answer(self, handler: Handler, method: str) -> None:
        """Answer one request, on a thread of its own."""
        split = urlsplit(handler.path)
        parameters = dict(parse_qsl(split.query))
        path = Path.of(unquote(split.path))
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        asked = verb(method, path, parameters)
        content_type = handler.headers.get("Content-Type", "")
        request = Request(
            asked,
            path.resource,
            parameters,
            method,
            handler.path,
            content_type,
            body,
            handler.user(),
        )
        with self._lock:
            self.requests.append(request)
            while self._slow(path.plural) and not self._closing:
                self._lock.wait(DEADLINE_S)
            failure = self._refusals.popleft() if self._refusals else None
        token = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        if failure is not None:
            handler.reply(*failure)
        elif self.tokens is not None and token not in self.tokens:
            handler.reply(401, {}, refusal(401, "Unauthorized", "Unauthorized"))
        elif refused := self._refused(asked, path, parameters):
            handler.reply(403, {}, refusal(403, "Forbidden", refused))
        elif path.plural == "apis" or (path.kind in CUSTOM and not self._serves(path)):
            handler.reply(*self._discovered(path))
        elif path.subresource == "exec":
            self._execute(handler)
        elif asked == "watch":
            self._stream(handler, path, parameters)
        else:
            handler.reply(*self._answered(path, request))

    def _refused(self, asked: str, path: Path, parameters: Mapping[str, str]) -> str:
        """Name the right that a request lacks; a GET of `exec` needs two since Kubernetes 1.35."""
        for needed in (asked, "create") if path.subresource == "exec" else (asked,):
            if (needed, path.resource) in self.forbidden or not (
                self._admin or is_granted(needed, path, parameters)
            ):
                return f"{needed} {path.resource} is forbidden"
        return ""

    def _execute(self, handler: Handler) -> None:
        split = urlsplit(handler.path)
        query = parse_qs(split.query)
        (container,) = query["container"]
        run = self.containers.get((split.path.removesuffix("/exec"), container))
        if run is None:
            what = f'unable to upgrade connection: container not found ("{container}")'
            handler.reply(500, {}, what.encode())
        else:
            executions.serve(handler, self.protocols, run(query["command"]))

    def _answered(self, path: Path, request: Request) -> Answer:
        if request.verb == "create":
            return self._create_event(path.namespace, json.loads(request.body))
        with self._lock:
            if request.verb == "list":
                limit = min(int(request.parameters.get("limit", "500")), self.page)
                return self._objects.list(path, request.parameters, limit)
            if request.verb == "get":
                proxied = self.proxied.get(request.path)
                return (200, {}, proxied) if proxied else self._objects.get(path)
            if request.verb == "update":
                answer = self._objects.update(path, request.body)
            else:
                creates = request.content_type == APPLY and not self._objects.has(path)
                if creates and ("create", path.resource) in self.forbidden:
                    what = f"create {path.resource} is forbidden"
                    return 403, {}, refusal(403, "Forbidden", what)
                answer = self._objects.patch(
                    path, request.content_type, request.body, request.parameters
                )
                if answer[0] == 201:
                    self.created.add(path.resource)
            if answer[0] < 300:
                self.updates.append((urlsplit(request.path).path, answer[2]))
            return answer

    def _serves(self, path: Path) -> bool:
        return path.version in self.crds.get(path.group, ())

    def _discovered(self, path: Path) -> Answer:
        """Answer for a group, or for what no CRD defines."""
        versions = self.crds.get(path.group, []) if path.plural == "apis" else []
        if not versions:
            # Without a Status, as for every path that no handler has.
            return 404, {}, refusal(404, "NotFound", "404 page not found")
        found = [{"groupVersion": f"{path.group}/{each}", "version": each} for each in versions]
        body = {"kind": "APIGroup", "name": path.group, "versions": found}
        return 200, {}, {**body, "preferredVersion": found[-1]}

    def _stream(self, handler: Handler, collection: Path, parameters: Mapping[str, str]) -> None:
        since = int(parameters.get("resourceVersion", "0"))
        watch = Watch(collection, parameters)
        with self._lock:
            gone = since < self._objects.compacted
            if gone and self._gone_as_status:
                watch.close()
                handler.reply(410, {}, refusal(410, "Expired", f"too old version: {since}"))
                return
            if gone:
                watch.put(line("ERROR", refusal(410, "Expired", f"too old: {since}")))
                watch.put(END)
            for change in self._objects.history:
                if watch.wants(change.collection, change.body) and change.version > since:
                    watch.put(change.line())
            self._objects.watches.append(watch)
        try:
            self._write_lines(handler, watch, float(parameters.get("timeoutSeconds", "1800")))
        finally:
            with self._lock:
                self._objects.watches.remove(watch)
                watch.close()

    def _write_lines(self, handler: Handler, watch: Watch, lasts_s: float) -> None:
        ends_s = time.monotonic() + lasts_s
        handler.begin_chunks()
        while True:
            text = watch.next(handler.connection, ends_s)
            with self._lock:
                while self._slow(watch.collection.plural) and not self._closing:
                    self._lock.wait(DEADLINE_S)
            if text is DROP:
                handler.drop()
                return
            if text is END:
                handler.write_chunk(b"")
                return
            assert isinstance(text, bytes)
            handler.write_chunk(text)

    def _create_event(self, namespace: str, event: Body) -> Answer:
        problems = problems_of_event(event, namespace)
        if problems:
            return 422, {}, refusal(422, "Invalid", "; ".join(problems))
        with self._lock:
            if any(known["metadata"]["name"] == event["metadata"]["name"] for known in self.events):
                return 409, {}, refusal(409, "AlreadyExists", event["metadata"]["name"])
            self.events.append(event)
        return 201, {}, event


def _none(_resource: str) -> bool:
    return False
