"""The plugin for memory: the NUMA nodes from which a container takes it.

It decides as Katalyst's memory plugin (pkg/agent/qrm-plugins/memory/dynamicpolicy in
katalyst-core). It adds up the requests of bound containers; only the kernel limits what a node
gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import AnswerPart
from cpupool.core.pod_resources import MEMORY
from cpupool.core.properties import CPUSET_MEMS
from cpupool.plugins.base import Amount, Stock
from cpupool.plugins.binding_hints import NoBinding, NodeMemory, memory_hints
from cpupool.plugins.placing import neighbours_of, on_free_nodes, placed, placing
from cpupool.plugins.state import ServedContainer
from cpupool.policies.layout import Level
from cpupool.policies.qrm.questions import ContainerRole, PluginOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import ContainerRef
    from cpupool.plugins.config import PluginConfig
    from cpupool.plugins.service import Device
    from cpupool.plugins.state import PluginState
    from cpupool.policies.layout import Layout
    from cpupool.policies.qrm.questions import Question

_NOTHING: Final = AnswerPart()


@dataclass(frozen=True, slots=True)
class MemoryPlugin:
    """The plugin on one machine.

    Attributes:
        layout: its online CPUs.
        config: roles, and the memory of each node that no container gets.
        total: NUMA node → its memory in bytes, without huge pages.
    """

    layout: Layout
    config: PluginConfig
    total: Mapping[int, int]

    @property
    def resources(self) -> tuple[str, ...]:
        """The name under which it registers."""
        return (MEMORY,)

    @property
    def options(self) -> PluginOptions:
        """The questions for hints, and repeatedly for allocations: unbound containers make room."""
        return PluginOptions(aligned=True, reconciled=True)

    def stock(self, _state: PluginState, resource: str) -> Mapping[str, Stock]:
        """Return the memory of each NUMA node."""
        of_nodes = {node: Amount(self.total[node], self._most(node)) for node in self.total}
        return {resource: Stock(of_nodes)}

    def hints(self, state: PluginState, question: Question) -> tuple[TopologyHint, ...] | None:
        """Return the NUMA nodes of a container that is bound; no preference for another.

        Raises:
            PlacementError: no nodes have memory for it.
        """
        how = placing(self.config, question)
        if how.binding is None or question.role is not ContainerRole.MAIN:
            return None
        has = state.held.get(question.container)
        if has is not None and has.answer.quantity >= question.quantity:
            return has.answer.hints
        memory = self._memory(state, question)
        found = memory_hints(
            self.layout, ceil(question.quantity), memory, exclusive=how.binding.exclusive
        )
        return on_free_nodes(found, [node for node, has in memory.items() if has.free])

    def allocate(
        self, state: PluginState, question: Question, hint: TopologyHint | None
    ) -> PluginState:
        """Return the state with a container.

        An init container of a bound pod gets nothing, a sidecar what the main container has.

        Raises:
            PlacementError: there is no memory for it.
        """
        how = placing(self.config, question)
        has = state.held.get(question.container)
        if how.binding is None or question.role is ContainerRole.SIDECAR:
            return state.holding(ServedContainer(question, has.answer if has else _NOTHING))
        if question.role is ContainerRole.INIT:
            return state
        if has is not None and has.answer.quantity >= question.quantity:
            return state
        memory = self._memory(state, question)
        nodes = hint.nodes if hint else None
        if nodes is None:
            offers = self.hints(state, question) or ()
            nodes = min(offers, key=lambda offer: not offer.preferred).nodes or frozenset()
        free = {node: memory[node].free for node in sorted(nodes) if node in memory}
        wanted = sum(free.values()) if how.binding.exclusive else ceil(question.quantity)
        if sum(free.values()) < question.quantity:
            raise NoBinding(
                f"no {question.quantity:.0f} bytes are free on NUMA nodes {sorted(nodes)}"
            )
        answer = replace(
            _on(nodes, wanted),
            by_node=_filled(free, wanted),
            hints=(TopologyHint(nodes, preferred=True),),
        )
        return state.holding(ServedContainer(question, answer))

    def answers(self, state: PluginState, container: ContainerRef) -> AnswerParts:
        """Return the NUMA nodes that a container has now.

        A container that is not bound has the nodes of no bound one, or all.
        """
        held = state.held[container]
        if held.answer.value:
            return {MEMORY: held.answer}
        if placed(self.config, held.question).binding is not None:
            main = state.main_of(container.pod)
            return {MEMORY: main} if main else {}
        bound = {node for each in state.held.values() for node in each.answer.by_node}
        return {MEMORY: _on(self.total.keys() - bound or self.total, held.question.quantity)}

    def devices(
        self, _state: PluginState, _container: ContainerRef
    ) -> Mapping[str, tuple[tuple[Device, float], ...]]:
        """Return none: a NUMA node has memory."""
        return {}

    def settled(self, state: PluginState) -> PluginState:
        """Return the same state: the answers to other containers follow from it."""
        return state

    def _most(self, node: int) -> int:
        return max(0, self.total.get(node, 0) - self.config.reserved_memory_bytes)

    def _memory(self, state: PluginState, question: Question) -> Mapping[int, NodeMemory]:
        """Return NUMA node → the memory that is free for a container, with its own.

        A request that grows stays on its nodes.
        """
        how = placing(self.config, question)
        has = state.held.get(question.container)
        nodes = has.answer.by_node if has else {}
        others = neighbours_of(state, self.config, question)
        found = {}
        for node in self.layout.groups[Level.NODE]:
            most = self._most(node)
            used = sum(
                held.answer.by_node.get(node, 0)
                for ref, held in state.held.items()
                if ref != question.container
            )
            serves = (not nodes or node in nodes) and all(map(how.accepts, others.get(node, ())))
            found[node] = NodeMemory(most, max(0, most - used) if serves else 0)
        return found


def _filled(free: Mapping[int, int], wanted: int) -> Mapping[int, int]:
    """Return NUMA node → bytes, and fill the lower node first."""
    taken: dict[int, int] = {}
    for node, bytes_ in free.items():
        if part := min(bytes_, wanted - sum(taken.values())):
            taken[node] = part
    return taken


def _on(nodes: Iterable[int], bytes_: float) -> AnswerPart:
    return AnswerPart(CPUSET_MEMS, str(CPUSet(nodes)), float(bytes_), scalar=True)
