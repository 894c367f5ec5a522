"""The metrics of the CPU manager policy and of its shared sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import CollectorRegistry


class CPUManagerMetrics:
    """The series of the CPU manager policy.

    Names and labels are the kubelet's with another prefix, so that its dashboards serve. Those of
    the shared sets, by NUMA node, and of classes are of the policy that has such sets.
    Source: pkg/kubelet/metrics/metrics.go.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "cpupool_cpu_manager_pinning_requests",
            "Containers that got CPUs of their own, and pods that did not",
            registry=registry,
        )
        self._errors = Counter(
            "cpupool_cpu_manager_pinning_errors",
            "Pods that did not get CPUs of their own at their first question",
            registry=registry,
        )
        self._shared = Gauge(
            "cpupool_cpu_manager_shared_pool_size_millicores",
            "Milli-CPUs that the policy can still give: shared, and not reserved",
            registry=registry,
        )
        self._exclusive = Gauge(
            "cpupool_cpu_manager_exclusive_cpu_allocation_count",
            "CPUs that containers own by the policy's choice",
            registry=registry,
        )
        self._by_node = Gauge(
            "cpupool_cpu_manager_allocation_per_numa",
            "CPUs that containers own by the policy's choice, by NUMA node",
            ("numa_node",),
            registry=registry,
        )
        self._sets = {
            name: Gauge(
                f"cpupool_cpuset_{infix}share_pool_cpu_cores",
                f"CPUs that {whose} share, by NUMA node",
                ("numa_node",),
                registry=registry,
            )
            for name, infix, whose in (
                ("shared", "", "pods without CPUs of their own"),
                ("best_effort", "be_", "best-effort pods"),
            )
        }
        self._owners, self._owned, self._irregular = (
            Gauge(
                f"cpupool_cpu_manager_class_{suffix}",
                meaning,
                ("qos_class",),
                registry=registry,
            )
            for suffix, meaning in (
                (
                    "owners",
                    "Pods that own CPUs by the policy's choice, by the class in their label",
                ),
                ("cpus", "CPUs that these pods own, by the class in their label"),
                ("irregular", "Pods that break a rule of admission, by the class in their label"),
            )
        )
        self._suppressed = Gauge(
            "cpupool_best_effort_suppressed",
            "1 while the load takes CPUs from best-effort pods",
            registry=registry,
        )
        self._moves = Counter(
            "cpupool_cpu_manager_moves",
            "Running containers that the agent has begun to move to other CPUs of their own",
            registry=registry,
        )
        # Gauges, because a Counter's name would end in _total, which the kubelet's does not.
        self._aligned, self._misaligned = (
            Gauge(
                f"cpupool_container_aligned_compute_resources_{suffix}",
                meaning,
                ("scope", "boundary"),
                registry=registry,
            )
            for suffix, meaning in (
                ("count", "Containers whose own CPUs do not cross the boundary; never decreases"),
                ("failure_count", "Pods that did not fit inside the boundary; never decreases"),
            )
        )

    def moved(self) -> None:
        """Count a container that moves to other CPUs."""
        self._moves.inc()

    def suppressed(self, *, best_effort: bool) -> None:
        """Set whether the load takes CPUs from best-effort pods."""
        self._suppressed.set(best_effort)

    def used(self, *, free: int, owned: int, by_node: Mapping[int, int]) -> None:
        """Set how many CPUs the policy can give, and how many containers own."""
        self._shared.set(free * 1000)
        self._exclusive.set(owned)
        for node, cpus in by_node.items():
            self._by_node.labels(str(node)).set(cpus)

    def shared(self, *, shared: Mapping[int, int], best_effort: Mapping[int, int]) -> None:
        """Set how many CPUs each shared set has on each NUMA node; none for a set that is not."""
        for name, by_node in (("shared", shared), ("best_effort", best_effort)):
            self._sets[name].clear()
            for node, cpus in by_node.items():
                self._sets[name].labels(str(node)).set(cpus)

    def irregular(self, classes: Mapping[str, int]) -> None:
        """Set how many pods of each class break a rule of admission."""
        self._irregular.clear()
        for name, count in classes.items():
            self._irregular.labels(name).set(count)

    def owned(self, classes: Mapping[str, tuple[int, int]]) -> None:
        """Set how many pods of each class own CPUs, and how many CPUs."""
        for number, gauge in enumerate((self._owners, self._owned)):
            gauge.clear()
            for name, counts in classes.items():
                gauge.labels(name).set(counts[number])

    def decided(
        self,
        *,
        given: int,
        refused: int,
        aligned: Mapping[str, int],
        misaligned: Mapping[str, int],
    ) -> None:
        """Count containers that got CPUs, and pods that did not; each also by boundary."""
        self._requests.inc(given + refused)
        self._errors.inc(refused)
        for counter, numbers in ((self._aligned, aligned), (self._misaligned, misaligned)):
            for boundary, number in numbers.items():
                counter.labels("container", boundary).inc(number)
