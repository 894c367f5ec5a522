"""The kubelet's configuration, and what the pools of a node need of it.

The scheduler counts a node's `cpu` as all online CPUs less what the kubelet reserves, and knows
nothing of pools; so all CPUs outside the default pool must be reserved, or the scheduler uses them
twice. Sources: kubernetes cmd/kubelet/app/server.go (`reservedSystemCPUs` takes the place of every
other cpu reservation), pkg/kubelet/cm/node_container_manager_linux.go (what is allocatable),
pkg/kubelet/apis/config/v1beta1/defaults.go, pkg/kubelet/cm/topologymanager (at most 8 NUMA nodes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.config import document
from cpupool.config.document import Origin, Table
from cpupool.config.pool_rules import suits_static_kubelet
from cpupool.config.reader import Reader
from cpupool.core import quantity
from cpupool.core.cpu_manager import NONE, STATIC, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet, format_ids
from cpupool.core.errors import (
    Location,
    Problem,
    QuantityError,
    Severity,
    refuse_errors,
)
from cpupool.core.node_topology import TopologyManager
from cpupool.core.pools import MILLI_PER_CPU, PoolKind
from cpupool.core.quantity import as_quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.config.document import Value
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

_KIND: Final = "KubeletConfiguration"
_CONFIGZ: Final = "kubeletconfig"
"""The key under which /configz holds the configuration, without a kind of its own."""
_CPU_MANAGER: Final = "cpuManagerPolicy"
_CPU_MANAGER_OPTIONS: Final = "cpuManagerPolicyOptions"
_MEMORY_MANAGER: Final = "memoryManagerPolicy"
_TOPOLOGY_MANAGER: Final = "topologyManagerPolicy"
NO_MEMORY_MANAGER: Final = "None"
_TOPOLOGY_SCOPE: Final = "topologyManagerScope"
_SYSTEM: Final = "systemReserved"
_KUBE: Final = "kubeReserved"
_CPUS: Final = "reservedSystemCPUs"
_MOST_NUMA_NODES: Final = 8
"""With more, a kubelet whose topology manager has a policy does not start."""


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """What cpupool has to know of a kubelet's configuration.

    Attributes:
        cpu_manager_policy: `none`, or `static`, which places containers itself.
        cpu_manager_options: the options of that policy: name → value.
        memory_manager_policy: `None`, or `Static`, which chooses the NUMA nodes of memory itself.
        topology_manager_policy: how the devices of a pod are brought together on NUMA nodes.
        topology_manager_scope: whether those of a container, or of the whole pod.
        system_reserved_milli: the cpu kept from pods for the system.
        kube_reserved_milli: the cpu kept from pods for Kubernetes.
        reserved_cpus: CPUs kept from pods; where there are some, their number counts instead.
        locations: path of a value → where it stands; "" → where the configuration begins.
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

    @property
    def topology_manager(self) -> TopologyManager | None:
        """The Topology Manager; None for words with which the kubelet does not start."""
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

    def describe(self, needs: KubeletNeeds) -> str:
        """Describe the CPUs that a kubelet with these settings leaves to the scheduler."""
        schedulable_milli = len(needs.online) * MILLI_PER_CPU - self.reserved_milli
        described = (
            f"{as_quantity(schedulable_milli)} cpu for the scheduler, in a default pool of"
            f" {len(needs.default)} CPUs"
        )
        if needs.chooses:
            reserved = needs.default - needs.given
            described += f"; the CPU manager gives out {len(needs.given)} and reserves {reserved}"
        return described

    def excerpt(self) -> dict[str, object]:
        """Return the known settings as a KubeletConfiguration, without other fields."""
        return {
            "kind": _KIND,
            _CPU_MANAGER: self.cpu_manager_policy,
            _CPU_MANAGER_OPTIONS: dict(self.cpu_manager_options),
            _MEMORY_MANAGER: self.memory_manager_policy,
            _TOPOLOGY_MANAGER: self.topology_manager_policy,
            _SYSTEM: {"cpu": as_quantity(self.system_reserved_milli)},
            _KUBE: {"cpu": as_quantity(self.kube_reserved_milli)},
            _CPUS: str(self.reserved_cpus),
        }


