"""What a plugin decides: pure functions of its state, which return the next state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.plugin_state import PluginState
    from cpupool.core.resource_plugins import Answers, PluginOptions, Question
    from cpupool.core.workloads import ContainerRef


class Amount(NamedTuple):
    """How much of a resource a NUMA node has.

    Attributes:
        capacity: all of it.
        allocatable: what containers can have.
    """

    capacity: float
    allocatable: float


class Stock(NamedTuple):
    """How much of a resource a machine has.

    Attributes:
        by_node: NUMA node → how much it has.
        of_node: whether the node's status names the resource.
    """

    by_node: Mapping[int, Amount]
    of_node: bool = False


class Plugin(Protocol):
    """A plugin on one machine, with one configuration."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The names under which it registers; the first is its own."""
        ...

    @property
    def options(self) -> PluginOptions:
        """What it wants to be asked."""
        ...

    def hints(self, state: PluginState, question: Question) -> tuple[TopologyHint, ...] | None:
        """Return the NUMA nodes that can serve a container; None for no preference.

        Raises:
            PlacementError: there are none.
        """
        ...

    def allocate(
        self, state: PluginState, question: Question, hint: TopologyHint | None
    ) -> PluginState:
        """Return the state with a container; the same state for a container that has all.

        Args:
            state: the state until now.
            question: the request.
            hint: the NUMA nodes that the manager has chosen; None for any.

        Raises:
            PlacementError: nothing can serve it.
        """
        ...

    def answers(self, state: PluginState, container: ContainerRef) -> Answers:
        """Return what a container has now; nothing for one without an answer."""
        ...

    def settled(self, state: PluginState) -> PluginState:
        """Return the state as this machine and this configuration have it."""
        ...

    def stock(self, state: PluginState, resource: str) -> Mapping[str, Stock]:
        """Return how much there is of one of its resources, and of those that come with it."""
        ...
