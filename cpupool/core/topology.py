"""The machine's CPU topology as values: cores, dies, sockets, L3 groups, NUMA nodes.

A group (a core, a socket, ...) *is* the set of its online CPUs. The kernel's own ids are kept for
display only: `core_id` repeats on every socket, ids have gaps, and some machines report -1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.withheld import Withheld

MOST_NODES: Final = 1024
"""Linux numbers NUMA nodes from 0 to 1023 at most (CONFIG_NODES_SHIFT)."""


class CoreType(Enum):
    """The kind of a CPU's core on a hybrid machine; STANDARD where all cores are alike."""

    STANDARD = "standard"
    PERFORMANCE = "performance"
    EFFICIENCY = "efficiency"
    LOW_POWER = "low-power"


@dataclass(frozen=True, slots=True)
class CPUFacts:
    """The kernel's facts about one online CPU, each group as in the kernel's list.

    Attributes:
        core: the SMT siblings, itself included.
        socket: the CPUs of its package.
        die: the CPUs of its die; None where the kernel names none.
        l3: the CPUs behind its L3 cache; None without one.
        core_id: the kernel's `core_id`, None where it has none.
        package_id: the kernel's `physical_package_id`, None where it has none.
        die_id: the kernel's `die_id`, None where it has none.
    """

    core: CPUSet
    socket: CPUSet
    die: CPUSet | None = None
    l3: CPUSet | None = None
    core_id: int | None = None
    package_id: int | None = None
    die_id: int | None = None


@dataclass(frozen=True, slots=True)
class CPUInfo:
    """The place of one online CPU in the topology.

    Attributes:
        cpu: its id.
        core: index into `CPUTopology.cores`.
        socket: index into `CPUTopology.sockets`.
        die: index into `CPUTopology.dies`; None where no package has more than one.
        l3: index into `CPUTopology.l3`; None without an L3 cache.
        node: NUMA node id; None where the CPU has no node.
        core_type: performance, efficiency, ...
        core_id: the kernel's own id, for display; where threads of a core differ, the lowest CPU's.
        package_id: the kernel's own id, for display.
        die_id: the kernel's own id, for display.
    """

    cpu: int
    core: int
    socket: int
    die: int | None
    l3: int | None
    node: int | None
    core_type: CoreType
    core_id: int | None
    package_id: int | None
    die_id: int | None


@dataclass(frozen=True, slots=True)
class OfflineCPU:
    """The facts about a CPU from when it was last online.

    Attributes:
        core: its SMT siblings, itself included.
        node: its NUMA node id.
    """

    core: CPUSet
    node: int | None


