"""Which pods are read again before a container with CPUs of its own starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, QoSClass, RuntimeContainer
from cpupool.enforce.intruders import Neighbours
from cpupool.manager.manager import Manager
from cpupool.manager.ports import FoundContainer
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cpupool.manager.facts import ContainerKey

MACHINE = MACHINES["laptop_4c8t"]
OWNER = replace(
    builders.pod("owner", builders.container(cpu=2000, running=False)), qos=QoSClass.GUARANTEED
)
KEY: ContainerKey = (OWNER.cgroup_uid, ContainerID("c1"))


@dataclass
class Node:
    """Pods with the CPUs on which their container runs, and the pods that were read last."""

    cpus: dict[str, str] = field(default_factory=lambda: {"near": "0-7", "far": "0-1,4-7"})
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.neighbours = Neighbours(self.walk)
        self.manager = Manager()
        policy = CPUManager("static", reserved=CPUSet.of(0))
        pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=policy)
        self.manager.reconfigure(pools, MACHINE.topology())
        self.manager.observe(pods=[OWNER])
        self.manager.adopt(())

    def walk(self, suits: Callable[[str], bool] = lambda _pod: True) -> Iterator[FoundContainer]:
        self.read = set(filter(suits, self.cpus))
        for pod in sorted(self.read):
            yield FoundContainer(pod, "c", f"kubepods/pod{pod}/c", self.cpus[pod])

    def give(self) -> None:
        """Let the policy choose CPUs 2-3 for the owner."""
        pod = KEY[0]
        name = OWNER.containers[0].name
        self.manager.observe_containers([RuntimeContainer(KEY[1], pod, "default", "owner", name)])
        assert str(self.manager.snapshot().assignment(KEY).exclusive) == "2-3"

    def sweep(self) -> None:
        view = self.manager.snapshot().resolution.view
        self.neighbours.saw(view, tuple(self.walk()))

    def read_before_start(self) -> set[str]:
        resolution = self.manager.snapshot().resolution
        found = {one.pod for one in self.neighbours.of(KEY, resolution)}
        assert found == self.read
        return found


@pytest.fixture
def node() -> Node:
    return Node()


def test_only_pods_that_the_last_sweep_saw_on_its_cpus_and_its_own_are_read(node: Node) -> None:
    node.give()
    # As for a sandbox.
    node.cpus[OWNER.cgroup_uid] = "0-1"
    node.sweep()
    assert node.read_before_start() == {"near", OWNER.cgroup_uid}


def test_a_pod_that_is_new_since_the_last_sweep_is_read(node: Node) -> None:
    node.give()
    node.sweep()
    node.cpus |= {"new": "0-7", OWNER.cgroup_uid: "2-3"}
    assert node.read_before_start() == {"near", "new", OWNER.cgroup_uid}


def test_every_pod_is_read_while_no_sweep_has_begun_since_it_has_its_cpus(node: Node) -> None:
    node.give()
    assert node.read_before_start() == {"near", "far"}
    other = Node()
    other.sweep()
    other.give()
    assert other.read_before_start() == {"near", "far"}


def test_every_pod_is_read_when_cpus_went_offline_since_the_sweep(node: Node) -> None:
    node.give()
    node.sweep()
    node.manager.update_topology(MACHINE.without("7").topology())
    assert node.read_before_start() == {"near", "far"}
