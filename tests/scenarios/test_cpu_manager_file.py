"""A pool file with nothing but a CPU manager policy, edited under a running agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_mixed_cpus import guaranteed
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scenarios.test_agent_process import World

STATIC = "nodeSelector: {role: worker}\ncpuManager: {policy: static, reserved: 2}\n"
NONE = "nodeSelector: {role: worker}\npools: {default: {cpus: 0-15}}\n"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=STATIC)
        yield world


def test_the_whole_machine_is_the_default_pool_of_a_file_without_pools(world: World) -> None:
    with world.agent():
        guaranteed(world, "first", 2)
        world.run("plain")
        rest = dict.fromkeys(("first/", "plain/", "plain/main"), "0-1,4-15")
        world.await_containers({**rest, "first/main": "2-3"})

        world.mount.show(worker=STATIC.replace("reserved: 2", "reserved: 0-4"))
        eventually(lambda: "reserved from 2 CPUs to CPUs 0-4" in told(world), "the edit")
        guaranteed(world, "second", 1)
        rest = dict.fromkeys((*rest, "second/"), "0-1,4,6-15")
        world.await_containers({**rest, "first/main": "2-3", "second/main": "5"})

        world.mount.show(worker=STATIC.replace("reserved: 2", "reserved: 16"))
        eventually(lambda: "16 of the 16 CPUs of the default pool" in told(world), "a refusal")
        world.await_containers({**rest, "first/main": "2-3", "second/main": "5"})

        world.mount.show(worker=NONE)
        eventually(lambda: "cpuManager.policy from static to none" in told(world), "the edit")
        world.await_containers({**rest, "first/main": "2-3", "second/main": "5"})


def told(world: World) -> str:
    """Return the messages of all Events about pool files."""
    reasons = ("CPUPoolConfigApplied", "CPUPoolConfigInvalid")
    return " ".join(event["message"] for reason in reasons for event in world.events(reason))
