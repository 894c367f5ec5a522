"""The series of the CPU manager policy; `test_metrics.py` has those with the names of others."""

from __future__ import annotations

from cpupool.telemetry.metrics import Metrics


def test_pods_that_break_a_rule_are_counted_by_class_until_there_are_none() -> None:
    metrics = Metrics()
    for classes, shown in (({"LSE": 2, "LSR": 0}, ['LSE"} 2.0', 'LSR"} 0.0']), ({}, [])):
        metrics.cpu_manager.irregular(classes)
        lines = metrics.render()[1].decode().splitlines()
        found = [line for line in lines if line.startswith("cpupool_cpu_manager_class_irregular{")]
        assert found == [f'cpupool_cpu_manager_class_irregular{{qos_class="{end}' for end in shown]
