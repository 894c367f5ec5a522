"""Owners arrive and end on a node whose runtime speaks NRI, and pods come with forged CPUs."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.local.process import Process
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_koordinator import ALL, CLASS, POOLS, STATUS, run
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

LS_CPU = "500m"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        with world.agent():
            eventually(lambda: world.node.plugged, "the runtime asks the agent")
            yield world


@pytest.fixture
def before(world: World, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return where the containers are before each first instruction, the last one last."""
    seen: list[dict[str, str]] = []
    release = Process.release

    def released(process: Process) -> None:
        seen.append(mains(world))
        release(process)

    monkeypatch.setattr(Process, "release", released)
    return seen


def mains(world: World) -> dict[str, str]:
    """Return pod → CPUs of its container."""
    return {
        name.removesuffix("/main"): cpus
        for name, cpus in world.containers().items()
        if name.endswith("/main")
    }


def await_mains(world: World, **cpus: str) -> None:
    eventually(lambda: mains(world) == cpus, lambda: f"{cpus}: {mains(world)}")


@pytest.mark.parametrize(
    ("assigned", "own", "rest"),
    [("2-3", "2-3", "0-1,4-7"), ("", "1-2", "0,3-7")],
    ids=["resource-status", "bound late"],
)
def test_ls_has_left_an_lsr_pods_cpus_before_it_runs_and_returns_when_it_ends(
    world: World, before: list[dict[str, str]], assigned: str, own: str, rest: str
) -> None:
    run(world, "ls", "LS", LS_CPU)
    run(world, "be", "BE")
    await_mains(world, ls=ALL, be=ALL)

    lsr = run(world, "lsr", "LSR", "2", assigned)
    assert before[-1] == {"ls": rest, "be": ALL}
    assert mains(world) == {"ls": rest, "be": ALL, "lsr": own}
    # Another best-effort pod enters, and another LS pod does not.
    run(world, "be-2", "BE")
    run(world, "ls-2", "LS", LS_CPU)
    assert before[-1] == {"ls": rest, "be": ALL, "lsr": own, "be-2": before[-1]["be-2"]}
    assert mains(world)["ls-2"] == rest
    await_mains(world, **{"ls": rest, "be": ALL, "lsr": own, "be-2": ALL, "ls-2": rest})

    world.node.delete_pod(lsr.uid)
    eventually(lambda: set(mains(world).values()) == {ALL}, lambda: str(mains(world)))


def test_all_have_left_an_lse_pods_cpus_before_it_runs(
    world: World, before: list[dict[str, str]]
) -> None:
    run(world, "ls", "LS", LS_CPU)
    run(world, "be", "BE")
    await_mains(world, ls=ALL, be=ALL)

    lse = run(world, "lse", "LSE", "2", "2-3")
    assert before[-1] == {"ls": "0-1,4-7", "be": "0-1,4-7"}

    world.node.delete_pod(lse.uid)
    await_mains(world, ls=ALL, be=ALL)


def forged(world: World, status: str) -> Pod:
    """Start an LSR pod of two CPUs with this `resource-status`."""
    limits = {"cpu": "2", "memory": "1Gi"}
    return world.node.run_pod(
        {
            "kind": "Pod",
            "metadata": {
                "name": "forger",
                "labels": {CLASS: "LSR"},
                "annotations": {STATUS: status},
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
    )


@pytest.mark.parametrize(
    ("status", "reason", "why"),
    [
        ('{"cpuset": "4-6"}', "UnexpectedAdmissionError", "4-6, but the pod requests 2"),
        ('{"cpuset": "7-8"}', "UnexpectedAdmissionError", "but 8 are not the CPU manager's"),
        ('{"cpuset": "6,999"}', "UnexpectedAdmissionError", "but 999 are not the CPU manager's"),
        ('{"cpuset": "0,7"}', "UnexpectedAdmissionError", "but 0 are reserved"),
        ('{"cpuset": "4-5"', "CPUAnnotationUnreadable", f"{STATUS} is '{{"),
        ('{"cpuset": "all"}', "CPUAnnotationUnreadable", f"{STATUS} "),
        ('{"cpuset": ["4-5"]}', "CPUAnnotationUnreadable", f"{STATUS} "),
    ],
    ids=["too big", "a pool's", "no CPU", "reserved", "broken", "no list", "no text"],
)
def test_a_forged_set_gives_no_cpu_and_moves_nobody(
    world: World, before: list[dict[str, str]], status: str, reason: str, why: str
) -> None:
    run(world, "lse", "LSE", "2", "2-3")
    run(world, "ls", "LS", LS_CPU)
    placed = {"lse": "2-3", "ls": "0-1,4-7"}
    assert mains(world) == placed

    forged(world, status)

    assert before[-1] == placed
    assert mains(world) == {**placed, "forger": "0-1,4-7"}
    assert why in world.await_event(reason, "forger")


def test_a_set_of_another_owner_is_had_when_that_has_ended(
    world: World, before: list[dict[str, str]]
) -> None:
    lse = run(world, "lse", "LSE", "2", "2-3")
    run(world, "ls", "LS", LS_CPU)

    forger = forged(world, json.dumps({"cpuset": "3-4"}))

    placed = {"lse": "2-3", "ls": "0-1,4-7"}
    assert mains(world) == placed
    why = "the scheduler has assigned CPUs 3-4, but 3 are not free"
    assert why in world.node.held()[forger.uid]
    assert why in world.await_event("UnexpectedAdmissionError", "forger")

    world.node.delete_pod(lse.uid)

    def starts() -> bool:
        world.node.try_again()
        return not world.node.held()

    eventually(starts, lambda: str(world.node.held()))
    assert before[-1] == {"ls": "0-2,5-7"}
    assert mains(world) == {"ls": "0-2,5-7", "forger": "3-4"}


@pytest.mark.parametrize("status", ['{"cpuset": "2-3"}', '{"cpuset": "6-7"}', '{"cpuset": "0-', ""])
def test_a_running_owner_keeps_its_cpus_whatever_its_annotation_becomes(
    world: World, status: str
) -> None:
    run(world, "lse", "LSE", "2", "2-3")
    run(world, "lsr", "LSR", "2", "4-5")
    run(world, "sharer", "LS")
    assert mains(world) == {"lse": "2-3", "lsr": "4-5", "sharer": "0-1,6-7"}

    bodies = {body["metadata"]["name"]: edited(body) for body in world.node.bodies()["items"]}
    bodies["lsr"]["metadata"]["annotations"] = {STATUS: status} if status else {}
    # The API server tells of the edits in their order: with this one, the other has come.
    bodies["sharer"]["metadata"]["labels"] = {CLASS: "BE"}
    world.api.set_pods([bodies["lsr"], bodies["lse"], bodies["sharer"]])

    await_mains(world, lse="2-3", lsr="4-5", sharer="0-1,4-7")


def edited(body: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(dict(body))
