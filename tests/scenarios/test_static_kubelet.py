"""Koordinator's classes beside the kubelet's static CPU manager: two who give out CPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpuset import CPUSet
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_mixed_cpus import Runtime
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.nri_runtime import FakeRuntime
    from tests.scenarios.test_agent_process import World

POLICY = """
nodeSelector: {role: worker}
cpuManager: {policy: koordinator, reserved: "0-0"}
"""
POOL = 'pools: {exclusive_a: {cpus: "14-15"}}\n'
ALL = "0-15"
STATUS = "scheduling.koordinator.sh/resource-status"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POLICY)
        world.node.kubelet.static_cpus = CPUSet.parse("1-15")
        yield world


def run(world: World, name: str, qos: str, *cpus: str, cpuset: str = "") -> Pod:
    """Start a pod of a class; each of at most two amounts of cpu is a container's."""
    containers: list[dict[str, Any]] = [
        {"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}
        for name, cpu in zip(("main", "side"), cpus, strict=False)
    ]
    metadata: dict[str, Any] = {"name": name, "labels": {"koordinator.sh/qosClass": qos}}
    if cpuset:
        metadata["annotations"] = {STATUS: json.dumps({"cpuset": cpuset})}
    spec = {"containers": containers or [{"name": "main"}]}
    return world.node.run_pod({"kind": "Pod", "metadata": metadata, "spec": spec})


def test_each_keeps_off_what_the_other_has_given(world: World, runtime: FakeRuntime) -> None:
    with world.agent_here():
        nri = Runtime(world, runtime)
        ls, be = run(world, "ls", "LS", "500m"), run(world, "be", "BE")
        world.await_containers(dict.fromkeys(("ls/", "ls/main", "be/", "be/main"), ALL))

        own = run(world, "own", "", "2")
        lsr = run(world, "lsr", "LSR", "500m", "500m", cpuset="6")
        run(world, "both", "LSR", "2", cpuset="8-9")

        shared = dict.fromkeys(("ls/", "ls/main", "be/", "own/", "both/"), "0,5,7-15")
        placed = shared | {"be/main": "0,5-15", "own/main": "1-2", "both/main": "3-4"}
        world.await_containers(placed | dict.fromkeys(("lsr/", "lsr/main", "lsr/side"), "6"))
        assert nri.create(own, ALL, {}).adjust.linux.resources.cpu.cpus == "1-2"

        # The kubelet writes the CPUs that nobody has of it, also those of the LSR pod.
        nri.update(ls, "0,5-15")
        nri.update(be, "0,5-15")
        world.node.delete_pod(lsr.uid)
        world.await_containers(placed | dict.fromkeys((*shared, "be/main"), "0,5-15"))


def test_without_nri_nothing_is_placed(world: World, runtime: FakeRuntime) -> None:
    with world.agent_here() as agent:
        nri = Runtime(world, runtime)
        run(world, "own", "", "2")
        world.await_containers({"own/": "0,3-15", "own/main": "1-2"})

        nri.lose()

        eventually(lambda: "enable NRI" in str(agent.health.ready()), "it says what lacks")


def test_nor_is_anything_beside_pools(world: World, runtime: FakeRuntime) -> None:
    world.mount.show(worker=POOL + POLICY)
    with world.agent_here():
        run(world, "own", "", "2")

        told = world.await_event("KubeletCPUManagerStatic")

        assert "remove the exclusive and shared pools from the pool file" in told
        assert world.containers() == {"own/": ALL, "own/main": ALL}
        world.mount.show(worker=POLICY)
        Runtime(world, runtime)
        world.await_containers({"own/": "0,3-15", "own/main": "1-2"})
