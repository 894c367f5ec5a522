from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cpupool.core.assignments import Cause
from cpupool.telemetry.metrics import CONTAINER_STATES, Metrics, WebhookMetrics
from cpupool.version import VERSION

if TYPE_CHECKING:
    from cpupool.telemetry.metrics import ProcessMetrics

Series = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def _scraped(metrics: ProcessMetrics) -> Series:
    """Read the page as Prometheus does: (name, label values in the labels' order) → value."""
    content_type, body = metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def _named(series: Series, prefix: str) -> Series:
    return {key: value for key, value in series.items() if key[0].startswith(prefix)}


def test_a_new_agent_counts_from_zero_and_tells_its_version(metrics: Metrics) -> None:
    series = _scraped(metrics)
    assert series["cpupool_build_info", (VERSION,)] == 1
    assert series["process_resident_memory_bytes", ()] > 0
    assert _named(series, "cpupool_containers_confined") == {
        ("cpupool_containers_confined", (cause.value,)): 0 for cause in Cause
    }
    assert {series["cpupool_containers", (state,)] for state in CONTAINER_STATES} == {0}
    assert series["cpupool_container_placement_seconds_count", ()] == 0


def test_the_numbers_of_a_pool_are_shown_until_it_is_gone(metrics: Metrics) -> None:
    metrics.pool("exclusive_a", "exclusive", capacity=8, allocated=3, offline=2, draining=1)
    metrics.pool("shared_b", "shared", capacity=4000, allocated=0, offline=0, draining=0)
    metrics.pool("exclusive_a", "exclusive", capacity=8, allocated=4, offline=2, draining=1)
    series = _scraped(metrics)
    assert {
        what: series[f"cpupool_pool_{what}", ("exclusive", "exclusive_a")]
        for what in ("capacity", "allocated", "offline", "draining")
    } == {"capacity": 8, "allocated": 4, "offline": 2, "draining": 1}
    metrics.keep_pools({"shared_b"})
    assert {key[1] for key in _named(_scraped(metrics), "cpupool_pool")} == {("shared", "shared_b")}
    metrics.keep_pools(())
    assert _named(_scraped(metrics), "cpupool_pool") == {}
    metrics.pool("shared_b", "shared", capacity=1000, allocated=0, offline=0, draining=0)
    assert _scraped(metrics)["cpupool_pool_capacity", ("shared", "shared_b")] == 1000


def test_how_scattered_a_pool_is_is_shown_until_it_is_gone(metrics: Metrics) -> None:
    for name in ("exclusive_a", "exclusive_b"):
        metrics.pool(name, "exclusive", capacity=8, allocated=3, offline=0, draining=0)
        metrics.fragmentation(name, {"numa_node": 0.5, "uncore_cache": 0.25})
    metrics.fragmentation("exclusive_a", {"numa_node": 0, "uncore_cache": 0.125})
    metrics.keep_pools({"exclusive_a"})
    assert _named(_scraped(metrics), "cpupool_pool_fragmentation") == {
        ("cpupool_pool_fragmentation", ("numa_node", "exclusive_a")): 0,
        ("cpupool_pool_fragmentation", ("uncore_cache", "exclusive_a")): 0.125,
    }


def test_containers_that_are_no_longer_in_a_state_leave_it(metrics: Metrics) -> None:
    metrics.containers({"right": 5, "failed": 1})
    metrics.confined({Cause.NO_POOL.value: 2})
    metrics.containers({"right": 6})
    metrics.confined({Cause.CONTESTED.value: 1})
    series = _scraped(metrics)
    assert [series["cpupool_containers", (state,)] for state in CONTAINER_STATES] == [6, 0, 0, 0]
    assert series["cpupool_containers_confined", (Cause.NO_POOL.value,)] == 0
    assert series["cpupool_containers_confined", (Cause.CONTESTED.value,)] == 1


def test_what_happens_is_counted(metrics: Metrics) -> None:
    for _ in range(2):
        metrics.repaired("new")
        metrics.quota_repaired("unknown")
        metrics.properties_repaired("moved")
        metrics.registered("nokia.k8s.io/shared_b")
        metrics.watch_restarted("pods", "gone")
        metrics.event_dropped()
    series = _scraped(metrics)
    assert series["cpupool_repairs_total", ("new",)] == 2
    assert series["cpupool_quota_repairs_total", ("unknown",)] == 2
    assert series["cpupool_property_repairs_total", ("moved",)] == 2
    assert series["cpupool_registrations_total", ("nokia.k8s.io/shared_b",)] == 2
    assert series["cpupool_watch_restarts_total", ("gone", "pods")] == 2
    assert series["cpupool_events_dropped_total", ()] == 2


def test_times_go_into_buckets(metrics: Metrics) -> None:
    metrics.placed(0.2)
    metrics.swept(0.002)
    series = _scraped(metrics)
    for name, below, above, total_s in (
        ("cpupool_container_placement_seconds", "0.1", "0.25", 0.2),
        ("cpupool_sweep_duration_seconds", "0.001", "0.0025", 0.002),
    ):
        assert series[f"{name}_bucket", (below,)] == 0
        assert series[f"{name}_bucket", (above,)] == 1
        assert series[f"{name}_sum", ()] == total_s


