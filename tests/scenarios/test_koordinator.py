"""Koordinator's classes of pods on a node, by an agent process: who runs where, and when."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_mixed_cpus import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.nri_runtime import FakeRuntime
    from tests.scenarios.test_agent_process import World

POOLS = """
pools:
  exclusive_a: {cpus: "8-9"}
  default: {cpus: "0-7"}
nodeSelector: {role: worker}
cpuManager: {policy: koordinator, reserved: "0-0"}
"""
ALL = "0-7"
CLASS = "koordinator.sh/qosClass"
STATUS = "scheduling.koordinator.sh/resource-status"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def run(world: World, name: str, qos: str, cpu: str = "", cpuset: str = "") -> Pod:
    """Start a pod of a class, with the CPUs that a scheduler has assigned."""
    container: dict[str, Any] = {"name": "main"}
    if cpu:
        container["resources"] = {"limits": {"cpu": cpu, "memory": "1Gi"}}
    annotations = {STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    metadata = {"name": name, "labels": {CLASS: qos}, "annotations": annotations}
    return world.node.run_pod(
        {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    )


def right(world: World, **cpus: str) -> None:
    """Wait until each pod's container has its CPUs; sandboxes have the CPUs of LS pods."""
    sandboxes = dict.fromkeys(cpus, cpus["ls"]) | {
        name: found for name, found in cpus.items() if name.startswith(("lse", "lsr"))
    }
    mains = {f"{name}/main": found for name, found in cpus.items()}
    world.await_containers(mains | {f"{name}/": found for name, found in sandboxes.items()})


def test_the_shared_sets_follow_the_owners(world: World) -> None:
    with world.agent():
        run(world, "ls", "LS", "500m")
        run(world, "be", "BE")
        right(world, ls=ALL, be=ALL)

        lsr = run(world, "lsr", "LSR", "2", "2-3")
        right(world, ls="0-1,4-7", be=ALL, lsr="2-3")

        run(world, "lse", "LSE", "1")
        right(world, ls="0,4-7", be="0,2-7", lsr="2-3", lse="1")

        world.node.delete_pod(lsr.uid)
        right(world, ls="0,2-7", be="0,2-7", lse="1")


def test_owners_keep_their_cpus_over_a_kill_of_the_agent(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        run(world, "ls", "LS", "500m")
        run(world, "lse", "LSE", "2", "5-6")
        right(world, ls="0-4,7", lse="5-6")
    world.disturb("ls", ALL)
    with world.agent():
        right(world, ls="0-4,7", lse="5-6")


def test_a_forged_set_is_confined_and_its_owner_hears_why(world: World) -> None:
    with world.agent():
        run(world, "ls", "LS", "500m")
        run(world, "lse", "LSE", "2", "8-9")

        told = world.await_event("UnexpectedAdmissionError", "lse")

        assert "the scheduler has assigned CPUs 8-9, but 8-9 are not the CPU manager's" in told
        world.await_containers({"ls/main": ALL, "ls/": ALL, "lse/main": ALL, "lse/": ALL})


def test_others_have_left_before_an_owner_is_created(world: World, runtime: FakeRuntime) -> None:
    with world.agent():
        nri = Runtime(world, runtime)
        ls = run(world, "ls", "LS", "500m")
        be = run(world, "be", "BE")
        right(world, ls=ALL, be=ALL)
        nri.create(ls, ALL, {})
        nri.create(be, ALL, {})

        lsr = run(world, "lsr", "LSR", "2", "2-3")
        # The API server may list the pod a moment later.
        answer = nri.create(lsr, "0-15", {}, {CLASS: "LSR"})

        assert answer.adjust.linux.resources.cpu.cpus == "2-3"
        assert {one.key: one.value for one in answer.adjust.env} == {"EXCLUSIVE_CPUS": "2-3"}
        moved = {update.container_id: update.linux.resources.cpu.cpus for update in answer.update}
        # The best-effort pod may stay.
        assert moved == {f"{nri.id_of(ls)}-again": "0-1,4-7"}
