"""The starter in containers of the agent: the agent's mounts, its files, its cpusets.

The containers are in this machine's own cgroups where they can be written, otherwise in a folder
and on the CPUs that a thread gives them.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.local import cgroups
from cpupool.local.node import EmbeddedNode
from cpupool.webhook.admission import starter_argv
from tests.apiserver import FakeAPIServer
from tests.machines import Machine
from tests.mounts import Mount
from tests.scenarios.test_agent_process import NODE, World
from tests.starter.containers import Containers, Started, ended, needs_namespaces
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cpupool.core.workloads import Pod

BOTH = CPUSet.of(0, 1)
ONE_POOL = 'pools: {shared_a: {cpus: "0-1"}}\nnodeSelector: {role: worker}\n'
TWO_POOLS = ONE_POOL.replace('"0-1"}', '"1"}, default: {cpus: "0"}')
MIXED = ONE_POOL.replace('"0-1"}', '"1"}, exclusive_a: {cpus: "0"}')

pytestmark = [
    needs_namespaces,
    pytest.mark.skipif(
        not CPUSet(os.sched_getaffinity(0)) >= BOTH, reason="CPUs 0 and 1 are needed"
    ),
]


class Node:
    """A node of two CPUs whose containers run the starter."""

    def __init__(self, world: World, place: cgroups.Cgroups, starter: Path, report: Path) -> None:
        self.world = world
        self._place = place
        self._starter = starter
        self._report = report

    @contextmanager
    def agent(self) -> Iterator[None]:
        options = ("--cgroup-root", self.world.node.cgroup_root, "--starter", str(self._starter))
        with self.world.agent(*options):
            yield

    def start(
        self, pod: Pod, before: Sequence[str | Path] = (), *, affinity: str = "0-1"
    ) -> tuple[Started, ...]:
        """Let the starter be the first process of a pod's container, and tell what it started.

        Args:
            pod: the pod.
            before: a command that runs it.
            affinity: what the container runtime hands down.
        """
        mounts = {
            path: self.world.folder / host.lstrip("/")
            for path, host in self.world.mounts(pod).items()
        }
        replies = self.world.replies(pod)
        environment = {key: value for one in replies for key, value in one.envs.items()}
        requested = sorted(pod.containers[0].requests)
        argv = starter_argv.for_command(requested, [str(self._report)])
        (process,) = (one for one in self.world.node.processes() if one.container)
        enter = ("sh", "-c", 'read -r _ && exec "$@"', "sh")
        state = self.world.node.root.state
        with Containers(mounts["/opt/cpupool/process-starter"], state) as containers:
            assert set(containers.pools.iterdir()) == set(mounts.values()) - {containers.starter}
            started = containers.start(argv, environment, cpus=affinity, before=(*before, *enter))
            # In the cgroup, which the agent may still narrow, taskset(1) could fail.
            eventually(
                lambda: CPUSet(os.sched_getaffinity(started.pid)) == CPUSet.parse(affinity),
                "the affinity that the runtime hands down",
            )
            self._place.enter(process.instance.cgroup, started.pid)
            assert started.stdin
            started.stdin.write(b"\n")
            started.stdin.flush()
            found = ended(started)
        assert (found.status, found.stderr) == (0, "")
        return found.started

    def on(self, cpus: str) -> tuple[Started, ...]:
        """Say what is started if all is well."""
        return (Started(CPUSet.parse(cpus), (str(self._report),)),)


@pytest.fixture
def node(folder: Path, starter: Path, report: Path) -> Iterator[Node]:
    machine = Machine(cores=2).write(folder)
    with (
        FakeAPIServer(NODE, {"role": "worker"}) as api,
        cgroups.opened(folder, "agent", BOTH) as place,
        EmbeddedNode(
            folder, place, sysfs=machine.sys, changed=lambda: api.set_pods(home.bodies()["items"])
        ) as home,
    ):
        seen = folder / "sys/fs/cgroup"
        if not seen.exists():
            seen.parent.mkdir(parents=True, exist_ok=True)
            seen.symlink_to(place.root)
        world = World(folder, machine, place, home, api, Mount(folder / "etc"))
        yield Node(world, place, starter, report)


@pytest.mark.real_cgroup
def test_a_container_restarts_after_its_pool_was_resized(node: Node) -> None:
    world = node.world
    world.mount.show(worker=ONE_POOL)
    with node.agent():
        pod = world.run("sharer", shared_a=10)
        assert node.start(pod) == node.on("0-1")

        world.mount.show(worker=TWO_POOLS)
        world.await_cpus(sharer="1")
        world.node.restart_container(pod.uid, "main")
        # Its environment is that of before.
        assert [one.envs["SHARED_CPUS"] for one in world.replies(pod)] == ["0-1"]
        assert node.start(pod) == node.on("1")


@pytest.mark.real_cgroup
def test_a_container_restarts_after_a_cpu_of_its_pool_went_offline(node: Node) -> None:
    world = node.world
    world.mount.show(worker=ONE_POOL)
    with node.agent():
        pod = world.run("sharer", shared_a=10)
        world.await_cpus(sharer="0-1")
        world.machine.switch_off(CPUSet.of(0))
        world.await_cpus(sharer="1")
        world.node.restart_container(pod.uid, "main")

        online = "/sys/devices/system/cpu/online"
        see = f'mount --bind "$0" {online} && exec "$@"'
        before = ("sh", "-c", see, world.machine.sys / online.removeprefix("/sys/"))
        assert node.start(pod, before) == node.on("1")
        listed = world.node.root.pool_folders / "shared_a/cpus"
        assert listed.read_text() == "0-1\n"


@pytest.mark.real_cgroup
def test_a_container_of_two_pools_gets_two_replies_that_agree(node: Node) -> None:
    world = node.world
    world.mount.show(worker=MIXED)
    with node.agent():
        world.await_pool("shared_a", 1000)
        pod = world.run("mixed", exclusive_a=1, shared_a=10)
        first, second = (
            {mount.container_path: mount.host_path for mount in reply.mounts}
            for reply in world.replies(pod)
        )
        # Of two that have one container path the kubelet keeps one, it is not said which.
        assert all(first[path] == second[path] for path in first.keys() & second.keys())
        assert {*first, *second} == {"/opt/cpupool/process-starter", "/run/cpupool/shared_a"}
        assert node.start(pod) == node.on("0-1")
        # As under a runtime with `CPUAffinity=0`.
        world.node.restart_container(pod.uid, "main")
        world.await_cpus(mixed="0-1")
        assert node.start(pod, affinity="0") == node.on("0-1")