@dataclass(frozen=True, slots=True)
class CPUTopology:
    """One machine. Groups hold only online CPUs, in the order of their lowest CPU.

    Attributes:
        online: CPUs that run, and that containers can have.
        present: CPUs that the machine has, offline ones included.
        possible: CPUs that the machine can have: a virtual machine gains and loses CPUs as it runs.
        isolated: CPUs taken from the scheduler at boot (`isolcpus=`).
        cores: the SMT sibling groups.
        sockets: the packages.
        dies: the dies; empty unless a package has more than one.
        l3: the groups behind one L3 cache; a CPU without L3 is in no group.
        nodes: NUMA node id → its CPUs; the empty set for a node without CPUs.
        distances: NUMA node id → distances to all nodes in ascending order of their ids.
        cpus: CPU id → CPUInfo, for online CPUs.
        hybrid: kernel name of a core type (`cpu_core`, `cpu_atom`, ...) → its CPUs.
        offline: CPU id → its last facts, for CPUs that went offline.
        withheld: why CPUs that run are not in `online`.
    """

    online: CPUSet
    present: CPUSet
    isolated: CPUSet
    cores: tuple[CPUSet, ...]
    sockets: tuple[CPUSet, ...]
    dies: tuple[CPUSet, ...]
    l3: tuple[CPUSet, ...]
    nodes: Mapping[int, CPUSet]
    distances: Mapping[int, tuple[int, ...]]
    cpus: Mapping[int, CPUInfo]
    hybrid: Mapping[str, CPUSet]
    offline: Mapping[int, OfflineCPU] = field(default_factory=dict)
    withheld: tuple[Withheld, ...] = ()
    possible: CPUSet = field(default_factory=CPUSet)

    def core_of(self, cpu: int) -> CPUSet:
        """Return the threads of a CPU's core, offline ones included where they are known."""
        remembered = (known.core for known in self.offline.values() if cpu in known.core)
        return CPUSet.union([self.running_core_of(cpu), *remembered])

    def with_siblings(self, cpus: CPUSet) -> CPUSet:
        """Add every SMT sibling of the given CPUs."""
        return CPUSet.union(self.core_of(cpu) for cpu in cpus)

    def running_core_of(self, cpu: int) -> CPUSet:
        """Return the online threads of a CPU's core; the CPU alone while it is offline."""
        info = self.cpus.get(cpu)
        return self.cores[info.core] if info else CPUSet.of(cpu)

    def with_running_siblings(self, cpus: CPUSet) -> CPUSet:
        """Add every online SMT sibling of the given CPUs that are online.

        What decides about numbers takes these siblings: a machine with CPUs offline answers as a
        machine without them, whenever they went offline. The siblings of `with_siblings` are for
        owners, who keep their cores.
        """
        return CPUSet.union(self.running_core_of(cpu) for cpu in cpus)

    def node_of(self, cpu: int) -> int | None:
        """Return a CPU's NUMA node, also while the CPU is offline; None where it is not known."""
        known = self.cpus.get(cpu) or self.offline.get(cpu)
        return known.node if known else None

    def remembering(self, before: CPUTopology) -> CPUTopology:
        """Return this topology with an earlier reading's facts about CPUs that are offline now.

        The kernel forgets the siblings and the node of an offline CPU, but an owner keeps its core.
        """
        gone = before.present & self.present - self.online
        offline = {
            cpu: OfflineCPU(before.core_of(cpu), before.node_of(cpu))
            for cpu in gone
            if cpu in before.cpus or cpu in before.offline
        }
        return replace(self, offline=offline)

    def cut_to(self, online: CPUSet) -> CPUTopology:
        """Return the topology after CPUs went offline.

        The result equals a new reading, which takes 50 ms and more on a machine of 256 CPUs.

        Args:
            online: the CPUs that stay online, all of them online here.
        """
        infos = {cpu: self.cpus[cpu] for cpu in online}
        return assemble(
            online=online,
            present=self.present,
            possible=self.possible,
            isolated=self.isolated,
            facts={
                cpu: CPUFacts(
                    core=self.cores[info.core],
                    socket=self.sockets[info.socket],
                    die=None if info.die is None else self.dies[info.die],
                    l3=None if info.l3 is None else self.l3[info.l3],
                    core_id=info.core_id,
                    package_id=info.package_id,
                    die_id=info.die_id,
                )
                for cpu, info in infos.items()
            },
            nodes=self.nodes,
            distances=self.distances,
            hybrid=self.hybrid,
        )


def describe(topology: CPUTopology) -> dict[str, object]:
    """Return a machine as JSON values, with sets of CPUs in the list format.

    `cpus` holds one object per online CPU; its `core`, `socket`, `die` and `l3` are indices into
    the arrays of that name, its `*_id` are the kernel's own.
    """
    return {
        "online": str(topology.online),
        "cores": [str(cpus) for cpus in topology.cores],
        "sockets": [str(cpus) for cpus in topology.sockets],
        "dies": [str(cpus) for cpus in topology.dies],
        "l3": [str(cpus) for cpus in topology.l3],
        "nodes": {str(node): str(cpus) for node, cpus in topology.nodes.items()},
        "distances": {str(node): list(row) for node, row in topology.distances.items()},
        "cpus": [
            {
                "cpu": info.cpu,
                "core": info.core,
                "socket": info.socket,
                "node": info.node,
                "die": info.die,
                "l3": info.l3,
                "siblings": str(topology.cores[info.core]),
                "core_id": info.core_id,
                "package_id": info.package_id,
                "die_id": info.die_id,
            }
            for info in topology.cpus.values()
        ],
        "hybrid": {kind: str(cpus) for kind, cpus in topology.hybrid.items()},
    }


