"""Topology hints: the NUMA nodes on which a resource could lie, and those for all resources.

Each resource offers sets of NUMA nodes that could serve a request, and the Topology Manager picks
one set for all of them (KEP-693). The results equal those of the kubelet 1.36: generation as
`generateCPUTopologyHints` in pkg/kubelet/cm/cpumanager/policy_static.go, merging as
pkg/kubelet/cm/topologymanager/policy.go and numa_info.go. The kubelet walks through every subset
of nodes and every combination of hints, and so refuses machines with more than eight nodes by
default; here the work is bounded, and an answer says whether the bound cut the search short.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, combinations, islice
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

_MOST_HINTS: Final = 2**9 - 1
"""The most hints that a resource offers: all subsets of nine nodes."""

_MOST_STEPS: Final = 2**18
"""The most intersections that one more resource may take, and distances that the merge adds up.

Complete offers never take as many.
"""

_FEW_STEPS: Final = 2**14
"""The same limit where the answer cannot be proven."""


_ANY: Final = -1
"""The mask of a hint without nodes: the number -1 has every bit, so `&` removes none."""


@dataclass(frozen=True, slots=True)
class ResourceHints:
    """The sets of NUMA nodes that could serve one resource.

    Attributes:
        hints: by number of nodes, then in lexical order.
        complete: whether these are all sets; False where the machine has too many nodes for that.
    """

    hints: tuple[TopologyHint, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Merged:
    """The NUMA nodes for all resources of a pod.

    Attributes:
        hint: the nodes.
        admit: whether the policy admits the pod.
        proven: whether no better set exists; False where there were too many sets to check all.
    """

    hint: TopologyHint
    admit: bool
    proven: bool = True


def generate(
    request: int,
    capacity: Mapping[int, int],
    available: Mapping[int, int],
    required: Collection[int] = (),
    sockets: Mapping[int, Collection[int]] | None = None,
) -> ResourceHints:
    """Return all sets of NUMA nodes that could serve a request, the narrowest first.

    Sets as narrow as an idle machine would allow are preferred. On a machine with more than nine
    nodes some wider sets are missing, but never the set of all nodes.

    Args:
        request: the number of requested CPUs or devices.
        capacity: node → how many it has; all nodes.
        available: node → how many are available now; nodes without any may be missing.
        required: nodes that every set must contain, because the pod has CPUs or devices there.
        sockets: node → its sockets, to prefer sets on the fewest sockets, too (align-by-socket).
    """
    narrowest = _narrowest(request, capacity)
    sockets = sockets or {}
    fewest = _fewest_sockets(narrowest, sockets)
    others = [node for node in sorted(capacity) if node not in required]
    free = [available.get(node, 0) for node in others]
    missing = request - sum(available.get(node, 0) for node in required)
    most = _most(free)
    few = 2 ** len(capacity) - 1 <= _MOST_HINTS
    hints: list[TopologyHint] = []
    complete = True
    for size in range(max(1, len(required)), len(capacity) + 1):
        # Each size leaves room for wider sets; there is only one widest set.
        room = _MOST_HINTS - len(hints)
        share = room if few or size == len(capacity) else room // 2
        chosen = list(islice(_chosen(free, most, size - len(required), missing), share + 1))
        complete &= len(chosen) <= share
        for indices in chosen[:share]:
            nodes = frozenset(others[index] for index in indices).union(required)
            touched = {socket for node in nodes for socket in sockets.get(node, ())}
            hints.append(TopologyHint(nodes, size == narrowest or len(touched) == fewest))
    return ResourceHints(tuple(hints), complete)


def of_devices(devices: Collection[frozenset[int]]) -> tuple[TopologyHint, ...] | None:
    """Return the sets of NUMA nodes that touch every device, if none with fewer nodes does.

    The devices are given already, so the hints name no wider sets. None means that the devices have
    no nodes.

    Args:
        devices: the nodes of each device.
    """
    fixed = frozenset().union(*(nodes for nodes in devices if len(nodes) == 1))
    loose = [nodes for nodes in devices if fixed.isdisjoint(nodes)]
    others = sorted(frozenset().union(*loose))
    for size in range(len(others) + 1):
        touching = [
            TopologyHint(fixed.union(chosen), preferred=True)
            for chosen in combinations(others, size)
            if all(not nodes.isdisjoint(chosen) for nodes in loose)
        ]
        if touching:
            return tuple(touching) if devices else None
    return ()


def _narrowest(request: int, capacity: Mapping[int, int]) -> int:
    """Return the number of nodes that the request would take on an idle machine."""
    held = accumulate(sorted(capacity.values(), reverse=True))
    return next((size for size, sum_ in enumerate(held, 1) if sum_ >= request), len(capacity))


def _fewest_sockets(narrowest: int, sockets: Mapping[int, Collection[int]]) -> int | None:
    """Return the number of sockets of so many nodes; None where sockets do not matter."""
    nodes_per_socket = len(sockets) // (len(set().union(*sockets.values())) or 1)
    return -(-narrowest // nodes_per_socket) if nodes_per_socket else None


def _most(free: Sequence[int]) -> list[list[int]]:
    """Return for each start and k the sum of the k largest of `free[start:]`."""
    return [
        list(accumulate(sorted(free[start:], reverse=True), initial=0))
        for start in range(len(free) + 1)
    ]


def _chosen(
    free: Sequence[int], most: Sequence[Sequence[int]], size: int, missing: int
) -> Iterator[tuple[int, ...]]:
    """Yield the sets of `size` indices with at least `missing` free CPUs, in lexical order."""
    ahead: list[tuple[tuple[int, ...], int, int]] = [((), 0, missing)]
    while ahead:
        chosen, start, lacking = ahead.pop()
        more = size - len(chosen)
        # `most` keeps the walk off every dead end, so it takes few steps for each answer.
        if more >= len(most[start]) or most[start][more] < lacking:
            continue
        if more == 0:
            yield chosen
            continue
        ahead.append((chosen, start + 1, lacking))
        ahead.append(((*chosen, start), start + 1, lacking - free[start]))


def merge(
    policy: TopologyPolicy,
    nodes: Collection[int],
    offers: Iterable[Sequence[TopologyHint] | None],
    distances: Mapping[int, Sequence[int]] | None = None,
) -> Merged:
    """Choose one set of NUMA nodes for all resources: the intersection of one hint of each.

    The best set is the narrowest set that every resource prefers. Otherwise it is an intersection
    of hints, with as many nodes as the most demanding resource needs, or nearly. Among sets of the
    same size the closest nodes win if distances are given, then the lowest.

    Args:
        policy: the node's policy.
        nodes: all NUMA nodes of the machine.
        offers: the hints of each resource; None if it accepts any nodes, empty if no nodes can
            serve it.
        distances: node → its distances to all nodes in ascending order of their ids, for the
            option prefer-closest-numa-nodes.
    """
    if policy is TopologyPolicy.NONE:
        return Merged(TopologyHint(None, preferred=False), admit=True)
    single = policy is TopologyPolicy.SINGLE_NUMA_NODE
    listed = [_listed(offer, single=single) for offer in offers]
    # A set of nodes is a number with a bit for each node: `&` is the intersection.
    order = sorted(set(nodes).union(*(hint.nodes or () for hints in listed for hint in hints)))
    bits = {node: 1 << index for index, node in enumerate(order)}
    everything = _mask(frozenset(nodes), bits)
    favoured = [{_mask(hint.nodes, bits) for hint in hints if hint.preferred} for hints in listed]
    possible = [{_mask(hint.nodes, bits) for hint in hints} for hints in listed]

    candidates, proven = {mask & everything for mask in _agreed(favoured)} - {0}, True
    preferred, count = bool(candidates), 0
    if not preferred:
        candidates, proven = _shared(possible, everything)
        count = max(map(_least, possible), default=0)
    tied = _best_sized(candidates, count) or {everything}
    if distances is not None and not single:
        room = 1 + _MOST_STEPS // (1 + min(tied).bit_count() ** 2)
        proven &= len(tied) <= room
        tied = _closest(sorted(tied)[:room], order, distances)
    best = min(tied)
    chosen = None if single and best == everything else frozenset(_nodes(best, order))
    admit = preferred or policy is TopologyPolicy.BEST_EFFORT
    return Merged(TopologyHint(chosen, preferred), admit, proven)


def _listed(offer: Sequence[TopologyHint] | None, *, single: bool) -> Sequence[TopologyHint]:
    """Return a hint without nodes for no offer; for single-numa-node only the hints it accepts."""
    hints = offer or [TopologyHint(None, preferred=offer is None)]
    if not single:
        return hints
    return [
        hint for hint in hints if hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)
    ]


def _mask(nodes: frozenset[int] | None, bits: Mapping[int, int]) -> int:
    return _ANY if nodes is None else sum(bits[node] for node in nodes)


def _nodes(mask: int, order: Sequence[int]) -> list[int]:
    return [node for index, node in enumerate(order) if mask >> index & 1]


def _agreed(listed: Sequence[AbstractSet[int]]) -> set[int]:
    """Return the masks that each resource prefers or accepts."""
    return {
        mask
        for mask in {_ANY}.union(*listed)
        if all(mask in masks or _ANY in masks for masks in listed)
    }


def _shared(possible: Sequence[AbstractSet[int]], everything: int) -> tuple[set[int], bool]:
    """Return the intersections of one hint of each resource, and whether these are all.

    Empty intersections are left out.
    Many combinations have the same intersection, so the loop merges them resource by resource.
    """
    reached, complete = {everything}, True
    for masks in sorted(possible, key=lambda masks: (len(masks), sorted(masks))):
        if len(reached) * len(masks) > _MOST_STEPS:
            complete = False
            reached = _widest(reached, 1 + _FEW_STEPS // len(masks))
        reached = {before & mask for before in reached for mask in masks} - {0}
    return reached, complete


def _widest(masks: AbstractSet[int], count: int) -> set[int]:
    """Return the masks with the most nodes, which later masks can cut."""
    least = sorted(map(int.bit_count, masks), reverse=True)[:count][-1]
    wide = sorted(mask for mask in masks if mask.bit_count() >= least)
    return set(sorted(wide, key=int.bit_count, reverse=True)[:count])


def _least(masks: AbstractSet[int]) -> int:
    """Return the number of nodes of the narrowest mask."""
    return min((mask.bit_count() for mask in masks if mask != _ANY), default=0)


def _best_sized(masks: AbstractSet[int], count: int) -> set[int]:
    """Return the masks with `count` nodes, or next fewer nodes, or else next more nodes."""

    def rank(mask: int) -> tuple[bool, int]:
        size = mask.bit_count()
        return (True, size) if size > count else (False, -size)

    best = min(map(rank, masks), default=None)
    return {mask for mask in masks if rank(mask) == best}


def _closest(
    masks: Collection[int], order: Sequence[int], distances: Mapping[int, Sequence[int]]
) -> set[int]:
    """Return the masks, all of one size, whose nodes are closest to each other on average."""
    column = {node: index for index, node in enumerate(sorted(distances))}

    def total(mask: int) -> int:
        nodes = _nodes(mask, order)
        return sum(distances[node][column[other]] for node in nodes for other in nodes)

    totals = {mask: total(mask) for mask in masks}
    least = min(totals.values())
    return {mask for mask, distance in totals.items() if distance == least}
