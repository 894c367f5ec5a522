"""Metrics: the numbers that Prometheus reads at /metrics.

Each agent or webhook has its own registry, and there is no global registry: two agents in one
process, as in the tests, count separately.
"""

from __future__ import annotations

from enum import Enum
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
from cpupool.telemetry.cpu_manager_metrics import CPUManagerMetrics
from cpupool.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

CONTAINER_STATES: Final = ("right", "repaired", "unknown", "failed")
_PLACED_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_MOVED_S: Final = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SWEPT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_ANSWERED_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 2)
_REVIEWED_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1)


class WriteOutcome(Enum):
    """The outcome of a write of an object: its reason, or that the API server refused it."""

    CHANGED = "changed"
    AGAIN = "again"
    """Another program had overwritten it."""
    REFUSED = "refused"


class ProcessMetrics:
    """The metrics that agent and webhook have in common. Any thread may call any method.

    Attributes:
        registry: the registry, in which other classes make series of their own.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("cpupool_build", "The version that runs", registry=registry).info({"version": VERSION})
        self._config_valid = Gauge(
            "cpupool_config_valid",
            "1 while the newest pool files are in force, 0 while older ones are kept",
            registry=registry,
        )
        self._watch_restarts = Counter(
            "cpupool_watch_restarts",
            "Watches of the API server that were begun again, by what ended them",
            ("resource", "reason"),
            registry=registry,
        )

    def config_valid(self, *, valid: bool) -> None:
        """Set whether the newest pool files are in force."""
        self._config_valid.set(valid)

    def watch_restarted(self, resource: str, reason: str) -> None:
        """Count a watch that began again; the reason is one of a few words."""
        self._watch_restarts.labels(resource, reason).inc()

    def render(self) -> tuple[str, bytes]:
        """Return the content type and the body of /metrics, in Prometheus' text format 0.0.4."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.registry)


