"""What an admin and other programs see of resource plugins, on a node with an agent process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool import cli
from cpupool.api.podresources_pb2 import ListPodResourcesRequest
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

    from cpupool.api.podresources_pb2 import PodResources
    from tests.scenarios.test_agent_process import World

NIC = "example.com/nic"
ROLE = "kubernetes.io/pod-role"


@pytest.fixture
def plugged(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


def listed(world: World) -> dict[str, PodResources]:
    """Ask the agent for the pods' resources, by the pods' names."""
    socket = world.folder / "var/lib/katalyst/pod-resources/kubelet.sock"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        answer = PodResourcesListerStub(channel).List(
            ListPodResourcesRequest(), timeout=DEADLINE_S, wait_for_ready=True
        )
    return {pod.name: pod for pod in answer.pod_resources}


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
