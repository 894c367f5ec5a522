"""The plugin for network interfaces: a NIC near the NUMA node of a container.

It decides as Katalyst's network plugin (pkg/agent/qrm-plugins/network/staticpolicy in
katalyst-core), except that it takes the NIC with the most bandwidth left, not a random one. Several
containers may share a NIC. The plugin counts bandwidth, and does not enforce it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.plugin_facts import AnswerPart
from cpupool.plugins.base import Amount, Stock
from cpupool.plugins.placing import BadRequest, network_enhancement
from cpupool.plugins.service import Device
from cpupool.plugins.state import ServedContainer
from cpupool.policies.qrm.katalyst import NIC_NAME
from cpupool.policies.qrm.questions import ContainerRole, PluginOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import ContainerRef
    from cpupool.plugins.nics import NIC
    from cpupool.plugins.state import PluginState
    from cpupool.policies.qrm.questions import Question

NEAR_NIC: Final = "NIC"
"""The resource of the QRM proposal: a NIC, however much bandwidth."""
BANDWIDTH: Final = "resource.katalyst.kubewharf.io/net_bandwidth"
"""Katalyst's resource, in Mbit/s."""
_USABLE: Final = 0.9
"""The part of a NIC's speed that Katalyst gives out: of the two directions the smaller one."""
_IPV6: Final = "AFFINITY_NIC_ADDR_IPV6"
_IPV4: Final = "AFFINITY_NIC_ADDR_IPV4"
_NETNS: Final = "kubernetes.io/host-netns-path"
_KATALYST: Final = "qrm.katalyst.kubewharf.io/"
_NETNS_PATH: Final = f"{_KATALYST}netns_path"


