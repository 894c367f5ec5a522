"""A quota goal over a model of the kernel, and the pod `web`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerRef
from cpupool.enforce.quota_repair import QuotaGoal
from cpupool.enforce.repair import Keeper
from cpupool.enforce.writer_choice import Writers
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.machines import MACHINES
from tests.quotas import QuotaModel
from tests.runtimes import ModelRuntime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.enforce.notices import Notice

MACHINE = MACHINES["laptop_4c8t"]
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4,6"), Pool.named("shared_a", "0"), Pool.named("default", "1")
)
MIXED = NodePools.of(Pool.named("shared_a", "0-1"), mixed=MixedCPUs("shared_a"))
POD = "kubepods/podweb-uid"
IDS = {"exclusive_a": "2", "shared_a": "0,1,2,3,4", ENABLE_SHARED_CPUS: "0"}


@dataclass
class Node:
    """A keeper over a model of the kernel, and the pod `web`.

    Its containers are limited as the kubelet does it: 1000 milli-CPUs each.
    """

    containers: tuple[Container, ...]
    pools: NodePools = POOLS
    static_cpus: str = ""
    nri: ModelRuntime = field(default_factory=ModelRuntime)
    cri: ModelRuntime = field(default_factory=ModelRuntime)
    manager: Manager = field(default_factory=Manager)
    metrics: Metrics = field(default_factory=Metrics)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        milli = 1_000 * len(self.containers)
        of_pod = (milli * 100, 100_000)
        self.kernel = QuotaModel({POD: of_pod, f"{POD}/sandbox": (-1, 100_000)})
        for container in self.containers:
            self.kernel.given[self.path(container.name)] = Bandwidth(100_000)
        self.keeper = Keeper(
            QuotaGoal(self.kernel, Writers(None, self.nri, self.cri), self.metrics)
        )
        self.manager.reconfigure(self.pools, MACHINE.topology())
        self.manager.observe(static_cpus=CPUSet.parse(self.static_cpus))
        self.learn(
            replace(
                builders.pod("web", *(replace(one, limit_milli=1_000) for one in self.containers)),
                limit_milli=milli,
            )
        )

    def learn(self, pod: Pod) -> None:
        self.manager.observe(pods=[pod])
        self.manager.accept(
            {ContainerRef(pod.uid, one.name): dict(self._given(one)) for one in pod.containers}
        )

    def _given(self, container: Container) -> Iterable[tuple[Resource, AllocatedDevices]]:
        for pool in container.requests:
            yield pool, AllocatedDevices(frozenset(IDS[pool].split(",")))
        if ENABLE_SHARED_CPUS in container.requests and self.static_cpus:
            yield KUBELET_CPUS, AllocatedDevices(frozenset({"4"}), CPUSet.of(4))

    def path(self, name: str) -> str:
        return f"{POD}/{name}-id"

    def keep(self) -> list[Notice]:
        found = [
            FoundContainer("web-uid", path.rpartition("/")[2], path, "0")
            for path in self.kernel.given
            if path != POD and not self.nri.starting(path.rpartition("/")[2])  # type: ignore[arg-type]
        ]
        kept = self.keeper.keep(found, self.manager.snapshot().resolution, self.now_s)
        return list(kept.values())

    def has(self) -> Mapping[str, str]:
        return {
            path.removeprefix(POD).removeprefix("/").removesuffix("-id") or "pod": str(one)
            for path, one in self.kernel.given.items()
            if not path.endswith("sandbox")
        }

    def write(self, name: str, quota_us: int) -> None:
        """Let somebody write a quota, a while after the last look."""
        self.now_s += 2
        path = POD if name == "pod" else self.path(name)
        self.kernel.given[path] = Bandwidth(quota_us)

    def happen(self, event: str, name: str, quota_us: int) -> None:
        """Let one of `EVENTS` happen, if the kernel takes it."""
        before = dict(self.kernel.given)
        path = POD if name == "pod" else self.path(name)
        match event:
            case "start" if name != "pod":
                self.kernel.given.setdefault(path, Bandwidth(100_000))
            case "end" if name != "pod":
                self.kernel.given.pop(path, None)
            case "overwrite" if path in self.kernel.given:
                self.kernel.given[path] = Bandwidth(quota_us)
            case "another agent":
                writers = Writers(None, self.nri, self.cri)
                self.keeper = Keeper(QuotaGoal(self.kernel, writers, self.metrics))
            case "cpu gone" | "cpu back":
                lost = CPUSet.of(2) if event == "cpu gone" else CPUSet()
                self.manager.reconfigure(self.pools, MACHINE.having_lost(lost))
        if self.kernel.version is CgroupVersion.V1 and not self.kernel.lawful():
            self.kernel.given = before

    def repairs(self, reason: str) -> int:
        line = f'^cpupool_quota_repairs_total{{reason="{reason}"}} (\\S+)$'
        found = re.search(line, self.metrics.render()[1].decode(), re.MULTILINE)
        return int(float(found[1])) if found else 0


def exclusive(name: str = "main") -> Container:
    return builders.container(name, exclusive_a=1)


def shared(name: str = "light") -> Container:
    return builders.container(name, shared_a=500)


def alias(name: str = "main") -> Container:
    asked = replace(builders.container(name), whole_cpus=1)
    return replace(asked, requests={ENABLE_SHARED_CPUS: 1})


def kubelets(*others: Container, shared_cpus: str = "0-1") -> Node:
    """Give a node whose kubelet gives out exclusive CPUs; `main` has one, and shared ones."""
    pools = NodePools.of(Pool.named("shared_a", shared_cpus), mixed=MixedCPUs("shared_a"))
    return Node((alias(), *others), pools, static_cpus="2-7", nri=ModelRuntime(here=True))
