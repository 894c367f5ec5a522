"""What an admin sees of Koordinator's classes: metrics, `cpupool status` and `cpupool explain`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cpupool import cli
from tests.scenarios import test_koordinator
from tests.scenarios.test_koordinator import right, run
from tests.unit.agent import test_app
from tests.waiting import eventually

if TYPE_CHECKING:
    import pytest

    from cpupool.agent.app import Agent
    from tests.scenarios.test_agent_process import World

world = test_koordinator.world


def shown(agent: Agent, *expected: str) -> None:
    """Wait until the agent's metrics have all these lines, without their prefix."""

    def missing() -> list[str]:
        page = test_app.get(agent, "/metrics")[1]
        return [line for line in expected if f"\ncpupool_{line}.0\n" not in page]

    eventually(lambda: not missing(), lambda: str(missing()))


def test_the_metrics_follow_the_sets_and_the_owners(world: World) -> None:
    with world.agent_here() as agent:
        run(world, "ls", "LS", "500m")
        lsr = run(world, "lsr", "LSR", "2", "2-3")
        run(world, "lse", "LSE", "1")
        right(world, ls="0,4-7", lsr="2-3", lse="1")
        shown(
            agent,
            'cpuset_share_pool_cpu_cores{numa_node="0"} 5',
            'cpuset_be_share_pool_cpu_cores{numa_node="0"} 7',
            'cpu_manager_class_owners{qos_class="LSR"} 1',
            'cpu_manager_class_cpus{qos_class="LSR"} 2',
            'cpu_manager_class_cpus{qos_class="LSE"} 1',
        )

        world.node.delete_pod(lsr.uid)
        shown(
            agent,
            'cpuset_share_pool_cpu_cores{numa_node="0"} 7',
            'cpu_manager_class_owners{qos_class="LSR"} 0',
        )


def test_status_and_explain_name_owners_and_lenders(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    written = ["--file", str(world.node.root.status)]

    def explained(pod: str) -> list[str]:
        """Return the reasons of the pod's container without the last, which is what it has."""
        assert cli.main(["explain", f"default/{pod}/main", *written, "--json"]) == 0
        (only,) = json.loads(capsys.readouterr().out)["containers"]
        return [
            f"{step['rule']}: {step['why']} => {step['left']}"
            for step in only["steps"]
            if step["rule"] in {"request", "class", "own", "confined"}
        ]

    def status() -> str:
        cli.main(["status", *written, "--topology", str(world.folder)])
        return capsys.readouterr().out

    with world.agent():
        run(world, "ls", "LS", "500m")
        run(world, "be", "BE")
        run(world, "lsr", "LSR", "2", "2-3")
        run(world, "lse", "LSE", "1")
        run(world, "forged", "LSE", "2", "8-9")
        shared, best_effort = "0,4-7", "0,2-7"
        sets = f"Shared CPUs: {shared}; CPUs of best-effort pods: {best_effort}."
        right(world, ls=shared, be=best_effort, lsr="2-3", lse="1", forged=shared)
        done = "10 of 10 containers are where"
        eventually(lambda: all(text in status() for text in (sets, done)), status)

    rows = [line.split() for line in status().splitlines()]
    assert ["default/lsr", "LSR", "2-3", "best-effort", "pods"] in rows
    assert ["default/lse", "LSE", "1", "no", "pod"] in rows
    assert explained("ls") == [
        f"request: it requests no pool => {shared}",
        f"class: a pod of the class LS runs on the shared CPUs => {shared}",
    ]
    assert explained("be")[1:] == [
        (
            "class: a pod of the class BE runs on the shared CPUs, and on CPUs 2-3, which LSR pods"
            f" lend to best-effort pods => {best_effort}"
        ),
    ]
    assert explained("lsr") == [
        "request: it requests 2 whole CPUs for a pod of the class LSR => 2-3",
        "own: they are its own; it lends them to best-effort pods => 2-3",
    ]
    assert explained("lse")[1:] == ["own: they are its own: no other pod runs there => 1"]
    assert explained("forged")[1:] == [
        (
            "confined: the scheduler has assigned CPUs 8-9, but 8-9 are not the CPU manager's: it"
            f" is kept on the default pool default, away from exclusive CPUs => {shared}"
        ),
    ]
