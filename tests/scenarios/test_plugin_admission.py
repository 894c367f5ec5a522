"""How plugins of the QoS Resource Manager admit pods, on a node whose runtime asks the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.api.resourceplugin_pb2 import ResourceRequest
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    DEDICATED,
    POOLS,
    Plugin,
    agent,
    body,
    cpus,
    refused,
    right,
    served,
    started,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.processes import Process
    from tests.scenarios.test_agent_process import World


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


def connected(world: World, process: Process, resources: str = "cpu") -> None:
    eventually(lambda: world.node.plugged, "the runtime asks the agent")
    served(process, resources)


def test_a_plugin_serves_a_resource_under_another_name(world: World) -> None:
    milli = "example.com/milli"
    with (
        Plugin(world) as plugin,
        agent(world, f"--resource-plugin-names={milli}=cpu:1000") as process,
    ):
        connected(world, process)
        plugin.gives = {"web": cpus("1-4")}
        started(world, world.node.run_pod(body("web", DEDICATED, **{milli: "2500"})))
        right(world, "0,5-7", web="1-4")
        (asked,) = map(ResourceRequest.FromString, plugin.asked["Allocate"])
        assert dict(asked.resource_requests) == {"cpu": 2.5}

        both = world.node.run_pod(body("both", DEDICATED, **{milli: "2500", "cpu": "1"}))
        refused(world, both, f"requests cpu and {milli}")
        assert plugin.allocated() == ["web"]
