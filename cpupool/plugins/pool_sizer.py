"""Sizes pools, and the CPUs of reclaimed pods, by what pods use between two readings.

Until a pod has run for `RAMP_UP_S` its load is not known, and its request stands for it, as in
Katalyst. Without a measurement every pool keeps its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_time import MeasurementError
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.plugins.config import RECLAIM
from cpupool.plugins.headroom import estimated
from cpupool.plugins.load_sizing import Memory, PoolLoad, PoolNow, decide
from cpupool.plugins.members import requests

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cpupool.core.cpu_time import CPUTime, CPUUse
    from cpupool.plugins.cpu import CPUPlugin
    from cpupool.plugins.headroom import Headroom
    from cpupool.plugins.load_sizing import NextSize
    from cpupool.plugins.state import PluginState

    _Requests = Mapping[str, Mapping[str, float]]

RAMP_UP_S: Final = 30.0
_ALWAYS_S: Final = -math.inf


@dataclass(frozen=True, slots=True)
class PoolSizer:
    """The memory of earlier decisions that the next decision needs.

    Attributes:
        last: when the CPU time was read last, and the reading; None before the first.
        runs_since_s: the id in a pod's cgroup name → when a reading had it first.
        memories: pool → what its next decision needs.
        decisions: pool → the last decision.
        headroom: the CPUs that reclaimed pods may request; None without a pool for them.
    """

    last: tuple[float, CPUTime] | None = None
    runs_since_s: Mapping[str, float] = field(default_factory=dict)
    memories: Mapping[str, Memory] = field(default_factory=dict)
    decisions: Mapping[str, NextSize] = field(default_factory=dict)
    headroom: Headroom | None = None

    def after(
        self, plugin: CPUPlugin, state: PluginState, reading: CPUTime | None, now_s: float
    ) -> PoolSizer:
        """Return the sizer after a decision about every pool that follows its load.

        Args:
            plugin: has the pools.
            state: the containers in them.
            reading: the CPU time now; None if it cannot be read.
            now_s: a monotonic clock.
        """
        use = self._use(reading, now_s)
        requested = {ref.name: pods for ref, pods in requests(plugin.config, state).items()}
        served = {pod for pods in requested.values() for pod in pods}
        known = self._runs_since_s(reading, served, now_s)
        pools = plugin.pools(state)
        floors = {name: size.at_least for name, size in pools.items() if size.at_least is not None}
        loads = {} if use is None else _loads(requested, use, known, now_s)
        now = {
            name: PoolNow(
                len(state.pools.get(name, ())),
                floor,
                None if use is None else loads.get(name, PoolLoad(0.0)),
                pools[name].most,
            )
            for name, floor in floors.items()
        }
        # A pool with a weight has one CPU at least.
        others = sum(size.cpus or 1 for name, size in pools.items() if name not in floors)
        total = max(0, len(plugin.shared(state)) - others)
        decisions = decide(plugin.config.aims, now, self.memories, total, now_s)
        memories = {name: decision.memory for name, decision in decisions.items()}
        last = self.last if reading is None else (now_s, reading)
        headroom = _headroom(plugin, state, requested, use)
        return PoolSizer(last, known, memories, decisions, headroom)

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
    requested: _Requests, use: CPUUse, runs_since_s: Mapping[str, float], now_s: float
) -> Mapping[str, PoolLoad]:
    """Return pool → the load of its pods, or their requests while the load is not known."""
    loads = {}
    for pool, pods in requested.items():
        new = {
            pod: request
            for pod, request in pods.items()
            if now_s - runs_since_s.get(pod, now_s) < RAMP_UP_S
        }
        used = sum(max(new.get(pod, 0.0), _used_cpus(use, (pod,))) for pod in pods)
        waiting = (use.waiting[pod] for pod in pods if pod in use.waiting)
        loads[pool] = PoolLoad(used, max(waiting, default=None))
    return loads


def _headroom(
    plugin: CPUPlugin, state: PluginState, requested: _Requests, use: CPUUse | None
) -> Headroom | None:
    """Return the headroom of reclaimed pods by their use; None without a pool for them."""
    if RECLAIM not in plugin.config.pools:
        return None
    used_cpus = None if use is None else _used_cpus(use, requested.get(RECLAIM, ()))
    supply = len(state.pools.get(RECLAIM, ()))
    return estimated(supply, used_cpus, state.headroom_cpus, len(plugin.layout.cpus))


def _used_cpus(use: CPUUse, pods: Iterable[str]) -> float:
    return sum(use.by_pod_milli.get(pod, 0) for pod in pods) / MILLI_PER_CPU
