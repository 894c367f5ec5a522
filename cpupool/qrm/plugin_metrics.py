"""The series of plugins, among the metrics of the agent.

Those of Katalyst's kubelet patch keep their names and labels, so that its dashboards serve.
Source: kubewharf/enhanced-k8s, pkg/kubelet/metrics/metrics.go of the patch for QoS resources.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Collection

    from prometheus_client import CollectorRegistry

_Metric = TypeVar("_Metric", Counter, Histogram)


class PluginMetrics:
    """The series about questions and answers. Any thread may call any method."""

    def __init__(self, registry: CollectorRegistry) -> None:
        named, ours = ("resource_name",), ("resource",)
        self._registrations = Counter(
            "kubelet_resource_plugin_registration",
            "Registrations of plugins",
            named,
            registry=registry,
        )
        self._durations = {
            method: Histogram(
                f"kubelet_resource_plugin_{infix}_duration_seconds",
                f"One call of {method}, by the name of the resource",
                named,
                registry=registry,
            )
            for method, infix in (("Allocate", "alloc"), ("GetTopologyHints", "get_hints"))
        }
        self._calls = Counter(
            "cpupool_plugin_calls",
            "Calls of plugins, by method and outcome: answered, refused (also an answer), failed",
            (*ours, "method", "outcome"),
            registry=registry,
        )
        self._answers_refused = Counter(
            "cpupool_plugin_answers_refused",
            "Answers of resource plugins that break a rule",
            (*ours, "rule"),
            registry=registry,
        )
        self._serves = Gauge(
            "cpupool_plugin_serves",
            "1 while a plugin serves the resource, 0 while containers have answers of a lost one",
            ours,
            registry=registry,
        )

        self._lock = threading.Lock()
        self._series: defaultdict[str, set[tuple[Counter | Histogram, tuple[str, ...]]]]
        self._series = defaultdict(set)

    def registered(self, resource: str) -> None:
        """Count a registration."""
        self._of(self._registrations, resource).inc()

    def called(self, resource: str, method: str, outcome: str, seconds: float) -> None:
        """Count a call; the outcome is one of three words."""
        if method in self._durations:
            self._of(self._durations[method], resource).observe(seconds)
        self._of(self._calls, resource, method, outcome).inc()

    def answer_refused(self, resource: str, rule: str) -> None:
        """Count an answer that breaks a rule."""
        self._of(self._answers_refused, resource, rule).inc()

    def serve(self, registered: Collection[str], known: Collection[str]) -> None:
        """Set which resources have a plugin, of all that have had one; forget all others."""
        with self._lock:
            for resource in self._series.keys() - set(known):
                for metric, labels in self._series.pop(resource):
                    metric.remove(*labels)
        self._serves.clear()
        for resource in known:
            self._serves.labels(resource).set(resource in registered)

    def _of(self, metric: _Metric, *labels: str) -> _Metric:
        """Return the series of a metric with these labels, a resource first."""
        with self._lock:
            self._series[labels[0]].add((metric, labels))
            return metric.labels(*labels)