@dataclass(frozen=True, slots=True)
class KubeletNeeds:
    """What the pools of one node need of its kubelet.

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
    """

    online: CPUSet
    default: CPUSet
    given: CPUSet
    chooses: bool
    usual_milli: int
    spanning: Mapping[str, tuple[int, ...]]
    node_count: int
    static: bool

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
        default = pools.default_cpus(topology) & topology.online
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
        )

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
        helps = self.spanning and self.node_count <= _MOST_NUMA_NODES
        return TopologyPolicy.BEST_EFFORT.value if helps else NONE


def parse(name: str, text: str | bytes) -> KubeletConfig:
    """Read a KubeletConfiguration, or what the kubelet's /configz answers, as YAML or JSON.

    Raises:
        ConfigError: it is something else, or a value that matters here cannot be read.
    """
    reader = Reader([])
    root = reader.part(document.read(text, Origin(name), reader.problems))
    refuse_errors(reader.problems)
    wrapped = root.get(_CONFIGZ)
    found = wrapped if isinstance(wrapped, Table) else root
    if found is root and reader.word(root.get("kind")) != _KIND:
        what = f"this is neither a {_KIND} nor an answer of /configz"
        reader.refuse(root, what, "give one of the two")
    config = KubeletConfig(
        cpu_manager_policy=reader.word(found.get(_CPU_MANAGER)) or NONE,
        cpu_manager_options={
            name: reader.word(value)
            for name, value in reader.part(found.get(_CPU_MANAGER_OPTIONS)).entries.items()
        },
        memory_manager_policy=reader.word(found.get(_MEMORY_MANAGER)) or NO_MEMORY_MANAGER,
        topology_manager_policy=reader.word(found.get(_TOPOLOGY_MANAGER)) or NONE,
        topology_manager_scope=reader.word(found.get(_TOPOLOGY_SCOPE)) or Scope.CONTAINER.value,
        system_reserved_milli=_milli(reader, reader.part(found.get(_SYSTEM)).get("cpu")),
        kube_reserved_milli=_milli(reader, reader.part(found.get(_KUBE)).get("cpu")),
        reserved_cpus=reader.cpus(found.get(_CPUS)) or CPUSet(),
        locations={
            path.removeprefix(f"{_CONFIGZ}."): where
            for path, where in document.locations(found).items()
        }
        | {"": found.location},
    )
    refuse_errors(reader.problems)
    return config


def check(config: KubeletConfig, needs: KubeletNeeds) -> tuple[Problem, ...]:
    """Find where a kubelet's configuration and the pools of its node disagree."""
    looks = (_cpu_manager, _reserved_cpus, _reservation, _topology_manager)
    return tuple(problem for look in looks for problem in look(config, needs))


def milli_of(text: str) -> int:
    """Read an amount of cpu; what is less than a milli-CPU counts as one, as in Kubernetes.

    Raises:
        QuantityError: it is none, or a negative one.
    """
    value = quantity.parse(text) * MILLI_PER_CPU
    if not 0 <= value < 2**63:
        raise QuantityError(text, "write an amount of cpu, as 2 or 500m")
    return ceil(value)


