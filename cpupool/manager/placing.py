"""Places a container: says on which CPUs it must run, from one value with all facts that matter.

`Inputs` is this value. It has three parts, and a placement reads only the parts that it needs
(`Reads`):

* Facts about single pods, for example their devices and grants (`OfPods`). A placement reads the
  part of its own pod (`_Own`), and never that of another pod.
* Facts about the node, which are the same for all pods (`Node`, and the view without pods). A
  container that owns its CPUs does not read the shared sets, because these change with each owner
  that starts.
* The whole view of the policies. Only the placement of a confined container reads it, because the
  reason may name other pods.

A placement stays as long as the parts that it has read stay equal (`Unchanged`). If a placement is
to depend on a new fact, the fact becomes a field here. A new field of `NodeView` belongs to the
node: every placement follows it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

from cpupool.core.assignments import MemoryNodes, Placement
from cpupool.core.grants import Grants
from cpupool.core.pod_resources import CPU
from cpupool.core.workloads import ContainerRef
from cpupool.manager import by_plugins, served_requests
from cpupool.manager.by_plugins import Awaited
from cpupool.policies.base import ContainerToPlace
from cpupool.policies.pools.policy import PoolsPolicy
from cpupool.policies.view import NodeView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.devices import DevicesByContainer
    from cpupool.core.grants import Grant
    from cpupool.core.plugin_facts import Record, RecordedAnswer
    from cpupool.core.properties import Properties
    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.facts import ContainerKey, NodeFacts
    from cpupool.manager.served_requests import Devices, Served
    from cpupool.policies.base import CPUManagerPolicy
    from cpupool.policies.view import Refusal

_K = TypeVar("_K")
_V = TypeVar("_V")

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

_SHARED_SETS: Final = ("barred", "common", "default", "extents", "sizes")
"""The fields of a view that say which CPUs are shared."""
_OF_PODS: Final = ("answered", "claimed", "grants", "homes", "pods", "refused")
"""The fields of a view that concern single pods."""
_OF_MACHINE: Final = tuple(
    field.name for field in fields(NodeView) if field.name not in {*_SHARED_SETS, *_OF_PODS}
)


class Reads(IntEnum):
    """The parts of the inputs that a placement has read beside its pod's; each includes the former.

    No placement reads `NOTHING`.
    """

    NOTHING = 0
    MACHINE = 1
    """The node without its shared sets."""
    NODE = 2
    EVERYTHING = 3


class OfPods(NamedTuple):
    """The facts about single pods: each key begins with the id in a pod's cgroup name.

    Attributes:
        grants: pod → its grants.
        refused: as in `NodeView`.
        homes: as in `NodeView`.
        answered: as in `NodeView`.
        claimed: as in `NodeView`.
        devices: as in `NodeFacts`.
        given: as in `PluginFacts`.
        memory: as in `PluginFacts`.
        properties: as in `PluginFacts`.
        kept_shared: as in `NodeFacts`.
    """

    grants: Mapping[str, tuple[Grant, ...]]
    refused: Mapping[str, Refusal]
    homes: Mapping[str, int]
    answered: Mapping[ContainerRef, CPUSet]
    claimed: Mapping[ContainerRef, CPUSet]
    devices: DevicesByContainer
    given: Record
    memory: Mapping[ContainerRef, CPUSet]
    properties: Mapping[ContainerRef, Properties]
    kept_shared: Mapping[ContainerKey, CPUSet]

    def differing(self, other: OfPods) -> frozenset[str]:
        """Return the pods for which something differs."""
        found: set[str] = set()
        for mine, others in zip(self, other, strict=True):
            keys = _differing(
                cast("Mapping[Any, object]", mine), cast("Mapping[Any, object]", others)
            )
            found.update(key if isinstance(key, str) else key[0] for key in keys)
        return frozenset(found)


class Node(NamedTuple):
    """The facts that are the same for all pods, beside the policies' view.

    Attributes:
        policy: as in `NodeFacts`.
        served: which requests cpupool serves beside the kubelet.
        awaited: which requests plugins answer.
    """

    policy: CPUManagerPolicy
    served: Served
    awaited: Awaited


class Inputs:
    """All that the placements of a node's containers depend on.

    Args:
        facts: the facts.
        view: the policies' whole view.
        before: earlier inputs, whose parts may serve again.

    Attributes:
        view: as given.
        node: the facts that are the same for all pods, beside the view.
        pods: the facts about single pods.
    """

    __slots__ = ("_empty", "node", "pods", "view")
    node: Node
    pods: OfPods
    view: NodeView

    def __init__(self, facts: NodeFacts, view: NodeView, before: Inputs | None = None) -> None:
        plugins = facts.plugins
        same = before is not None and before.view.grants is view.grants
        self.view = view
        self.node = Node(
            facts.policy,
            served_requests.served(facts),
            Awaited.of(facts),
        )
        self.pods = OfPods(
            grants=before.pods.grants if before and same else _by_pod(view.grants),
            refused=view.refused,
            homes=view.homes,
            answered=view.answered,
            claimed=view.claimed,
            devices=facts.devices,
            given=plugins.answers,
            memory=plugins.memory,
            properties=plugins.properties,
            kept_shared=facts.kept_shared,
        )
        self._empty: NodeView | None = None

    @property
    def empty(self) -> NodeView:
        """The policies' view of the node without pods."""
        if self._empty is None:
            nothing: Mapping[Any, Any] = {}
            self._empty = replace(
                self.view,
                answered=nothing,
                claimed=nothing,
                grants=Grants(),
                homes=nothing,
                pods=(),
                refused=nothing,
            )
        return self._empty

    def machine(self) -> tuple[object, ...]:
        """Return the parts that a placement reads which reads no shared set."""
        return self.node, *(getattr(self.view, name) for name in _OF_MACHINE)

    def shared_sets(self) -> tuple[object, ...]:
        """Return the shared sets."""
        return tuple(getattr(self.view, name) for name in _SHARED_SETS)


