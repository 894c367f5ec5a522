"""The choice of CPUs of an exclusive pool for a container, with its reasons.

The choice narrows the free CPUs, one rule after the other, as the pool's policy says: away from
other pods, to whole cores, to the fewest NUMA nodes, to the fewest uncore caches there. The
accumulator takes the CPUs from the rest. Every rule records its result for `cpupool explain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Step
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs, SMTAlignmentError
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.policies.accumulators import koordinator
from cpupool.policies.accumulators.balance import share_out_beside
from cpupool.policies.accumulators.kubelet import Taken, take_evenly, take_packed
from cpupool.policies.base import Choice
from cpupool.policies.layout import Layout, Level
from cpupool.policies.pools import narrowing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cpupool.core.pool_policy import PoolPolicy
    from cpupool.core.pools import Pool
    from cpupool.core.topology import CPUTopology

_FARTHEST: Final = 255
"""The kernel's distance of nodes that cannot reach each other (ACPI: System Locality table)."""


def prefer(
    pool: Pool,
    topology: CPUTopology,
    free: CPUSet,
    count: int,
    *,
    required: CPUSet | None = None,
    held: CPUSet | None = None,
) -> Choice:
    """Choose `count` CPUs of an exclusive pool.

    Args:
        pool: its policy says which CPUs are good.
        topology: the machine.
        free: the CPUs to choose from, with or without `required`.
        count: how many CPUs to choose.
        required: CPUs that the answer must contain, at most `count`: must_include_deviceIDs in the
            kubelet's deviceplugin/v1beta1/api.proto.
        held: CPUs of the pool that other pods have.

    Raises:
        NotEnoughCPUs: there are fewer.
        SMTAlignmentError: the pool promises whole cores, and the request is not for whole cores,
            or fewer are free.
    """
    required = required or CPUSet()
    free |= required
    if count > len(free):
        raise NotEnoughCPUs(count, len(free))
    layout = Layout.of_topology(topology, (pool.offered & topology.online) | free)
    search = _Search(pool.policy, topology, layout, required, count, left=free)
    lost = len(free - pool.cpus)
    can = f"{len(free) - lost} of the pool's {len(pool.cpus)} CPUs can be chosen"
    search.note("free", f"{can}, and {lost} that it has no longer" if lost else can)
    if required:
        search.note("must include", f"the kubelet gives the pod {required} again")
    if pool.policy.whole_cores:
        search.keep_whole_cores()
    if pool.policy.exclusive is not ExclusivePolicy.NONE:
        search.keep_away_from(held or CPUSet())
    if pool.policy.numa is NUMAPolicy.DISTRIBUTED and search.take_evenly():
        return search.choice()
    search.keep_fewest(Level.NODE, "numaPolicy")
    of_nodes = search.left
    if pool.policy.by_uncore_cache and topology.l3:
        search.keep_fewest(Level.UNCORE, "alignByUncoreCache")
    search.take(of_nodes)
    return search.choice()


