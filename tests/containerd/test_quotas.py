"""How long containers of a real containerd may run; NRI, CRI or the agent sets that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.host.bandwidth import CFSBandwidth
from tests.containerd import cri_pb2 as pb
from tests.containerd.pods import Kind
from tests.vm.machine import TIMEOUT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)

ONE_CPU = Bandwidth(100_000)
TENTH = Bandwidth(10_000)


@pytest.mark.parametrize("way", ["nri", "cri", "cgroup"])
def test_quotas_are_right_by_every_way_after_a_resize_and_at_the_end(node: Node, way: str) -> None:
    quotas = CFSBandwidth(node.host.root.cgroup)
    if not node.layout.exclusive:
        pytest.skip("no core is left for an exclusive pool")

    def have(pods: tuple[Hosted, ...]) -> list[Bandwidth | None]:
        paths = [path for one in pods for path in (pod_path(node, one), node.path(one))]
        return [quotas.bandwidth(path) for path in paths]

    def become(*wanted: Bandwidth | None) -> None:
        eventually(
            lambda: have(pods) == list(wanted), lambda: f"{wanted}: {have(pods)}\n{node.log()}"
        )

    with node.agent(way):
        pods = own, _ = node.run(Kind.EXCLUSIVE), node.run(Kind.SHARED)
        become(Bandwidth(), Bandwidth(), Bandwidth(), TENTH)
        node.await_right(pods)

        # What the kubelet does when somebody resizes them: the pod's cgroup, then the runtime.
        for one in pods:
            quotas.limit(pod_path(node, one), ONE_CPU)
            node.cri.update(
                one.container, pb.LinuxContainerResources(cpu_quota=40_000, cpu_period=100_000)
            )
        # Its pod had no limit from the kubelet, and gets what such a pod has.
        become(Bandwidth(), Bandwidth(), Bandwidth(50_000), TENTH)

        # The runtime writes what it has with every other change.
        for one in pods:
            node.cri.update(one.container, pb.LinuxContainerResources(cpu_shares=300))
        become(Bandwidth(), Bandwidth(), Bandwidth(50_000), TENTH)

        node.cri.stop(own.container)
        become(ONE_CPU, None, Bandwidth(50_000), TENTH)


def pod_path(node: Node, one: Hosted) -> str:
    return node.path(one).rpartition("/")[0]
