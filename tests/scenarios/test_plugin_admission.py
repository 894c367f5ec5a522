"""How plugins of the QoS Resource Manager admit pods, on a node whose runtime asks the agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.resourceplugin_pb2 import (
    HintsEntry,
    ListOfTopologyHints,
    ResourceAllocationInfo,
    ResourceHintsResponse,
    ResourceRequest,
    TopologyHint,
)
from tests.machines import MACHINES
from tests.resource_plugins import Refusal
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    ALL,
    DEDICATED,
    POOLS,
    Plugin,
    agent,
    body,
    cpus,
    mains_of,
    refused,
    right,
    run,
    served,
    started,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.processes import Process
    from tests.scenarios.test_agent_process import World

NIC = "example.com/nic"
STATIC = """
pools:
  default: {cpus: "0-15"}
nodeSelector: {role: worker}
cpuManager: {policy: static, reserved: "0-0", topologyPolicy: restricted}
"""
"""CPUs 0-7 and 8-15 lie on two NUMA nodes."""


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


def test_a_pod_waits_for_a_plugin_that_has_never_registered(world: World) -> None:
    with agent(world):
        eventually(lambda: world.node.plugged, "the runtime asks the agent")
        own = run(world, "own", DEDICATED)
        refused(world, own, "the plugin for cpu has not answered for container main yet")
        started(world, run(world, "web"))
        with Plugin(world) as plugin:
            plugin.gives = {"own": cpus("6-7"), "web": cpus("1-2")}
            started(world, own)
            right(world, "0-5", own="6-7", web="1-2")


def test_a_plugin_that_registers_late_is_asked_about_a_pod_that_runs(world: World) -> None:
    restricted = 'reserved: "0-0", topologyPolicy: restricted'
    world.mount.show(worker=POOLS.replace('reserved: "0-0"', restricted))
    (world.place.root / "cpuset/cpuset.mems").write_text("0-1\n")
    migrates = {"nokia.k8s.io/memory-migrates": "true"}

    def plugin(resource: str) -> Plugin:
        made = Plugin(world, resource, with_topology_alignment=True)
        made.answers("GetTopologyHints", ResourceHintsResponse())
        return made

    def nodes() -> str:
        return (world.place.root / f"cpuset/{world.path('web')}/cpuset.mems").read_text().strip()

    with agent(world) as process:
        with plugin("cpu") as cpu:
            cpu.gives = {"web": cpus("1-4")}
            connected(world, process)
            started(world, run(world, "web", migrates, cpu="2", memory="1Gi"))
            right(world, ALL, web="1-4")
        cpu.socket.unlink(missing_ok=True)

        with plugin("memory") as memory:
            full = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "no memory is left")
            memory.gives = {"web": full}
            eventually(lambda: len(memory.allocated()) > 1, "the plugin is asked again")
            assert "no memory is left" in world.await_event("UnexpectedAdmissionError", "web")
            right(world, ALL, web="1-4")

            memory.gives = {
                "web": ResourceAllocationInfo(oci_property_name="CpusetMems", allocation_result="0")
            }
            eventually(lambda: nodes() == "0", nodes)
            right(world, ALL, web="1-4")


def test_a_pod_waits_for_a_named_resource_whose_plugin_has_never_registered(world: World) -> None:
    with agent(world, "--resource-plugin-names=memory=memory") as process, Plugin(world) as plugin:
        connected(world, process)
        plugin.gives = {"own": cpus("6-7")}
        own = run(world, "own", DEDICATED, cpu="2", memory="1Gi")
        refused(world, own, "the plugin for cpu and memory has not answered for container main")
        with Plugin(world, "memory") as memory:
            memory.gives = {"own": ResourceAllocationInfo()}
            started(world, own)
            right(world, "0-5", own="6-7")


def told(world: World, pod: str) -> dict[str, Any]:
    """Return what a pod's container reads of its own CPUs; nothing without a folder."""
    (mounts,) = (
        one.instance.mounts
        for one in world.node.processes()
        if (one.pod.name, one.container) == (pod, "main")
    )
    folder = mounts.get("/run/cpupool/self")
    found: dict[str, Any] = json.loads((folder / "cpus.json").read_text()) if folder else {}
    return found


