"""Koordinator's classes of pods on a node, by an agent process: who runs where, and when."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.machines import MACHINES, Machine
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


LARGE = """
pools:
  default: {cpus: "0-23,32-55"}
  exclusive_dpdk: {cpus: "24-31"}
cpuManager: {policy: koordinator, reserved: "0,32"}
"""


def test_an_owner_has_as_many_cpus_as_the_scheduler_counts(folder: Path) -> None:
    machine = Machine(sockets=2, cores=16, threads=2).write(folder)
    own = {"cpu": "4", "memory": "2Gi"}
    four = {"name": "main", "resources": {"limits": own}}
    part = {"name": "main", "resources": {"limits": {"cpu": "3500m", "memory": "2Gi"}}}
    bare = {"name": "main"}
    assigned = {
        "overhead": ("8-10,40-41", {"containers": [four], "overhead": {"cpu": "1"}}),
        "parts": ("11-12,43-44", {"containers": [part], "overhead": {"cpu": "500m"}}),
        "level": (
            "13-14,45-46",
            {"containers": [bare], "resources": {"requests": own, "limits": own}},
        ),
    }
    with living(folder, machine, {}) as world:
        world.mount.show(worker=LARGE)
        with world.agent():
            for name, (cpus, spec) in assigned.items():
                metadata = {
                    "name": name,
                    "labels": {CLASS: "LSR"},
                    "annotations": {STATUS: json.dumps({"cpuset": cpus})},
                }
                world.node.run_pod({"kind": "Pod", "metadata": metadata, "spec": spec})
            owned = {
                f"{name}/{part}": cpus
                for name, (cpus, _) in assigned.items()
                for part in ("", "main")
            }
            world.await_containers(owned)


def test_a_pod_that_breaks_a_rule_is_served_and_told(world: World) -> None:
    limits = {"cpu": "2", "memory": "1Gi"}
    unequal = {"limits": limits, "requests": {**limits, "memory": "512Mi"}}
    fraction = {"limits": {**limits, "cpu": "1500m"}}
    spec = "scheduling.koordinator.sh/resource-spec"
    unknown = json.dumps({"preferredCPUBindPolicy": "FullPCPUsOnly"})
    pods: list[tuple[str, str, Any, dict[str, str]]] = [
        ("lse", "LSE", unequal, {}),
        ("fraction", "LSE", fraction, {}),
        ("lsr", "LSR", {"limits": limits}, {spec: unknown, STATUS: json.dumps({"cpuset": "6-7"})}),
        ("typo", "LSX", {"limits": limits}, {}),
        ("none", "LSR", {"limits": limits}, {spec: json.dumps({"preferredCPUBindPolicy": "None"})}),
    ]
    with world.agent():
        for name, qos, resources, annotations in pods:
            metadata = {"name": name, "labels": {CLASS: qos}, "annotations": annotations}
            containers = [{"name": "main", "resources": resources}]
            world.node.run_pod(
                {"kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
            )
        shared = dict.fromkeys(("fraction", "typo", "none"), "0,3-5")
        placed = {"lse": "1-2", "lsr": "6-7", **shared}
        world.await_containers(
            {f"{name}/{part}": cpus for name, cpus in placed.items() for part in ("", "main")}
        )

        told = {
            "lse": ("CPUClassIrregular", "requests '512Mi' of memory and has the limit '1Gi'"),
            "fraction": ("CPUClassIrregular", "this one requests 1500m and shares"),
            "lsr": ("CPUAnnotationUnreadable", "preferredCPUBindPolicy 'FullPCPUsOnly'"),
            "typo": ("CPUAnnotationUnreadable", "is 'LSX'; write one of LSE, LSR, LS"),
        }
        for name, (reason, said) in told.items():
            assert said in world.await_event(reason, name)