class _Own:
    """The facts about one container, and about its pod as a whole.

    Args:
        pods: the facts about single pods.
        key: the ids of the container.
        pod: its pod.
        container: the container in its pod's spec.

    Attributes:
        pod: as given.
        container: as given.
        ref: the container over its restarts.
        devices: the devices that the kubelet gave to the container.
    """

    __slots__ = ("_key", "_pods", "container", "devices", "pod", "ref")

    def __init__(self, pods: OfPods, key: ContainerKey, pod: Pod, container: Container) -> None:
        self._pods = pods
        self._key = key
        self.pod = pod
        self.container = container
        self.ref = ContainerRef(pod.cgroup_uid, container.name)
        self.devices: Devices = pods.devices.get(self.ref, _NOTHING)

    @property
    def owns(self) -> bool:
        """Whether the container has CPUs of the default pool that are its own."""
        for grant in self._pods.grants.get(self.ref.pod, ()):
            if grant.source.of_default_pool and grant.part(self.ref.name):
                return True
        return False

    @property
    def kept_shared(self) -> CPUSet | None:
        """The CPUs of its shared pools that it keeps."""
        return self._pods.kept_shared.get(self._key)

    @property
    def given(self) -> Mapping[str, RecordedAnswer]:
        """The answers of plugins for it, by resource."""
        return self._pods.given.get(self.ref, _NOTHING)

    @property
    def memory(self) -> CPUSet | None:
        """The NUMA nodes that plugins have named for it."""
        return self._pods.memory.get(self.ref)

    @property
    def properties(self) -> Properties | None:
        """The other properties that plugins set."""
        return self._pods.properties.get(self.ref)

    @property
    def grants(self) -> Grants:
        """The grants of its pod."""
        has = self._pods.grants.get(self.ref.pod, ())
        return Grants({(grant.owner, grant.resource): grant for grant in has})

    def view(self, empty: NodeView) -> NodeView:
        """Return the view of the node without facts about other pods.

        Args:
            empty: the view of the node without pods.
        """
        pods, ref = self._pods, self.ref
        uid = ref.pod
        if not (
            uid in pods.grants
            or uid in pods.refused
            or uid in pods.homes
            or ref in pods.answered
            or ref in pods.claimed
        ):
            return empty
        return replace(
            empty,
            answered=_at(pods.answered, ref),
            claimed=_at(pods.claimed, ref),
            grants=self.grants,
            homes=_at(pods.homes, uid),
            refused=_at(pods.refused, uid),
        )