def test_a_container_reads_what_its_plugin_has_changed(world: World) -> None:
    with Plugin(world, need_reconcile=True) as plugin:
        plugin.gives = {"own": cpus("6-7"), "web": cpus("1-2")}
        with agent(world) as process:
            connected(world, process)
            own, web = run(world, "own", DEDICATED), run(world, "web")
            started(world, own)
            started(world, web)
            first = told(world, "own")
            expected = {"cpus": "6-7", "assigned": "6-7", "baseline": "", "change": None}
            assert {**first, **expected} == first
            assert told(world, "web") == {}

            plugin.now_gives(own, "4-6")
            eventually(lambda: told(world, "own")["cpus"] == "4-6", lambda: f"{told(world, 'own')}")
            right(world, "0-3,7", own="4-6", web="1-2")
            moved = told(world, "own")
            assert moved["change"] == {"reason": "plugin", "removed": "7", "added": "4-5"}
            assert moved["generation"] > first["generation"]
        with agent(world):
            plugin.now_gives(own, "4-5")
            eventually(lambda: told(world, "own")["cpus"] == "4-5", lambda: f"{told(world, 'own')}")
            again = told(world, "own")
            assert again["change"] == {"reason": "plugin", "removed": "6", "added": ""}
            assert again["generation"] == moved["generation"] + 1


def guaranteed(world: World, name: str, cpu: str, **others: str) -> Pod:
    limits = {"cpu": cpu, "memory": "1Gi", **others}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return world.node.run_pod(
        {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}
    )


def test_cpus_of_the_static_policy_and_a_plugins_nic_lie_on_one_node(world: World) -> None:
    world.mount.show(worker=STATIC)
    hints = ListOfTopologyHints(hints=[TopologyHint(nodes=[1], preferred=True)])
    with (
        Plugin(world, NIC, with_topology_alignment=True) as nic,
        agent(world) as process,
    ):
        nic.answers(
            "GetTopologyHints",
            ResourceHintsResponse(resource_hints=[HintsEntry(key=NIC, value=hints)]),
        )
        nic.gives = dict.fromkeys(("near", "large", "late"), ResourceAllocationInfo())
        connected(world, process, NIC)
        started(world, guaranteed(world, "plain", "2"))
        started(world, guaranteed(world, "near", "2", **{NIC: "1"}))
        assert mains_of(world) == {"plain": "1-2", "near": "8-9"}
        (asked,) = map(ResourceRequest.FromString, nic.asked["Allocate"])
        assert list(asked.hint.nodes) == [1]

        # Node 0 has CPUs, but no NIC; the plugin keeps nothing for a pod that it cannot serve.
        large = guaranteed(world, "large", "5", **{NIC: "1"})
        started(world, large)
        late = guaranteed(world, "late", "2", **{NIC: "1"})
        refused(world, late, "no NUMA nodes serve all its resources (topologyPolicy restricted)")
        assert nic.allocated() == ["near", "large"]
        world.node.delete_pod(large.uid)
        started(world, late)
        assert mains_of(world) == {"plain": "1-2", "near": "8-9", "late": "10-11"}


def test_each_start_of_a_container_is_prepared(world: World) -> None:
    with Plugin(world, pre_start_required=True) as plugin, agent(world) as process:
        plugin.answers("PreStartContainer", b"")
        connected(world, process)
        plugin.gives = {"own": cpus("6-7")}
        own = world.node.run_pod(body("own", DEDICATED, cpu="2"))
        started(world, own)
        right(world, "0-5", own="6-7")
        for starts in (1, 2, 3):
            # A try that is given up leaves its preparation to the next.
            assert len(plugin.asked["PreStartContainer"]) == starts
            world.node.restart_container(own.uid, "main")
            started(world, own)
            right(world, "0-5", own="6-7")
        assert plugin.allocated() == ["own"]
