"""What a pod's author annotates gives no CPU where containerd copies it onto the containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.names import Names
from cpupool.core.workloads import ContainerRef
from tests.containerd.conftest import containerd
from tests.containerd.pods import CONTAINER, Kind
from tests.vm.machine import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.containerd.node import Node
    from tests.containerd.runtime import ContainerdHost

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture(scope="module")
def host() -> Iterator[ContainerdHost]:
    with containerd(passing=True) as host:
        yield host


@pytest.mark.parametrize("way", ["nri", "cri"])
def test_a_pod_that_claims_the_devices_of_another_does_not_get_them(node: Node, way: str) -> None:
    node.configure(node.layouts[0])
    with node.agent(way):
        # The kubelet has given them, and the API server lists neither of the pods.
        node.api.down()
        owner = node.admit(Kind.EXCLUSIVE)
        given = node.kubelet.run_options(ContainerRef(owner.pod.uid, CONTAINER)).annotations
        assert given.keys() == {Names().allocated("exclusive_test")}
        forger = node.admit(Kind.DEFAULT, annotations=given)
        node.launch(forger)
        node.launch(owner)
        node.await_right([forger, owner])
        assert way == "cri" or node.astray([forger, owner]) == []
        node.api.up()
