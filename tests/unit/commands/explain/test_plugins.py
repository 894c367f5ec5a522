"""What plugins have answered for a container, and why it lacks an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Placement
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools
from cpupool.manager.report import ContainerStatus, NodeStatus, PluginAnswer
from tests.unit.commands.explain.node import explain, steps

if TYPE_CHECKING:
    from pathlib import Path

POOLS = NodePools.of(cpu_manager=CPUManager("qrm", CPUSet.of(0)))
NOON = "2026-01-01T12:00:00Z"
ANSWERED = PluginAnswer("cpu", {"CpusetCpus": "2-3"}, ("NIC", "nic"), "0", confirmed=NOON)


def status(*answers: PluginAnswer, exclusive: str = "", lost: tuple[str, ...] = ()) -> NodeStatus:
    cpus = CPUSet.parse("2-3")
    own = CPUSet.parse(exclusive) if exclusive else CPUSet()
    container = ContainerStatus(
        "default/web/main", Placement.PLUGIN, cpus, "2-3", "", own, answers=answers
    )
    return NodeStatus(POOLS, (container,), lost=lost)


@pytest.mark.parametrize(
    ("answer", "lost", "why"),
    [
        (
            ANSWERED,
            (),
            (
                "the plugin for cpu has answered: CpusetCpus 2-3, NIC, nic;"
                f" asked for the NUMA nodes 0 (confirmed at {NOON})"
            ),
        ),
        (
            PluginAnswer("example.com/nic"),
            ("example.com/nic",),
            (
                "the plugin for example.com/nic has answered: nothing to set"
                " (recorded earlier; the plugin is gone)"
            ),
        ),
        (
            PluginAnswer("cpu", why="no CPU is left"),
            (),
            "it has no answer for cpu that counts: no CPU is left",
        ),
    ],
)
def test_an_answer_is_a_step(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    answer: PluginAnswer,
    lost: tuple[str, ...],
    why: str,
) -> None:
    assert explain(file, status(answer, lost=lost), "web") == 0
    shown = steps(capsys.readouterr().out)
    assert shown[0] == f"request: it requests {answer.resource}, for which plugins answer => 2-3"
    assert f"plugin: {why} => 2-3" in shown


@pytest.mark.parametrize(
    ("exclusive", "whose"),
    [("2-3", "they are its own"), ("", "other containers may have them, too")],
)
def test_whose_the_cpus_are(
    file: Path, capsys: pytest.CaptureFixture[str], exclusive: str, whose: str
) -> None:
    explain(file, status(ANSWERED, exclusive=exclusive), "web")
    assert f"own: a plugin for resources names its CPUs: {whose} => 2-3" in steps(
        capsys.readouterr().out
    )
