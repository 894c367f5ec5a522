"""The agent as a node runs it, a process with an API server, and the command that looks at it."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.agent.app import Agent
from cpupool.agent.changes import Change
from cpupool.agent.setup import Setup
from cpupool.api.deviceplugin_pb2 import ContainerAllocateResponse
from cpupool.core.errors import PodRefused
from cpupool.core.names import Names
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.sysfs import Sysfs
from cpupool.kube.client import APIServer
from cpupool.kube.cluster_view import ClusterView
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from cpupool.manager.manager import Manager
from cpupool.wire import device_checkpoint
from tests.apiserver import FakeAPIServer
from tests.cgroups import overwrite
from tests.machines import MACHINES
from tests.mounts import Mount
from tests.processes import ForkedProcess, Process
from tests.unit.agent import test_app
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike
    from pathlib import Path

    from cpupool.agent.changes import Signals
    from cpupool.core.workloads import Pod
    from cpupool.local.cgroups import Cgroups
    from cpupool.telemetry.metrics import Metrics
    from tests.machines import WrittenMachine

log = logging.getLogger(__name__)

NODE = "worker-1"
POOLS = """
pools:
  exclusive_a: {cpus: "2-5"}
  shared_b: {cpus: "6-7"}
  default: {cpus: "0-1"}