@dataclass(slots=True)
class _Search:
    """The CPUs that are left, and the reasons so far.

    Attributes:
        alone: the CPUs that are on no other pod's core or node, where these are too few.
    """

    policy: PoolPolicy
    topology: CPUTopology
    layout: Layout
    required: CPUSet
    count: int
    left: CPUSet
    alone: CPUSet = field(default_factory=CPUSet)
    steps: list[Step] = field(default_factory=list)
    proven: bool = True

    def note(self, rule: str, why: str) -> None:
        """Record a reason for the CPUs that are left now."""
        self.steps.append(Step(rule, why, self.left))

    def keep_whole_cores(self) -> None:
        """Keep only cores that are wholly free, and the required CPUs.

        Raises:
            SMTAlignmentError: there are too few, or the request is for a part of a core.
        """
        cores = self.layout.groups[Level.CORE].values()
        per_core = self.layout.largest_core
        if self.count % per_core:
            raise SMTAlignmentError(self.count, per_core)
        # A core with fewer threads than the others waits until its other threads are online.
        free = [core for core in cores if len(core) == per_core and core <= self.left]
        # A required part of a core brings the rest of the core, if that is free.
        begun = CPUSet.union(core for core in free if not core.isdisjoint(self.required))
        if len(self.required | begun) <= self.count:
            self.required |= begun
        whole = CPUSet.union(free)
        self.left = whole | self.required
        if self.count > len(self.left):
            raise SMTAlignmentError(self.count, per_core, len(self.left))
        found = f"{len(whole)} are on cores that are free as a whole"
        parts = len(self.left - whole)
        self.note("cpuBindPolicy", f"{found}, {parts} must be included" if parts else found)

    def keep_away_from(self, held: CPUSet) -> None:
        """Leave out the cores or nodes of other pods, if enough CPUs are left without them."""
        by_core = self.policy.exclusive is ExclusivePolicy.PHYSICAL_CORE
        level = Level.CORE if by_core else Level.NODE
        near = CPUSet.union(
            group for group in self.layout.groups[level].values() if not group.isdisjoint(held)
        )
        alone = self.left - near
        what = f"{len(alone)} are on {level.value}s that no other pod is on"
        if len(alone | self.required) < self.count:
            self.alone = alone
            self.note("exclusivePolicy", f"only {what}: it has to share one")
            return
        self.left = alone | self.required
        self.note("exclusivePolicy", what)

    def keep_fewest(self, level: Level, rule: str) -> None:
        """Keep the fewest nodes or caches that have as many CPUs as requested."""
        groups = self.layout.free(level, self.left)
        sizes = {group: len(cpus) for group, cpus in groups.items()}
        given = [group for group, cpus in groups.items() if cpus & self.required]
        emptiest = self.policy.numa is NUMAPolicy.LEAST_ALLOCATED
        found = narrowing.fewest(
            sizes,
            self.count,
            given=given,
            emptiest=emptiest,
            distances=_distances(self.topology, groups) if level is Level.NODE else None,
        )
        self.proven &= found.proven
        self.left = CPUSet.union(groups[group] for group in found.groups)
        held = [sizes[group] for group in found.groups]
        enough = sorted(size for size in sizes.values() if size >= self.count)
        if len(held) == 1 and held[0] == enough[-1 if emptiest else 0]:
            best = f"the {'emptiest' if emptiest else 'fullest'} that takes"
        elif given and len(held) == len(given):
            best = "those with the CPUs that must be included, which take"
        else:
            best = "the fewest that take"
        names = ", ".join(map(_name, found.groups))
        where = f"{level.value}{'s' * (len(found.groups) != 1)} {names or 'none'}"
        self.note(rule, f"{where}: {best} {self.count}, of {len(groups)} with free CPUs")

    def take_evenly(self) -> bool:
        """Take equally many CPUs from each of the fewest nodes; return whether that is possible."""
        group = self.layout.largest_core if self.policy.whole_cores else 1
        if self.required:
            taken = self._evenly_with_required(group)
        else:
            taken = take_evenly(self.layout, self.left, self.count, group=group)
        if taken is None:
            self.note("numaPolicy", "no NUMA nodes can share that evenly")
            return False
        self.left = taken.cpus
        self.proven &= taken.proven
        nodes = self.layout.free(Level.NODE, self.left)
        shares = sorted(map(len, nodes.values()))
        # The kubelet takes a remainder from few nodes if that leaves them more even.
        rest = ", the rest where the most are free," * (shares[-1] - shares[0] > group)
        each = ", ".join(f"{len(cpus)} on {_name(node)}" for node, cpus in nodes.items())
        self.note("numaPolicy", f"evenly{rest} over the fewest NUMA nodes that allow it: {each}")
        return True

    def _evenly_with_required(self, group: int) -> Taken | None:
        nodes = self.layout.free(Level.NODE, self.left).values()
        given = [len(cpus & self.required) for cpus in nodes]
        free = [len(cpus) for cpus in nodes]
        shares = share_out_beside(given, free, self.count // group, group)
        if shares is None:
            return None
        taken = self.required
        for cpus, has, share in zip(nodes, given, shares, strict=True):
            taken |= take_packed(self.layout, cpus - self.required, share - has).cpus
        return Taken(taken)

    def take(self, of_nodes: CPUSet) -> None:
        """Take the CPUs from those that are left; `of_nodes` are all of the chosen NUMA nodes."""
        packed = "whole cores before single threads"
        if self.policy.spreads:
            self.left = self._spread()
            self.note("cpuBindPolicy", "one thread of each core before a second one")
        elif self.policy.numa is NUMAPolicy.MOST_ALLOCATED:
            self.left = self._node_by_node(of_nodes, sign=1)
            self.note("numaPolicy", f"the fullest NUMA node first, {packed}")
        elif self.policy.numa is NUMAPolicy.LEAST_ALLOCATED:
            self.left = self._node_by_node(of_nodes, sign=-1)
            self.note("numaPolicy", f"the emptiest NUMA node first, {packed}")
        else:
            self.left = self._packed(self.left, self.required)
            self.note("order", f"{packed}, from where the fewest are free")

    def choice(self) -> Choice:
        """Return the choice after all CPUs have been taken."""
        return Choice(self.left, tuple(self.steps), self.proven)

    def _packed(self, available: CPUSet, taken: CPUSet) -> CPUSet:
        """Return the taken CPUs with the missing number of the available CPUs."""
        available -= taken
        missing = min(self.count - len(taken), len(available))
        return taken | take_packed(self.layout, available, missing).cpus

    def _node_by_node(self, of_nodes: CPUSet, *, sign: int) -> CPUSet:
        """Take one node after the other, those that had the fewest CPUs first or last."""
        nodes = self.layout.free(Level.NODE, of_nodes)
        taken = self.required
        for node in sorted(nodes, key=lambda node: (sign * len(nodes[node]), node)):
            taken = self._packed(nodes[node] & self.left, taken)
        return taken

    def _spread(self) -> CPUSet:
        """Take one thread of each core, first of the cores with the fewest taken threads."""
        least = self.policy.numa is NUMAPolicy.LEAST_ALLOCATED
        strategy = NUMAPolicy.LEAST_ALLOCATED if least else NUMAPolicy.MOST_ALLOCATED
        cores = self.layout.groups[Level.CORE]
        taken = self.required
        while missing := self.count - len(taken):
            free = self.layout.free(Level.CORE, self.left - taken)
            threads = {core: len(cores[core] & taken) for core in free}
            fewest = min(threads.values())
            firsts = CPUSet(cpus.first for core, cpus in free.items() if threads[core] == fewest)
            taken |= koordinator.take(
                self.layout,
                firsts,
                min(missing, len(firsts)),
                full_cores=False,
                strategy=strategy,
                preferred=self.alone,
            ).cpus
        return taken


def _distances(topology: CPUTopology, nodes: Collection[int]) -> narrowing.Distances | None:
    """Return the kernel's distances between nodes; None where all are equal.

    The largest distance stands for a missing one.
    """
    known = sorted(topology.nodes)
    unknown = dict.fromkeys(nodes, _FARTHEST)
    found: dict[int, Mapping[int, int]] = {}
    apart: set[int] = set()
    for node in nodes:
        row = dict(zip(known, topology.distances.get(node, ()), strict=False))
        found[node] = unknown | {other: row[other] for other in nodes if other in row}
        apart.update(far for other, far in found[node].items() if other != node)
    return found if len(apart) > 1 else None


def _name(group: int) -> str:
    if group >= 0:
        return str(group)
    return "unknown" if group == -1 else "none"
