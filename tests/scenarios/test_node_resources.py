"""`--write-node-resources`: what a plugin offers is in the node's status, over real HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.api.resourceplugin_pb2 import ResourceAllocationInfo
from cpupool.core.workloads import NodeAmount
from cpupool.kube import views
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import POOLS, Plugin, agent, run
from tests.unit.qrm.plugin_rounds.test_offers import ASKED, offer
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.scenarios.test_agent_process import World

WRITES = "--write-node-resources"
BANDWIDTH, GPU = "resource.katalyst.kubewharf.io/net_bandwidth", "example.com/gpu"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def path(world: World) -> str:
    return f"/api/v1/nodes/{world.api.node}"


def present(world: World) -> Mapping[str, NodeAmount]:
    return views.node(world.api.kept(path(world))).resources


def as_kubelet(world: World, **amounts: str) -> None:
    status = {"capacity": amounts, "allocatable": amounts}
    world.api.change_as("kubelet", path(world), {"status": status})


def ours(amount: int) -> NodeAmount:
    return NodeAmount(amount, amount, ours=True)


def nic(world: World, amount: float) -> Plugin:
    plugin = Plugin(world, BANDWIDTH)
    plugin.answers(ASKED, offer(amount, BANDWIDTH))
    return plugin


def test_pods_can_request_what_a_plugin_offers_for_the_node(world: World) -> None:
    as_kubelet(world, **{GPU: "2", "cpu": "8"})
    with nic(world, 9000), agent(world, WRITES):
        eventually(lambda: present(world).get(BANDWIDTH) == ours(9000), "the agent writes")

        # The kubelet does so after the node was set up anew.
        as_kubelet(world, **{BANDWIDTH: "0"})
        eventually(lambda: present(world).get(BANDWIDTH) == ours(9000), "the agent writes again")
    assert present(world)[GPU] == NodeAmount(2, 2)
    assert {verb for verb, resource in world.api.verbs() if resource == "nodes/status"} == {"patch"}

    # Another agent knows what the first one has written, and the plugin offers something else.
    with nic(world, 4500), agent(world, WRITES):
        eventually(lambda: present(world).get(BANDWIDTH) == ours(4500), "another agent writes")
    assert world.api.kept(path(world))["status"]["capacity"]["cpu"] == "8"


def test_without_the_right_the_log_names_the_overlay_once(world: World) -> None:
    world.api.forbidden.add(("patch", "nodes/status"))
    with nic(world, 9000), agent(world, WRITES) as process:
        eventually(lambda: world.api.count("patch", "nodes/status") >= 2, "it tries again")
    (line,) = [line for line in process.lines if "resources not written" in line]
    assert "daemonsets/node-resources" in line
    assert present(world) == {}


def test_without_the_setting_no_plugin_is_asked_and_nothing_is_written(world: World) -> None:
    with nic(world, 9000) as plugin, agent(world):
        plugin.gives = {"web": ResourceAllocationInfo()}
        run(world, "web", {}, **{BANDWIDTH: "1"})
        eventually(lambda: plugin.allocated() == ["web"], "the plugin is asked for the pod")
    assert not plugin.asked[ASKED]
    assert world.api.count("patch", "nodes/status") == 0