def test_a_switch_goes_both_ways(metrics: Metrics) -> None:
    for on in (True, False):
        metrics.config_valid(valid=on)
        metrics.cpu_manager_conflict(found=on)
        metrics.cpu_manager.suppressed(best_effort=on)
        series = _scraped(metrics)
        assert series["cpupool_config_valid", ()] == on
        assert series["cpupool_cpu_manager_conflict", ()] == on
        assert series["cpupool_best_effort_suppressed", ()] == on


def test_the_cpu_manager_s_series_have_the_kubelet_s_names(metrics: Metrics) -> None:
    for _ in range(2):
        metrics.cpu_manager.moved()
        metrics.cpu_manager.used(free=6, owned=3, by_node={0: 2, 1: 1})
        metrics.cpu_manager.decided(
            given=2, refused=1, aligned={"uncore_cache": 1}, misaligned={"numa_node": 1}
        )
    series = _scraped(metrics)
    aligned = "cpupool_container_aligned_compute_resources"
    named = _named(series, "cpupool_cpu_manager_") | _named(series, aligned)
    assert {key: value for key, value in named.items() if not key[0].endswith("_created")} == {
        ("cpupool_cpu_manager_conflict", ()): 0,
        ("cpupool_cpu_manager_choices_unrecorded", ()): 0,
        ("cpupool_cpu_manager_pinning_requests_total", ()): 6,
        ("cpupool_cpu_manager_pinning_errors_total", ()): 2,
        ("cpupool_cpu_manager_moves_total", ()): 2,
        ("cpupool_cpu_manager_shared_pool_size_millicores", ()): 6000,
        ("cpupool_cpu_manager_exclusive_cpu_allocation_count", ()): 3,
        ("cpupool_cpu_manager_allocation_per_numa", ("0",)): 2,
        ("cpupool_cpu_manager_allocation_per_numa", ("1",)): 1,
        (f"{aligned}_count", ("uncore_cache", "container")): 2,
        (f"{aligned}_failure_count", ("numa_node", "container")): 2,
    }


def test_the_shared_sets_have_koordinator_s_names_until_they_are_gone(metrics: Metrics) -> None:
    cpu_manager = metrics.cpu_manager
    cpu_manager.shared(shared={0: 4, 1: 8}, best_effort={0: 6})
    cpu_manager.owned({"LSE": (0, 0), "LSR": (1, 2)})
    series = _scraped(metrics)
    assert _named(series, "cpupool_cpuset_") | _named(series, "cpupool_cpu_manager_class_") == {
        ("cpupool_cpuset_share_pool_cpu_cores", ("0",)): 4,
        ("cpupool_cpuset_share_pool_cpu_cores", ("1",)): 8,
        ("cpupool_cpuset_be_share_pool_cpu_cores", ("0",)): 6,
        ("cpupool_cpu_manager_class_owners", ("LSE",)): 0,
        ("cpupool_cpu_manager_class_owners", ("LSR",)): 1,
        ("cpupool_cpu_manager_class_cpus", ("LSE",)): 0,
        ("cpupool_cpu_manager_class_cpus", ("LSR",)): 2,
    }

    cpu_manager.shared(shared={0: 5}, best_effort={})
    cpu_manager.owned({})
    series = _scraped(metrics)
    assert _named(series, "cpupool_cpu_manager_class_") == {}
    assert _named(series, "cpupool_cpuset_") == {("cpupool_cpuset_share_pool_cpu_cores", ("0",)): 5}


def test_two_agents_in_one_process_count_apart(metrics: Metrics) -> None:
    metrics.repaired("new")
    assert _named(_scraped(Metrics()), "cpupool_repairs_total") == {}


def test_a_webhook_counts_reviews_and_none_of_the_agents_numbers() -> None:
    webhook = WebhookMetrics()
    webhook.reviewed("CREATE", "mutated", 0.002)
    webhook.refused(503)
    webhook.certificate_expires(1.5e9)
    webhook.config_valid(valid=True)
    series = _scraped(webhook)
    assert series["cpupool_admission_reviews_total", ("mutated", "CREATE")] == 1
    assert series["cpupool_admission_review_duration_seconds_bucket", ("0.001",)] == 0
    assert series["cpupool_admission_review_duration_seconds_bucket", ("0.0025",)] == 1
    assert series["cpupool_https_refused_total", ("503",)] == 1
    assert series["cpupool_certificate_expiry_timestamp_seconds", ()] == 1.5e9
    assert series["cpupool_config_valid", ()] == 1
    assert series["cpupool_build_info", (VERSION,)] == 1
    agent = _scraped(Metrics()).keys() - _scraped(WebhookMetrics()).keys()
    assert agent
    assert not agent & series.keys()
