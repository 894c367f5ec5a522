"""Sizes the pools that follow their load, by what their pods use between two readings.

A pod whose load is not known yet counts with its request: until it has run for `RAMP_UP_S`, as in
Katalyst. Without a measurement every pool keeps its size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_time import MeasurementError
from cpupool.core.names import STATIC_POD_HASH
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.resource_plugins import ContainerRole
from cpupool.plugins.placing import placed
from cpupool.policies.load_sizing import Memory, PoolLoad, PoolNow, decide

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cpupool.core.cpu_time import CPUTime, CPUUse
    from cpupool.core.plugin_state import PluginState
    from cpupool.plugins.cpu import CPUPlugin
    from cpupool.policies.load_sizing import Decision

    _Requests = Mapping[tuple[str, str], float]

RAMP_UP_S: Final = 30.0
_ALWAYS_S: Final = -math.inf


@dataclass(frozen=True, slots=True)
class PoolSizer:
    """What the next decision needs of the earlier ones.

    Attributes:
        last: when the CPU time was read last, and the reading; None before the first.
        runs_since_s: the id in a pod's cgroup name → when a reading had it first.
        memories: pool → what its next decision needs.
        decisions: pool → the last decision.
    """

    last: tuple[float, CPUTime] | None = None
    runs_since_s: Mapping[str, float] = field(default_factory=dict)
    memories: Mapping[str, Memory] = field(default_factory=dict)
    decisions: Mapping[str, Decision] = field(default_factory=dict)

    def after(
        self, plugin: CPUPlugin, state: PluginState, reading: CPUTime | None, now_s: float
    ) -> PoolSizer:
        """Return the sizer after a decision about every pool that follows its load.

        Args:
            plugin: has the pools.
            state: who is in them.
            reading: the CPU time now; None if it cannot be read.
            now_s: a monotonic clock.
        """
        use = self._use(reading, now_s)
        requests = _requests(plugin, state)
        known = self._runs_since_s(reading, {pod for _, pod in requests}, now_s)
        pools = plugin.config.pools
        floors = {name: size.at_least for name, size in pools.items() if size.at_least is not None}
        loads = {} if use is None else _loads(requests, use, known, now_s)
        now = {
            name: PoolNow(
                len(state.pools.get(name, ())),
                floor,
                None if use is None else loads.get(name, PoolLoad(0.0)),
            )
            for name, floor in floors.items()
        }
        # A pool with a weight has one CPU at least.
        others = sum(size.cpus or 1 for name, size in pools.items() if name not in floors)
        total = max(0, len(plugin.shared(state)) - others)
        decisions = decide(plugin.config.aims, now, self.memories, total, now_s)
        memories = {name: decision.memory for name, decision in decisions.items()}
        last = self.last if reading is None else (now_s, reading)
        return PoolSizer(last, known, memories, decisions)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Pool → how many CPUs it gets by the last decision."""
        return {name: decision.size for name, decision in self.decisions.items()}

    def _use(self, reading: CPUTime | None, now_s: float) -> CPUUse | None:
        if reading is None or self.last is None:
            return None
        then_s, earlier = self.last
        try:
            return reading.since(earlier, now_s - then_s)
        except MeasurementError:
            return None

    def _runs_since_s(
        self, reading: CPUTime | None, served: Collection[str], now_s: float
    ) -> Mapping[str, float]:
        """Return the pods that run, and those that have run and are still served.

        Those of the first reading have run for long.
        """
        if reading is None:
            return self.runs_since_s
        new_s = _ALWAYS_S if self.last is None else now_s
        earlier = self.runs_since_s
        ended = {pod: since_s for pod, since_s in earlier.items() if pod in served}
        return ended | {pod: earlier.get(pod, new_s) for pod in reading.by_pod_us}


def _loads(
    requests: _Requests, use: CPUUse, runs_since_s: Mapping[str, float], now_s: float
) -> Mapping[str, PoolLoad]:
    """Return pool → what its pods use, or request while their load is not known."""
    used: defaultdict[str, float] = defaultdict(float)
    waiting: defaultdict[str, list[float]] = defaultdict(list)
    for (pool, pod), request in requests.items():
        measured = use.by_pod_milli.get(pod, 0) / MILLI_PER_CPU
        is_new = now_s - runs_since_s.get(pod, now_s) < RAMP_UP_S
        used[pool] += max(measured, request) if is_new else measured
        waiting[pool] += [use.waiting[pod]] if pod in use.waiting else []
    return {pool: PoolLoad(cpus, max(waiting[pool], default=None)) for pool, cpus in used.items()}


def _requests(plugin: CPUPlugin, state: PluginState) -> _Requests:
    """Return pool and id in a pod's cgroup name → what the pod requests."""
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for ref, held in state.held.items():
        pool = placed(plugin.config, held.question).pool
        if pool and held.question.role is not ContainerRole.INIT:
            pod = held.question.annotations.get(STATIC_POD_HASH, ref.pod)
            found[pool, pod] += held.question.quantity
    return found
