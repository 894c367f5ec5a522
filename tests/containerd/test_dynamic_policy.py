"""In-place resizes under the policy dynamic in a real containerd, as the kubelet asks for them.

Most need three CPUs, because one stays for those without CPUs of their own: `tests/vm/` has a guest
with more (`guest_dynamic_policy.py`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.host.sysfs import Sysfs
from tests.containerd import cri_pb2 as pb
from tests.containerd.node import at_once
from tests.containerd.pods import CONTAINER, Kind, Layout
from tests.vm.machine import TIMEOUT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from cpupool.core.cpuset import CPUSet
    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)

SHARES = 1024
"""Of one CPU, as the kubelet writes them."""
NOWHERE = "1000"
"""A NUMA node that no machine has: the kernel refuses it."""


@pytest.fixture
def governed(node: Node) -> Node:
    topology = Sysfs.at(node.host.root.sysfs).topology()
    node.configure(Layout.governed(topology, "dynamic, maxNoticeSeconds: 3600"))
    return node


@pytest.fixture
def node_of(governed: Node) -> Iterator[Node]:
    with governed.agent("nri"):
        yield governed


def started(node: Node, notice_s: int = 0) -> Hosted:
    """Start an owner of one CPU."""
    one = node.admit(Kind.STATIC, annotations={"nokia.k8s.io/cpu-notice-seconds": str(notice_s)})
    node.launch(one)
    return one


@pytest.fixture
def owner(node_of: Node) -> Hosted:
    return started(node_of)


@pytest.fixture
def three_cpus(governed: Node) -> None:
    if len(governed.layout.default) < 3:
        pytest.skip("three CPUs are needed: one stays for those without CPUs of their own")


room = pytest.mark.usefixtures("three_cpus")


def cpus(node: Node, one: Hosted) -> CPUSet:
    return node.tree.effective(node.path(one))


def folder(node: Node, one: Hosted) -> Path:
    """Give the folder that the container has at `/run/cpupool/self`."""
    (found,) = (m for m in node.spec(one)["mounts"] if m["destination"] == "/run/cpupool/self")
    assert {"rbind", "ro"} <= set(found["options"])
    return node.host.folder / str(found["source"]).lstrip("/")


def told(node: Node, one: Hosted) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder(node, one) / "cpus.json").read_text())
    return content


def told_soon(node: Node, one: Hosted, **expected: object) -> None:
    eventually(
        lambda: expected.items() <= told(node, one).items(),
        lambda: f"{expected} in {told(node, one)}\n{node.log()}",
    )


def wish(node: Node, one: Hosted, count: int) -> None:
    """Write another number of CPUs into the pod's spec."""
    one.hosted.take(one.hosted.with_cpus({CONTAINER: str(count)}))
    node.publish()


def resize(node: Node, one: Hosted, count: int) -> None:
    """Give the container another number of CPUs, in the order of the kubelet."""
    wish(node, one, count)
    shares(node, one, SHARES * count)


def shares(node: Node, one: Hosted, number: int, **more: str) -> None:
    resources = pb.LinuxContainerResources(
        cpu_shares=number, cpu_quota=number * 100_000 // SHARES, cpu_period=100_000, **more
    )
    node.cri.update(one.container, resources)


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (1000 * SHARES // 4, " more than the "),
        (1500, "request whole CPUs"),
    ],
)
def test_a_resize_that_cannot_be_is_an_error_of_the_runtime_and_changes_nothing(
    node_of: Node, owner: Hosted, number: int, why: str
) -> None:
    before = cpus(node_of, owner), node_of.cri.status(owner.container).resources
    with pytest.raises(grpc.RpcError, match=why):
        shares(node_of, owner, number)
    assert (cpus(node_of, owner), node_of.cri.status(owner.container).resources) == before
    shares(node_of, owner, SHARES)
    assert node_of.astray([owner]) == []


def test_an_update_that_the_runtime_cannot_do_changes_nothing(node_of: Node, owner: Hosted) -> None:
    before = cpus(node_of, owner), node_of.cri.status(owner.container).resources
    with pytest.raises(grpc.RpcError, match=r"cpuset\.mems"):
        shares(node_of, owner, SHARES, cpuset_mems=NOWHERE)
    assert (cpus(node_of, owner), node_of.cri.status(owner.container).resources) == before
    shares(node_of, owner, SHARES)
    assert node_of.astray([owner]) == []


