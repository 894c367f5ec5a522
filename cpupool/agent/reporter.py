"""The reporter publishes the node's state, in a file for `cpupool status` and as metrics.

It has a loop of its own, so that no sweep waits for a disk.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core import withheld
from cpupool.core.cgroups import Writer
from cpupool.loops.step_loop import StepLoop
from cpupool.manager.report import PluginReport
from cpupool.manager.usage import choice_counts, fragmentation, policy_usage, usage
from cpupool.policies.view import BEST_EFFORT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.workloads import ContainerRef
    from cpupool.enforce.sweep import SweepReport
    from cpupool.enforce.writer_choice import Writers
    from cpupool.host.status_file import StatusFile
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.manager import Manager
    from cpupool.policies.view import NodeView

NAME: Final = "reporter"
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 2.0
_SHARE: Final = 1000
"""The reporter pauses so many times as long as it has worked: in a burst of pods the node has other
work, and each status replaces the last."""
_IDLE_S: Final = 60.0


class Reporter(StepLoop):
    """Publishes the state of the node after sweeps.

    Args:
        manager: the node's state.
        writers: choose the writer of new containers.
        status: the file that `cpupool status` reads.
        telemetry: shows the use of the pools, and takes the beats of the loop.
        plugins: returns the last words of plugins for resources.
        notices: returns when the notices of containers end, in Unix time.
        cpu_s: the CPU time of the reporting thread.
    """

    def __init__(
        self,
        manager: Manager,
        writers: Writers,
        status: StatusFile,
        *,
        telemetry: Telemetry,
        plugins: Callable[[], PluginReport] = PluginReport,
        notices: Callable[[], Mapping[ContainerRef, float]] = dict,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__(partial(telemetry.health.beat, NAME))
        self._manager = manager
        self._writers = writers
        self._status = status
        self._metrics = telemetry.metrics
        self._plugins = plugins
        self._notices = notices
        self._cpu_s = cpu_s
        self._measured: NodeFacts | None = None
        self._decided: NodeView | None = None
        self._report: SweepReport | None = None

    def swept(self, report: SweepReport) -> None:
        """Take the report of a sweep; a later report replaces one that is not published yet."""
        self._report = report
        self.wake()

    def step(self) -> float:
        """Publish the last sweep, and pause; return the seconds to the next step."""
        if self._report is not None:
            began_s = self._cpu_s()
            self._publish(self._report)
            worked_s = self._cpu_s() - began_s
            # The next sweep must not end this wait.
            self._stop.wait(min(max(_PAUSE_S, _SHARE * worked_s), _LONGEST_PAUSE_S))
        return _IDLE_S

    def _publish(self, report: SweepReport) -> None:
        facts, resolution = self._manager.snapshot()
        writer = self._writers.node
        self._metrics.enforced_by(writer.value, [writer.value for writer in Writer])
        self._measure(facts, resolution.view)
        self._status.publish(
            facts,
            resolution,
            report.found,
            report.waiting_for,
            writer,
            nri=self._writers.nri_waits(),
            choices=self._manager.choices(),
            plugins=self._plugins(),
            notices=self._notices(),
        )

    def _measure(self, facts: NodeFacts, view: NodeView) -> None:
        if facts is self._measured:
            return
        self._measured = facts
        self._metrics.withheld.set(len(withheld.all_of(facts.topology.withheld)))
        counted = usage(facts)
        self._metrics.keep_pools([pool.name for pool in counted])
        for pool in counted:
            self._metrics.pool(
                pool.name,
                pool.kind.value,
                capacity=pool.capacity,
                allocated=pool.allocated,
                offline=pool.offline,
                draining=pool.draining,
            )
        for name, scores in fragmentation(facts).items():
            self._metrics.fragmentation(name, scores)
        used, decided = policy_usage(facts, view), choice_counts(self._decided, view)
        self._decided = view
        self._metrics.cpu_manager.used(free=used.free, owned=used.owned, by_node=used.by_node)
        self._metrics.cpu_manager.shared(shared=used.shared, best_effort=used.best_effort)
        self._metrics.cpu_manager.owned(used.owners)
        self._metrics.cpu_manager.irregular(used.irregular)
        size = view.sizes.get(BEST_EFFORT)
        self._metrics.cpu_manager.suppressed(best_effort=size is not None and size.reduced)
        self._metrics.cpu_manager.decided(
            given=decided.given,
            refused=decided.refused,
            aligned={boundary.value: count for boundary, count in decided.aligned.items()},
            misaligned={boundary.value: count for boundary, count in decided.misaligned.items()},
        )
