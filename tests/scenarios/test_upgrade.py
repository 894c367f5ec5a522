"""CPU-Pooler runs on a node with pods; cpupool takes over from it in place.

CPU-Pooler's device plugin is played over the real protocol, so that the kubelet's checkpoint is
what it would be; its cpusetter, by writing what that wrote.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from cpupool.api.deviceplugin_pb2 import AllocateResponse, ContainerAllocateResponse
from cpupool.core.cpuset import CPUSet
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import Generation
from tests import pods, testdata
from tests.machines import MACHINES
from tests.plugins import AnyPlugin
from tests.scenarios.test_agent_process import living

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from cpupool.api.deviceplugin_pb2 import AllocateRequest
    from tests.scenarios.test_agent_process import World

DOMAIN = "nokia.k8s.io"
EXCLUSIVE, MULTI_THREADED, SHARED = "exclusive-pool", "exclusive-pool-2", "shared-pool"
LISTED: dict[str, dict[str, int | None]] = {
    EXCLUSIVE: {"4": 0, "5": 0},
    MULTI_THREADED: {"2": 0, "3": 0},
    SHARED: {str(number): None for number in range(1000)},
}
"""What CPU-Pooler makes of its sample pools for nodeType=controller: 4,5; 2,3; 1; default 0."""
PODS = f"""
kind: Pod
metadata: {{name: packets}}
spec:
  initContainers:
    - {{name: prepare, resources: {{limits: {{{DOMAIN}/{MULTI_THREADED}: 1}}}}}}
    - {{name: proxy, restartPolicy: Always}}
  containers:
    - {{name: worker, resources: {{limits: {{{DOMAIN}/{MULTI_THREADED}: 1}}}}}}
---
kind: Pod
metadata: {{name: strayed}}
spec:
  containers:
    - {{name: main, resources: {{limits: {{{DOMAIN}/{SHARED}: 100}}}}}}
"""
RIGHT = {
    "cpupod/": "0",
    "cpupod/sharedtestcontainer": "1",
    "cpupod/exclusivetestcontainer": "1,4-5",
    "cpupod/defaulttestcontainer": "0",
    "packets/": "0",
    "packets/worker": "2,18",
    "strayed/": "0",
}
WRONG = {"packets/proxy": "0-31", "strayed/main": "0,4-5"}
"""CPU-Pooler passes over sidecars, and takes any set but all CPUs for right."""
MENDED = {"packets/proxy": "0", "strayed/main": "1"}


class Pooler(AnyPlugin):
    """CPU-Pooler's device plugin for one pool."""

    def __init__(self, pool: str) -> None:
        super().__init__(f"{DOMAIN}/{pool}")
        self.pool = pool
        self.list(LISTED[pool])

    def Allocate(self, request: AllocateRequest, context: object) -> AllocateResponse:  # noqa: N802
        answers = (told(self.pool, one.devices_ids) for one in request.container_requests)
        return AllocateResponse(
            container_responses=[ContainerAllocateResponse(envs=answer) for answer in answers]
        )


def told(pool: str, ids: Iterable[str]) -> dict[str, str]:
    """Give the variables that CPU-Pooler sets: CPUs n and n + 16 are one core of the machine."""
    if pool == SHARED:
        return {"SHARED_CPUS": "1"}
    cpus = CPUSet(map(int, ids))
    siblings = CPUSet(cpu + 16 for cpu in cpus if pool == MULTI_THREADED)
    return {"EXCLUSIVE_CPUS": str(cpus | siblings)}


@contextmanager
def cpu_pooler(world: World) -> Iterator[None]:
    """Let CPU-Pooler serve the kubelet."""
    root = world.node.root
    with ExitStack() as opened:
        for pool, devices in LISTED.items():
            plugin, endpoint = Pooler(pool), f"cpudp_{pool}.sock"
            opened.enter_context(plugin.serving(root.device_plugins / endpoint))
            plugin.register(root.kubelet_socket, endpoint)
            world.await_pool(pool, len(devices))
        yield


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    """A node with CPU-Pooler's ConfigMap and pods, where CPU-Pooler has just been deleted."""
    samples = testdata.folder() / "cpu-pooler"
    data = yaml.safe_load((samples / "cpu-pooler-config.yaml").read_text())["data"]
    texts = {
        key.removeprefix("poolconfig-").removesuffix(".yaml"): text for key, text in data.items()
    }
    sample = (samples / "cpu-test.yaml").read_text()
    machine = MACHINES["telco_2s_2n_16c32t"].write(folder)
    with living(folder, machine, {"nodeType": "controller"}) as world:
        world.mount.show(**texts)
        with cpu_pooler(world):
            for body in pods.bodies("pods", f"{sample}\n---\n{PODS}"):
                world.node.run_pod(body)
            for name, cpus in {**RIGHT, **WRONG}.items():
                world.tree.write(world.path(*name.split("/")), CPUSet.parse(cpus))
        yield world


def written_by(kubelet: Generation, world: World) -> None:
    """Let the checkpoint be one of such a kubelet."""
    world.node.kubelet.stop()
    file = world.node.root.checkpoint
    saved = device_checkpoint.parse(file.read_bytes())
    file.write_bytes(device_checkpoint.encode(replace(saved, generation=kubelet)))
    world.node.kubelet.start()


@pytest.mark.parametrize("kubelet", Generation)
def test_no_container_is_lost_and_none_that_is_right_is_touched(
    world: World, kubelet: Generation
) -> None:
    written_by(kubelet, world)
    stamps = {name: world.written_ns(*name.split("/")) for name in RIGHT}

    with world.agent():
        world.await_containers({**RIGHT, **MENDED})
        # The same resources with the same devices, so that no pod loses its own.
        for pool, devices in LISTED.items():
            world.await_pool(pool, len(devices))
            listing = world.node.kubelet.listing(f"{DOMAIN}/{pool}")
            assert listing.healthy == devices.keys()
        world.node.kubelet.restart()
        for pool, devices in LISTED.items():
            world.await_pool(pool, len(devices))
        assert world.node.admit_again() == {}

        world.run("next", **{MULTI_THREADED: 1})
        world.await_containers({**RIGHT, **MENDED, "next/": "0", "next/main": "3,19"})
        environments = {one.pod.name: one.instance.environment for one in world.node.processes()}
        assert environments["next"]["EXCLUSIVE_CPUS"] == "3,19"
    assert {name: world.written_ns(*name.split("/")) for name in RIGHT} == stamps
