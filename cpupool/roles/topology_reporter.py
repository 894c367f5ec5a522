"""The topology reporter: tells schedulers what each NUMA node of this node can give now.

It writes one NodeResourceTopology, on change and at most once in some seconds. It leaves a field to
another manager that has set it. Level-triggered: each step compares the object with the node.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core.errors import CPUPoolError
from cpupool.kube.client import APIError
from cpupool.manager.node_topology import node_topology
from cpupool.telemetry import log as logs
from cpupool.wire import koordinator
from cpupool.wire.koordinator import AnnotationError
from cpupool.wire.node_topology import values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.names import Names
    from cpupool.core.node_topology import Publishing
    from cpupool.core.workloads import Node
    from cpupool.manager.manager import Manager
    from cpupool.manager.node_topology import Surroundings
    from cpupool.manager.ports import EventSink, NodeTopologySink
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics
    from cpupool.wire.node_topology import Observed, Values

_T = TypeVar("_T")
log = logs.get(__name__)

NAME: Final = "topology reporter"
_PAUSE_S: Final = 5.0
"""The time between two writes: a burst of pods is one."""
_LONGEST_PAUSE_S: Final = 60.0
_IDLE_S: Final = 60.0
"""No event tells of other plugins' devices, and of memory."""
_FORBIDDEN: Final = 403


class TopologyReporter:
    """The role that publishes the node's topology. One thread runs it; any thread may call `look`.

    Args:
        manager: the node's state.
        sink: the object.
        publishing: what to publish.
        names: the names of the pools' resources.
        node: returns the Node, None while it is not known.
        node_name: its name.
        around: reads what the node's state does not have, but the Node's annotations.
        events: hears of other managers of the object.
        metrics: where writes are counted.
        health: hears that the loop turns.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        sink: NodeTopologySink,
        publishing: Publishing,
        *,
        names: Names,
        node: Callable[[], Node | None],
        node_name: str,
        around: Callable[[], Surroundings],
        events: EventSink,
        metrics: Metrics,
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._sink = sink
        self._publishing = publishing
        self._names = names
        self._node = node
        self._node_name = node_name
        self._around = around
        self._events = events
        self._metrics = metrics
        self._health = health
        self._now_s = now_s
        self._due_s = 0.0
        self._tries = 0
        self._written: Values | None = None
        self._complaint = ""
        self._left: Mapping[str, str] = {}
        self._unread: Mapping[str, str | None] = {}
        self._wake = threading.Event()
        sink.wakes(self.look)

    def look(self) -> None:
        """Look now: the node, or the object, may have changed."""
        self._wake.set()

    def wake(self) -> None:
        """End a wait, so that `run` notices that it must end."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Publish until `stop` is set; `wake` after setting it returns at once."""
        while not stop.is_set():
            self._health.beat(NAME)
            self._wake.wait(self.step())
            self._wake.clear()
            stop.wait(max(0.0, min(self._due_s - self._now_s(), _LONGEST_PAUSE_S)))

    def step(self) -> float:
        """Write the object if it differs from the node; return the seconds to the next step."""
        seen, node = self._sink.observed(), self._node()
        snapshot = self._manager.snapshot()
        known = snapshot.facts.configured and snapshot.facts.pods is not None
        if seen is None or node is None or not known:
            return _IDLE_S
        try:
            around = self._with_annotations(self._around(), node)
        except CPUPoolError as error:
            self._complain(f"node's topology is not known: {error}", "it is tried again")
            self._due_s = self._now_s() + _PAUSE_S
            return _PAUSE_S
        topology = node_topology(snapshot, self._names, around, self._publishing)
        present = seen[0] if seen else None
        wanted = values(topology, self._sink.version)
        others = present.others if present else {}
        given = {field: value for field, value in wanted.items() if field not in others}
        self._tell({field.name: others[field] for field in wanted.keys() & others.keys()})
        if present is None or not present.shows(self._node_name, node.uid, given):
            self._write(node.uid, given, present)
        return _IDLE_S

    def _with_annotations(self, around: Surroundings, node: Node) -> Surroundings:
        return replace(
            around,
            reservation=self._read(node, koordinator.RESERVATION, koordinator.reservation),
            system=self._read(node, koordinator.SYSTEM_QOS, koordinator.system_cpus),
        )

    def _read(self, node: Node, key: str, parse: Callable[[str | None], _T]) -> _T:
        """Read an annotation of the Node; one that is not readable counts as none."""
        text = node.annotations.get(key)
        try:
            found = parse(text)
        except AnnotationError as error:
            if self._unread.get(key) != text:
                log.warning("annotation of the Node left out", reason=error.what, so=error.remedy)
            self._unread = {**self._unread, key: text}
            return parse(None)
        self._unread = {**self._unread, key: None}
        return found

    def _write(self, node_uid: str, given: Values, present: Observed | None) -> None:
        try:
            self._sink.apply(node_uid, given)
        except APIError as refusal:
            self._tries += 1
            so = ""
            if refusal.status == _FORBIDDEN:
                so = "apply the overlay daemonsets/topology-reporter, or set --node-topology=off"
            self._complain(f"node's topology not written: {refusal}", so)
            self._metrics.topology_written("refused")
        else:
            # The same again: another program has changed what nobody else manages.
            again = given == self._written and present is not None
            self._tries = self._tries + 1 if again else 0
            self._written = given
            self._complaint = ""
            self._metrics.topology_written("again" if again else "changed")
        self._due_s = self._now_s() + min(_PAUSE_S * 2 ** min(self._tries, 10), _LONGEST_PAUSE_S)

    def _complain(self, what: str, so: str) -> None:
        if what != self._complaint:
            self._complaint = what
            log.warning("topology reporter waits", reason=what, so=so)

    def _tell(self, left: Mapping[str, str]) -> None:
        """Tell once which fields another manager has."""
        if left == self._left:
            return
        self._left = left
        if not left:
            log.info("node's topology is cpupool's alone")
            return
        what = ", ".join(f"{field} by {manager}" for field, manager in sorted(left.items()))
        so = (
            f"to let cpupool write them: stop that program, and delete the object {self._node_name}"
        )
        log.warning("node's topology is written by others, too", fields=what, so=so)
        self._events.node(
            "NodeTopologyShared", f"the NodeResourceTopology has {what}; cpupool leaves them; {so}"
        )