class WebhookMetrics(ProcessMetrics):
    """The metrics of one webhook."""

    def __init__(self) -> None:
        super().__init__()
        self._reviews = Counter(
            "cpupool_admission_reviews",
            "Reviews by the operation on the pod and by the decision: allowed, mutated, denied,"
            " unreadable (no review of a pod), failed (a bug)",
            ("operation", "decision"),
            registry=self.registry,
        )
        self._reviewed = Histogram(
            "cpupool_admission_review_duration_seconds",
            "One review, from the document to its answer",
            buckets=_REVIEWED_S,
            registry=self.registry,
        )
        self._refused = Counter(
            "cpupool_https_refused",
            "Requests that got no answer but an HTTP status: 400 (no review), 413 (too large), 415"
            " (no JSON), 500 (a bug), 503 (too many at one time)",
            ("status",),
            registry=self.registry,
        )
        self._certificate_expiry = Gauge(
            "cpupool_certificate_expiry_timestamp_seconds",
            "When the certificate that is shown to clients expires; 0 while there is none",
            registry=self.registry,
        )

    def reviewed(self, operation: str, decision: str, seconds: float) -> None:
        """Count a review and its duration; operation and decision are each one of a few words."""
        self._reviews.labels(operation, decision).inc()
        self._reviewed.observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that got this HTTP status and no response."""
        self._refused.labels(str(int(status))).inc()

    def certificate_expires(self, timestamp_s: float) -> None:
        """Set when the certificate for clients expires, in seconds since 1970."""
        self._certificate_expiry.set(timestamp_s)


class Metrics(ProcessMetrics):
    """The metrics of one agent."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
        self.cpu_manager = CPUManagerMetrics(registry)
        self._pools = {
            what: Gauge(f"cpupool_pool_{what}", meaning, ("pool", "kind"), registry=registry)
            for what, meaning in (
                ("capacity", "Devices of the pool: CPUs of an exclusive, milli-CPUs of a shared"),
                ("allocated", "Devices that pods hold"),
                ("offline", "Devices whose CPU is offline"),
                ("draining", "Devices that pods hold although the pool has lost them"),
            )
        }
        self.withheld = Gauge(
            "cpupool_withheld_cpus",
            "CPUs that run, and that another cgroup keeps from containers",
            registry=registry,
        )
        self._kinds: dict[str, str] = {}
        self._levels: dict[str, tuple[str, ...]] = {}
        self._fragmentation = Gauge(
            "cpupool_pool_fragmentation",
            "How scattered the free CPUs of an exclusive pool are over NUMA nodes, or over uncore"
            " caches: 0 as close together as can be, towards 1 the more they are apart",
            ("pool", "level"),
            registry=registry,
        )
        self._containers = Gauge(
            "cpupool_containers",
            "Containers by state: right, repaired by the last sweep, unknown (confined to the"
            " default pool), failed (on wrong CPUs)",
            ("state",),
            registry=registry,
        )
        self._confined = Gauge(
            "cpupool_containers_confined",
            "Containers that lack what they request, by what is missing",
            ("cause",),
            registry=registry,
        )
        self._repairs = Counter(
            "cpupool_repairs",
            "Cpusets written, by what made it necessary",
            ("reason",),
            registry=registry,
        )
        self._quota_repairs = Counter(
            "cpupool_quota_repairs",
            "CPU quotas of containers and pods written, by what made it necessary",
            ("reason",),
            registry=registry,
        )
        self._property_repairs = Counter(
            "cpupool_property_repairs",
            "Containers whose properties from plugins were written, by what made it necessary",
            ("reason",),
            registry=registry,
        )
        self._memory_writes = Histogram(
            "cpupool_memory_nodes_write_seconds",
            "One write of a container's memory nodes, until its pages have moved, by what made it"
            " necessary",
            ("reason",),
            buckets=_MOVED_S,
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
        self._choices_unrecorded = Gauge(
            "cpupool_cpu_manager_choices_unrecorded",
            "1 while the file with the CPU manager policy's choices cannot be written",
            registry=registry,
        )
        self._way = Gauge(
            "cpupool_enforcement",
            "1 for the way by which the CPUs of a container that starts now are set",
            ("way",),
            registry=registry,
        )
        self._nri_connected = Gauge(
            "cpupool_nri_connected",
            "1 while the container runtime asks cpupool before it creates a container",
            registry=registry,
        )
        self._nri_waits = Gauge(
            "cpupool_nri_waits_until_timestamp_seconds",
            "Until when, as Unix time, the agent waits with its connection to NRI for a pod that"
            " ends; no series while it does not wait",
            ("pod",),
            registry=registry,
        )
        self._nri_answers = Histogram(
            "cpupool_nri_answer_duration_seconds",
            "From a runtime's request to its answer, by request and outcome: pools, default,"
            " policy (CPUs of the CPU manager policy), plugin (CPUs that a plugin named), confined,"
            " held (refused), unchanged (not the kubelet's, or nothing is known, or a start without"
            " an obstacle),"
            " shared (a start on CPUs that others have not left)",
            ("request", "outcome"),
            buckets=_ANSWERED_S,
            registry=registry,
        )
        self._start_breaches = Counter(
            "cpupool_exclusive_start_breaches",
            "Containers that started while others ran on their CPUs, or on CPUs of another pod",
            registry=registry,
        )
        self._topology_writes = Counter(
            "cpupool_node_topology_writes",
            "Writes of the node's NodeResourceTopology, by outcome: changed (the node has), again"
            " (another program had overwritten it), refused",
            ("outcome",),
            registry=registry,
        )
        self.containers({})
        self.confined({})

    def pool(
        self, name: str, kind: str, *, capacity: int, allocated: int, offline: int, draining: int
    ) -> None:
        """Set the metrics of one pool, in devices."""
        self._kinds[name] = kind
        numbers = {
            "capacity": capacity,
            "allocated": allocated,
            "offline": offline,
            "draining": draining,
        }
        for what, number in numbers.items():
            self._pools[what].labels(name, kind).set(number)

    def fragmentation(self, pool: str, scores: Mapping[str, float]) -> None:
        """Set how scattered the free CPUs of an exclusive pool are, 0 to 1, by level."""
        self._levels[pool] = tuple(scores)
        for level, score in scores.items():
            self._fragmentation.labels(pool, level).set(score)

    def keep_pools(self, names: Collection[str]) -> None:
        """Remove the metrics of every other pool."""
        for gone in self._kinds.keys() - set(names):
            kind = self._kinds.pop(gone)
            for gauge in self._pools.values():
                gauge.remove(gone, kind)
            for level in self._levels.pop(gone, ()):
                self._fragmentation.remove(gone, level)

    def containers(self, counts: Mapping[str, int]) -> None:
        """Set how many containers are in each of `CONTAINER_STATES`; 0 for a missing state."""
        for state in CONTAINER_STATES:
            self._containers.labels(state).set(counts.get(state, 0))

    def confined(self, counts: Mapping[str, int]) -> None:
        """Set how many containers are confined for each `Cause` value; 0 for a missing cause."""
        for cause in Cause:
            self._confined.labels(cause.value).set(counts.get(cause.value, 0))

    def repaired(self, reason: str) -> None:
        """Count a cpuset that was written."""
        self._repairs.labels(reason).inc()

    def quota_repaired(self, reason: str) -> None:
        """Count a CPU quota that was written."""
        self._quota_repairs.labels(reason).inc()

    def properties_repaired(self, reason: str) -> None:
        """Count a container whose properties were written."""
        self._property_repairs.labels(reason).inc()

    def memory_written(self, reason: str, seconds: float) -> None:
        """Count a write of a container's memory nodes, and how long it took."""
        self._memory_writes.labels(reason).observe(seconds)

    def placed(self, seconds: float) -> None:
        """Count a container on its final CPUs, and the time since the agent first saw it."""
        self._placed.observe(seconds)

    def swept(self, seconds: float) -> None:
        """Count a sweep and its duration."""
        self._swept.observe(seconds)

    def registered(self, resource: str) -> None:
        """Count a registration with the kubelet."""
        self._registrations.labels(resource).inc()

    def event_dropped(self) -> None:
        """Count an Event that was not sent."""
        self._events_dropped.inc()

    def cpu_manager_conflict(self, *, found: bool) -> None:
        """Set whether the kubelet's static CPU manager conflicts with cpupool."""
        self._cpu_manager_conflict.set(found)

    def choices_unrecorded(self, *, failed: bool) -> None:
        """Set whether the file with the CPU manager policy's choices cannot be written."""
        self._choices_unrecorded.set(failed)

    def enforced_by(self, way: str, ways: Collection[str]) -> None:
        """Set which of the ways sets the CPUs of a container that starts now."""
        for candidate in ways:
            self._way.labels(candidate).set(candidate == way)

    def nri_connected(self, *, connected: bool) -> None:
        """Set whether the container runtime asks this agent."""
        self._nri_connected.set(connected)

    def nri_waits(self, pod: str, until_s: float) -> None:
        """Set for which pod the connection to NRI waits, and until when; empty for none."""
        self._nri_waits.clear()
        if pod:
            self._nri_waits.labels(pod).set(until_s)

    def nri_answered(self, request: str, outcome: str, seconds: float) -> None:
        """Count a response; request and outcome are each one of a few words."""
        self._nri_answers.labels(request, outcome).observe(seconds)

    def topology_published(self) -> None:
        """Show the writes of the NodeResourceTopology from 0 on: this agent publishes it."""
        for outcome in WriteOutcome:
            self._topology_writes.labels(outcome.value)

    def topology_written(self, outcome: WriteOutcome) -> None:
        """Count a write of the NodeResourceTopology."""
        self._topology_writes.labels(outcome.value).inc()

    def start_breached(self) -> None:
        """Count a container that started although others had not left its CPUs."""
        self._start_breaches.inc()
