"""The settings of a kubelet that concern cpupool, and the needs of a node's pools.

Sources: kubernetes pkg/kubelet/apis/config/v1beta1/types.go, and defaults.go beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.config.pool_rules import suits_static_kubelet
from cpupool.core import default_pool
from cpupool.core.cpu_manager import NONE, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import Location, Problem, Severity
from cpupool.core.node_topology import TopologyManager
from cpupool.core.pools import MILLI_PER_CPU, PoolKind
from cpupool.core.quantity import as_quantity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

KIND: Final = "KubeletConfiguration"
FEATURE_GATES: Final = "featureGates"
CPU_MANAGER: Final = "cpuManagerPolicy"
CPU_MANAGER_OPTIONS: Final = "cpuManagerPolicyOptions"
MEMORY_MANAGER: Final = "memoryManagerPolicy"
TOPOLOGY_MANAGER: Final = "topologyManagerPolicy"
TOPOLOGY_SCOPE: Final = "topologyManagerScope"
TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
SYSTEM: Final = "systemReserved"
KUBE: Final = "kubeReserved"
SYSTEM_CGROUP: Final = "systemReservedCgroup"
KUBE_CGROUP: Final = "kubeReservedCgroup"
CPUS: Final = "reservedSystemCPUs"
RESERVED_MEMORY: Final = "reservedMemory"
EVICTION: Final = "evictionHard"
NO_MEMORY_MANAGER: Final = "None"
PINNED_MEMORY: Final = "Static"
"""The policy of a memory manager that chooses the NUMA nodes of memory."""
MOST_NUMA_NODES: Final = 8
"""With more, a Topology Manager that has a policy needs an option."""


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """The settings of a kubelet's configuration that concern cpupool.

    Attributes:
        cpu_manager_policy: `none`, or `static`, which places containers itself.
        cpu_manager_options: the options of that policy: name → value.
        memory_manager_policy: `None`, or `Static`, which chooses the NUMA nodes of memory itself.
        topology_manager_policy: how the Topology Manager brings devices together on NUMA nodes.
        topology_manager_scope: whether it does so for each container, or for the whole pod.
        system_reserved_milli: the cpu kept from pods for the system.
        kube_reserved_milli: the cpu kept from pods for Kubernetes.
        reserved_cpus: CPUs kept from pods; where there are some, their number replaces the amounts.
        locations: path of a value → where it stands; "" → where the configuration begins.
        complete: whether no other file and no flag can set what is not written.
        topology_manager_options: the options of the Topology Manager: name → value.
        feature_gates: name → whether it is on; only the gates that are written.
        reserved_cgroups: the settings that name a cgroup for the reserved resources.
        kept_memory: memory or a size of huge pages → the bytes that the kubelet keeps from pods;
            empty where the sum follows from the machine's memory.
        reserved_memory: the same, as the list for the memory manager says it.
    """

    cpu_manager_policy: str = NONE
    cpu_manager_options: Mapping[str, str] = field(default_factory=dict)
    memory_manager_policy: str = NO_MEMORY_MANAGER
    topology_manager_policy: str = NONE
    topology_manager_scope: str = Scope.CONTAINER.value
    system_reserved_milli: int = 0
    kube_reserved_milli: int = 0
    reserved_cpus: CPUSet = field(default_factory=CPUSet)
    locations: Mapping[str, Location] = field(default_factory=dict)
    complete: bool = True
    topology_manager_options: Mapping[str, str] = field(default_factory=dict)
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    reserved_cgroups: tuple[str, ...] = ()
    kept_memory: Mapping[str, Decimal] = field(default_factory=dict)
    reserved_memory: Mapping[str, Decimal] = field(default_factory=dict)

    @property
    def known_cpu_manager(self) -> str | None:
        """The policy of the CPU manager; None where another file or a flag may set it."""
        return self.cpu_manager_policy if self._known(CPU_MANAGER) else None

    @property
    def known_memory_manager(self) -> str | None:
        """The policy of the memory manager; None where another file or a flag may set it."""
        return self.memory_manager_policy if self._known(MEMORY_MANAGER) else None

    @property
    def topology_manager(self) -> TopologyManager | None:
        """The Topology Manager; None where it is not known, and for words of no kubelet."""
        if not self._known(TOPOLOGY_MANAGER):
            return None
        try:
            policy = TopologyPolicy(self.topology_manager_policy)
            scope = Scope(self.topology_manager_scope)
        except ValueError:
            return None
        return TopologyManager(policy, scope) if policy.of_kubelet else None

    @property
    def reserved_milli(self) -> int:
        """The cpu that the scheduler does not see."""
        if self.reserved_cpus:
            return len(self.reserved_cpus) * MILLI_PER_CPU
        return self.system_reserved_milli + self.kube_reserved_milli

    def problem(
        self, path: str, what: str, remedy: str, severity: Severity = Severity.ERROR
    ) -> Problem:
        """Return a problem with a setting, where it stands or where the configuration begins."""
        where = self.locations.get(path) or self.locations.get("")
        return Problem(what, remedy, severity, path=path, location=where)

    def describe(self, needs: KubeletNeeds) -> str:
        """Describe the CPUs that a kubelet with these settings leaves to the scheduler."""
        schedulable_milli = len(needs.online) * MILLI_PER_CPU - self.reserved_milli
        described = (
            f"{as_quantity(schedulable_milli)} cpu for the scheduler, in a default pool of"
            f" {len(needs.default)} CPUs"
        )
        if needs.chooses:
            described += f"; the CPU manager gives out {len(needs.given)} and {needs.kept}"
        return described

    def excerpt(self) -> dict[str, object]:
        """Return the known settings as a KubeletConfiguration, without other fields."""
        settings: dict[str, object] = {
            CPU_MANAGER: self.cpu_manager_policy,
            CPU_MANAGER_OPTIONS: dict(self.cpu_manager_options),
            MEMORY_MANAGER: self.memory_manager_policy,
            TOPOLOGY_MANAGER: self.topology_manager_policy,
            TOPOLOGY_SCOPE: self.topology_manager_scope,
            TOPOLOGY_OPTIONS: dict(self.topology_manager_options),
            SYSTEM: {"cpu": as_quantity(self.system_reserved_milli)},
            KUBE: {"cpu": as_quantity(self.kube_reserved_milli)},
            CPUS: str(self.reserved_cpus),
        }
        return {"kind": KIND, **{key: settings[key] for key in settings if self._known(key)}}

    def _known(self, path: str) -> bool:
        return self.complete or path in self.locations


@dataclass(frozen=True, slots=True)
class KubeletNeeds:
    """The settings that the pools of one node need of its kubelet.

    Attributes:
        online: the CPUs that the kubelet counts as the node's.
        default: those of them that are the default pool's.
        given: the CPUs of the default pool for which the scheduler's `cpu` has to stand: all of
            them, or those that the CPU manager policy can give to containers.
        chooses: whether a CPU manager policy gives them out.
        usual_milli: the cpu of the given CPUs that is kept for the node's own daemons.
        spanning: exclusive pool → its NUMA nodes, for pools on more than one.
        node_count: the machine's NUMA nodes.
        static: the kubelet's CPU manager may be static.
        system: the CPUs of the default pool that only system pods use.
    """

    online: CPUSet
    default: CPUSet
    given: CPUSet
    chooses: bool
    usual_milli: int
    spanning: Mapping[str, tuple[int, ...]]
    node_count: int
    static: bool
    system: CPUSet = field(default_factory=CPUSet)

    @classmethod
    def of(
        cls,
        pools: NodePools,
        topology: CPUTopology,
        usual_milli: int = 0,
        assignable: CPUSet | None = None,
    ) -> KubeletNeeds:
        """Compute the needs.

        Args:
            pools: as configured.
            topology: the machine.
            usual_milli: as the attribute.
            assignable: the CPUs that the CPU manager policy can give to containers; None where no
                policy gives out CPUs.
        """
        default = default_pool.online(pools, topology)
        nodes = {
            pool.name: tuple(node for node, cpus in topology.nodes.items() if cpus & pool.offered)
            for pool in pools.of_kind(PoolKind.EXCLUSIVE)
        }
        return cls(
            online=topology.online,
            default=default,
            given=default if assignable is None else default & assignable,
            chooses=assignable is not None,
            usual_milli=usual_milli,
            spanning={name: listed for name, listed in nodes.items() if len(listed) > 1},
            node_count=len(topology.nodes),
            static=suits_static_kubelet(pools),
            system=default & pools.cpu_manager.system_pods.cpus,
        )

    @property
    def reserved(self) -> CPUSet:
        """The CPUs of the default pool that the CPU manager policy gives to no container."""
        return self.default - self.given - self.system

    @property
    def kept(self) -> str:
        """What becomes of the CPUs that the policy gives to no container."""
        system = f" and keeps {self.system} for system pods" if self.system else ""
        return f"reserves {self.reserved}{system}"

    @property
    def reserved_milli(self) -> int:
        """The cpu to keep from the scheduler."""
        return len(self.online - self.given) * MILLI_PER_CPU + self.usual_milli

    @property
    def schedulable_milli(self) -> int:
        """The cpu that is left for pods."""
        return len(self.online) * MILLI_PER_CPU - self.reserved_milli

    @property
    def reserved_cpus(self) -> CPUSet:
        """The CPUs to list where they are reserved by name, whole ones only."""
        usual = list(self.given)[: ceil(self.usual_milli / MILLI_PER_CPU)]
        return (self.online - self.given) | CPUSet(usual)

    @property
    def topology_manager_policy(self) -> str:
        """The policy that helps and refuses no pod."""
        helps = self.spanning and self.node_count <= MOST_NUMA_NODES
        return TopologyPolicy.BEST_EFFORT.value if helps else NONE
