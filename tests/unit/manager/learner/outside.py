"""A kubelet and a runtime that tell what a test says, and a learner that asks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.learner import Learner
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import ModelRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.devices import PodDevices
    from cpupool.core.workloads import Pod

POOLS = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "1"))
NOTHING = "the kubelet does not answer"


def granted(*ids: str) -> PodDevices:
    return {"main": {Names().resource("exclusive_a"): AllocatedDevices(frozenset(ids))}}


@dataclass
class Outside:
    """Pods and a kubelet; what is None fails."""

    listed: tuple[Pod, ...] = ()
    live: Mapping[tuple[str, str], PodDevices] | None = field(default_factory=dict)
    saved: Mapping[str, PodDevices] | None = field(default_factory=dict)
    static_cpus: CPUSet | None = field(default_factory=CPUSet)
    asked: list[str] = field(default_factory=list)

    def pods(self) -> tuple[Pod, ...]:
        return self.listed

    def by_pod_name(self) -> Mapping[tuple[str, str], PodDevices]:
        self.asked.append("podresources")
        if self.live is None:
            raise RemoteProtocolError(NOTHING)
        return self.live

    def by_pod_uid(self) -> Mapping[str, PodDevices]:
        self.asked.append("checkpoint")
        if self.saved is None:
            raise RemoteProtocolError(NOTHING)
        return self.saved

    def allocatable_cpus(self) -> CPUSet:
        self.asked.append("cpu manager")
        if self.static_cpus is None:
            raise RemoteProtocolError(NOTHING)
        return self.static_cpus


def alive(*pods: str) -> tuple[FoundContainer, ...]:
    """Give the sandbox of each of these pods as it is found."""
    return tuple(FoundContainer(pod, f"{pod}-sandbox", f"kubepods/pod{pod}/x", "") for pod in pods)


def here(pod: str, *ids: str) -> tuple[FoundContainer, ...]:
    """Give containers of a pod as they are found."""
    return tuple(FoundContainer(pod, one, f"kubepods/pod{pod}/{one}", "") for one in ids)


def learning(
    outside: Outside,
    runtime: ModelRuntime | None = None,
    pools: NodePools = POOLS,
    nri: Callable[[], bool] = lambda: False,
    machine: str = "laptop_4c8t",
) -> tuple[Manager, Learner]:
    manager = Manager(Names())
    manager.reconfigure(pools, MACHINES[machine].topology())
    learner = Learner(
        manager,
        pods=outside,
        devices=outside,
        checkpoint=outside,
        containers=runtime or ModelRuntime(),
        nri=nri,
    )
    return manager, learner


OWNER = builders.pod("owner", builders.container(exclusive_a=1))
