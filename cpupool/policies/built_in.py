"""The CPU manager policies that a pool file can choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import KOORDINATOR, NONE, QRM, STATIC
from cpupool.policies.base import NodeView
from cpupool.policies.koordinator import KoordinatorPolicy
from cpupool.policies.none import NonePolicy
from cpupool.policies.qrm import QRMPolicy
from cpupool.policies.static import StaticPolicy

if TYPE_CHECKING:
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.base import CPUManagerPolicies, CPUManagerPolicy

BUILT_IN: Final[CPUManagerPolicies] = {
    NONE: lambda _pools, _machine: NonePolicy(),
    STATIC: StaticPolicy.of_pools,
    KOORDINATOR: KoordinatorPolicy.of_pools,
    QRM: QRMPolicy.of_pools,
}


def assignable(pools: NodePools, machine: CPUTopology) -> CPUSet | None:
    """Return the online CPUs that containers can get of their own while no container runs.

    None where the policy is `none`, or a policy that only the agent knows.

    Raises:
        ConfigError: the policy does not allow this configuration on this machine.
    """
    factory = BUILT_IN.get(pools.cpu_manager.policy)
    if factory is None or not pools.cpu_manager.chooses:
        return None
    return given(factory(pools, machine), NodeView(machine, pools, pools.default_cpus(machine)))


def given(policy: CPUManagerPolicy, view: NodeView) -> CPUSet:
    """Return the CPUs that containers can get of their own; with `full-pcpus-only` whole cores."""
    cpus = policy.available(view)
    if not view.pools.cpu_manager.options.full_pcpus_only:
        return cpus
    return cpus - view.topology.with_siblings(view.cpus & view.topology.online - cpus)
