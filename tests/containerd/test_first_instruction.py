"""On which CPUs containers of a real containerd run, from their first instruction on."""

from __future__ import annotations

import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.containerd import cri_pb2 as pb
from tests.containerd.node import BURST, at_once
from tests.containerd.pods import Kind
from tests.vm.machine import TIMEOUT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

log = logging.getLogger(__name__)

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)

CONTAINERS = 100
LIVES = 3
OFTEN_US = 100
RESIZES = (
    pb.LinuxContainerResources(cpu_shares=300, cpu_quota=70_000, cpu_period=100_000),
    pb.LinuxContainerResources(cpu_shares=400),
    pb.LinuxContainerResources(cpu_shares=500, cpuset_cpus="0-1"),
)
"""The kubelet's in-place resizes; with a CPU manager of its own, it would name CPUs, too."""


def test_no_container_runs_one_instruction_on_a_wrong_cpu(node: Node) -> None:
    for layout in node.layouts:
        node.configure(layout)
        with node.agent("nri"):
            for _ in range(CONTAINERS // BURST // len(node.layouts)):
                pods = node.burst()
                node.await_right(pods)
                assert node.astray(pods) == []
                assert [one.refused for one in pods] == [[]] * BURST
                at_once(node.remove, pods)


def test_nor_does_one_that_is_started_again(node: Node) -> None:
    node.configure(node.layouts[-1])
    with node.agent("nri"):
        pods = node.burst()
        for _ in range(1, LIVES):
            at_once(node.restart, pods)
            node.await_right(pods)
            assert node.astray(pods) == []


def test_a_container_takes_the_cpu_of_a_pod_that_has_ended_and_is_still_listed(node: Node) -> None:
    with node.agent("nri"):
        earlier = at_once(node.run, [Kind.EXCLUSIVE] * len(node.layout.exclusive))
        node.await_right(earlier)
        node.end(earlier[0])
        later = node.run(Kind.EXCLUSIVE)
        node.await_right([later])
        assert node.expected(later) == node.expected(earlier[0])
        assert node.astray([later]) == []
        starts_ns = node.record(later).sightings[0].at_ns
        log.info("it starts %.3f s after the call", (starts_ns - later.called_ns) / 1e9)


def test_nothing_needs_the_api_server_for_that(node: Node) -> None:
    with node.agent("nri"):
        node.api.down()
        pods = node.burst()
        node.await_right(pods)
        assert node.astray(pods) == []
        node.api.up()


def test_a_resize_from_the_side_moves_no_container(node: Node) -> None:
    with node.agent("nri"):
        pods = node.burst(OFTEN_US)
        for asked in RESIZES:
            resize(node, asked, pods)
        node.await_right(pods)
        # The last look comes after the last update.
        end(node, pods)
        assert node.astray(pods) == []


def test_an_agent_that_is_killed_in_a_burst_is_not_missed_for_long(node: Node) -> None:
    with ThreadPoolExecutor(BURST) as pool:
        with node.agent("nri") as agent:
            before = at_once(node.run, node.layout.mixed(BURST // 2))
            others = [Kind.SHARED, Kind.DEFAULT] * (BURST // 2)
            pods = [node.admit(kind) for kind in others]
            launched = [pool.submit(node.launch, one) for one in pods]
            eventually(lambda: any(one.container for one in pods), "the burst is under way")
            agent.send_signal(signal.SIGKILL)
            agent.wait()
        with node.agent("nri"):
            for one in launched:
                one.result()
            node.await_right(pods)
            after = [node.run(kind) for kind in (Kind.SHARED, Kind.DEFAULT)]
            node.await_right([*before, *after])
            assert node.astray([*before, *after]) == []


def test_a_runtime_that_starts_containers_while_others_are_moved_does_not_lock_up(
    node: Node,
) -> None:
    """As NRI before 0.12.1 would, whose two locks are taken in either order."""
    with node.agent("nri"), ThreadPoolExecutor(1) as pool:
        moved = node.burst()
        node.await_right(moved)
        for _ in range(LIVES):
            starting = pool.submit(at_once, node.run, [Kind.SHARED, Kind.DEFAULT] * (BURST // 2))
            while not starting.done():
                disturb(node, moved)
                eventually(lambda: all(in_place(node, one) for one in moved), node.log)
            node.await_right(starting.result())
            at_once(node.remove, starting.result())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_runtime_that_restarts_is_found_again(node: Node, number: signal.Signals) -> None:
    with node.agent("nri"):
        before = at_once(node.run, node.layout.mixed(BURST // 2))
        connections = node.connections()
        node.host.restart(number)
        eventually(lambda: node.connections() > connections, node.log)
        log.info("NRI is back %.2f s after the runtime's start", node.connected_after_s())
        after = at_once(node.run, [Kind.SHARED, Kind.DEFAULT] * 2)
        node.await_right([*before, *after])
        assert node.astray([*before, *after]) == []


@pytest.mark.parametrize("way", ["nri", "cri", "cgroup"])
def test_every_way_brings_containers_where_they_belong_and_keeps_them_there(
    node: Node, way: str
) -> None:
    node.configure(node.layouts[-1])
    with node.agent(way):
        pods = node.burst()
        node.await_right(pods)
        at_once(node.restart, pods)
        node.await_right(pods)
        if way == "cri":
            eventually(lambda: runtime_has(node, pods), node.log)
        disturb(node, pods)
        eventually(lambda: all(in_place(node, one) for one in pods), node.log)
        # The runtime writes what it holds, if it holds something, with every other change.
        resize(node, pb.LinuxContainerResources(cpu_shares=300), pods)
        for one in pods:
            assert held(node, one) == ("" if way == "cgroup" else str(node.expected(one)))
        end(node, pods)
        assert [node.record(one).sightings[-1].cpus for one in pods] == [
            node.expected(one) for one in pods
        ]


def runtime_has(node: Node, pods: list[Hosted]) -> bool:
    """Return whether the runtime has every container's list; start again those that it has not.

    A runtime that a loaded machine makes late is left alone, and the container is cpupool's own.
    """
    late = [one for one in pods if not held(node, one)]
    at_once(node.restart, late)
    node.await_right(late)
    return not late


def held(node: Node, one: Hosted) -> str:
    """Return the CPU list that the runtime has for a container."""
    return node.cri.status(one.container).resources.linux.cpuset_cpus


def resize(node: Node, resources: pb.LinuxContainerResources, pods: list[Hosted]) -> None:
    """Change containers' resources in their runtime, as the kubelet does."""
    at_once(lambda one: node.cri.update(one.container, resources), pods)


def end(node: Node, pods: list[Hosted]) -> None:
    """End containers, and see that their programs have looked for the last time."""
    at_once(lambda one: node.cri.stop(one.container), pods)
    eventually(lambda: all(node.record(one).ended for one in pods), "every program has ended")


def disturb(node: Node, pods: list[Hosted]) -> None:
    """Write another pool's CPUs into containers' cgroups."""
    for one in pods:
        here = node.expected(one) == node.layout.default
        node.tree.write(node.path(one), node.layout.shared if here else node.layout.default)


def in_place(node: Node, one: Hosted) -> bool:
    """Tell whether a container's cgroup has its CPUs."""
    return node.tree.effective(node.path(one)) == node.expected(one)