class NoNIC(PlacementError):
    """No NIC that a container can use."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; check the NICs of the machine, and the plugins' file", why)


@dataclass(frozen=True, slots=True)
class NICPlugin:
    """The plugin on one machine.

    Attributes:
        nics: its NICs.
        nodes: its NUMA nodes.
    """

    nics: tuple[NIC, ...]
    nodes: frozenset[int]

    @property
    def resources(self) -> tuple[str, ...]:
        """The names under which it registers."""
        return (NEAR_NIC, BANDWIDTH)

    @property
    def options(self) -> PluginOptions:
        """The question for hints; a container keeps its NIC."""
        return PluginOptions(aligned=True)

    def stock(self, _state: PluginState, resource: str) -> Mapping[str, Stock]:
        """Return the bandwidth near each NUMA node, or how many NICs are there.

        A NIC near no node is in the amount of the first one.
        """
        found = dict.fromkeys(sorted(self.nodes), Amount(0.0, 0.0))
        devices = []
        for nic in self.nics:
            each = (
                Amount(1, nic.healthy)
                if resource == NEAR_NIC
                else Amount(nic.speed_mbits, _usable(nic) if nic.healthy else 0)
            )
            node = min(self._near(nic))
            most, usable = found[node]
            found[node] = Amount(most + each.capacity, usable + each.allocatable)
            devices.append((_device(node, nic.name, nic.netns), each))
        return {resource: Stock(found, of_node=resource == BANDWIDTH, devices=tuple(devices))}

    def hints(self, state: PluginState, question: Question) -> tuple[TopologyHint, ...] | None:
        """Return the NUMA nodes of the NICs that a container can use.

        All nodes together come last, unless the pod restricts its NIC to a near one.

        Raises:
            PlacementError: it can use none.
        """
        if question.role is not ContainerRole.MAIN:
            return None
        has = _held(state, question)
        if has is not None and has.question.quantity >= question.quantity:
            return has.answer.hints
        near = {self._near(nic) for nic in self._usable(state, question)}
        enhancement = network_enhancement(question)
        found = [TopologyHint(nodes, preferred=True) for nodes in sorted(near, key=sorted)]
        if self.nodes not in near and not enhancement.restricted:
            found.append(TopologyHint(self.nodes, preferred=False))
        return tuple(found)

    def allocate(
        self, state: PluginState, question: Question, hint: TopologyHint | None
    ) -> PluginState:
        """Return the state with a main container; others get nothing.

        Raises:
            PlacementError: it can use no NIC.
        """
        if question.role is not ContainerRole.MAIN:
            return state
        has = _held(state, question)
        if has is not None and has.question.quantity >= question.quantity:
            return state
        usable = self._usable(state, question)
        nodes = hint.nodes if hint and hint.nodes else self.nodes
        near = [nic for nic in usable if self._near(nic) == nodes] or [
            nic for nic in usable if self._near(nic) <= nodes
        ]
        if not near:
            raise NoNIC(f"no NIC that it can use is near NUMA nodes {sorted(nodes)}")
        enhancement = network_enhancement(question)
        best = min(
            near,
            key=lambda nic: (
                not enhancement.prefers(nic),
                -self._left(state, question, nic),
                nic.key,
            ),
        )
        return state.holding(ServedContainer(question, self._answer(best, question)))

    def answers(self, state: PluginState, container: ContainerRef) -> AnswerParts:
        """Return the NIC that a container has."""
        held = state.held[container]
        return {held.question.resource: held.answer}

    def devices(
        self, state: PluginState, container: ContainerRef
    ) -> Mapping[str, tuple[tuple[Device, float], ...]]:
        """Return the NIC that a container has, and how much of it: one NIC, or bandwidth."""
        held = state.held[container]
        netns, name = _key(held.answer)
        near = (node for hint in held.answer.hints or () for node in hint.nodes or ())
        device = _device(min(near, default=min(self.nodes)), name, netns)
        amount = held.answer.quantity if held.question.resource == BANDWIDTH else 1.0
        return {held.question.resource: ((device, amount),)}

    def settled(self, state: PluginState) -> PluginState:
        """Return the same state: a container keeps its NIC."""
        return state

    def _near(self, nic: NIC) -> frozenset[int]:
        """Return the NUMA nodes to which a NIC is near: all where the machine does not say."""
        return frozenset({nic.node}) if nic.node in self.nodes else self.nodes

    def _usable(self, state: PluginState, question: Question) -> list[NIC]:
        """Return the NICs that a container can use.

        Raises:
            NoNIC: there is none.
        """
        enhancement = network_enhancement(question)
        healthy = [nic for nic in self.nics if nic.healthy]
        if not healthy:
            raise NoNIC(f"none of {len(self.nics)} NICs is healthy")
        allowed = [nic for nic in healthy if enhancement.allows(nic)]
        requested = question.quantity if question.resource == BANDWIDTH else 0
        found = [nic for nic in allowed if self._left(state, question, nic) >= requested]
        if not found:
            words = f"none of {len(allowed)} NICs has {requested:g} Mbit/s left"
            raise NoNIC(words if allowed else "no NIC is in the network namespace that it wants")
        return found

    def _left(self, state: PluginState, question: Question, nic: NIC) -> float:
        """Return the bandwidth of a NIC that other containers leave, in Mbit/s."""
        taken = (
            held.question.quantity
            for ref, held in state.held.items()
            if held.question.resource == BANDWIDTH
            and ref != question.container
            and _key(held.answer) == nic.key
        )
        return _usable(nic) - sum(taken)

    def _answer(self, nic: NIC, question: Question) -> AnswerPart:
        near = self._near(nic)
        asks = question.resource == BANDWIDTH
        env = {_IPV6: nic.ipv6, _IPV4: nic.ipv4}
        annotations = {
            _NETNS: nic.netns,
            NIC_NAME: nic.name,
            _NETNS_PATH: nic.netns,
            f"{_KATALYST}inet_addr": nic.ipv4,
            f"{_KATALYST}inet_addr_ipv6": nic.ipv6,
        }
        if asks:
            annotations[f"{_KATALYST}net_bandwidth"] = f"{question.quantity:.0f}"
        return AnswerPart(
            value=str(CPUSet(near)) if asks else "",
            quantity=question.quantity if asks else 0.0,
            scalar=asks,
            of_node=asks,
            env=_filled(env),
            annotations=_filled(annotations),
            hints=(TopologyHint(near, preferred=True),),
            by_node={min(near): round(question.quantity)} if asks else {},
        )


def _held(state: PluginState, question: Question) -> ServedContainer | None:
    """Return what a container has of the resource.

    Raises:
        BadRequest: it has a NIC by the other resource.
    """
    held = state.held.get(question.container)
    if held is not None and held.question.resource != question.resource:
        why = f"the container requests {NEAR_NIC} and {BANDWIDTH}"
        raise BadRequest(why, "request one of them")
    return held


def _device(node: int, name: str, netns: str) -> Device:
    return Device(node, NEAR_NIC, name, netns.rpartition("/")[2])


def _usable(nic: NIC) -> int:
    return int(nic.speed_mbits * _USABLE)


def _key(answer: AnswerPart) -> tuple[str, str]:
    return answer.annotations.get(_NETNS_PATH, ""), answer.annotations[NIC_NAME]


def _filled(texts: dict[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if text}
