"""A node whose CPU manager policy is static, and its pods; also one that resizes containers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager, Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.grants import WHOLE_POD, Grants
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from cpupool.manager.choosing import Choices
from cpupool.manager.manager import Manager
from tests import builders
from tests.nri_agents import MACHINE, of

if TYPE_CHECKING:
    from cpupool.core.errors import PlacementError
    from cpupool.core.workloads import ContainerRef, Pod
    from tests.nri_agents import Agent
    from tests.nri_pods import Container


def govern(
    agent: Agent, on_misfit: Misfit = Misfit.HOLD, *, adopted: bool = True, **settings: Any
) -> None:
    """Put the policy static in force on CPUs 0 to 7, CPU 0 reserved.

    Args:
        agent: the agent.
        on_misfit: how to treat a pod that does not fit.
        adopted: whether the agent has seen which containers run.
        settings: other settings of the policy.
    """
    policy = CPUManager("static", reserved=CPUSet.of(0), on_misfit=on_misfit, **settings)
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=policy)
    agent.manager.reconfigure(pools, MACHINE.topology())
    if adopted:
        agent.manager.adopt(())


def web(name: str, cpus: int, created: str = "") -> Pod:
    """Make a Guaranteed pod that asks for CPUs of its own, and has not started."""
    main = builders.container(cpu=cpus * 1000, running=False)
    return replace(builders.pod(name, main), qos=QoSClass.GUARANTEED, created=created)


def found(pod: Pod, identifier: str, cpus: str) -> FoundContainer:
    """Make a container's cgroup, with the CPUs that it runs on."""
    path = f"kubepods/pod{pod.cgroup_uid}/{identifier}"
    return FoundContainer(pod.cgroup_uid, identifier, path, cpus)


def guaranteed(pod: Pod, identifier: str = "c1", **fields: object) -> Container:
    """Make a pod's container as the kubelet describes it to the runtime."""
    (main,) = pod.containers
    container = of(pod, identifier, shares=1024 * main.whole_cpus, oom_score_adj=-997)
    parent = f"kubepods.slice/kubepods-pod{pod.cgroup_uid}.slice"
    return replace(container, pod=replace(container.pod, cgroup_parent=parent), **fields)  # type: ignore[arg-type]


class Resizing(Manager):
    """A manager that gives a container the first free CPUs, and takes none from it.

    Attributes:
        asked: the resizes, in their order.
        begun: the containers that are created, each with the number of CPUs that it requests.
        refusal: the reason for which it refuses all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []
        self.begun: list[tuple[str, int]] = []
        self.refusal: PlacementError | None = None

    def resize(self, ref: ContainerRef, count: int, unix_s: int | None = None) -> None:
        self.asked.append((ref.pod, count))
        if self.refusal:
            raise self.refusal
        resolution = self.snapshot().resolution
        grant, free = resolution.view.chosen[ref.pod], resolution.view.free - CPUSet.of(0)
        more = count - len(grant.parts[ref.name])
        if more > len(free):
            raise NotEnoughCPUs(count, len(free))
        new = CPUSet(sorted(free)[: max(0, more)])
        self._decide(resolution.grants.adding([replace(grant, parts={ref.name: new})]))

    def begin(self, ref: ContainerRef, count: int, unix_s: int | None = None) -> None:
        self.begun.append((ref.pod, count))

    def give_together(self, pod: Pod) -> None:
        """Let all containers of a pod have its CPUs together, as another policy has chosen."""
        grants = self.snapshot().resolution.grants
        grant = grants.chosen[pod.cgroup_uid]
        together = replace(grant, parts={WHOLE_POD: grant.cpus})
        self._decide(Grants({**grants.all, (grant.owner, grant.resource): together}))

    def _decide(self, grants: Grants) -> None:
        facts, resolution = self.snapshot()
        self._take(facts, replace(Choices.of(resolution.view), grants=grants))
