"""Kubernetes Events, which `kubectl describe` shows of a pod or node: few, and without waiting.

Source: k8s.io/api/core/v1 Event, and its limits in pkg/apis/core/validation/events.go; that a
client must limit itself, and how, is client-go's: tools/record/events_cache.go.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cpupool.core import visible
from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import EVENTS
from cpupool.kube.views import COMPONENT
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.workloads import Pod
    from cpupool.kube.client import APIServer
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

SAME_AGAIN_S: Final = 600.0
BURST: Final = 10
REFILL_S: Final = 60.0
MOST_WAITING: Final = 256
LONGEST_MESSAGE_BYTES: Final = 1024
TRIES: Final = 5

_LONGEST_NAME: Final = 253
_FLUSH_S: Final = 1.0
_IDLE_S: Final = 60.0
# The first pause between two tries is around a second.
_PATIENCE: Final = 4
_WORTH_A_TRY: Final = (401, 408, 429)


class EventRecorder:
    """An `EventSink` that creates Events, from a loop of its own.

    For an object it sends the same Event once in `SAME_AGAIN_S`, and `BURST` Events at once with
    one more every `REFILL_S`. It drops and counts the others.

    Args:
        server: where Events are created.
        node: this node's name.
        metrics: counts dropped Events.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        server: APIServer,
        node: str,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = APIConnection(server)
        self._node = node
        self._metrics = metrics
        self._clock = clock
        self._news = threading.Condition()
        self._said: dict[str, _Said] = {}
        self._waiting: deque[dict[str, Any]] = deque()

    def pod(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        """Queue an Event about a pod; return at once.

        Args:
            pod: the pod.
            reason: one CamelCase word.
            message: what has happened and what to do.
            warning: whether a person should look.
        """
        about = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        self._say(about, reason, message, warning=warning)

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Queue an Event about this node; return at once."""
        # As the kubelet does: `kubectl describe node` looks for the name in place of the UID.
        about = {"kind": "Node", "name": self._node, "uid": self._node}
        self._say(about, reason, message, warning=warning)

    def wake(self) -> None:
        """End any wait: `run` ends if `stop` is set, and goes on otherwise."""
        self._connection.interrupt()
        with self._news:
            self._news.notify()

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Send until `stop` is set and `wake` called; then what can be sent within a second.

        Args:
            stop: ends it.
            beat: called before each Event, and at least once a minute.
        """
        failures = 0
        for _ in self._connection.turns(stop, beat):
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._connection.interrupted, _IDLE_S)
            if self._connection.interrupted or not self._waiting:
                continue
            event = self._waiting[0]
            try:
                self._send(event)
            except APIError as error:
                failures += 1
                refused = 400 <= error.status < 500 and error.status not in _WORTH_A_TRY
                if self._connection.interrupted or (failures < TRIES and not refused):
                    self._connection.pause(_PATIENCE + failures, error.retry_after_s)
                    continue
                self._drop(event["involvedObject"], event["reason"], error)
            failures = 0
            self._waiting.popleft()
        self._flush()

    def _say(self, about: dict[str, str], reason: str, message: str, *, warning: bool) -> None:
        # The message quotes plugins and pods, and this object keeps it.
        message = visible.cut(message, LONGEST_MESSAGE_BYTES)
        with self._news:
            now_s = self._clock()
            self._said = {uid: said for uid, said in self._said.items() if not said.is_over(now_s)}
            said = self._said.setdefault(about["uid"], _Said())
            if said.repeats(reason, message, now_s):
                return
            if said.has_room(now_s) and len(self._waiting) < MOST_WAITING:
                said.add(reason, message, now_s)
                self._waiting.append(self._event(about, reason, message, warning=warning))
                self._news.notify()
                return
        self._metrics.event_dropped()
        log.debug("event dropped", object=about["name"], reason=reason, why="too many")

    def _event(
        self, about: Mapping[str, str], reason: str, message: str, *, warning: bool
    ) -> dict[str, Any]:
        suffix = f".{secrets.token_hex(8)}"
        name = about["name"][: _LONGEST_NAME - len(suffix)].rstrip("-.") + suffix
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": about.get("namespace", "default"), "name": name},
            "involvedObject": {"apiVersion": "v1", **about},
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

    def _send(self, event: Mapping[str, Any], timeout_s: float | None = None) -> None:
        try:
            namespace = event["metadata"]["namespace"]
            self._connection.create(EVENTS.collection(namespace), event, timeout_s)
        except APIError as error:
            # No other Event has this name: an earlier try has arrived after all.
            if error.status != 409:
                raise

    def _flush(self) -> None:
        deadline_s = time.monotonic() + _FLUSH_S
        while self._waiting and (left_s := deadline_s - time.monotonic()) > 0:
            event = self._waiting.popleft()
            try:
                self._send(event, left_s)
            except APIError as error:
                self._drop(event["involvedObject"], event["reason"], error)
        if self._waiting:
            log.warning("events lost at the end", number=len(self._waiting))

    def _drop(self, about: Mapping[str, str], reason: str, why: object) -> None:
        self._metrics.event_dropped()
        log.warning("event dropped", object=about["name"], reason=reason, why=why)


@dataclass(slots=True)
class _Said:
    """The Events sent about one object, as far as they still limit further ones.

    Attributes:
        at_s: reason and message → when.
        full_at_s: when a whole burst may be sent again.
    """

    at_s: dict[tuple[str, str], float] = field(default_factory=dict)
    full_at_s: float = 0.0

    def is_over(self, now_s: float) -> bool:
        return now_s >= max([self.full_at_s, *(at_s + SAME_AGAIN_S for at_s in self.at_s.values())])

    def repeats(self, reason: str, message: str, now_s: float) -> bool:
        at_s = self.at_s.get((reason, message))
        return at_s is not None and now_s - at_s < SAME_AGAIN_S

    def has_room(self, now_s: float) -> bool:
        return self.full_at_s - now_s <= (BURST - 1) * REFILL_S

    def add(self, reason: str, message: str, now_s: float) -> None:
        self.full_at_s = max(self.full_at_s, now_s) + REFILL_S
        self.at_s = {what: at_s for what, at_s in self.at_s.items() if now_s - at_s < SAME_AGAIN_S}
        self.at_s[reason, message] = now_s
