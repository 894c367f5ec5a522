"""Plugins of the QoS Resource Manager on a node: they decide, and an agent process enforces."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.api.resourceplugin_pb2 import (
    AllocationEntry,
    ContainerResources,
    GetResourcesAllocationResponse,
    RemovePodRequest,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceAllocationResponse,
    ResourceRequest,
)
from tests.machines import MACHINES
from tests.resource_plugins import PluginDouble, Refusal
from tests.scenarios.test_agent_process import living
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.processes import Process
    from tests.scenarios.test_agent_process import World

POOLS = """
pools:
  default: {cpus: "0-7"}
nodeSelector: {role: worker}
cpuManager: {policy: qrm, reserved: "0-0"}
"""
ALL = "0-7"
QOS = "katalyst.kubewharf.io/qos_level"
DEDICATED = {QOS: "dedicated_cores"}


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def agent(
    world: World, *options: str, end: int = signal.SIGTERM
) -> AbstractContextManager[Process]:
    return world.agent("--resource-plugins", "--resource-plugin-reconcile=0.1", *options, end=end)


class Plugin(PluginDouble):
    """A plugin with a state: it gives each container what a test says, by the pod's name.

    Attributes:
        gives: pod → what its containers have.
        known: pod UID → container → what it has.
    """

    def __init__(self, world: World, resource: str = "cpu", **options: bool) -> None:
        folder = world.folder / "var/lib/cpupool/resource-plugins"
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / f"{resource}.sock", resource, **options)
        self.resource = resource
        self.gives: dict[str, ResourceAllocationInfo | Refusal] = {}
        self.known: dict[str, dict[str, ResourceAllocation]] = {}
        self.replies |= {
            "Allocate": self.allocate,
            "GetResourcesAllocation": self.allocations,
            "RemovePod": self.remove,
        }

    def allocate(self, request: bytes) -> bytes:
        asked = ResourceRequest.FromString(request)
        given = self.gives[asked.pod_name]
        if isinstance(given, Refusal):
            raise given
        entry = AllocationEntry(key=self.resource, value=given)
        allocation = ResourceAllocation(resource_allocation=[entry])
        self.known.setdefault(asked.pod_uid, {})[asked.container_name] = allocation
        return ResourceAllocationResponse(allocation_result=allocation).SerializeToString()

    def allocations(self, _request: bytes) -> bytes:
        return GetResourcesAllocationResponse(
            pod_resources={
                uid: ContainerResources(container_resources=containers)
                for uid, containers in self.known.items()
            }
        ).SerializeToString()

    def remove(self, request: bytes) -> bytes:
        self.known.pop(RemovePodRequest.FromString(request).pod_uid, None)
        return b""

    def now_gives(self, pod: Pod, cpus: str) -> None:
        """Change what a pod's container has."""
        self.known[pod.uid]["main"].resource_allocation[0].value.allocation_result = cpus

    def allocated(self) -> list[str]:
        """Return the pods for which it was asked to allocate, in order."""
        return [ResourceRequest.FromString(each).pod_name for each in self.asked["Allocate"]]


def cpus(text: str, **fields: Any) -> ResourceAllocationInfo:
    return ResourceAllocationInfo(
        oci_property_name="CpusetCpus", allocation_result=text, is_scalar_resource=True, **fields
    )


def body(name: str, annotations: dict[str, str], **requests: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": requests}}
    metadata = {"name": name, "annotations": annotations}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def run(world: World, name: str, annotations: dict[str, str] | None = None, **requests: str) -> Pod:
    return world.node.run_pod(body(name, annotations or {}, **(requests or {"cpu": "2"})))


def right(world: World, shared: str, **mains: str) -> None:
    """Wait until each pod's container has its CPUs, and each sandbox the shared ones."""
    sandboxes = {f"{name}/": shared for name in mains}
    world.await_containers(sandboxes | {f"{name}/main": found for name, found in mains.items()})


def test_a_plugin_says_which_cpus_containers_have(world: World) -> None:
    with Plugin(world) as plugin, agent(world):
        plugin.gives = {"web": cpus("1-4"), "own": cpus("6-7")}
        run(world, "web")
        run(world, "none", cpu="0")
        right(world, ALL, web="1-4", none=ALL)

        own = run(world, "own", DEDICATED)
        right(world, "0-5", web="1-4", none="0-5", own="6-7")

        world.node.delete_pod(own.uid)
        right(world, ALL, web="1-4", none=ALL)
        eventually(lambda: own.uid not in plugin.known, "the plugin has forgotten the pod")
        assert plugin.allocated() == ["web", "own"]
