"""Why a container of a pod of Koordinator's classes has its CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Placement
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools
from cpupool.manager.report import ContainerStatus, NodeStatus, RefusedPod
from cpupool.policies.view import BEST_EFFORT, DEFAULT
from tests.unit.commands.explain.node import explain, steps

if TYPE_CHECKING:
    from pathlib import Path

POOLS = NodePools.of(cpu_manager=CPUManager("koordinator", CPUSet.of(0)))
SETS = {DEFAULT: CPUSet.parse("0-3"), BEST_EFFORT: CPUSet.parse("0-5")}


def status(
    qos: str, cpus: str, *, name: str = "default/web/main", held: bool = False
) -> NodeStatus:
    """Return a node with one container of a class, on its CPUs."""
    wanted = CPUSet.parse(cpus)
    container = ContainerStatus(name, Placement.DEFAULT, wanted, cpus, "", CPUSet(), qos=qos)
    refused = RefusedPod("default/web", "CPUs 4-5 are not free", held=held)
    return NodeStatus(POOLS, (container,), refused=(refused,), sets=SETS)


@pytest.mark.parametrize(
    ("qos", "cpus", "why"),
    [
        ("LS", "0-3", "a pod of the class LS runs on the shared CPUs"),
        ("Burstable", "0-3", "a pod of the class Burstable runs on the shared CPUs"),
        (
            "LS",
            "0-1",
            "a pod of the class LS runs on the shared CPUs of its NUMA nodes",
        ),
        (
            "BE",
            "0-5",
            (
                "a pod of the class BE runs on the shared CPUs, and on CPUs 4-5, which LSR pods"
                " lend to best-effort pods"
            ),
        ),
        ("SYSTEM", "7", "the Node's system-qos-resource names them for pods of the class SYSTEM"),
    ],
)
def test_the_shared_cpus_of_a_class(
    file: Path, capsys: pytest.CaptureFixture[str], qos: str, cpus: str, why: str
) -> None:
    assert explain(file, status(qos, cpus), "web") == 0
    assert f"class: {why} => {cpus}" in steps(capsys.readouterr().out)


def test_a_pod_that_waits_says_why(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(file, status("LSR", "0-3", name="default/web", held=True), "web") == 1
    why = "the containers of its pod are not created: CPUs 4-5 are not free"
    assert steps(capsys.readouterr().out)[-1] == f"held: {why} => none"
