"""In-place resizes under the policy dynamic in a real containerd, as the kubelet asks for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host.sysfs import Sysfs
from tests.containerd import cri_pb2 as pb
from tests.containerd.pods import Layout
from tests.containerd.test_static_policy import admitted
from tests.vm.machine import TIMEOUT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)

SHARES = 1024
"""Of one CPU, as the kubelet writes them."""


@pytest.fixture
def node_of(node: Node) -> Iterator[Node]:
    topology = Sysfs.at(node.host.root.sysfs).topology()
    node.configure(Layout.governed(topology, "dynamic, maxNoticeSeconds: 0"))
    with node.agent("nri"):
        yield node


@pytest.fixture
def owner(node_of: Node) -> Hosted:
    one, _ = admitted(node_of)
    node_of.launch(one)
    return one


def folder(node: Node, one: Hosted) -> Path:
    """Give the folder that the container has at `/run/cpupool/self`."""
    (found,) = (m for m in node.spec(one)["mounts"] if m["destination"] == "/run/cpupool/self")
    assert {"rbind", "ro"} <= set(found["options"])
    return node.host.folder / str(found["source"]).lstrip("/")


def resize(node: Node, one: Hosted, shares: int) -> None:
    node.cri.update(one.container, pb.LinuxContainerResources(cpu_shares=shares))


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        (1000 * SHARES // 4, "CPUs requested"),
        (1500, "request whole CPUs"),
    ],
)
def test_a_resize_that_cannot_be_is_an_error_of_the_runtime_and_changes_nothing(
    node_of: Node, owner: Hosted, shares: int, why: str
) -> None:
    before = node_of.tree.effective(node_of.path(owner))
    with pytest.raises(grpc.RpcError, match=why):
        resize(node_of, owner, shares)
    assert node_of.tree.effective(node_of.path(owner)) == before
    resize(node_of, owner, SHARES)
    node_of.cri.update(owner.container, pb.LinuxContainerResources(cpu_shares=SHARES))
    assert node_of.astray([owner]) == []


def test_a_container_has_the_folder_that_tells_of_its_cpus(node_of: Node, owner: Hosted) -> None:
    own = str(node_of.tree.effective(node_of.path(owner)))
    told = json.loads((folder(node_of, owner) / "cpus.json").read_text())
    assert (told["cpus"], told["assigned"], told["baseline"]) == (own, own, own)


def test_a_container_grows_with_the_runtime_s_answer_and_shrinks_after_its_notice(
    node_of: Node, owner: Hosted
) -> None:
    if len(node_of.layout.default) < 3:
        pytest.skip("three CPUs are needed: one stays for those without CPUs of their own")
    before = node_of.tree.effective(node_of.path(owner))
    resize(node_of, owner, 2 * SHARES)
    grown = node_of.tree.effective(node_of.path(owner))
    assert (len(grown), before < grown) == (2, True)
    resize(node_of, owner, SHARES)
    eventually(lambda: node_of.tree.effective(node_of.path(owner)) == before, node_of.log)
    told = folder(node_of, owner) / "cpus"
    eventually(lambda: CPUSet.parse(told.read_text().strip()) == before, told.read_text)
