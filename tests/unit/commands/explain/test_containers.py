from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.core.cpu_manager import CPUManager, Suppression
from cpupool.core.cpu_time import CPUUse
from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerKind, QoSClass
from cpupool.manager.status_json import to_json
from tests.builders import container, given, pod
from tests.unit.commands.explain.node import (
    CHOSEN_BEFORE,
    DEFAULT,
    EXCLUSIVE,
    LAPTOP,
    Node,
    explain,
    steps,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_container_of_three_pools(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.advise("exclusive_a", 1, "2", "4")
    requests = container(exclusive_a=1, exclusive_m=1, shared_b=3)
    node.run("web", requests, exclusive_a="2", exclusive_m="6", shared_b="0,1,2")

    assert explain(file, node.status(web="1-2,6-7"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert lines[0] == (
        "request: it requests 1 of exclusive_a and 1 of exclusive_m and 3 milli-CPUs of shared_b"
        " => 1-2,4,6"
    )
    assert sum(line.startswith("pool: ") for line in lines) == 3
    assert "together: the CPUs of all its pools => 1-2,6-7" in lines


@pytest.mark.parametrize(
    ("pools", "default", "cpus"),
    [
        ((EXCLUSIVE, DEFAULT), "the default pool default", "0"),
        ((EXCLUSIVE,), "the CPUs of no pool", "0-1,6-7"),
    ],
)
def test_a_container_that_requests_nothing(
    pools: tuple[Pool, ...],
    default: str,
    cpus: str,
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = Node(*pools)
    node.run("web", container())

    assert explain(file, node.status(web=cpus), "web") == 0
    assert steps(capsys.readouterr().out)[:2] == [
        f"request: it requests no pool => {cpus}",
        f"default: it runs on {default} => {cpus}",
    ]


def test_a_confined_container(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1))

    assert explain(file, node.status(web="0"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert "devices: the kubelet has named none for it => none" in lines
    assert (
        "confined: the kubelet has named no devices of exclusive_a: it is kept on the default pool"
        " default, away from exclusive CPUs => 0"
    ) in lines


def test_a_pool_that_this_node_does_not_have(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.run("web", container(shared_x=5))

    assert explain(file, node.status(web="0"), "web") == 0
    assert steps(capsys.readouterr().out)[1] == "pool: this node has no pool shared_x now => none"


def test_a_container_that_was_moved_away(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")

    assert explain(file, node.status(web="0-7"), "web") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("default/web/main: 0-7\n")
    last = steps(printed)[-1]
    assert last.startswith("found: its cgroup has other CPUs than 2: the agent moves it")
    assert last.endswith(" => 0-7")


def test_an_agent_that_was_started_later_does_not_know_the_choice(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")

    assert explain(file, node.status(web="2"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert lines[2].startswith(CHOSEN_BEFORE)
    assert lines[3] == "devices: the kubelet gave these => 2"


def test_devices_that_an_init_container_had_first(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.advise("exclusive_a", 2, "2", "4")
    first = container("first", ContainerKind.INIT, running=False, exclusive_a=2)
    web = node.run("web", first, container(exclusive_a=1), exclusive_a="4")
    node.manager.accept(given(web, "first", exclusive_a="2,4"))

    assert explain(file, node.status(web="4"), "web") == 0
    printed = capsys.readouterr().out
    assert "devices: the kubelet gave those of the init container first: it reuses" in printed
    assert CHOSEN_BEFORE not in printed


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(Pool.named("exclusive_a", "4"), id="not its any more"),
        pytest.param(
            replace(EXCLUSIVE, policy=PoolPolicy(reserved=CPUSet.of(2))), id="reserved now"
        ),
    ],
)
def test_a_cpu_that_its_pool_gives_no_more(
    file: Path, capsys: pytest.CaptureFixture[str], now: Pool
) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")
    node.reconfigure(now, DEFAULT)

    assert explain(file, node.status(web="2"), "web") == 0
    assert (
        "draining: CPUs 2 are the pool's to give no more: the pod keeps them until it ends => 2"
    ) in steps(capsys.readouterr().out)


def test_shared_cpus_of_before_an_edit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(moves_pinned=False)
    node.run("web", container(exclusive_a=1, shared_b=1), exclusive_a="2", shared_b="0")
    node.reconfigure(EXCLUSIVE, Pool.named("shared_b", "6"), DEFAULT)

    assert explain(file, node.status(web="1-2"), "web") == 0
    assert "kept: stale-shared: until it restarts it keeps" in capsys.readouterr().out


def test_a_container_that_has_no_cpu_to_go_to(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(EXCLUSIVE)
    node.run("web", container())
    status = node.status(web="0-7")
    (web,) = status.containers

    nowhere = replace(status, containers=(replace(web, wanted=CPUSet()),))
    assert explain(file, nowhere, "web") == 1
    assert (
        "found: there is no CPU for it, so cpupool does not change its" in capsys.readouterr().out
    )


def test_a_best_effort_pod_under_load(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = suppressed()

    assert explain(file, node.status(be="0-3", ls="0-7"), "be") == 0

    default, reason = steps(capsys.readouterr().out)[1:3]
    assert default == "class: a pod of the class BestEffort runs on the shared CPUs => 0-3"
    assert reason == (
        "reason: best-effort pods are suppressed to 4 of 8 CPUs: the other pods use 1.0 CPUs and"
        " the system 1.0 of 65 % of 8 CPUs, which leaves 3.2 => 0-3"
    )
    assert explain(file, node.status(be="0-3", ls="0-7"), "ls") == 0
    assert "reason:" not in capsys.readouterr().out


def test_the_status_says_once_that_best_effort_pods_are_suppressed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps(to_json(suppressed().status(be="0-3", ls="0-7"))))

    assert cli.main(["status", "--file", str(file), "--topology", str(file.parent)]) == 0

    shown = " ".join(capsys.readouterr().out.split())
    assert "The load leaves best effort 4 of 8 CPUs: the other pods use 1.0 CPUs and the" in shown
    assert "2 of 2 containers are where they belong." in shown
    assert "best-effort pods are suppressed" not in shown


def suppressed() -> Node:
    """Make a node whose load leaves four CPUs to its best-effort pod."""
    node = Node()
    manager = CPUManager("koordinator", CPUSet.of(0), suppression=Suppression())
    node.manager.reconfigure(NodePools.of(cpu_manager=manager), LAPTOP.topology())
    node.manager.adopt(())
    best_effort = replace(pod("be"), qos=QoSClass.BEST_EFFORT)
    node.manager.observe(pods=[best_effort, replace(pod("ls"), qos=QoSClass.BURSTABLE)])
    node.manager.measure(CPUUse({0: 1500}, {"ls-uid": 1000, "be-uid": 500}))
    return node
