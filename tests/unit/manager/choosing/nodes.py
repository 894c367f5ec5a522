"""A node whose CPU manager policy gives out CPUs, for the tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, Problem
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from cpupool.policies.base import Choice
from cpupool.policies.static.policy import StaticPolicy
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod, RuntimeContainer
    from cpupool.policies.base import ChoiceRequest, CPUManagerPolicy
    from cpupool.policies.view import NodeView

MACHINE = MACHINES["arm_no_smt"]
LINES = (Pool.named("exclusive_a", "8-9"), Pool.named("default", "0-7"))
STATIC = CPUManager("static", reserved=CPUSet.of(0))
POOLS = NodePools.of(*LINES, cpu_manager=STATIC)


@dataclass(frozen=True, slots=True)
class Grasping(StaticPolicy):
    """Calls every CPU available."""

    def available(self, view: NodeView) -> CPUSet:
        return view.topology.present


@dataclass(frozen=True, slots=True)
class Greedy(StaticPolicy):
    """Gives the same CPU to everybody."""

    def choose(self, _view: NodeView, request: ChoiceRequest) -> Choice:
        return Choice(CPUSet(range(1, 1 + request.count)))


class Refusing(StaticPolicy):
    """Suits no machine."""

    @classmethod
    def of_pools(cls, _pools: NodePools, _machine: CPUTopology) -> Self:
        raise ConfigError([Problem("it is red", "paint it", path="cpuManager.policy")])


def under(policy: type[CPUManagerPolicy]) -> NodePools:
    """Return a pool file that names a policy which is not built in."""
    return replace(POOLS, cpu_manager=replace(STATIC, policy="strange", installed=policy))


def manager(
    *pods: Pod,
    pools: NodePools = POOLS,
    found: tuple[FoundContainer, ...] = (),
    recorded: Mapping[str, Mapping[str, str]] | None = None,
    living: tuple[RuntimeContainer, ...] = (),
    offline: str = "",
) -> Manager:
    """Make a node whose agent has looked at every cgroup once.

    Args:
        pods: its pods.
        pools: its pool file.
        found: the containers that have a cgroup.
        recorded: the agent's record: the id in a pod's cgroup → container → CPUs.
        living: what the runtime tells of containers.
        offline: CPUs that are offline.
    """
    node = Manager()
    node.reconfigure(pools, MACHINE.without(offline).topology())
    node.observe(pods=pods)
    node.observe_containers(living)
    entries = {
        uid: {name: CPUSet.parse(cpus) for name, cpus in containers.items()}
        for uid, containers in (recorded or {}).items()
    }
    node.adopt(found, State("static", entries=entries))
    return node


def web(name: str, cpu: int = 1000, *, running: bool = True) -> Pod:
    return builders.pod(name, builders.container(f"{name}-main", cpu=cpu, running=running))


def on(pod: Pod, cpus: str) -> FoundContainer:
    (container,) = pod.containers
    assert container.id is not None
    return FoundContainer(pod.cgroup_uid, container.id, f"kubepods/{pod.name}/main", cpus)


def cpus_of(node: Manager, pod: Pod, container: str) -> str:
    placed = node.snapshot().assignment((pod.cgroup_uid, ContainerID(f"{container}-id")))
    return str(placed.cpus)


def owned(node: Manager) -> dict[str, str]:
    return {
        uid: str(has[POLICY_CPUS])
        for uid, has in builders.owned(node).items()
        if POLICY_CPUS in has
    }
