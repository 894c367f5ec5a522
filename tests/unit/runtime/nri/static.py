"""A node whose CPU manager policy is static, and its pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager, Misfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from tests import builders
from tests.nri_agents import MACHINE

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from tests.nri_agents import Agent


def govern(agent: Agent, on_misfit: Misfit = Misfit.HOLD, *, adopted: bool = True) -> None:
    """Put the policy static in force on CPUs 0 to 7, CPU 0 reserved.

    Args:
        agent: the agent.
        on_misfit: how to treat a pod that does not fit.
        adopted: whether the agent has seen which containers run.
    """
    policy = CPUManager("static", reserved=CPUSet.of(0), on_misfit=on_misfit)
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