nodeSelector: {role: worker}
"""
SMALLER = POOLS.replace('"2-5"', '"2-4"')
SMALLEST = POOLS.replace('"2-5"', '"2-3"')
CONFIG_MAP = "/api/v1/namespaces/cpupool/configmaps/cpu-pooler-configmap"
FOLLOWED = ("--configmap", "cpupool/cpu-pooler-configmap")
APPLIED = "pool configuration applied"


@dataclass
class World:
    """A node whose agent is a process of its own."""

    folder: Path
    machine: WrittenMachine
    place: Cgroups
    node: EmbeddedNode
    api: FakeAPIServer
    mount: Mount

    @contextmanager
    def agent(
        self,
        *options: str,
        before: Sequence[str] = (),
        end: int = signal.SIGTERM,
        program: str = "cpupool",
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Process]:
        command: tuple[str | PathLike[str], ...] = (
            *("agent", "--host-root", self.folder, "--config", self.mount.folder),
            *("--api-server", self.api.url, "--node-name", NODE, "--metrics-port", "0"),
            # Nothing is found by looking again: every step must be an event.
            *("--sweep-interval", "10"),
            *options,
        )
        process = (
            Process(*before, sys.executable, "-W", "error", "-m", program, *command)
            if before
            else ForkedProcess(*command, program=program, environment=environment)
        )
        with process.collecting(end):
            yield process

    @contextmanager
    def agent_here(
        self, *, moves_pinned: bool = True, starter: Path | None = None
    ) -> Iterator[Agent]:
        """Run the agent in this process, where its probes have a port and the kernel no say."""
        settings = Setup(
            self.mount.folder, interval_s=10.0, telemetry=("127.0.0.1", 0), starter=starter
        )
        sysfs, server = Sysfs.at(self.machine.sys), APIServer.at(self.api.url)

        def join(metrics: Metrics, signals: Signals) -> ClusterView:
            pods, cluster = signals.of(Change.PODS), signals.of(Change.CLUSTER)
            return ClusterView(server, NODE, Names(), metrics, cluster, pods_changed=pods)

        manager = Manager(moves_pinned=moves_pinned)
        agent = Agent(manager, settings, self.node.root, sysfs, join)
        with test_app.started(agent):
            yield agent

    def run(self, name: str, **pools: int) -> Pod:
        """Start a pod once the node takes it, as a controller and a scheduler would."""
        started: list[Pod] = []
        refusals = [""]

        def taken() -> bool:
            try:
                started.append(self.run_now(name, **pools))
            except PodRefused as refused:
                refusals.append(str(refused))
            return bool(started)

        eventually(taken, lambda: refusals[-1])
        return started[0]

    def run_now(self, name: str, **pools: int) -> Pod:
        amounts = {f"nokia.k8s.io/{pool}": str(amount) for pool, amount in pools.items()}
        return self.node.run_pod(
            {
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {"containers": [{"name": "main", "resources": {"limits": amounts}}]},
            }
        )

    def replies(self, pod: Pod) -> list[ContainerAllocateResponse]:
        """Give what Allocate has answered for a pod, as the kubelet keeps it."""
        saved = device_checkpoint.parse(self.node.root.checkpoint.read_bytes())
        return [
            ContainerAllocateResponse.FromString(one.alloc_resp)
            for one in saved.entries
            if one.pod_uid == pod.uid
        ]

    def mounts(self, pod: Pod) -> dict[str, str]:
        """Give container path → host path of what a pod's container has mounted read-only."""
        return {
            mount.container_path: mount.host_path
            for reply in self.replies(pod)
            for mount in reply.mounts
            if mount.read_only
        }

    def disturb(self, pod: str, cpus: str) -> None:
        """Write other CPUs into a pod's container, as somebody else might."""
        self.overwrite(self.path(pod), cpus)

    def overwrite(self, path: str, cpus: str) -> None:
        """Write other CPUs into a cgroup."""
        overwrite(self.place.root / "cpuset" / path / "cpuset.cpus", cpus)

    def path(self, pod: str, container: str = "main") -> str:
        """Give a container's cgroup."""
        (found,) = (
            self.node.path_of(one)
            for one in self.node.processes()
            if (one.pod.name, one.container) == (pod, container)
        )
        return found

    def written_ns(self, pod: str, container: str = "main") -> int:
        """Tell when a container's set was last written."""
        directory = self.place.root / "cpuset" / self.path(pod, container)
        return (directory / "cpuset.cpus").stat().st_mtime_ns

    def cpus(self) -> dict[str, str]:
        return {
            process.pod.name: str(self.tree.effective(self.node.path_of(process)))
            for process in self.node.processes()
            if process.container
        }

    def await_cpus(self, **expected: str) -> None:
        eventually(lambda: self.cpus() == expected, lambda: f"{expected}: {self.cpus()}")

    def containers(self) -> dict[str, str]:
        """Give `pod/container` → CPUs; a sandbox has no name of its own."""
        return {
            f"{one.pod.name}/{one.container}": str(self.tree.effective(self.node.path_of(one)))
            for one in self.node.processes()
        }

    def await_containers(self, expected: Mapping[str, str]) -> None:
        eventually(
            lambda: self.containers() == expected, lambda: f"{expected}: {self.containers()}"
        )

    def await_pool(self, pool: str, healthy: int) -> None:
        self.node.kubelet.wait_for(
            f"nokia.k8s.io/{pool}", lambda listing: listing.allocatable == healthy, DEADLINE_S
        )

    def event(self, reason: str) -> dict[str, str] | None:
        """Give the last Event on the node with this reason."""
        found = self.events(reason)
        return found[-1] if found else None

    def events(self, reason: str, about: str = NODE) -> list[dict[str, str]]:
        """Give the Events with this reason on the node, or on a pod."""
        return [
            event
            for event in list(self.api.events)
            if (event["involvedObject"]["name"], event["reason"]) == (about, reason)
        ]

    def await_event(self, reason: str, about: str = NODE) -> str:
        """Give the message of the only Event with this reason once there is one."""
        eventually(lambda: self.events(reason, about), f"an Event {reason} on {about}")
        (found,) = self.events(reason, about)
        return found["message"]

    @property
    def tree(self) -> CgroupFS:
        return CgroupFS(self.node.root.cgroup, self.node.cgroup_root)


@contextmanager
def living(
    folder: Path, machine: WrittenMachine, labels: Mapping[str, str], *, nri: bool = False
) -> Iterator[World]:
    """Make a node with these labels, without a pool file; its runtime may speak NRI."""
    boot_id = folder / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("this boot\n")
    with (
        FakeAPIServer(NODE, labels) as api,
        EmulatedCgroups(folder, machine.topology().online, "a test") as place,
        EmbeddedNode(
            folder,
            place,
            sysfs=machine.sys,
            nri=nri,
            changed=lambda: api.set_pods(node.bodies()["items"]),
        ) as node,
    ):
        yield World(folder, machine, place, node, api, Mount(folder / "etc"))


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


def test_pods_are_placed_kept_and_shown(world: World) -> None:
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        world.run("owner", exclusive_a=2)
        world.run("sharer", shared_b=10)
        world.run("plain")
        world.await_cpus(owner="2-3", sharer="6-7", plain="0-1")

        container = next(one for one in world.node.processes() if one.container)
        world.overwrite(world.node.path_of(container), "0-15")
        world.await_cpus(owner="2-3", sharer="6-7", plain="0-1")

        status = ["status", "--file", str(world.folder / "run/cpupool/status.json")]
        machine = ["--topology", str(world.folder)]
        eventually(lambda: cli.main([*status, *machine]) == 0, "status sees all where they belong")
    assert world.api.verbs() >= {
        ("list", "pods"),
        ("watch", "pods"),
        ("list", "nodes"),
        ("watch", "nodes"),
    }


