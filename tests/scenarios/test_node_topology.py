"""The agent publishes its node's topology at a real HTTP server, and keeps it right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cpupool.wire.node_topology import GROUP, PLURAL, V1ALPHA1, V1ALPHA2
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import NODE, living
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scenarios.test_agent_process import World

PATH = f"/apis/{GROUP}/{V1ALPHA2}/{PLURAL}/{NODE}"
POOLS = """
pools:
  exclusive_a: {cpus: "2-5"}
  default: {cpus: "0-1"}
nodeSelector: {role: worker}
"""
PUBLISHES = ("--node-topology", "zones")


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        world.api.crds = {GROUP: [V1ALPHA1, V1ALPHA2]}
        yield world


def available(world: World) -> int | None:
    """Return how many CPUs of the pool the object shows as available; None without an object."""
    if not world.api.has(PATH):
        return None
    return in_pool(world.api.kept(PATH))


def in_pool(body: dict[str, Any]) -> int:
    return sum(
        int(each["available"])
        for zone in body["zones"]
        for each in zone["resources"]
        if each["name"] == "nokia.k8s.io/exclusive_a"
    )


def await_available(world: World, cpus: int) -> None:
    eventually(lambda: available(world) == cpus, lambda: f"{available(world)}")


def test_a_pod_takes_its_cpus_off_the_nodes_object(world: World) -> None:
    with world.agent(*PUBLISHES):
        await_available(world, 4)
        owner = world.run("owner", exclusive_a=3)
        await_available(world, 1)
        world.node.delete_pod(owner.uid)
        await_available(world, 4)
        world.api.forget(PATH)
        await_available(world, 4)
    (reference,) = world.api.kept(PATH)["metadata"]["ownerReferences"]
    assert (reference["name"], reference["uid"]) == (NODE, f"{NODE}-uid")
    assert {verb for verb, resource in world.api.verbs() if resource == PLURAL} == {
        "list",
        "watch",
        "create",
        "patch",
    }


def test_an_agent_that_starts_again_writes_only_what_is_new(world: World) -> None:
    with world.agent(*PUBLISHES):
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=3)
        await_available(world, 1)
    written = len(world.api.updates)
    with world.agent(*PUBLISHES):
        world.await_pool("exclusive_a", 4)
        world.run("second", exclusive_a=1)
        await_available(world, 0)
    # It never shows the owner's CPUs as available.
    assert {in_pool(body) for _, body in world.api.updates[written:]} <= {0, 1}


def test_without_the_setting_the_agent_asks_for_no_object(world: World) -> None:
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=3)
        world.await_cpus(owner="2-4")
    assert not {resource for _, resource in world.api.verbs()} & {PLURAL, "apis"}


def test_without_the_crd_the_agent_does_its_other_work(world: World) -> None:
    world.api.crds = {}
    with world.agent(*PUBLISHES) as agent:
        agent.await_line("node's topology not published")
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=3)
        world.await_cpus(owner="2-4")
    assert agent.log.count("kubectl create -k daemonsets/topology-crd") == 1
    assert not world.api.has(PATH)
