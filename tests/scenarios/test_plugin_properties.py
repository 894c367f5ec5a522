"""Properties that plugins set beside CPUs and NUMA nodes, on a node with an agent process.

The cgroups are emulated: the files for CPU time and memory are written folders of version 1.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from cpupool.api.resourceplugin_pb2 import (
    AllocationEntry,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceAllocationResponse,
    ResourceRequest,
)
from tests.cgroups import overwrite
from tests.machines import MACHINES
from tests.property_folders import GIB, NO_LIMIT_V1
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    DEDICATED,
    POOLS,
    Plugin,
    agent,
    asked_by_the_runtime,
    body,
    cpus,
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

    from cpupool.api.nri_pb2 import LinuxContainerAdjustment
    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

NIC = "example.com/nic"
SHARES = "cpu/{}/cpu.shares"
LIMIT = "memory/{}/memory.limit_in_bytes"
SWAP = "memory/{}/memory.memsw.limit_in_bytes"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


@pytest.fixture
def plugged(folder: Path) -> Iterator[World]:
    """Make a node whose runtime asks the agent before it creates a container."""
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


class Setter(Plugin):
    """A plugin that sets properties; each is an accompanying resource of its answer.

    Attributes:
        sets: name in the CRI → value.
    """

    sets: dict[str, str]

    def now_sets(self, pod: Pod, name: str, value: str) -> None:
        """Change what a pod's container has."""
        for entry in self.known[pod.uid]["main"].resource_allocation:
            if entry.value.oci_property_name == name:
                entry.value.allocation_result = value

    def allocate(self, request: bytes) -> bytes:
        asked = ResourceRequest.FromString(request)
        entries = [
            AllocationEntry(
                key=f"{self.resource}-{name}",
                value=ResourceAllocationInfo(oci_property_name=name, allocation_result=value),
            )
            for name, value in self.sets.items()
        ]
        allocation = ResourceAllocation(resource_allocation=entries)
        self.known.setdefault(asked.pod_uid, {})[asked.container_name] = allocation
        return ResourceAllocationResponse(allocation_result=allocation).SerializeToString()


def adjusted(world: World, pod: Pod) -> LinuxContainerAdjustment:
    """Return what the runtime was asked to create a pod's container with."""
    (found,) = (
        each.instance.adjusted
        for each in world.node.processes()
        if (each.pod.uid, each.container) == (pod.uid, "main")
    )
    return found


def test_a_container_is_created_with_what_plugins_set(plugged: World) -> None:
    nic = Setter(plugged, NIC)
    nic.sets = {
        "CpuShares": "512",
        "CpuQuota": "25000",
        "CpuPeriod": "50000",
        "MemoryLimitInBytes": str(1 << 30),
        "MemorySwapLimitInBytes": "-1",
        "OomScoreAdj": "500",
    }
    with nic, Plugin(plugged) as plugin, asked_by_the_runtime(plugged) as process:
        served(process, f"cpu,{NIC}")
        plugin.gives = {"own": cpus("6-7")}
        own = plugged.node.run_pod(body("own", DEDICATED, cpu="2", **{NIC: "1"}))
        started(plugged, own)
        right(plugged, "0-5", own="6-7")
        plain = run(plugged, "plain", cpu="0")
        started(plugged, plain)

    linux = adjusted(plugged, own)
    cpu, memory = linux.resources.cpu, linux.resources.memory
    assert (cpu.cpus, cpu.shares.value) == ("6-7", 512)
    assert (cpu.quota.value, cpu.period.value) == (25_000, 50_000)
    assert (memory.limit.value, memory.swap.value) == (1 << 30, -1)
    assert linux.oom_score_adj.value == 500
    other = adjusted(plugged, plain)
    assert not other.resources.HasField("memory")
    assert not other.HasField("oom_score_adj")
    assert not other.resources.cpu.HasField("shares")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("CpuShares", "1", "CpuShares to '1'; it can be 2 to 262144"),
        ("CpuPeriod", "50000", "CpuPeriod is set without CpuQuota"),
        ("Unified", "io.weight=50", "this node has cgroup version 1"),
        ("Unified", "memory.oom_control=1", "stops a container instead of killing it"),
        ("HugepageLimits", "1", "'HugepageLimits', which no container has"),
    ],
)
def test_what_cannot_be_set_holds_the_pod_with_the_reason(
    plugged: World, name: str, value: str, why: str
) -> None:
    nic = Setter(plugged, NIC)
    nic.sets = {name: value}
    with nic, asked_by_the_runtime(plugged) as process:
        served(process, NIC)
        pod = plugged.node.run_pod(body("web", {}, **{NIC: "1"}))
        refused(plugged, pod, why)


def filled(world: World, pod: str) -> None:
    """Make the other cgroups of a pod's container, as a runtime does."""
    texts = {SHARES: "1024", LIMIT: NO_LIMIT_V1, SWAP: NO_LIMIT_V1}
    for place, text in texts.items():
        file = world.place.root / place.format(world.path(pod))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def kept(world: World, pod: str, **expected: str) -> None:
    """Wait until the files of a pod's container have this content."""
    places = {"shares": SHARES, "limit": LIMIT, "swap": SWAP}
    root, path = world.place.root, world.path(pod)

    def has() -> dict[str, str]:
        return {name: (root / places[name].format(path)).read_text().strip() for name in expected}

    eventually(lambda: has() == expected, lambda: f"{expected}: {has()}")


def test_a_running_container_follows_its_answer_and_keeps_it(world: World) -> None:
    nic = Setter(world, NIC, need_reconcile=True)
    nic.sets = {"CpuShares": "512", "MemoryLimitInBytes": str(GIB)}
    pod = world.node.run_pod(body("web", {}, **{NIC: "1"}))
    filled(world, "web")
    with nic, agent(world):
        kept(world, "web", shares="512", limit=str(GIB), swap="-1")

        nic.now_sets(pod, "CpuShares", "256")
        nic.now_sets(pod, "MemoryLimitInBytes", str(2 * GIB))
        kept(world, "web", shares="256", limit=str(2 * GIB), swap="-1")

        # A value that no container can have: the last good one stays.
        nic.now_sets(pod, "CpuShares", "1")
        overwrite(world.place.root / SHARES.format(world.path("web")), 1024)
        kept(world, "web", shares="256", limit=str(2 * GIB))


def test_memory_moves_with_the_pods_word_only(world: World) -> None:
    root = world.place.root / "cpuset"
    (root / "cpuset.mems").write_text("0-1\n")
    words = {"moves": "true", "stays": "false", "doubts": "maybe"}
    nic = Setter(world, NIC, need_reconcile=True)
    nic.sets = {"CpusetMems": "1"}
    pods = [
        world.node.run_pod(body(name, {"nokia.k8s.io/memory-migrates": word}, **{NIC: "1"}))
        for name, word in words.items()
    ]

    def nodes(name: str) -> str:
        return (root / world.path(name) / "cpuset.mems").read_text().strip()

    with nic, agent(world):
        eventually(lambda: nodes("moves") == "1", lambda: nodes("moves"))
        for pod in pods:
            nic.now_sets(pod, "CpusetMems", "0")
        eventually(lambda: nodes("moves") == "0", lambda: nodes("moves"))
        for name in ("stays", "doubts"):
            eventually(partial(world.events, "MemoryNodesMissed", name), f"an Event on {name}")
            assert nodes(name) == "0-1"
        why = world.await_event("MemoryMigrationUnreadable", "doubts")
    assert 'neither "true" nor "false"' in why
    assert {nodes("stays"), nodes("doubts")} == {"0-1"}
