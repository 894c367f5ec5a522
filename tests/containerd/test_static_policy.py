"""CPUs of the policy static in a real containerd, with neighbours that it cannot move."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.host.bandwidth import CFSBandwidth
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.sysfs import Sysfs
from tests.containerd.node import at_once
from tests.containerd.pods import Kind, Layout
from tests.vm.machine import TIMEOUT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.cpuset import CPUSet
    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)

DEEP = 70
"""Nested cgroups that cpupool does not move: more than 64."""
NEIGHBOURS = 3


@pytest.fixture
def governed(node: Node) -> Iterator[Node]:
    base, version = hierarchy(node.host.root.cgroup)
    if version is not CgroupVersion.V1:
        pytest.skip(f"no nested cgroup holds up its container's in {base}: version 2")
    node.configure(Layout.governed(Sysfs.at(node.host.root.sysfs).topology()))
    with node.agent("nri"):
        yield node


def test_the_first_instruction_is_on_its_cpus_and_no_others(governed: Node) -> None:
    node = governed
    owner, neighbours = admitted(node)
    with watched(node, neighbours) as seen:
        node.launch(owner)
        own = node.expected(owner)
        assert node.astray([owner]) == []
    assert_alone(node, owner, own, seen)


def test_a_neighbour_that_the_runtime_cannot_move_is_moved_before(governed: Node) -> None:
    node = governed
    owner, neighbours = admitted(node)
    # The runtime's update alone would fail: the nested cgroup keeps all CPUs.
    nest(node, neighbours[0], 1)
    with watched(node, neighbours) as seen:
        node.launch(owner)
        own = node.expected(owner)
        assert node.astray([owner]) == []
    assert_alone(node, owner, own, seen)
    assert owner.refused == []


def test_a_neighbour_that_nothing_can_move_keeps_the_owner_from_starting(governed: Node) -> None:
    node = governed
    owner, neighbours = admitted(node)
    nested = nest(node, neighbours[0], DEEP)
    with pytest.raises(grpc.RpcError, match="is not started: other containers still run on its"):
        node.launch(owner)
    log = node.host.folder / "logs" / owner.pod.uid / owner.log
    assert log.read_text() == "", "no instruction has run"

    assert "NRI update of" in node.host.log, "the runtime has failed, and gone on"

    unnest(nested)
    # The kubelet tries again after ten seconds.
    path = node.path(neighbours[0])
    eventually(lambda: node.tree.effective(path) != node.layout.default, node.log)
    with watched(node, neighbours) as seen:
        owner.attempt += 1
        node.start(owner)
        own = node.expected(owner)
        assert node.astray([owner]) == []
    assert_alone(node, owner, own, seen)


def test_a_pod_without_free_cpus_is_held_until_the_other_has_left(governed: Node) -> None:
    node = governed
    first, neighbours = admitted(node)
    node.launch(first)
    # All CPUs but the one for everybody are taken, on a machine with two.
    taken = [first, *(node.run(Kind.STATIC) for _ in range(len(node.layout.default) - 2))]
    later = node.admit(Kind.STATIC)
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(node.launch, later)
        eventually(lambda: later.refused, node.log)
        assert "is held: Allocate failed due to not enough cpus available" in later.refused[0]
        left = node.expected(taken[0])
        node.remove(taken[0])
        launched.result()
    assert node.expected(later) == left
    assert node.astray([later]) == []
    node.await_right([later])
    assert all(node.tree.effective(node.path(one)).isdisjoint(left) for one in neighbours)


def test_an_owner_has_no_quota_and_neither_has_its_pod(governed: Node) -> None:
    quotas = CFSBandwidth(governed.host.root.cgroup)
    one, _ = admitted(governed)
    governed.launch(one)
    container = governed.path(one)
    both = (container.rpartition("/")[0], container)
    # As the kubelet does it: a quota of the whole request.
    quotas.limit(both[0], Bandwidth(100_000))
    eventually(
        lambda: {quotas.bandwidth(path) for path in both} == {Bandwidth()},
        lambda: f"{[quotas.bandwidth(path) for path in both]}\n{governed.log()}",
    )


def admitted(node: Node) -> tuple[Hosted, list[Hosted]]:
    """Admit an owner, and start neighbours; by then the agent has the owner's spec."""
    owner = node.admit(Kind.STATIC)
    neighbours = at_once(node.run, [Kind.DEFAULT] * NEIGHBOURS)
    node.await_right(neighbours)
    return owner, neighbours


def nest(node: Node, one: Hosted, levels: int) -> Path:
    """Make cgroups below a container's, each with all of its CPUs; return the first."""
    base, _ = hierarchy(node.host.root.cgroup)
    first = base / node.path(one) / "nested"
    cgroup = first.parent
    for _ in range(levels):
        above, cgroup = cgroup, cgroup / "nested"
        cgroup.mkdir()
        for name in ("cpuset.mems", "cpuset.cpus"):
            (cgroup / name).write_text((above / name).read_text())
    return first


def unnest(cgroup: Path) -> None:
    """Remove a cgroup and those below it."""
    below = cgroup / "nested"
    if below.exists():
        unnest(below)
    cgroup.rmdir()


@contextmanager
def watched(node: Node, others: list[Hosted]) -> Iterator[list[tuple[int, str, CPUSet]]]:
    """Read the CPUs of containers again and again: when the read began, whose, which.

    The last reads begin after the block has ended.
    """
    seen: list[tuple[int, str, CPUSet]] = []
    stop = threading.Event()

    def watch() -> None:
        last = False
        while not last:
            last = stop.is_set()
            for one in others:
                at_ns = time.monotonic_ns()
                seen.append((at_ns, one.pod.name, node.tree.effective(node.path(one))))
            stop.wait(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def assert_alone(
    node: Node, owner: Hosted, own: CPUSet, seen: list[tuple[int, str, CPUSet]]
) -> None:
    """Assert that no container was on the owner's CPUs after its first instruction."""
    first_ns = node.record(owner).sightings[0].at_ns
    after = [(name, cpus) for at_ns, name, cpus in seen if at_ns >= first_ns]
    assert after, "the neighbours were seen after the first instruction"
    assert [one for one in after if not one[1].isdisjoint(own)] == []
