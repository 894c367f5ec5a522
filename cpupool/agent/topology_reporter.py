"""The topology reporter publishes the free resources of each NUMA node, for schedulers.

It writes one NodeResourceTopology, on change and at most once in some seconds. It leaves a field to
another manager that has set it. It is level-triggered: each step compares the object with the node.
"""

from __future__ import annotations

import time
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.core.node_topology import CPUModel
from cpupool.host import cpu_model, node_memory
from cpupool.host.kubelet_file import KubeletConfigFile
from cpupool.host.sysfs import FolderTree
from cpupool.kube.client import APIError
from cpupool.kube.node_topology import CREATE_CRD, GRANT
from cpupool.kubelet.podresources import PodResources
from cpupool.loops.step_loop import StepLoop
from cpupool.manager.node_topology import Surroundings, node_topology
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures
from cpupool.telemetry.metrics import WriteOutcome
from cpupool.wire.node_topology import values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.agent.ports import NodeTopologySink
    from cpupool.config.settings import Publishing
    from cpupool.core.workloads import Node
    from cpupool.host.kubelet_file import KubeletFiles
    from cpupool.host.root import HostRoot
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.manager import Manager
    from cpupool.wire.node_topology import Values

log = logs.get(__name__)

NAME: Final = "topology reporter"
_PAUSE_S: Final = 5.0
"""The time between two looks at the node: a burst of pods is one or two writes."""
_LONGEST_PAUSE_S: Final = 60.0
_IDLE_S: Final = 60.0
"""The devices of other plugins, and memory, change without an event."""
_REMEDIES: Final = {403: GRANT, 404: CREATE_CRD}
"""Status of a refused write → remedy."""


class TopologyReporter(StepLoop):
    """The role that publishes the node's topology. One thread runs it; any thread may call `look`.

    Args:
        manager: the node's state.
        sink: the object.
        publishing: the published parts.
        node: returns the Node, None while it is not known.
        node_name: its name.
        around: reads the facts that the node's state does not have.
        ready: returns whether the owner of each CPU is known; the role publishes nothing before.
        telemetry: takes the names of the object's other managers, writes, and the beats of the
            loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        manager: Manager,
        sink: NodeTopologySink,
        publishing: Publishing,
        *,
        node: Callable[[], Node | None],
        node_name: str,
        around: Callable[[], Surroundings],
        ready: Callable[[], bool],
        telemetry: Telemetry,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(partial(telemetry.health.beat, NAME))
        self._manager = manager
        self._sink = sink
        self._publishing = publishing
        self._node = node
        self._node_name = node_name
        self._around = around
        self._ready = ready
        self._events = telemetry.events
        self._metrics = telemetry.metrics
        self._now_s = now_s
        self._due_s = 0.0
        self._refused = 0
        self._written: Values | None = None
        self._rewrites = 0
        self._rewrite_s = 0.0
        self._failures = Failures()
        self._left: Mapping[str, str] = {}
        self._metrics.topology_published()
        sink.wakes(self.look)

    look = StepLoop.wake

    def step(self) -> float:
        """Write the object if it differs from the node; return the seconds to the next step.

        Soon after a look it does nothing.
        """
        pause_s = self._due_s - self._now_s()
        if pause_s > 0:
            return pause_s
        # Readiness first: the snapshot is not older.
        known, snapshot = self._ready(), self._manager.snapshot()
        seen, node = self._sink.observed(), self._node()
        if seen is None or node is None or not (known and snapshot.facts.configured):
            return _IDLE_S
        try:
            around = self._around()
        except CPUPoolError as error:
            return self._failed(error, "it is tried again")
        topology = node_topology(
            snapshot, self._manager.names, around, annotated=self._publishing.annotated
        )
        present = seen[0] if seen else None
        wanted = values(topology, self._sink.version)
        others = present.others if present else {}
        given = {field: value for field, value in wanted.items() if field not in others}
        self._tell({field.name: others[field] for field in wanted.keys() & others.keys()})
        if present is None or not present.shows(self._node_name, node.uid, given):
            return self._write(node.uid, given)
        return self._settled()

    def _write(self, node_uid: str, given: Values) -> float:
        """Write the object; with growing pauses if another program removes the same values."""
        now_s, again = self._now_s(), given == self._written
        if again and now_s < self._rewrite_s:
            self._settled()
            return self._rewrite_s - now_s
        try:
            self._sink.apply(node_uid, given)
        except APIError as refusal:
            self._metrics.topology_written(WriteOutcome.REFUSED)
            remedy = _REMEDIES.get(refusal.status, "")
            return self._failed(refusal, remedy, refusal.retry_after_s)
        self._written = given
        self._rewrites = self._rewrites + 1 if again else 0
        self._rewrite_s = now_s + _pause_s(self._rewrites)
        self._metrics.topology_written(WriteOutcome.AGAIN if again else WriteOutcome.CHANGED)
        return self._settled()

    def _settled(self) -> float:
        self._refused = 0
        self._failures.ends()
        self._due_s = self._now_s() + _PAUSE_S
        return _IDLE_S

    def _failed(self, error: CPUPoolError, so: str, at_least_s: float = 0.0) -> float:
        """Log an error once; return the seconds to the next try."""
        if self._failures.begins(error):
            log.warning("node's topology not published", reason=error, so=so)
        pause_s = max(_pause_s(self._refused), at_least_s)
        self._refused += 1
        self._due_s = self._now_s() + pause_s
        return pause_s

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


def _pause_s(tries: int) -> float:
    return min(_PAUSE_S * float(2 ** min(tries, 10)), _LONGEST_PAUSE_S)


def surroundings(
    root: HostRoot, files: KubeletFiles, publishing: Publishing
) -> Callable[[], Surroundings]:
    """Return a function that reads the facts for the published topology from this machine.

    Args:
        root: the machine's folders.
        files: the files of the kubelet's configuration.
        publishing: the published parts.
    """
    devices = PodResources(root.podresources_socket)
    kubelet = KubeletConfigFile(files, host=root)
    # Once: before Linux 5.17 each reading of /proc/cpuinfo interrupts every CPU.
    sysfs = FolderTree(root.sysfs)
    model = cache(partial(cpu_model.read, FolderTree(root.proc), sysfs))
    return lambda: Surroundings(
        memory=node_memory.read(sysfs),
        amounts=devices.amounts(),
        kubelet=kubelet.read(),
        model=model() if publishing.annotated else CPUModel(),
    )
