"""The interface of a plugin: pure functions of its state, which return the next state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import ContainerRef
    from cpupool.plugins.service import Device
    from cpupool.plugins.state import PluginState
    from cpupool.policies.qrm.questions import PluginOptions, Question


class Amount(NamedTuple):
    """The amount of a resource on a NUMA node.

    Attributes:
        capacity: all of it.
        allocatable: the part that containers can have.
    """

    capacity: float
    allocatable: float


class Stock(NamedTuple):
    """The amounts of a resource on a machine.

    Attributes:
        by_node: NUMA node → how much it has.
        of_node: whether the node's status names the resource.
        devices: how much each device has; none where a resource has no devices.
    """

    by_node: Mapping[int, Amount]
    of_node: bool = False
    devices: tuple[tuple[Device, Amount], ...] = ()


class Plugin(Protocol):
    """A plugin on one machine, with one configuration."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The names under which it registers; the first is its own."""
        ...

    @property
    def options(self) -> PluginOptions:
        """The questions that it wants to get."""
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

    def answers(self, state: PluginState, container: ContainerRef) -> AnswerParts:
        """Return the present answers of a container; empty for one without an answer."""
        ...

    def devices(
        self, state: PluginState, container: ContainerRef
    ) -> Mapping[str, tuple[tuple[Device, float], ...]]:
        """Return resource → devices, and how much a container has of each; none for CPUs."""
        ...

    def settled(self, state: PluginState) -> PluginState:
        """Return the state after the changes that this machine and configuration require."""
        ...

    def stock(self, state: PluginState, resource: str) -> Mapping[str, Stock]:
        """Return how much there is of one of its resources, and of those that come with it."""
        ...
