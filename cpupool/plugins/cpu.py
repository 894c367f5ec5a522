"""The plugin for CPUs: pools by role, and CPUs of one's own on NUMA nodes.

It decides as Katalyst's CPU plugin (pkg/agent/qrm-plugins/cpu/dynamicpolicy in katalyst-core),
except that pools keep the CPUs that they have. The pools share the CPUs that containers with CPUs
of their own leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.plugin_facts import AnswerPart
from cpupool.core.pod_resources import CPU
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.properties import CPUSET_CPUS
from cpupool.plugins import pool_sets
from cpupool.plugins.accumulator import take
from cpupool.plugins.base import Amount, Stock
from cpupool.plugins.binding_hints import NoBinding, cpu_hints
from cpupool.plugins.config import RECLAIM
from cpupool.plugins.members import PoolRef, joined, needed, pool_of, pool_sizes
from cpupool.plugins.placing import neighbours_of, on_free_nodes, placed, placing
from cpupool.plugins.state import ServedContainer
from cpupool.policies.layout import Level
from cpupool.policies.qrm.katalyst import RECLAIMED_MILLI
from cpupool.policies.qrm.questions import ContainerRole, PluginOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import ContainerRef
    from cpupool.plugins.binding_hints import Binding
    from cpupool.plugins.config import PluginConfig, PoolSize
    from cpupool.plugins.service import Device
    from cpupool.plugins.state import PluginState
    from cpupool.policies.layout import Layout
    from cpupool.policies.qrm.questions import Question

_NOTHING: Final = AnswerPart()


class PoolsRunEmpty(PlacementError):
    """A request whose CPUs would leave the pools fewer than they have at least."""

    def __init__(self, requested: int, pools: int, fewest: int, left: int) -> None:
        need = f"{pools} pools, which have {fewest} at least"
        why = f"{requested} CPUs would leave {left} for {need}"
        super().__init__(f"{why}; request fewer, or remove a pool", why)


@dataclass(frozen=True, slots=True)
class CPUPlugin:
    """The plugin on one machine.

    Attributes:
        layout: its online CPUs.
        config: pools, roles and reserved CPUs.
        mark: the annotation by which cpupool knows CPUs that no other container may have.
    """

    layout: Layout
    config: PluginConfig
    mark: str

    @property
    def resources(self) -> tuple[str, ...]:
        """The name under which it registers."""
        return (CPU,)

    @property
    def options(self) -> PluginOptions:
        """The questions for hints, and repeatedly for allocations, because pools change."""
        return PluginOptions(aligned=True, reconciled=True)

    def stock(self, state: PluginState, resource: str) -> Mapping[str, Stock]:
        """Return the CPUs of each NUMA node, and what reclaimed pods may request."""
        nodes = self.layout.groups[Level.NODE]
        reserved = self.config.reserved
        cpus = {node: Amount(len(cpus), len(cpus - reserved)) for node, cpus in nodes.items()}
        stocks = {resource: Stock(cpus)}
        if RECLAIM in self.config.pools and state.headroom_cpus is not None:
            stocks[RECLAIMED_MILLI] = Stock(
                self._reclaimed(state, state.headroom_cpus), of_node=True
            )
        return stocks

    def _reclaimed(self, state: PluginState, headroom_cpus: float) -> Mapping[int, Amount]:
        """Return NUMA node → its part of what reclaimed pods may request, in milli-CPUs."""
        pool = state.pools.get(RECLAIM, CPUSet())
        milli = {
            node: headroom_cpus * MILLI_PER_CPU * len(cpus) / len(pool)
            for node, cpus in self.layout.free(Level.NODE, pool).items()
        }
        return {node: Amount(amount, amount) for node, amount in milli.items()}

    def hints(self, state: PluginState, question: Question) -> tuple[TopologyHint, ...] | None:
        """Return the NUMA nodes of a container that is bound; no preference for another.

        Raises:
            PlacementError: no nodes have CPUs for it.
        """
        how = placing(self.config, question)
        if how.binding is None or question.role is not ContainerRole.MAIN:
            return None
        has = state.held.get(question.container)
        if has is not None and has.answer.quantity >= question.quantity:
            return has.answer.hints
        return self._offers(state, question, how.binding)

    def allocate(
        self, state: PluginState, question: Question, hint: TopologyHint | None
    ) -> PluginState:
        """Return the state with a container.

        An init container of a bound pod gets nothing, a sidecar what the main container has.

        Raises:
            PlacementError: there are no CPUs for it.
        """
        how = placing(self.config, question)
        if how.binding is None or question.role is ContainerRole.SIDECAR:
            has = state.held.get(question.container)
            return self.settled(
                state.holding(ServedContainer(question, has.answer if has else _NOTHING))
            )
        if question.role is ContainerRole.INIT:
            return state
        has = state.held.get(question.container)
        if has is not None and has.answer.quantity >= question.quantity:
            return state
        nodes = self._nodes(state, question, how.binding, hint)
        if how.owns:
            answer = self._exclusive(self._chosen(state, question, how.binding, nodes))
        else:
            answer = self._in_pool(state, question, nodes)
        answer = replace(answer, hints=(TopologyHint(nodes, preferred=True),))
        after = state.holding(ServedContainer(question, answer))
        left, pools = len(self.shared(after)), self.pools(after)
        fewest = sum(pool.fewest for pool in pools.values())
        if left < fewest:
            raise PoolsRunEmpty(ceil(answer.quantity), len(pools), fewest, left)
        return self.settled(after)

    def answers(self, state: PluginState, container: ContainerRef) -> AnswerParts:
        """Return the CPUs that a container has now."""
        held = state.held[container]
        if held.answer.value:
            return {CPU: self._running(held.answer)}
        if placed(self.config, held.question).owns:
            main = state.main_of(container.pod)
            return {CPU: self._running(main) if main else AnswerPart(annotations=self._marks)}
        pool = pool_of(self.config, state, held)
        cpus = state.pools.get(pool.name, CPUSet()) if pool else CPUSet()
        return {CPU: replace(_cpus(cpus), hints=held.answer.hints)} if cpus else {}

    def devices(
        self, _state: PluginState, _container: ContainerRef
    ) -> Mapping[str, tuple[tuple[Device, float], ...]]:
        """Return none: a NUMA node has CPUs."""
        return {}

    def settled(self, state: PluginState) -> PluginState:
        """Return the state with the pools on the CPUs that are left for them."""
        return self.resized(state, {})

    def resized(self, state: PluginState, by_load: Mapping[str, int]) -> PluginState:
        """Return the settled state with other sizes of pools that follow their load.

        Args:
            state: the state until now.
            by_load: pool → how many CPUs it gets; a pool that is not in it keeps its size.
        """
        available, pools = self.shared(state), self.pools(state)
        now = {**{name: len(cpus) for name, cpus in state.pools.items()}, **by_load}
        sizes = pool_sets.sized(pools, len(available), now)
        nodes = {name: pool.node for name, pool in pools.items() if pool.node is not None}
        cpus = pool_sets.placed(self.layout, available, sizes, state.pools, nodes)
        return replace(state, pools=cpus)

    def pools(self, state: PluginState) -> Mapping[str, PoolSize]:
        """Return how large each pool should be: those on a NUMA node, and those of the file."""
        free = self.layout.free(Level.NODE, self.shared(state))
        return pool_sizes(self.config, state, {node: len(cpus) for node, cpus in free.items()})

    def shared(self, state: PluginState) -> CPUSet:
        """Return the CPUs that no container has of its own, without the reserved ones."""
        return (
            self.layout.cpus - self.config.reserved - CPUSet.union(map(_own, state.held.values()))
        )

    @property
    def _marks(self) -> Mapping[str, str]:
        return {self.mark: "true"}

    def _exclusive(self, cpus: CPUSet) -> AnswerPart:
        by_node = {node: len(found) for node, found in self.layout.free(Level.NODE, cpus).items()}
        return replace(_cpus(cpus), annotations=self._marks, by_node=by_node)

    def _running(self, answer: AnswerPart) -> AnswerPart:
        """Return an answer for the CPUs that are online; all of them if none is."""
        cpus = CPUSet.parse(answer.value)
        online = cpus & self.layout.cpus
        return replace(answer, value=str(online or cpus))

    def _free(self, state: PluginState, question: Question) -> Mapping[int, CPUSet]:
        """Return NUMA node → the CPUs that a container can have there, with those that it has.

        A request that grows stays on its nodes.
        """
        how = placing(self.config, question)
        has = state.held.get(question.container)
        cpus = self.shared(state) | (_own(has) & self.layout.cpus if has else CPUSet())
        nodes = has.answer.by_node if has else {}
        others = neighbours_of(state, self.config, question)

        def serves(node: int, free: CPUSet) -> bool:
            on_it = not nodes or node in nodes
            pool = PoolRef(how.pool, node)
            fits = how.owns or needed(self.config, state, question, pool) <= len(free)
            return on_it and fits and all(map(how.accepts, others.get(node, ())))

        of_nodes = self.layout.groups[Level.NODE]
        free = {node: found & cpus for node, found in of_nodes.items()}
        return {node: found if serves(node, found) else CPUSet() for node, found in free.items()}

    def _offers(
        self, state: PluginState, question: Question, binding: Binding
    ) -> tuple[TopologyHint, ...]:
        free = self._free(state, question)
        found = cpu_hints(self.layout, binding, question.quantity, free)
        return on_free_nodes(found, [node for node, cpus in free.items() if cpus])

    def _nodes(
        self,
        state: PluginState,
        question: Question,
        binding: Binding,
        hint: TopologyHint | None,
    ) -> frozenset[int]:
        """Return the NUMA nodes of a container: those of the manager, or the first preferred ones.

        Raises:
            PlacementError: there are none.
        """
        if hint and hint.nodes:
            return hint.nodes
        offers = self._offers(state, question, binding)
        return min(offers, key=lambda offer: not offer.preferred).nodes or frozenset()

    def _in_pool(self, state: PluginState, question: Question, nodes: frozenset[int]) -> AnswerPart:
        """Return that a container is in the pool of a NUMA node.

        Raises:
            NoBinding: there are several nodes, or its pool does not fit there.
        """
        serving = {node for node, cpus in self._free(state, question).items() if cpus}
        if len(nodes) != 1 or not nodes <= serving:
            raise NoBinding(
                f"no {question.quantity:g} CPUs for its pool are on NUMA nodes {sorted(nodes)}"
            )
        return joined(question, min(nodes))

    def _chosen(
        self, state: PluginState, question: Question, binding: Binding, nodes: frozenset[int]
    ) -> CPUSet:
        """Return CPUs of its own for a container on NUMA nodes, with those that it has.

        Raises:
            PlacementError: there are too few.
        """
        free = self._free(state, question)
        count = ceil(question.quantity)
        parts = [free.get(node, CPUSet()) for node in sorted(nodes)]
        if binding.evenly:
            shares = [self._taken(state, question, part, count // len(parts)) for part in parts]
            return CPUSet.union(shares)
        available = CPUSet.union(parts)
        if binding.exclusive and len(available) >= count:
            return available
        return self._taken(state, question, available, count)

    def _taken(
        self, state: PluginState, question: Question, available: CPUSet, count: int
    ) -> CPUSet:
        """Return so many of the available CPUs, first those that the container has."""
        has = state.held.get(question.container)
        kept = _own(has) & available if has else CPUSet()
        missing = max(0, count - len(kept))
        return kept | take(self.layout, available - kept, missing, by_cache=True)


def _own(held: ServedContainer) -> CPUSet:
    return CPUSet.parse_or_empty(held.answer.value)


def _cpus(cpus: CPUSet) -> AnswerPart:
    return AnswerPart(CPUSET_CPUS, str(cpus), float(len(cpus)), scalar=True)
