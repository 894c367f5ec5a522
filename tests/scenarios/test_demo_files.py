"""A demo of any pool file: pools beside each CPU manager policy, and what leaves little room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.demos import Demos
from tests.machines import Machine

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = Machine(sockets=2, cores=4, threads=2)
POOLS: Final = {"poller", "sharer", "plain"}
STATIC: Final = {"early", "late"}
KOORDINATOR: Final = {"ls", "near", "be", "burstable", "assigned", "late", "sole", "forged"}
QRM: Final = {"pod1", "pod2", "pod3", "system"}


@pytest.mark.parametrize(
    ("pools", "cpu_manager", "pods", "held"),
    [
        pytest.param(
            'default: {cpus: "0-1,8-9"}, exclusive_a: {cpus: "2-4"}, shared_b: {cpus: "5,13"}',
            "policy: static, reserved: 1",
            POOLS | STATIC,
            {"late"},
            id="static and pools",
        ),
        pytest.param(
            'exclusive_a: {cpus: "2,10", cpuBindPolicy: fullPhysicalCores}',
            "policy: static, reserved: 2, options: {full-pcpus-only: true}, topologyPolicy:"
            " single-numa-node, topologyScope: pod",
            POOLS | STATIC,
            {"late"},
            id="static with whole cores on one NUMA node, and no default pool",
        ),
        pytest.param(
            'shared_b: {cpus: "2-15"}',
            "policy: static, reserved: 1, onMisfit: share",
            POOLS | STATIC,
            set(),
            id="static with one CPU to give",
        ),
        pytest.param(
            'default: {cpus: "0-1,8-9"}, exclusive_a: {cpus: "2-3", hyperThreadingPolicy:'
            ' multiThreaded}, exclusive_b: {cpus: "4,12", cpuBindPolicy: spreadAcrossCores}',
            "policy: koordinator, reserved: 1, options: {full-pcpus-only: true}",
            POOLS | KOORDINATOR,
            {"late", "sole"},
            id="koordinator and pools",
        ),
        pytest.param(
            'exclusive_a: {cpus: "2-4"}, shared_b: {cpus: "5,13"}',
            "policy: qrm, reserved: 1, topologyPolicy: restricted",
            POOLS | QRM,
            set(),
            id="qrm and pools",
        ),
    ],
)
def test_a_file_with_pools_and_a_cpu_manager_is_shown(
    pools: str,
    cpu_manager: str,
    pods: set[str],
    held: set[str],
    *,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = folder / "mine.yaml"
    mine.write_text(f"pools: {{{pools}}}\ncpuManager: {{{cpu_manager}}}\n")

    shown = Demos(MACHINE, folder, monkeypatch).run("--config", str(mine))

    assert shown["left_out"] == []
    assert {pod["pod"] for pod in shown["held"] if pod["until"]} == held
    running = {row["name"].split(" ")[0].split("/")[0] for row in shown["processes"]}
    assert running <= pods
    assert running >= pods - {"early", "assigned", "late"}


def test_a_demo_says_what_no_pod_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = folder / "mine.yaml"
    mine.write_text('pools: {default: {cpus: 0}, exclusive_a: {cpus: "3"}, shared_b: {cpus: 2}}')
    machine = Machine(cores=4, offline="2-3")

    shown = Demos(machine, folder, monkeypatch).run("--config", str(mine))

    assert shown["left_out"] == [
        "pool exclusive_a: Unschedulable: exclusive_a: 1 requested, 0 free of 0",
        "pool shared_b: Unschedulable: shared_b: 250 requested, 0 free of 0",
    ]
    assert "poller/poll" in {row["name"] for row in shown["processes"]}