def test_pools_are_edited_while_pods_run(world: World) -> None:
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=1)
        world.run("sharer", shared_b=10)
        world.await_cpus(owner="2", sharer="6-7")

        # The owner's CPU leaves its pool, which is renamed, and the shared pool grows.
        world.mount.show(
            worker=POOLS.replace('exclusive_a: {cpus: "2-5"}', 'exclusive_new: {cpus: "3-4"}')
            .replace('"6-7"', '"5-8"')
            .replace('"0-1"', '"0-1,9"')
        )
        world.await_pool("exclusive_new", 2)
        world.await_pool("exclusive_a", 1)
        world.await_cpus(owner="2", sharer="5-8")
        # The first is of the start.
        eventually(lambda: len(world.events("CPUPoolConfigApplied")) == 2, "another Event")
        applied = world.events("CPUPoolConfigApplied")[-1]
        assert applied["type"] == "Normal"
        assert "added exclusive_new; removed exclusive_a; resized" in applied["message"]

        # What drains keeps its pod through a restart of the kubelet, and goes with the pod.
        world.node.kubelet.restart()
        world.await_pool("exclusive_a", 1)
        world.await_pool("shared_b", 4000)
        assert world.node.admit_again() == {}
        world.node.delete_pod(next(iter(world.node.pods())).uid)
        world.await_pool("exclusive_a", 0)


def test_a_bad_edit_keeps_the_pools_through_a_restart_of_the_agent(world: World) -> None:
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=1)
        world.await_cpus(owner="2")
        world.mount.show(worker=POOLS.replace("6-7", "5-99"))
        eventually(lambda: world.event("CPUPoolConfigInvalid"), "an Event")
        invalid = world.event("CPUPoolConfigInvalid")
        assert invalid
        assert invalid["type"] == "Warning"
        problem = "poolconfig-worker.yaml:3:23: pools.exclusive_a.cpus: CPUs 5 are also in shared_b"
        assert problem in invalid["message"]
    with world.agent() as agent:
        agent.await_line("last good pools in force")
        world.await_pool("shared_b", 2000)
        world.run("late", shared_b=10)
        world.await_cpus(owner="2", late="6-7")
        assert problem in agent.log
    assert "Traceback" not in agent.log


def test_an_edit_is_in_force_before_the_folder_shows_it(world: World) -> None:
    world.api.keep_config_map(CONFIG_MAP, worker=POOLS)
    with world.agent(*FOLLOWED) as agent:
        world.await_pool("exclusive_a", 4)
        begun_s = time.monotonic()
        world.api.keep_config_map(CONFIG_MAP, worker=SMALLER)
        world.await_pool("exclusive_a", 3)
        log.info("from an edit to its devices: %.3f s", time.monotonic() - begun_s)

        # What is deleted changes nothing, and from now on neither does the folder.
        world.api.forget(CONFIG_MAP)
        agent.await_line("there is no such ConfigMap")
        world.mount.show(worker=POOLS.replace("exclusive_a", "exclusive_b"))
        world.api.keep_config_map(CONFIG_MAP, worker=SMALLEST)
        world.await_pool("exclusive_a", 2)
        assert world.node.kubelet.listing("nokia.k8s.io/exclusive_b").capacity == 0
    assert agent.log.count(APPLIED) == 3


def test_a_folder_that_lags_takes_nothing_back_when_a_killed_agent_starts_again(
    world: World,
) -> None:
    world.api.keep_config_map(CONFIG_MAP, worker=POOLS)
    with world.agent(*FOLLOWED, end=signal.SIGKILL):
        world.await_pool("exclusive_a", 4)
        world.api.keep_config_map(CONFIG_MAP, worker=SMALLER)
        world.await_pool("exclusive_a", 3)

    world.api.slow("configmaps")
    with world.agent(*FOLLOWED) as agent:
        agent.await_line(APPLIED)
        world.await_pool("exclusive_a", 3)
        assert "pool folder lags" in agent.log
        world.api.up()
        agent.await_line("ConfigMap is followed")
        world.api.keep_config_map(CONFIG_MAP, worker=SMALLEST)
        world.await_pool("exclusive_a", 2)
    # The pools of before the edit were in force at no time.
    assert agent.log.count(APPLIED) == 2