def _cpu_manager(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    if config.cpu_manager_policy == STATIC and needs.static:
        if loose := needs.online - needs.given - config.reserved_cpus:
            which = "that no container may own" if needs.chooses else "of shared pools"
            yield _problem(
                config,
                _CPUS,
                f"the kubelet gives CPUs {loose} {which} to containers as their own",
                f"set {_CPUS} to {needs.reserved_cpus | config.reserved_cpus}",
            )
    elif config.cpu_manager_policy != NONE:
        yield _problem(
            config,
            _CPU_MANAGER,
            f"the kubelet's CPU manager is {config.cpu_manager_policy[:63]!r} and"
            f" {'gives out the same CPUs' if needs.chooses else 'writes the same cpusets'}"
            " as cpupool",
            "drain the node, stop the kubelet, set none, delete its cpu_manager_state, start it",
        )
    elif options := " and ".join(config.cpu_manager_options):
        yield _problem(
            config,
            _CPU_MANAGER_OPTIONS,
            f"with {_CPU_MANAGER}: {NONE} the kubelet does not start, as {options} is set",
            f"remove {_CPU_MANAGER_OPTIONS}; the pool file has these options in cpuManager",
        )


def _reserved_cpus(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    listed = config.reserved_cpus
    if absent := listed - needs.online:
        yield _problem(
            config,
            _CPUS,
            f"CPUs {absent} are not online, so the kubelet does not start",
            f"list some of {needs.online}",
        )
    amounts_milli = config.system_reserved_milli + config.kube_reserved_milli
    # A kubelet that runs may show the number of the list in systemReserved.
    if listed and amounts_milli not in (0, config.reserved_milli):
        yield _problem(
            config,
            _CPUS,
            f"the number of these CPUs, {len(listed)}, takes the place of the cpu in {_SYSTEM} and"
            f" {_KUBE}",
            "remove one of the two, so that the number is clear",
            Severity.WARNING,
        )


def _reservation(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    path = _CPUS if config.reserved_cpus else f"{_SYSTEM}.cpu"
    reserved, enough = as_quantity(config.reserved_milli), as_quantity(needs.reserved_milli)
    reserves = f"the kubelet reserves {reserved} cpu, and {_spelled(needs)}"
    lacking_milli = needs.reserved_milli - config.reserved_milli
    surplus_milli = config.reserved_milli - len(needs.online) * MILLI_PER_CPU
    unused_milli = -lacking_milli if needs.chooses else 0
    if lacking_milli > 0:
        given = f"{as_quantity(lacking_milli)} away that the default pool lacks"
        if needs.chooses:
            given = f"{as_quantity(lacking_milli)} cpu away that the CPU manager cannot give"
        yield _problem(
            config,
            path,
            f"{reserves}: the scheduler gives {given}",
            _right_amount(config, needs, path),
        )
    elif surplus_milli > 0:
        yield _problem(
            config,
            path,
            f"{reserved} of {len(needs.online)} CPUs are reserved, so the kubelet does not start",
            f"reserve {enough}",
        )
    elif surplus_milli == 0 and needs.schedulable_milli:
        yield _problem(
            config,
            path,
            f"all {len(needs.online)} CPUs are reserved: a pod that requests cpu finds no room",
            f"reserve {enough} to offer the default pool ({needs.default})",
            Severity.WARNING,
        )
    elif unused_milli > 0:
        unused = f"{as_quantity(unused_milli)} cpu that the CPU manager can give stays unused"
        yield _problem(
            config,
            path,
            f"{reserves}: {unused}",
            _right_amount(config, needs, path),
            Severity.WARNING,
        )


def _right_amount(config: KubeletConfig, needs: KubeletNeeds, path: str) -> str:
    if config.reserved_cpus:
        return f"set {path} to {needs.reserved_cpus}"
    amount_milli = needs.reserved_milli - config.kube_reserved_milli
    if amount_milli < 0:
        return f"set {_KUBE}.cpu and {path} to {as_quantity(needs.reserved_milli)} together"
    return f"set {path} to {as_quantity(amount_milli)}"


def _topology_manager(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    policy = needs.topology_manager_policy
    if config.topology_manager_policy == NONE != policy:
        pools = ", ".join(
            f"{name} (NUMA nodes {format_ids(nodes)})" for name, nodes in needs.spanning.items()
        )
        yield _problem(
            config,
            _TOPOLOGY_MANAGER,
            f"with {NONE}, the kubelet does not bring the CPUs of {pools} and a pod's other devices"
            " together",
            f"set {policy}, or single-numa-node, which refuses pods that one node cannot hold",
            Severity.WARNING,
        )


def _problem(
    config: KubeletConfig,
    path: str,
    what: str,
    remedy: str,
    severity: Severity = Severity.ERROR,
) -> Problem:
    where = config.locations.get(path) or config.locations.get("")
    return Problem(what, remedy, severity, path=path, location=where)


def _spelled(needs: KubeletNeeds) -> str:
    outside = len(needs.online - needs.default)
    kept = f"; the CPU manager reserves {needs.default - needs.given}"
    usual = f", and {as_quantity(needs.usual_milli)} is for daemons" if needs.usual_milli else ""
    return (
        f"{outside} of {len(needs.online)} CPUs are outside the default pool"
        f" ({str(needs.default) or 'empty'}{kept if needs.chooses else ''}){usual}"
    )


def _milli(reader: Reader, value: Value) -> int:
    text = reader.word(value)
    try:
        return milli_of(text) if text else 0
    except QuantityError as error:
        reader.refuse(value, str(error), "write an amount of cpu, as 2 or 500m")
        return 0