def test_a_container_has_the_folder_that_tells_of_its_cpus(node_of: Node, owner: Hosted) -> None:
    own = str(cpus(node_of, owner))
    content = told(node_of, owner)
    assert (content["cpus"], content["assigned"], content["baseline"]) == (own, own, own)


@room
def test_a_container_grows_with_the_runtime_s_answer_and_shrinks_after_its_notice(
    node_of: Node,
) -> None:
    others = at_once(node_of.run, [Kind.DEFAULT] * 2)
    node_of.await_right(others)
    owner = started(node_of)
    before = cpus(node_of, owner)

    resize(node_of, owner, 2)
    grown = cpus(node_of, owner)
    assert (len(grown), before < grown) == (2, True)
    assert [one.pod.name for one in others if not cpus(node_of, one).isdisjoint(grown)] == []
    assert node_of.cri.status(owner.container).resources.linux.cpuset_cpus == str(grown)

    resize(node_of, owner, 1)
    eventually(lambda: cpus(node_of, owner) == before, node_of.log)
    told_soon(node_of, owner, cpus=str(before), assigned=str(before), baseline=str(before))
    rest = node_of.layout.default - before
    eventually(lambda: all(cpus(node_of, one) == rest for one in others), node_of.log)


@room
def test_cpus_stay_while_the_notice_lasts(node_of: Node) -> None:
    one = started(node_of, notice_s=3600)
    before = cpus(node_of, one)
    resize(node_of, one, 3)
    grown = str(cpus(node_of, one))
    resize(node_of, one, 1)
    told_soon(node_of, one, cpus=grown, assigned=str(before))
    assert str(cpus(node_of, one)) == grown
    resize(node_of, one, 3)
    told_soon(node_of, one, cpus=grown, assigned=grown, change=None)
    assert str(cpus(node_of, one)) == grown


@room
def test_nothing_is_lost_if_the_runtime_fails_after_the_agent_has_agreed(
    node_of: Node, owner: Hosted
) -> None:
    """The runtime writes CPUs, and then the NUMA nodes that the kernel refuses."""
    before = node_of.cri.status(owner.container).resources
    wish(node_of, owner, 2)
    with pytest.raises(grpc.RpcError, match=r"cpuset\.mems"):
        shares(node_of, owner, 2 * SHARES, cpuset_mems=NOWHERE)
    assert node_of.cri.status(owner.container).resources == before

    # The kubelet tries again.
    shares(node_of, owner, 2 * SHARES)
    grown = cpus(node_of, owner)
    assert len(grown) == 2
    told_soon(node_of, owner, cpus=str(grown), assigned=str(grown))


@room
def test_a_resize_that_the_runtime_could_not_do_can_be_taken_back(
    node_of: Node, owner: Hosted
) -> None:
    before = cpus(node_of, owner)
    wish(node_of, owner, 2)
    with pytest.raises(grpc.RpcError, match=r"cpuset\.mems"):
        shares(node_of, owner, 2 * SHARES, cpuset_mems=NOWHERE)
    resize(node_of, owner, 1)
    eventually(lambda: cpus(node_of, owner) == before, node_of.log)
    told_soon(node_of, owner, cpus=str(before), assigned=str(before))


@room
def test_resizes_without_the_agent_are_followed_when_it_starts(governed: Node) -> None:
    with governed.agent("nri"):
        one = started(governed)
        before = cpus(governed, one)
    resize(governed, one, 3)
    assert cpus(governed, one) == before, "nobody has answered"
    with governed.agent("nri"):
        eventually(lambda: len(cpus(governed, one)) == 3, governed.log)
        grown = cpus(governed, one)
        told_soon(governed, one, cpus=str(grown), assigned=str(grown), baseline=str(before))
    resize(governed, one, 2)
    assert cpus(governed, one) == grown, "nobody has answered"
    with governed.agent("nri"):
        eventually(lambda: before < cpus(governed, one) < grown, governed.log)


@room
def test_a_restart_of_the_runtime_takes_no_resize_back(node_of: Node, owner: Hosted) -> None:
    resize(node_of, owner, 2)
    grown = cpus(node_of, owner)
    told_soon(node_of, owner, cpus=str(grown), assigned=str(grown))
    generation = told(node_of, owner)["generation"]
    connections = node_of.connections()
    node_of.host.restart()
    eventually(lambda: node_of.connections() > connections, node_of.log)
    # What the agent answers now, it has decided with all that the runtime has named.
    shares(node_of, owner, 2 * SHARES)
    assert (cpus(node_of, owner), told(node_of, owner)["generation"]) == (grown, generation)
