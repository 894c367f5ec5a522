"""`--write-resource-status`: the agent writes which CPUs it chose, through a real HTTP server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_koordinator import POOLS, STATUS, right, run
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scenarios.test_agent_process import World

WRITES = "--write-resource-status"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def written(world: World) -> list[tuple[str, Any]]:
    """Return the pods that were patched, each with the value of the annotation."""
    patches = [asked for asked in list(world.api.requests) if asked.resource == "pods/status"]
    found = []
    for asked in patches:
        (metadata,) = json.loads(asked.body).values()
        (value,) = metadata["annotations"].values()
        found.append((asked.path.split("/")[-2], json.loads(value)))
    return found


def test_the_agent_writes_its_own_choice_and_leaves_a_schedulers(world: World) -> None:
    with world.agent(WRITES):
        run(world, "ls", "LS", "500m")
        run(world, "lse", "LSE", "2", "5-6")
        run(world, "lsr", "LSR", "2")
        right(world, ls="0,3-4,7", lse="5-6", lsr="1-2")
        eventually(lambda: written(world), "the agent writes")

        # The next change of a pod shows that it looked again.
        run(world, "lsr2", "LSR", "1")
        eventually(lambda: len(written(world)) == 2, "the agent writes again")
    ours = {"chosenBy": "cpupool"}
    assert written(world) == [
        ("lsr", {"cpuset": "1-2", **ours}),
        ("lsr2", {"cpuset": "3", **ours}),
    ]
    assert ("patch", "pods") not in world.api.verbs()


def test_its_own_annotation_is_no_assignment(world: World) -> None:
    metadata = {
        "name": "lsr",
        "labels": {"koordinator.sh/qosClass": "LSR"},
        # As it was before the node started again; the CPUs are a pool's by now.
        "annotations": {STATUS: json.dumps({"cpuset": "8-9", "chosenBy": "cpupool"})},
    }
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}}
    containers = [{"name": "main", "resources": resources}]
    with world.agent(WRITES):
        run(world, "ls", "LS", "500m")
        world.node.run_pod(
            {"kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
        )
        right(world, ls="0,3-7", lsr="1-2")
        eventually(lambda: written(world), "the agent writes")
    assert written(world) == [("lsr", {"cpuset": "1-2", "chosenBy": "cpupool"})]


def test_without_the_right_the_pod_has_its_cpus_all_the_same(world: World) -> None:
    world.api.forbidden.add(("patch", "pods/status"))
    with world.agent(WRITES) as agent:
        run(world, "ls", "LS", "500m")
        run(world, "lsr", "LSR", "2")
        right(world, ls="0,3-7", lsr="1-2")
        eventually(lambda: world.api.count("patch", "pods/status") >= 2, "it tries again")
    lines = [line for line in agent.lines if "may not annotate pods" in line]
    assert len(lines) == 1
    assert "daemonsets/resource-status" in lines[0]


def test_without_the_setting_the_agent_writes_nothing(world: World) -> None:
    with world.agent():
        run(world, "ls", "LS", "500m")
        run(world, "lsr", "LSR", "2")
        right(world, ls="0,3-7", lsr="1-2")
        lsr = run(world, "lsr2", "LSR", "1")
        right(world, ls="0,4-7", lsr="1-2", lsr2="3")
        world.node.delete_pod(lsr.uid)
        right(world, ls="0,3-7", lsr="1-2")
    assert written(world) == []
