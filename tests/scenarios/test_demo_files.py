"""A demo of any pool file: pools beside each CPU manager policy, and what leaves little room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cpupool.commands.demo import resizes
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


@pytest.mark.parametrize(
    ("machine", "settings", "asked", "why"),
    [
        pytest.param(
            Machine(cores=8),
            "",
            [("4", "1-2", "1-4"), ("3", "1-4", "1-3")],
            {"2500m": "whole number", "1": "with which it began", "8": "5 more than the 3"},
            id="room for four",
        ),
        pytest.param(
            Machine(cores=3),
            "",
            [("2", "1", "1-2"), ("1", "1-2", "1")],
            {"500m": "whole number", "3": "cpu 3 needs 2 more than the 1"},
            id="room for two",
        ),
        pytest.param(
            Machine(cores=4, threads=2),
            ", options: {full-pcpus-only: true}",
            [("6", "1,5", "1-3,5-7"), ("4", "1-3,5-7", "1-2,5-6")],
            {"3500m": "whole number", "8": "CPUs requested"},
            id="whole cores",
        ),
        pytest.param(
            Machine(cores=2),
            "",
            [],
            {"500m": "it owns 1 CPU, and", "2": "needs 1 more than the 1 that it owns, and 0 are"},
            id="room for one",
        ),
    ],
)
def test_a_pod_that_runs_is_resized_and_reads_its_cpus(
    machine: Machine,
    settings: str,
    asked: list[tuple[str, str, str]],
    why: dict[str, str],
    *,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resizes, "_NOTICE_S", 1)
    mine = folder / "mine.yaml"
    mine.write_text(
        f"cpuManager: {{policy: dynamic, reserved: {len(machine.topology().cores[0])}{settings}}}\n"
    )

    shown = Demos(machine, folder, monkeypatch).run("--config", str(mine))

    done = [each for each in shown["resizes"] if not each["refused"]]
    assert [(each["cpu"], each["before"], each["after"]) for each in done] == asked
    refused = {each["cpu"]: each["refused"] for each in shown["resizes"] if each["refused"]}
    assert refused.keys() == why.keys()
    assert all(words in refused[cpu] for cpu, words in why.items()), refused
    if not asked:
        needs = "it needs 2 CPUs of the policy, and the policy has 1 of this machine's 2"
        assert shown["left_out"] == [f"a resize that fits: {needs}"]
        return
    (grown,), (announced, complete) = (each["told"] for each in done)
    assert grown["change"]["reason"] == "grow"
    assert (announced["cpus"], announced["assigned"]) == asked[1][1:]
    assert "notBefore" in announced["change"]
    assert complete["cpus"] == complete["assigned"] == asked[1][2]
    assert done[1]["took_s"] >= 1.0


def test_a_demo_without_a_resize_says_so_at_its_begin_and_at_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = Demos(Machine(cores=2), folder, monkeypatch).printed("--cpu-manager", "dynamic")

    said = [line.startswith("Left out: a resize that fits: ") for line in printed.splitlines()]
    assert (said.count(True), said[-3]) == (2, True)
    assert "container's creation" not in printed


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