class Unchanged:
    """The unchanged parts of the inputs: a placement that has read no other part stays.

    Args:
        before: the earlier inputs; None for none.
        now: the inputs now.

    Attributes:
        parts: up to which parts the inputs are equal.
        differing: the ids in cgroup names of the pods for which something differs.
    """

    def __init__(self, before: Inputs | None, now: Inputs) -> None:
        self.parts = _equal_parts(before, now) if before else Reads.NOTHING
        self.differing: frozenset[str] = frozenset()
        if before and self.parts is not Reads.EVERYTHING:
            self.differing = now.pods.differing(before.pods)


def _equal_parts(before: Inputs, now: Inputs) -> Reads:
    if before.node == now.node and before.pods == now.pods and before.view == now.view:
        return Reads.EVERYTHING
    if before.machine() != now.machine():
        return Reads.NOTHING
    return Reads.NODE if before.shared_sets() == now.shared_sets() else Reads.MACHINE


def place(
    inputs: Inputs, key: ContainerKey, pod: Pod, container: Container
) -> tuple[CPUAssignment, Reads]:
    """Return where a container must run, and the parts of the inputs that decide it."""
    own = _Own(inputs.pods, key, pod, container)
    placed, reads = _by_policy(inputs, own, ContainerToPlace(pod, container))
    if inputs.pods.given:
        placed = _completed(placed, inputs.node, own)
    return placed, reads


def _by_policy(
    inputs: Inputs, own: _Own, to_place: ContainerToPlace
) -> tuple[CPUAssignment, Reads]:
    node, view = inputs.node, own.view(inputs.empty)
    policy: CPUManagerPolicy | PoolsPolicy = node.policy
    # A container keeps what an earlier policy gave it, also after an edit of the pool file.
    if own.owns:
        view = _Noting.of(view)
    elif request := served_requests.of_container(node.served, own.devices, own.pod, own.container):
        policy = PoolsPolicy()
        to_place = ContainerToPlace(own.pod, own.container, request, own.devices, own.kept_shared)
    placed = policy.place(view, to_place)
    if placed.cause is None:
        return placed, view.reads if isinstance(view, _Noting) else Reads.NODE
    return policy.place(inputs.view, to_place), Reads.EVERYTHING


def _completed(placed: CPUAssignment, node: Node, own: _Own) -> CPUAssignment:
    """Return a placement with the answers of plugins for the container."""
    if placed.placement is Placement.PLUGIN and placed.exclusive:
        asked = by_plugins.plugin_requests_by(node.awaited, own.grants, own.pod, own.container)
        given = own.given.get(CPU)
        changed = by_plugins.resized(given, asked.get(CPU)) if given else ""
        placed = replace(placed, reason=changed) if changed else placed
    if (nodes := own.memory) is not None:
        migrates = bool(own.pod.memory_migrates)
        placed = replace(placed, memory=MemoryNodes(nodes, migrates=migrates))
    if properties := own.properties:
        placed = replace(placed, properties=properties)
    return placed


class _Noting(NodeView):
    """A view that notes whether a shared set is read.

    Attributes:
        reads: the parts read until now.
    """

    __slots__ = ("reads",)
    reads: Reads

    @classmethod
    def of(cls, view: NodeView) -> Self:
        """Return a view with the same values."""
        made = object.__new__(cls)
        for each in fields(view):
            object.__setattr__(made, each.name, getattr(view, each.name))
        object.__setattr__(made, "reads", Reads.MACHINE)
        return made

    def __getattribute__(self, name: str) -> object:
        if name in _SHARED_SETS:
            object.__setattr__(self, "reads", Reads.NODE)
        return super().__getattribute__(name)


def _by_pod(grants: Grants) -> Mapping[str, tuple[Grant, ...]]:
    found: defaultdict[str, list[Grant]] = defaultdict(list)
    for uid, grant in grants.of_pods:
        found[uid].append(grant)
    return {uid: tuple(has) for uid, has in found.items()}


def _at(found: Mapping[_K, _V], key: _K) -> Mapping[_K, _V]:
    """Return a mapping with one key of another, if it has the key."""
    return {key: found[key]} if key in found else _NOTHING


def _differing(before: Mapping[_K, object], now: Mapping[_K, object]) -> Iterable[_K]:
    """Return the keys with another value than before, or only here or there."""
    if before is now:
        return ()
    keys = before.keys() | now.keys()
    pairs = ((key, before.get(key), now.get(key)) for key in keys)
    return [key for key, had, has in pairs if had is not has and had != has]
