"""A CPU manager policy of a few lines drives a node: selected in the pool file, asked through NRI.

The policy is no part of cpupool (`tests.round_robin`), and no other module knows it.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_mixed_cpus import Runtime, guaranteed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.nri_runtime import FakeRuntime
    from tests.scenarios.test_agent_process import World

PROGRAM = "tests.round_robin"
POOLS = """
pools:
  exclusive_a: {cpus: "8-9"}
  default: {cpus: "0-5"}
nodeSelector: {role: worker}
cpuManager: {policy: round-robin}
"""


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def test_containers_get_and_keep_cpus_of_their_own(world: World, runtime: FakeRuntime) -> None:
    with world.agent(program=PROGRAM, end=signal.SIGKILL):
        nri = Runtime(world, runtime)
        first = guaranteed(world, "first", 2)
        second = guaranteed(world, "second", 1)
        world.run("plain")
        placed = {"first/main": "1-2", "second/main": "3"}
        rest = {"first/": "0,4-5", "second/": "0,4-5", "plain/": "0,4-5", "plain/main": "0,4-5"}
        world.await_containers({**placed, **rest})

        answer = nri.create(first, "0-15", {}).adjust
        assert answer.linux.resources.cpu.cpus == "1-2"
        assert {one.key: one.value for one in answer.env} == {"EXCLUSIVE_CPUS": "1-2"}
        assert answer.annotations == {"nokia.k8s.io/cpus-chosen": "1-2"}

    nri.lose()
    world.disturb("plain", "0-15")
    with world.agent(program=PROGRAM):
        nri.regain(first, second)
        world.await_containers({**placed, **rest})
        world.disturb("first", "3")
        world.await_containers({**placed, **rest})

        # It comes after those who have CPUs already.
        third = guaranteed(world, "third", 2)
        rest |= dict.fromkeys(rest, "0") | {"third/": "0"}
        world.await_containers({**placed, **rest, "third/main": "4-5"})
        assert nri.create(third, "0-15", {}).adjust.linux.resources.cpu.cpus == "4-5"

        # What a pod has had is everybody's when it has ended, and then the next owner's.
        nri.end(first)
        world.node.delete_pod(first.uid)
        placed = {"second/main": "3", "third/main": "4-5"}
        rest = {one: "0-2" for one in rest if one != "first/"}
        world.await_containers({**placed, **rest})
        fourth = guaranteed(world, "fourth", 1)
        rest = dict.fromkeys(rest, "0,2") | {"fourth/": "0,2"}
        world.await_containers({**placed, **rest, "fourth/main": "1"})
        assert nri.create(fourth, "0-15", {}).adjust.linux.resources.cpu.cpus == "1"