def test_without_the_right_to_see_the_configmap_the_folder_counts(world: World) -> None:
    world.api.keep_config_map(CONFIG_MAP, worker=SMALLEST)
    world.api.forbidden = {("list", "configmaps")}
    with world.agent(*FOLLOWED) as agent:
        world.await_pool("exclusive_a", 4)
        assert "must grant list on configmaps" in agent.await_line("API server cannot be followed")
        world.mount.show(worker=SMALLER)
        world.await_pool("exclusive_a", 3)


def test_a_label_that_changes_chooses_another_file(world: World) -> None:
    other = POOLS.replace("exclusive_a", "exclusive_b").replace("worker", "other")
    world.mount.show(worker=POOLS, other=other)
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.api.set_labels({"role": "other"})
        world.await_pool("exclusive_b", 4)
        world.await_pool("exclusive_a", 0)


def test_a_node_without_a_pool_file_begins_when_one_appears(world: World) -> None:
    world.mount.show()
    with world.agent() as agent:
        agent.await_line("no pool file matches this node")
        world.mount.show(worker=POOLS)
        world.await_pool("exclusive_a", 4)
    assert agent.process.returncode == 0


def test_a_killed_agent_that_starts_again_disturbs_nothing(world: World) -> None:
    with world.agent(end=signal.SIGKILL):
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=4)
        world.await_cpus(owner="2-5")

    # Whatever happens while no agent runs is put right by the next one.
    world.run("late")
    owner = next(one for one in world.node.processes() if one.container)
    file = world.node.root.cgroup / "cpuset" / world.node.path_of(owner) / "cpuset.cpus"
    written_ns = file.stat().st_mtime_ns
    with world.agent():
        world.await_cpus(owner="2-5", late="0-1")

    assert file.stat().st_mtime_ns == written_ns


def test_without_an_api_server_nothing_is_touched_until_it_answers(world: World) -> None:
    """The pool was renamed while no agent ran: without the pods its CPUs look free."""
    with world.agent():
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=1)
        world.await_cpus(owner="2")
    world.mount.show(worker=POOLS.replace("exclusive_a", "exclusive_new"))
    world.api.down()

    with world.agent() as agent:
        agent.await_line("API server")
        assert world.node.kubelet.listing("nokia.k8s.io/exclusive_new").capacity == 0
        world.api.up()
        world.await_pool("exclusive_new", 3)
        assert world.cpus() == {"owner": "2"}

        # Once known, everything is kept without it.
        world.api.down()
        owner = next(one for one in world.node.processes() if one.container)
        world.overwrite(world.node.path_of(owner), "0-15")
        world.await_cpus(owner="2")
        world.api.up()
    assert agent.process.returncode == 0


def test_a_second_agent_waits_and_takes_over(world: World) -> None:
    with world.agent(end=signal.SIGKILL) as first:
        world.await_pool("exclusive_a", 4)
        # To the second one each is a write in progress, until it is the only agent.
        root = world.node.root
        unfinished = [folder / ".cpupool-unfinished" for folder in (root.state, root.run)]
        for file in unfinished:
            file.touch()
        with world.agent() as second:
            second.await_line("another agent runs on this node")
            assert all(file.exists() for file in unfinished)
            first.process.kill()
            second.await_line("device plugin registered")
            assert not any(file.exists() for file in unfinished)
            world.await_pool("exclusive_a", 4)
            world.run("owner", exclusive_a=1)
            world.await_cpus(owner="2")
        assert second.log.count("another agent runs") == 1
        assert second.process.returncode == 0


def test_the_agent_stops_at_once_and_leaves_no_socket(world: World) -> None:
    with world.agent() as agent:
        world.await_pool("exclusive_a", 4)
        assert list(world.node.root.device_plugins.glob("cpupool-*"))
    assert agent.process.returncode == 0
    assert not list(world.node.root.device_plugins.glob("cpupool-*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param([], "the node has no name; give --node-name", id="no name"),
        pytest.param(["--node-name", "a"], "KUBERNETES_SERVICE_HOST is not set", id="no cluster"),
        pytest.param(["--api-server", "worker:80", "--node-name", "a"], "worker:80", id="no URL"),
        pytest.param(["--metrics-port", "99999"], "'99999' is no port", id="no port"),
    ],
)
def test_what_the_agent_cannot_begin_with_is_one_line(options: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cpupool", "agent", *options],
        env={},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
