"""What an admin and other programs see of resource plugins, on a node with an agent process."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool import cli
from cpupool.api import resourceplugin_pb2 as api
from cpupool.api.podresources_pb2 import AllocatableResourcesRequest, ListPodResourcesRequest
from cpupool.api.podresources_pb2_grpc import PodResourcesListerStub
from cpupool.api.resourceplugin_pb2 import ResourceAllocationInfo
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    DEDICATED,
    POOLS,
    Plugin,
    asked_by_the_runtime,
    body,
    cpus,
    served,
    started,
)
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.api.podresources_pb2 import AllocatableResourcesResponse, PodResources
    from tests.scenarios.test_agent_process import World

NIC = "example.com/nic"
ROLE = "kubernetes.io/pod-role"


@pytest.fixture
def plugged(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


@contextmanager
def podresources(world: World) -> Iterator[PodResourcesListerStub]:
    socket = world.folder / "var/lib/katalyst/pod-resources/kubelet.sock"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        yield PodResourcesListerStub(channel)


def listed(world: World) -> dict[str, PodResources]:
    """Ask the agent for the pods' resources, by the pods' names."""
    with podresources(world) as stub:
        answer = stub.List(ListPodResourcesRequest(), timeout=DEADLINE_S, wait_for_ready=True)
    return {pod.name: pod for pod in answer.pod_resources}


def allocatable(world: World) -> AllocatableResourcesResponse:
    """Ask the agent what the node has."""
    with podresources(world) as stub:
        found: AllocatableResourcesResponse = stub.GetAllocatableResources(
            AllocatableResourcesRequest(), timeout=DEADLINE_S, wait_for_ready=True
        )
    return found


def resources(world: World, name: str) -> dict[str, tuple[float, dict[int, float]]]:
    """Return resource → its amount, and NUMA node → its amount there, of a pod's container."""
    pods = listed(world)
    return {
        each.resource_name: (
            each.aggregated_quantity,
            {on.node: on.resource_value for on in each.topology_aware_quantity_list},
        )
        for container in (pods[name].containers if name in pods else ())
        for each in container.resources
    }


def test_a_third_partys_resource_is_among_the_pods_resources(plugged: World) -> None:
    nic = Plugin(plugged, NIC)
    nic.gives = {
        "web": ResourceAllocationInfo(
            envs={"NIC": "eth0"}, allocated_quantity=1.0, topology_assignments={0: 1}
        )
    }
    with nic, Plugin(plugged) as plugin, asked_by_the_runtime(plugged) as process:
        served(process, f"cpu,{NIC}")
        plugin.gives = {"web": cpus("1-2", allocated_quantity=2.0)}
        web = plugged.node.run_pod(body("web", {ROLE: "online"}, cpu="2", **{NIC: "1"}))
        started(plugged, web)
        has = {"cpu": (2.0, {0: 2.0}), NIC: (1.0, {0: 1.0})}
        eventually(lambda: resources(plugged, "web") == has, lambda: str(listed(plugged)))
        assert listed(plugged)["web"].pod_role == "online"


class NICPlugin(Plugin):
    """A third party's plugin that says which NIC a container has, and which the node has."""

    def __init__(self, world: World, name: str = "eth0") -> None:
        super().__init__(world, NIC)
        places = [api.TopologyAwareQuantity(resource_value=1.0, name=name, type="NIC")]
        each = api.TopologyAwareResource(
            aggregated_quantity=1.0, topology_aware_quantity_list=places
        )
        self.says = api.GetTopologyAwareResourcesResponse(
            container_topology_aware_resources=api.ContainerTopologyAwareResources(
                allocated_resources={NIC: each}
            )
        )
        self.answers("GetTopologyAwareResources", self.says)
        stock = api.AllocatableTopologyAwareResource(
            aggregated_allocatable_quantity=1.0, topology_aware_allocatable_quantity_list=places
        )
        self.answers(
            "GetTopologyAwareAllocatableResources",
            api.GetTopologyAwareAllocatableResourcesResponse(allocatable_resources={NIC: stock}),
        )
        self.gives = {"web": ResourceAllocationInfo(allocated_quantity=1.0)}