def assemble(
    *,
    online: CPUSet,
    present: CPUSet,
    isolated: CPUSet,
    facts: Mapping[int, CPUFacts],
    nodes: Mapping[int, CPUSet],
    distances: Mapping[int, tuple[int, ...]],
    hybrid: Mapping[str, CPUSet],
    possible: CPUSet | None = None,
) -> CPUTopology:
    """Build the topology from the facts of each online CPU, with groups of online CPUs only.

    The groups of one kind have no CPU in common, even where the kernel's sets do: the first one
    has it, in ascending order of CPUs or node ids.
    """
    cores = _groups(online, ((cpu, facts[cpu].core) for cpu in online))
    sockets = _groups(online, ((cpu, facts[cpu].socket) for cpu in online))
    l3 = _groups(online, ((cpu, facts[cpu].l3) for cpu in online))
    dies = _groups(online, ((cpu, facts[cpu].die) for cpu in online))
    if len(dies.order) <= len(sockets.order):
        dies = _Groups((), {})
    cut_nodes: dict[int, CPUSet] = {}
    free = online
    for node, cpus in sorted(nodes.items()):
        cut_nodes[node] = cpus & free
        free -= cpus
    cut_hybrid = {kind: cpus & online for kind, cpus in hybrid.items()}
    node_of = {cpu: node for node, cpus in cut_nodes.items() for cpu in cpus}
    return CPUTopology(
        online=online,
        present=present | online,
        possible=present | online | (possible or CPUSet()),
        isolated=isolated,
        cores=cores.order,
        sockets=sockets.order,
        dies=dies.order,
        l3=l3.order,
        nodes=cut_nodes,
        distances=distances,
        cpus={
            cpu: CPUInfo(
                cpu=cpu,
                core=cores.index[cpu],
                socket=sockets.index[cpu],
                die=dies.index.get(cpu),
                l3=l3.index.get(cpu),
                node=node_of.get(cpu),
                core_type=_core_type(cpu, cut_hybrid),
                core_id=facts[cores.order[cores.index[cpu]].first].core_id,
                package_id=facts[cpu].package_id,
                die_id=facts[cpu].die_id if dies.order else None,
            )
            for cpu in online
        },
        hybrid=cut_hybrid,
    )


@dataclass(frozen=True, slots=True)
class _Groups:
    order: tuple[CPUSet, ...]
    index: Mapping[int, int]


def _groups(online: CPUSet, members: Iterable[tuple[int, CPUSet | None]]) -> _Groups:
    order: list[CPUSet] = []
    index: dict[int, int] = {}
    free = online
    # CPUs come in ascending order, so groups come in the order of their lowest CPU.
    for cpu, group in members:
        if group is None or cpu not in free:
            continue
        # No CPU is in two groups, even where the kernel's sets contradict each other.
        cut = group & free | CPUSet.of(cpu)
        index.update(dict.fromkeys(cut, len(order)))
        order.append(cut)
        free -= cut
    return _Groups(tuple(order), index)


_CORE_TYPES = {
    "cpu_core": CoreType.PERFORMANCE,
    "cpu_atom": CoreType.EFFICIENCY,
    "cpu_lowpower": CoreType.LOW_POWER,
}


def _core_type(cpu: int, hybrid: Mapping[str, CPUSet]) -> CoreType:
    named = (_CORE_TYPES[name] for name, cpus in hybrid.items() if cpu in cpus)
    return next(named, CoreType.STANDARD)


NO_CPUS = assemble(
    online=CPUSet(),
    present=CPUSet(),
    isolated=CPUSet(),
    facts={},
    nodes={},
    distances={},
    hybrid={},
)
"""The machine before the first reading."""
