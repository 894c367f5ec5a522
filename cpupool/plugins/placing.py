"""The requests to our plugins in a pod's role, or in Katalyst's annotations.

Source of the annotations: kubewharf/katalyst-api, pkg/consts/qos.go.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.suggestions import hint, nearest
from cpupool.plugins.binding_hints import Binding, NoBinding
from cpupool.plugins.config import RECLAIM, Neighbours
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.katalyst import QOS_LEVEL, QoSLevel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.plugins.config import PluginConfig, Role
    from cpupool.plugins.nics import NIC
    from cpupool.plugins.state import PluginState
    from cpupool.policies.qrm.katalyst import Unknown
    from cpupool.policies.qrm.questions import Question

_TRUE: Final = "true"
_DEFAULT_POOLS: Final = {QoSLevel.SHARED: "share", QoSLevel.RECLAIMED: RECLAIM}


class BadRequest(PlacementError):
    """A pod with a request that no plugin of ours can serve."""

    heals = False

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}", why)


@dataclass(frozen=True, slots=True)
class Placing:
    """The placement of a pod.

    Attributes:
        pool: the pool on whose CPUs it runs; empty for none.
        binding: how it is bound to NUMA nodes: with CPUs of its own, or in a part of its pool; None
            for a pod that is not.
        neighbours: which other pods may be bound there, too.
        role: the pod's role; empty for none.
    """

    pool: str = ""
    binding: Binding | None = None
    neighbours: Neighbours = Neighbours.ANY
    role: str = ""

    @property
    def owns(self) -> bool:
        """Whether it has CPUs of its own."""
        return self.binding is not None and not self.pool

    def accepts(self, other: Placing) -> bool:
        """Return whether a pod and another one may be bound to the same NUMA node."""
        if self.pool or other.pool:
            return self.pool == other.pool
        if Neighbours.NONE in {self.neighbours, other.neighbours}:
            return False
        if self.neighbours is other.neighbours is Neighbours.ANY:
            return True
        return bool(self.role) and self.role == other.role


def placing(config: PluginConfig, question: Question) -> Placing:
    """Return how a pod is placed: by its role, or by Katalyst's annotations.

    Raises:
        BadRequest: there is no such pool, or no such way.
    """
    role = config.roles.get(question.pod_role)
    if role is not None:
        return _of_role(question.pod_role, role)
    enhancements = _enhancements(question.annotations, (katalyst.MEMORY, katalyst.CPU))
    for found in katalyst.unknown_level(question.annotations):
        raise _unknown(found)
    level = next(
        (each for each in QoSLevel if each.value == question.annotations.get(QOS_LEVEL)),
        QoSLevel.SHARED,
    )
    if level is QoSLevel.DEDICATED:
        return _dedicated(question.pod_role, enhancements)
    named = enhancements.get("cpuset_pool", "")
    if named and named not in config.pools:
        raise BadRequest(f"there is no pool {named[:63]!r}", "add it to the plugins' file")
    usual = _DEFAULT_POOLS.get(level, "")
    if level is QoSLevel.SHARED and enhancements.get("numa_binding") == _TRUE:
        return Placing(named or usual, Binding())
    if level is QoSLevel.RECLAIMED and usual not in config.pools:
        raise BadRequest(f"there is no pool {usual!r}", "add it to the plugins' file")
    return Placing(named or (usual if usual in config.pools else ""))


@dataclass(frozen=True, slots=True)
class NetworkEnhancement:
    """The NICs that a pod requests.

    Attributes:
        of_host: whether it requests one in the host's network namespace, or elsewhere; None for
            any.
        strict: whether no other one serves it.
        restricted: whether only a NIC near its NUMA nodes serves it.
    """

    of_host: bool | None = None
    strict: bool = False
    restricted: bool = False

    def prefers(self, nic: NIC) -> bool:
        """Return whether a NIC is in the namespace that the pod requests."""
        return self.of_host is None or self.of_host is not bool(nic.netns)

    def allows(self, nic: NIC) -> bool:
        """Return whether a NIC can serve the pod."""
        return self.prefers(nic) or not self.strict


def network_enhancement(question: Question) -> NetworkEnhancement:
    """Return which NICs a pod requests, by Katalyst's annotations.

    Raises:
        BadRequest: they cannot be read.
    """
    enhancements = _enhancements(question.annotations, (katalyst.NETWORK,))
    namespace = enhancements.get("namespace_type", "")
    kind = namespace.removesuffix("_preferred")
    return NetworkEnhancement(
        {"host_ns": True, "anti_host_ns": False}.get(kind),
        namespace == kind,
        enhancements.get("topology_affinity_restricted") == _TRUE,
    )


def neighbours_of(
    state: PluginState, config: PluginConfig, question: Question
) -> Mapping[int, list[Placing]]:
    """Return NUMA node → how each other pod that is bound to it is placed."""
    found: defaultdict[int, list[Placing]] = defaultdict(list)
    for ref, held in state.held.items():
        if ref.pod != question.container.pod:
            for node in held.answer.by_node:
                found[node].append(placed(config, held.question))
    return found


def placed(config: PluginConfig, question: Question) -> Placing:
    """Return how a pod that is served already is placed, also if an edit would refuse it now."""
    try:
        return placing(config, question)
    except BadRequest:
        return Placing(neighbours=Neighbours.NONE)


def on_free_nodes(hints: Iterable[TopologyHint], free: Collection[int]) -> tuple[TopologyHint, ...]:
    """Return the hints for nodes that have something left; Katalyst's may have others, too.

    Raises:
        NoBinding: none is left.
    """
    found = tuple(hint for hint in hints if hint.nodes and hint.nodes <= set(free))
    if not found:
        raise NoBinding("no NUMA node accepts it together with the pods that are bound there")
    return found


def _of_role(name: str, role: Role) -> Placing:
    if role.pool:
        return Placing(role.pool, role=name)
    alone = role.neighbours is Neighbours.NONE
    return Placing("", Binding(exclusive=alone), role.neighbours, name)


def _dedicated(role: str, enhancements: Mapping[str, str]) -> Placing:
    if enhancements.get("numa_binding") != _TRUE:
        remedy = "add numa_binding to katalyst.kubewharf.io/memory_enhancement"
        raise BadRequest("dedicated_cores without numa_binding are not supported", remedy)
    exclusive = enhancements.get("numa_exclusive") == _TRUE
    count, nodes = enhancements.get("numa_number", "0"), enhancements.get("numa_ids", "")
    if not (count.isascii() and count.isdecimal() and len(count) < 5):
        raise BadRequest(f"numa_number is {count[:63]!r}", "write how many NUMA nodes, as 2")
    if nodes and not CPUSet.parse_or_empty(nodes):
        raise BadRequest(f"numa_ids is {nodes[:63]!r}", "write NUMA nodes, as 0-1")
    binding = Binding(
        exclusive,
        frozenset(CPUSet.parse_or_empty(nodes)),
        int(count),
        enhancements.get("align_by_socket") == _TRUE,
        enhancements.get("distribute_evenly_across_numa") == _TRUE,
        enhancements.get("full_pcpus_pairing") == _TRUE,
    )
    shares = enhancements.get("numa_share") != "false"
    usual = Neighbours.ANY if shares else Neighbours.SAME_ROLE
    return Placing("", binding, Neighbours.NONE if exclusive else usual, role)


def _enhancements(annotations: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the keys of some of Katalyst's enhancements and its annotations, without its domain.

    Raises:
        BadRequest: an enhancement is no JSON object of texts, or has an unknown word.
    """
    found = {
        key.removeprefix(katalyst.DOMAIN): value
        for key, value in annotations.items()
        if key.startswith(katalyst.DOMAIN)
    }
    for unknown in katalyst.unknown_words(annotations, names):
        # Katalyst may have new keys; a likeness is a mistake.
        if not unknown.is_key or nearest(unknown.key, unknown.known):
            raise _unknown(unknown)
    for name in names:
        found |= katalyst.enhancement(annotations, name) or {}
    return found


def _unknown(found: Unknown) -> BadRequest:
    if not found.known:
        remedy = 'write a JSON object of texts, as {"numa_binding": "true"}'
        return BadRequest(f"the annotation {found.annotation} cannot be read", remedy)
    what = "key" if found.is_key else "value"
    where = f" of {found.key}" if found.key and not found.is_key else ""
    why = f"the annotation {found.annotation} has the unknown {what} {found.word[:63]!r}{where}"
    return BadRequest(why, hint(found.word, found.known))