def nics(world: World) -> list[str]:
    """Return the names of the NICs of the pod `web`, by podresources."""
    pods = listed(world)
    return [
        place.name
        for container in (pods["web"].containers if "web" in pods else ())
        for each in container.resources
        if each.resource_name == NIC
        for place in each.topology_aware_quantity_list
    ]


def stock(world: World) -> list[str]:
    """Return the names of the node's NICs, by podresources."""
    return [
        place.name
        for each in allocatable(world).resources
        for place in each.topology_aware_allocatable_quantity_list
    ]


def test_a_nic_has_a_name_whatever_becomes_of_its_plugin(plugged: World) -> None:
    def has(name: str) -> None:
        eventually(lambda: nics(plugged) == [name], lambda: str(listed(plugged)))
        eventually(lambda: stock(plugged) == [name], lambda: str(allocatable(plugged)))

    end = threading.Event()

    def mute(_request: bytes) -> bytes:
        end.wait(DEADLINE_S)
        return b""

    asked = {"GetTopologyAwareResources", "GetTopologyAwareAllocatableResources"}
    with Plugin(plugged) as cpu, asked_by_the_runtime(plugged) as process:
        cpu.gives = {"web": cpus("1-2"), "other": cpus("1-2")}
        with NICPlugin(plugged) as plugin:
            served(process, f"cpu,{NIC}")
            web = plugged.node.run_pod(body("web", {}, cpu="2", **{NIC: "1"}))
            started(plugged, web)
            has("eth0")
            # It lies, and then it hangs: its last words stand, and the kubelet's part is there.
            for each in plugin.says.container_topology_aware_resources.allocated_resources.values():
                each.topology_aware_quantity_list[0].resource_value = float("nan")
            plugin.answers("GetTopologyAwareResources", plugin.says)
            has("eth0")
            plugin.replies |= dict.fromkeys(asked, mute)
            has("eth0")
            # While it hangs there, it is asked what it decides.
            plugin.gives["other"] = plugin.gives["web"]
            other = plugged.node.run_pod(body("other", {}, cpu="2", **{NIC: "1"}))
            started(plugged, other)
            end.set()
        # It is dead.
        has("eth0")
        with NICPlugin(plugged, "eth1"):
            has("eth1")


def test_the_status_names_plugins_answers_and_a_plugin_that_is_away(
    plugged: World, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plugged.folder / "run/cpupool/status.json"

    def status() -> Any:
        return json.loads(file.read_text()) if file.exists() else {"plugins": [], "containers": []}

    def shown() -> dict[str, list[dict[str, Any]]]:
        return {each["name"]: each["answers"] for each in status()["containers"]}

    def failing() -> str:
        return "".join(each["why"] for each in status()["plugins"])

    with Plugin(plugged, need_reconcile=True) as plugin, asked_by_the_runtime(plugged) as process:
        served(process)
        plugin.gives = {"own": cpus("6-7")}
        own = plugged.node.run_pod(body("own", DEDICATED, cpu="2"))
        started(plugged, own)
        eventually(
            lambda: (
                [each["values"] for each in shown().get("default/own/main", [])]
                == [{"CpusetCpus": "6-7"}]
            ),
            lambda: str(status()),
        )
        (there,) = status()["plugins"]
        assert (there["socket"], there["resource"]) == (str(plugin.socket), "cpu")
        cli.main(["explain", "own", "--file", str(file), "--topology", str(plugged.folder)])
        assert "the plugin for cpu has answered: CpusetCpus 6-7" in capsys.readouterr().out

        plugin.replies.pop("GetResourcesAllocation")
        eventually(lambda: "its allocations" in failing(), lambda: str(status()))
