"""The NUMA nodes to which a QRM plugin for CPU or memory can bind a container.

The results equal those of `calculateHints` in the CPU and the memory plugin of katalyst-core,
pkg/agent/qrm-plugins. The module keeps two of its habits that look odd: with whole cores spread
evenly only the lowest node must have them; and the number of nodes of a preferred hint is that of
the narrowest sets with enough free CPUs, even if sockets or the binding rule these sets out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.errors import PlacementError
from cpupool.policies.layout import Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cpupool.core.cpuset import CPUSet
    from cpupool.policies.layout import Layout

_MOST_NODES: Final = 16
"""On a machine with more NUMA nodes hints have at most one node more than needed."""
_EPSILON: Final = 0.0001
"""Katalyst compares CPUs as floating-point numbers with this much room."""


class NoBinding(PlacementError):
    """No NUMA nodes to which a container can be bound."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; request less, or bind to other NUMA nodes", why)


@dataclass(frozen=True, slots=True)
class Binding:
    """The way in which a container is bound to NUMA nodes.

    Attributes:
        exclusive: no other bound container is on its nodes.
        nodes: exactly these nodes; empty for any.
        count: exactly so many nodes; 0 for as many as it needs.
        by_socket: the fewest sockets.
        evenly: the same number of CPUs on each node.
        whole_cores: whole cores.
    """

    exclusive: bool = False
    nodes: frozenset[int] = frozenset()
    count: int = 0
    by_socket: bool = False
    evenly: bool = False
    whole_cores: bool = False


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of a NUMA node, in bytes.

    Attributes:
        allocatable: the part that all containers can have.
        free: the part that is left.
    """

    allocatable: int
    free: int

    @property
    def used(self) -> bool:
        """Whether a container has a part."""
        return self.free < self.allocatable


def cpu_hints(
    layout: Layout, binding: Binding, request: float, free: Mapping[int, CPUSet]
) -> tuple[TopologyHint, ...]:
    """Return the sets of NUMA nodes for the CPUs of a container, the narrowest first.

    Args:
        layout: the machine.
        binding: how the container is bound.
        request: how many CPUs it requests.
        free: NUMA node → the CPUs that it could have there.

    Raises:
        NoBinding: there are none.
    """
    machine = _Machine(layout)
    need = machine.needed(request, ceil(len(layout.cpus) / len(machine.nodes)))
    if not binding.exclusive and binding.count <= 1 and need > 1:
        raise NoBinding(f"{request:g} CPUs do not fit on one NUMA node, and it shares its node")
    if binding.exclusive and (binding.evenly or binding.whole_cores):
        raise NoBinding("a container with NUMA nodes of its own has all their CPUs")
    wide = binding.exclusive or binding.count > 1
    enough = [
        nodes
        for nodes in machine.sets(need, wide=wide)
        if sum(len(free[node]) for node in nodes) + _EPSILON > request
    ]
    fitting = [
        nodes
        for nodes in enough
        if not machine.crosses(nodes)
        and (not binding.by_socket or machine.on_fewest_sockets(nodes, request))
        and _has_shares(machine, binding, request, [free[node] for node in nodes])
        and (not binding.nodes or binding.nodes == frozenset(nodes))
        and binding.count in {0, len(nodes)}
    ]
    if not fitting:
        raise NoBinding(f"no NUMA nodes have {request:g} CPUs for it")
    preferred = binding.count or min(map(len, enough))
    return tuple(TopologyHint(frozenset(nodes), len(nodes) == preferred) for nodes in fitting)


def memory_hints(
    layout: Layout,
    request: int,
    memory: Mapping[int, NodeMemory],
    *,
    exclusive: bool = False,
    highest_first: bool = False,
) -> tuple[TopologyHint, ...]:
    """Return the sets of NUMA nodes for the memory of a container, the narrowest first.

    Args:
        layout: the machine.
        request: how many bytes it requests.
        memory: NUMA node → its memory.
        exclusive: whether no other bound container is on its nodes.
        highest_first: whether nodes with higher ids come first.

    Raises:
        NoBinding: there are none.
    """
    machine = _Machine(layout, highest_first=highest_first)
    need = machine.needed(request, max(node.allocatable for node in memory.values()))
    if not exclusive and need > 1:
        raise NoBinding(f"{request} bytes do not fit on one NUMA node, and it shares its node")
    free = {id_: 0 if exclusive and node.used else node.free for id_, node in memory.items()}
    fitting = [
        nodes
        for nodes in machine.sets(need, wide=exclusive)
        if sum(free[node] for node in nodes) >= request and not machine.crosses(nodes)
    ]
    if not fitting:
        raise NoBinding(f"no NUMA nodes have {request} bytes for it")
    return tuple(TopologyHint(frozenset(nodes), len(nodes) == need) for nodes in fitting)


class _Machine:
    """The NUMA nodes of a machine, and their sockets."""

    def __init__(self, layout: Layout, *, highest_first: bool = False) -> None:
        self._layout = layout
        self.nodes = sorted(layout.groups[Level.NODE], reverse=highest_first)
        self._socket = {place.node: place.socket for place in layout.places.values()}
        self._per_socket = len(self.nodes) // len(layout.groups[Level.SOCKET])

    def needed(self, request: float, of_node: int) -> int:
        """Return how many nodes a request takes on an idle machine.

        Raises:
            NoBinding: more than there are.
        """
        need = max(1, ceil(request / of_node)) if of_node else len(self.nodes) + 1
        if need > len(self.nodes):
            raise NoBinding("the machine has less than that")
        return need

    def sets(self, need: int, *, wide: bool) -> Iterator[tuple[int, ...]]:
        """Yield sets of nodes, the narrowest first; of one node alone if they must not be wide."""
        few = len(self.nodes) <= _MOST_NODES
        widest = (len(self.nodes) if few else need + 1) if wide else 1
        for size in range(need, widest + 1):
            yield from combinations(self.nodes, size)

    def crosses(self, nodes: Sequence[int]) -> bool:
        """Return whether a set lies on several sockets, and would fit on one."""
        return len(nodes) <= self._per_socket and len(self._sockets(nodes)) > 1

    def on_fewest_sockets(self, nodes: Sequence[int], request: float) -> bool:
        """Return whether a set lies on as many sockets as whole CPUs of a request need."""
        of_socket = len(self._layout.cpus) // len(self._layout.groups[Level.SOCKET])
        return len(self._sockets(nodes)) == ceil(floor(request) / of_socket)

    def whole_cores(self, cpus: CPUSet) -> int:
        """Return how many whole cores are among CPUs."""
        return len(self._layout.whole_cores(cpus)) // self.threads

    @property
    def threads(self) -> int:
        """The number of CPUs of a core."""
        return self._layout.usual(Level.CORE)

    def _sockets(self, nodes: Sequence[int]) -> set[int]:
        return {self._socket[node] for node in nodes}


def _has_shares(
    machine: _Machine, binding: Binding, request: float, free: Sequence[CPUSet]
) -> bool:
    """Return whether nodes have whole cores, or the same number of CPUs, as the binding asks."""
    if binding.evenly:
        share, rest = divmod(ceil(request), len(free))
        if rest or any(len(cpus) < share for cpus in free):
            return False
        return not binding.whole_cores or machine.whole_cores(free[0]) >= share // machine.threads
    cores = sum(map(machine.whole_cores, free))
    return not binding.whole_cores or cores >= floor(request / machine.threads)
