"""A current copy of some objects of the API server: list once, then watch.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
and what client-go's reflector does (client-go: tools/cache/reflector.go).
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cpupool.core.errors import ManifestError
from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.kube.client import APIServer
    from cpupool.kube.resources import APIPath
    from cpupool.kube.views import Body

log = logs.get(__name__)

WATCH_S: Final = 240.0
"""A silent watch, and a server that hangs at its end, take less time than a heartbeat may."""
_PAGE: Final = 500
_LIVED_S: Final = 1.0

T = TypeVar("T")


class Reflector(Generic[T]):
    """Follows the objects of a collection: of a namespace or the whole cluster, all or selected.

    The known objects stay known while the API server is away. The class keeps only the results of
    `convert`: one body at a time is in memory.

    Args:
        server: the API server.
        collection: which objects.
        convert: turns a body into the value to keep; raises ManifestError for one that it cannot
            read, and then the earlier value stays.
        fields: a field selector; empty for all objects.
        labels: a label selector; empty for all objects.
        changed: called when something has become different; must not block.
        restarted: called with the resource and the reason when a watch has ended.
        newest: whether the first list must not come from the server's cache, which may be old, and
            which many servers send in one page, however long it is.
        watch_s: for how long to ask for one watch.

    Attributes:
        synced: set once a first complete list is known.
    """

    def __init__(
        self,
        server: APIServer,
        collection: APIPath,
        convert: Callable[[Body], T],
        *,
        fields: str = "",
        labels: str = "",
        changed: Callable[[], None],
        restarted: Callable[[str, str], None] = lambda _resource, _reason: None,
        newest: bool = False,
        watch_s: float = WATCH_S,
    ) -> None:
        self.synced = threading.Event()
        self._connection = APIConnection(server)
        self._collection = collection
        self._resource = collection.resource
        selectors = {"fieldSelector": fields, "labelSelector": labels}
        self._selected = {name: text for name, text in selectors.items() if text}
        self._convert = convert
        self._changed = changed
        self._restarted = restarted
        self._watch_s = watch_s
        # The server must be the one that ends a watch, unless it hangs.
        self._spare_s = server.answer_s
        self._lock = threading.Lock()
        self._items: dict[str, T] = {}
        self._odd: dict[str, str] = {}
        self._version = ""
        self._cache_will_do = not newest
        self._failures = self._losses = 0
        self._told = ""

    def items(self) -> tuple[T, ...] | None:
        """Return the known objects, or None before the first complete list."""
        if not self.synced.is_set():
            return None
        with self._lock:
            return tuple(self._items.values())

    def wake(self) -> None:
        """End any wait: `run` ends if `stop` is set, and goes on otherwise."""
        self._connection.interrupt()

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Follow until `stop` is set and `wake` called.

        Args:
            stop: ends it.
            beat: called at each event, and before each list, watch and pause.
        """
        for _ in self._connection.turns(stop, beat):
            try:
                if not self._version:
                    self._list(beat)
                self._watch(beat)
                ended_by = None
            except APIError as error:
                ended_by = error
            if not self._connection.interrupted:
                beat()
                self._failed(ended_by)

    def _list(self, beat: Callable[[], None]) -> None:
        selected = {**self._selected, "limit": str(_PAGE)}
        # The first list may come from the server's cache; one after a lost version must not.
        asked = {**selected, "resourceVersion": "0"} if self._cache_will_do else selected
        found: dict[str, T] = {}
        listed: set[str] = set()

        def take(body: Body) -> None:
            uid, version = self._identity("list", body)
            self._keep(found, uid, version, body)
            listed.add(uid)

        while True:
            beat()
            page = self._connection.visit(self._collection, asked, take)
            metadata = page.get("metadata")
            if not isinstance(metadata, dict) or page.get("items"):
                raise self._malformed("list", "this is no list of objects")
            more = metadata.get("continue")
            if not more:
                break
            asked = {**selected, "continue": str(more)}
        _, self._version = self._identity("list", page, named=False)
        with self._lock:
            same = self._items == found
            self._items = found
        self._odd = {uid: version for uid, version in self._odd.items() if uid in listed}
        if not same or not self.synced.is_set():
            self.synced.set()
            self._changed()

    def _watch(self, beat: Callable[[], None]) -> None:
        seconds = self._watch_s * random.uniform(1.0, 1.1)  # noqa: S311 - spreads the agents' load
        parameters = {
            **self._selected,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(seconds)),
        }
        silence_s = seconds + self._spare_s
        beat()
        with self._connection.watch(self._collection, parameters, silence_s) as events:
            opened_s = time.monotonic()
            if self._told:
                log.info("API server answers again", resource=self._resource)
                self._told = ""
            try:
                for event in events:
                    beat()
                    self._take(event)
            finally:
                if time.monotonic() - opened_s >= _LIVED_S:
                    self._failures = self._losses = 0

    def _take(self, event: Mapping[str, Any]) -> None:
        kind: object = event.get("type")
        body: Any = event.get("object")
        if kind == "ERROR" and isinstance(body, dict):
            raise APIError.refused("watch", self._resource, body)
        uid, version = self._identity("watch", body, named=kind != "BOOKMARK")
        before = self._items.get(uid)
        if kind in ("ADDED", "MODIFIED"):  # no set: it may be a list
            with self._lock:
                self._keep(self._items, uid, version, body)
        elif kind == "DELETED":
            with self._lock:
                self._items.pop(uid, None)
            self._odd.pop(uid, None)
        elif kind != "BOOKMARK":
            raise self._malformed("watch", f"there is no event of the type {str(kind)[:40]!r}")
        self._version = version
        if self._items.get(uid) != before:
            self._changed()

    def _keep(self, items: dict[str, T], uid: str, version: str, body: Body) -> None:
        try:
            items[uid] = self._convert(body)
            self._odd.pop(uid, None)
        except ManifestError as error:
            # One odd object must hide no other, and what runs keeps running as it was.
            if uid in self._items:
                items[uid] = self._items[uid]
            if self._odd.get(uid) != version:
                log.warning("object cannot be read", resource=self._resource, error=error)
            self._odd[uid] = version

    def _identity(self, verb: str, body: object, *, named: bool = True) -> tuple[str, str]:
        """Give UID and resource version; a list and a bookmark have no UID."""
        metadata = body.get("metadata") if isinstance(body, dict) else None
        if isinstance(metadata, dict):
            uid, version = metadata.get("uid", ""), metadata.get("resourceVersion")
            if isinstance(uid, str) and isinstance(version, str) and version and (uid or not named):
                return uid, version
        raise self._malformed(verb, "an object has no UID or no resource version")

    def _malformed(self, verb: str, what: str) -> APIError:
        return APIError(verb, self._resource, "malformed", what)

    def _failed(self, error: APIError | None) -> None:
        """Count, tell and wait after a watch that has ended, by itself where there is no error."""
        self._failures += 1
        reason = "ended" if error is None else str(error.status or error.reason)
        self._restarted(self._resource, reason)
        log.debug("watch ended", resource=self._resource, reason=reason, error=error or "")
        if error is None:
            self._connection.pause(self._failures - 1)
            return
        if error.version_lost or error.reason == "malformed":
            # The agent does not know which events it has missed, so it must list again.
            self._version = ""
            self._cache_will_do = False
        if error.version_lost:
            # A server that says so is back: the failures before that no longer matter.
            self._losses += 1
            self._failures = self._losses
        # A single failure is nothing: every load balancer drops a connection now and then.
        if self._failures > 1 and self._told != reason:
            log.warning("API server cannot be followed", resource=self._resource, error=error)
            self._told = reason
        self._connection.pause(self._failures - 1, error.retry_after_s)
