"""CPU-Pooler's users: their files run unedited, their nodes are taken over with pods running."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cpupool.agent.app import Agent
from cpupool.agent.setup import Setup
from cpupool.config import poolconfig
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.sysfs import RecordedTree, Sysfs
from cpupool.kube import views
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.cluster import EmbeddedCluster
from cpupool.local.node import EmbeddedNode
from cpupool.manager.manager import Manager
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import NO_NODE, Checkpoint, Entry, Generation
from tests import pods, testdata
from tests.loops import running
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import Pod
    from cpupool.host.root import HostRoot
    from cpupool.local.devices import Listing
    from cpupool.manager.ports import PodSource

SRIOV = Path(__file__).parents[2] / "examples/sriov.yaml"
"""Exclusive CPUs beside a device of another plugin in the same domain."""
MACHINE = "arm-phone-3clusters"  # eight cores of one thread
CONTROLLER = {"nodeType": "controller"}
"""exclusive-pool 4,5; exclusive-pool-2 2,3 (multiThreaded); shared-pool 1; default 0."""


@pytest.fixture
def folder(folder: Path) -> Path:
    """CPU-Pooler's sample pool files are mounted in it."""
    samples = testdata.folder() / "cpu-pooler"
    manifest = samples / "cpu-pooler-config.yaml"
    for source in poolconfig.sources(manifest.name, manifest.read_bytes(), []):
        mounted = folder / "etc" / source.name
        mounted.parent.mkdir(exist_ok=True)
        mounted.write_text(str(source.text))
    return folder


def offers(count: int, listing: Listing) -> bool:
    return listing.allocatable == count


def machine() -> Sysfs:
    recorded = testdata.folder() / "topologies" / f"{MACHINE}.tar.gz"
    return Sysfs(RecordedTree.from_archive(recorded))


def agent_of(settings: Setup, root: HostRoot, sysfs: Sysfs, pods: PodSource) -> Agent:
    return Agent(
        Manager(),
        settings,
        root,
        sysfs,
        lambda _metrics, _changed: EmbeddedCluster(pods, CONTROLLER),
    )


@contextmanager
def started(agent: Agent) -> Iterator[Agent]:
    agent.configure()
    with running(agent.run, wake=agent.wake):
        yield agent


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (
            "cpu-test.yaml",
            {
                "sharedtestcontainer": ("1", {"SHARED_CPUS": "1"}),
                "exclusivetestcontainer": ("1,4-5", {"EXCLUSIVE_CPUS": "4-5", "SHARED_CPUS": "1"}),
                "defaulttestcontainer": ("0", {}),
            },
        ),
        ("cpu-test-exclusive.yaml", {"cputest-exclusive": ("4-5", {"EXCLUSIVE_CPUS": "4-5"})}),
        (
            "cpu-test-shared-exclusive.yaml",
            {"cputest-exclusive": ("1,4-5", {"EXCLUSIVE_CPUS": "4-5", "SHARED_CPUS": "1"})},
        ),
        (SRIOV, {"main": ("4-5", {"EXCLUSIVE_CPUS": "4-5"})}),
    ],
    ids=["processes", "exclusive", "shared and exclusive", "sriov"],
)
def test_a_sample_pod_runs_unedited(
    folder: Path, manifest: str | Path, expected: dict[str, tuple[str, dict[str, str]]]
) -> None:
    sysfs = machine()
    settings = Setup(folder / "etc")
    with (
        EmulatedCgroups(folder, sysfs.online(), "a test") as place,
        # The agent is made after the node whose changes wake it.
        EmbeddedNode(folder, place, changed=lambda: agent.wake()) as node,  # noqa: PLW0108
        started(agent_of(settings, node.root, sysfs, node)) as agent,
    ):
        for pool, count in {"exclusive-pool": 2, "shared-pool": 1000}.items():
            node.kubelet.wait_for(f"nokia.k8s.io/{pool}", partial(offers, count), DEADLINE_S)
        text = (testdata.folder() / "cpu-pooler" / manifest).read_text()
        (body,) = pods.bodies(str(manifest), text)
        node.run_pod(body)
        tree = CgroupFS(node.root.cgroup, node.cgroup_root)

        def seen() -> dict[str, tuple[str, dict[str, str]]]:
            return {
                process.container: (
                    str(tree.effective(node.path_of(process))),
                    {
                        name: value
                        for name, value in process.instance.environment.items()
                        if name in ("EXCLUSIVE_CPUS", "SHARED_CPUS")
                    },
                )
                for process in node.processes()
                if process.container
            }

        eventually(lambda: seen() == expected, lambda: f"{expected}, but {seen()}")


class Listed:
    """Pods as the API server knows them."""

    def __init__(self, *pods: Pod) -> None:
        self._pods = pods

    def pods(self) -> tuple[Pod, ...]:
        return self._pods


@pytest.mark.parametrize("generation", Generation)
def test_a_node_is_taken_over_with_its_pods_running(folder: Path, generation: Generation) -> None:
    """CPU-Pooler has gone, its pods run, the kubelet is away: its checkpoint names the devices."""
    sysfs = machine()
    names = Names()
    uid, cid = "0aa1c9d2-1111-4222-8333-444455556666", "c" * 64
    body = yaml.safe_load((testdata.folder() / "cpu-pooler/cpu-test-exclusive.yaml").read_text())
    body["metadata"]["uid"] = uid
    body["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "cputest-exclusive",
                "containerID": f"containerd://{cid}",
                "state": {"running": {}},
            }
        ],
    }
    node = NO_NODE if generation is Generation.FLAT else 0
    # As CPU-Pooler's device plugin listed them: CPU ids, and milli-CPUs that say nothing.
    held = Entry(uid, "cputest-exclusive", "nokia.k8s.io/exclusive-pool", {node: ("5", "4")})
    registered = {
        "nokia.k8s.io/exclusive-pool": ("4", "5"),
        "nokia.k8s.io/shared-pool": tuple(str(number) for number in range(1000)),
    }
    with EmulatedCgroups(folder, sysfs.online(), "a test") as place:
        pod = f"kubepods/burstable/pod{uid}"
        place.make(f"{pod}/{cid}")
        root = EmbeddedNode(folder, place).root
        root.checkpoint.parent.mkdir(parents=True)
        root.checkpoint.write_bytes(
            device_checkpoint.encode(Checkpoint((held,), registered, generation))
        )
        tree = CgroupFS(root.cgroup)
        # CPU-Pooler never repaired a drift to another pool's CPUs.
        tree.write(f"{pod}/{cid}", CPUSet.parse("2-5"))
        pods: PodSource = Listed(views.pod(body, names))
        settings = Setup(folder / "etc")

        with started(agent_of(settings, root, sysfs, pods)):
            eventually(lambda: str(tree.effective(f"{pod}/{cid}")) == "4-5", "back on its CPUs")
