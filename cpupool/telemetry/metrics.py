"""Metrics: what Prometheus reads at /metrics.

One registry per agent and no global one: two agents in one process, as in the tests, count apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from cpupool.core.assignments import Cause
from cpupool.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

CONTAINER_STATES: Final = ("right", "repaired", "unknown", "failed")
_PLACED_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SWEPT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """The numbers of one agent. Any thread may call any method."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("cpupool_build", "The version that runs", registry=registry).info({"version": VERSION})
        self._config_valid = Gauge(
            "cpupool_config_valid",
            "1 while the newest pool file is in force, 0 while an older one is kept",
            registry=registry,
        )
        self._pools = {
            what: Gauge(f"cpupool_pool_{what}", meaning, ("pool", "kind"), registry=registry)
            for what, meaning in (
                ("capacity", "Devices of the pool: CPUs of an exclusive, milli-CPUs of a shared"),
                ("allocated", "Devices that pods hold"),
                ("offline", "Devices whose CPU is offline"),
                ("draining", "Devices that pods hold although the pool has lost them"),
            )
        }
        self._kinds: dict[str, str] = {}
        self._containers = Gauge(
            "cpupool_containers",
            "Containers by state: right, repaired by the last sweep, unknown (confined to the"
            " default pool), failed (on wrong CPUs)",
            ("state",),
            registry=registry,
        )
        self._confined = Gauge(
            "cpupool_containers_confined",
            "Containers confined to the default pool, by what is missing",
            ("cause",),
            registry=registry,
        )
        self._repairs = Counter(
            "cpupool_repairs",
            "Cpusets written, by what made it necessary",
            ("reason",),
            registry=registry,
        )
        self._placed = Histogram(
            "cpupool_container_placement_seconds",
            "From the first sight of a container until it runs on its final CPUs",
            buckets=_PLACED_S,
            registry=registry,
        )
        self._swept = Histogram(
            "cpupool_sweep_duration_seconds",
            "One sweep over every container",
            buckets=_SWEPT_S,
            registry=registry,
        )
        self._registrations = Counter(
            "cpupool_registrations",
            "Registrations with the kubelet",
            ("resource",),
            registry=registry,
        )
        self._watch_restarts = Counter(
            "cpupool_watch_restarts",
            "Watches of the API server that were begun again, by what ended them",
            ("resource", "reason"),
            registry=registry,
        )
        self._events_dropped = Counter(
            "cpupool_events_dropped",
            "Kubernetes Events that were not sent",
            registry=registry,
        )
        self._cpu_manager_conflict = Gauge(
            "cpupool_cpu_manager_conflict",
            "1 while the kubelet's static CPU manager keeps cpupool from writing",
            registry=registry,
        )
        self.containers({})
        self.confined({})

    def config_valid(self, *, valid: bool) -> None:
        """Say whether the newest pool file is the one in force."""
        self._config_valid.set(valid)

    def pool(
        self, name: str, kind: str, *, capacity: int, allocated: int, offline: int, draining: int
    ) -> None:
        """Set the numbers of one pool, in devices."""
        self._kinds[name] = kind
        numbers = {
            "capacity": capacity,
            "allocated": allocated,
            "offline": offline,
            "draining": draining,
        }
        for what, number in numbers.items():
            self._pools[what].labels(name, kind).set(number)

    def keep_pools(self, names: Collection[str]) -> None:
        """Forget the numbers of every other pool."""
        for gone in self._kinds.keys() - set(names):
            kind = self._kinds.pop(gone)
            for gauge in self._pools.values():
                gauge.remove(gone, kind)

    def containers(self, counts: Mapping[str, int]) -> None:
        """Set how many containers are in each of `CONTAINER_STATES`; 0 where none is given."""
        for state in CONTAINER_STATES:
            self._containers.labels(state).set(counts.get(state, 0))

    def confined(self, counts: Mapping[str, int]) -> None:
        """Set how many containers are confined for each `Cause` value; 0 where none is given."""
        for cause in Cause:
            self._confined.labels(cause.value).set(counts.get(cause.value, 0))

    def repaired(self, reason: str) -> None:
        """Count a cpuset that was written."""
        self._repairs.labels(reason).inc()

    def placed(self, seconds: float) -> None:
        """Count a container that has come to run on its final CPUs, so long after it was seen."""
        self._placed.observe(seconds)

    def swept(self, seconds: float) -> None:
        """Count a sweep that took so long."""
        self._swept.observe(seconds)

    def registered(self, resource: str) -> None:
        """Count a registration with the kubelet."""
        self._registrations.labels(resource).inc()

    def watch_restarted(self, resource: str, reason: str) -> None:
        """Count a watch that was begun again; the reason is one word of a few."""
        self._watch_restarts.labels(resource, reason).inc()

    def event_dropped(self) -> None:
        """Count an Event that was not sent."""
        self._events_dropped.inc()

    def cpu_manager_conflict(self, *, found: bool) -> None:
        """Say whether the kubelet's static CPU manager was found."""
        self._cpu_manager_conflict.set(found)

    def render(self) -> tuple[str, bytes]:
        """Give the content type and the body of /metrics, in Prometheus' text format 0.0.4."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)
