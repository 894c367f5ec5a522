"""The report of the node's state that `cpupool status` and `cpupool explain` show."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from cpupool.core import default_pool, devices
from cpupool.core.assignments import Cause, Placement
from cpupool.core.cgroups import POD_ITSELF, Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.names import POLICY_CPUS
from cpupool.core.plugin_facts import RecordedAnswer
from cpupool.core.requests import CPURequest
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.manager import by_plugins, ownership, planning, served_requests
from cpupool.manager.usage import usage
from cpupool.policies.base import Choice
from cpupool.policies.view import OF_POLICY, NodeView, Size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.grants import PastResize
    from cpupool.core.pools import NodePools, Pool
    from cpupool.core.requests import Resource
    from cpupool.core.withheld import Withheld
    from cpupool.manager.facts import ContainerKey, NodeFacts
    from cpupool.manager.resolve import PlacedContainer, Resolution

_STALE = "stale-shared: until it restarts it keeps the shared CPUs that its pools had"
_MOVED = " (moved by the kernel)"
_NO_GRANT = AllocatedDevices(frozenset())
_NO_ANSWER = RecordedAnswer(0.0)
_NIC_NAME = "nic_name"
"""The annotation of an answer that names a NIC, in the domain of any plugin."""
_LONGEST_NIC = 15
"""Characters of an interface's name (IFNAMSIZ); the text of a plugin may be longer."""


@dataclass(frozen=True, slots=True)
class PoolShare:
    """The part of one pool that a container requests, and the part that it has.

    Attributes:
        pool: the pool's resource, or another resource that comes with CPUs.
        requested: cores of an exclusive pool, milli-CPUs of a shared pool; 1 of OpenShift's.
        devices: how many devices the kubelet gave; 0 before it has named any.
        given: the CPUs of these devices; none for a shared pool.
        siblings: the CPUs that come with them under multiThreaded, online or not.
        reused_from: the pod's init container that had some of these devices first; for CPUs of a
            policy another container that has some of them, and runs at another time; empty if none.
        choice: cpupool's choice when the kubelet asked; None where it is not known.
        cpus: the CPUs of this pool that the container must run on.
    """

    pool: Resource
    requested: int
    devices: int
    given: CPUSet
    siblings: CPUSet
    reused_from: str
    choice: Choice | None
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class PluginAnswer:
    """The answer of a plugin for a resource to a container's request.

    Attributes:
        resource: the resource that the container requests.
        values: the container's properties by it: the name of an OCI property → its value, and `NIC`
            → the NIC's name.
        texts: the names of the variables and annotations that it has by it.
        nodes: the NUMA nodes in the question to the plugin; empty for any.
        why: why there is no answer that applies; empty if there is one.
        confirmed: when the plugin has said so last, in RFC 3339; empty if this agent has not heard.
    """

    resource: str
    values: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    nodes: str = ""
    why: str = ""
    confirmed: str = ""


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """A socket of a plugin for a resource.

    Attributes:
        socket: its path.
        resource: the resource that the plugin is for; empty while that is not known.
        why: why its last call has failed, or why it is not registered; empty if that is not so.
        answered: when it has answered last, in RFC 3339; empty if it has not.
    """

    socket: str
    resource: str
    why: str = ""
    answered: str = ""


@dataclass(frozen=True, slots=True)
class NodeResource:
    """A resource that plugins offer for the node's status.

    Attributes:
        resource: its name.
        amount: how much pods can have.
        why: why the status does not have it; empty if it has.
        remedy: what to do then.
    """

    resource: str
    amount: int
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The agent's knowledge of plugins for resources.

    Attributes:
        folders: where they register; none if the agent asks no plugin.
        plugins: the sockets that are there.
        confirmed: container and requested resource → when its plugin has confirmed the answer.
        node_resources: the resources that they offer for the node's status.
    """

    folders: tuple[str, ...] = ()
    plugins: tuple[PluginStatus, ...] = ()
    confirmed: Mapping[tuple[ContainerRef, str], str] = field(default_factory=dict)
    node_resources: tuple[NodeResource, ...] = ()

    @property
    def registered(self) -> frozenset[str]:
        """The resources that have a plugin."""
        return frozenset(plugin.resource for plugin in self.plugins if plugin.resource)


@dataclass(frozen=True, slots=True)
class OwnChanges:
    """The changes of a container's own CPUs by resizes.

    Attributes:
        baseline: the CPUs with which it began.
        leaving: the CPUs that it gives back; they have no other owner yet.
        notice_over: whether it must have left them by now.
        notice_ends_unix_s: when it must leave them; None if its notice does not last.
        resizes: the last resizes, the oldest first.
    """

    baseline: CPUSet
    leaving: CPUSet = field(default_factory=CPUSet)
    notice_over: bool = False
    notice_ends_unix_s: float | None = None
    resizes: tuple[PastResize, ...] = ()


@dataclass(frozen=True, slots=True)
class InBubble:
    """The place of a container in the bubble of its pod.

    Attributes:
        cpus: the bubble.
        owns: whether the container owns a part of it; otherwise it shares CPUs of it.
    """

    cpus: CPUSet
    owns: bool

    @property
    def why(self) -> str:
        """The reason why the policy has chosen the CPUs of the container."""
        whose = (
            "this part is the container's own"
            if self.owns
            else "its other containers share these, and run nowhere else"
        )
        return f"the bubble {self.cpus} for the resources of the whole pod: {whose}"


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """One container directory of the node.

    Attributes:
        name: `namespace/pod/container`; `namespace/pod` for its sandbox and for a container that is
            not reported yet; the same with a mark for the pod's own directory; the ids in its path
            where the pod is not known.
        placement: why it must run there.
        wanted: the CPUs that it must run on.
        found: the CPUs that it runs on, in the kernel's text.
        reason: why it is confined, does not run on its pools' present CPUs, or has fewer CPUs under
            load.
        exclusive: the part of `wanted` that is its own.
        shares: its share of each pool that it requests.
        qos: the class in its pod's label, or Kubernetes' class; empty where it is not known.
        assigned: the CPUs that a scheduler has assigned to its pod; empty for none.
        answers: the answers of plugins for resources, missing ones included.
        changes: how resizes have changed its own CPUs; None if none has.
        bubble: its place in the bubble of its pod; None without one.
    """

    name: str
    placement: Placement
    wanted: CPUSet
    found: str
    reason: str
    exclusive: CPUSet
    shares: tuple[PoolShare, ...] = ()
    qos: str = ""
    assigned: CPUSet = field(default_factory=CPUSet)
    answers: tuple[PluginAnswer, ...] = ()
    changes: OwnChanges | None = None
    bubble: InBubble | None = None

    @property
    def leaving(self) -> CPUSet:
        """The CPUs that a resize takes from it."""
        return self.changes.leaving if self.changes else CPUSet()

    @property
    def right(self) -> bool:
        """Whether it runs on the wanted CPUs; true where the kubelet places it."""
        return self.placement is Placement.KUBELET or str(self.wanted) == self.found

    @property
    def astray(self) -> bool:
        """Whether it is not where it belongs.

        It does not run on the CPUs that it must have, or these are not those of its pools now. A
        container whose facts are missing belongs on the default pool. A load may take CPUs from a
        container that shares, and a resize gives none to an owner.
        """
        of_pools = self.placement in {Placement.POOLS, Placement.KUBELET}
        return not self.right or (self.reason != "" and of_pools)

    @property
    def confined(self) -> bool:
        """Whether it runs on the default pool because a fact is missing or contradicts another."""
        return self.placement is Placement.CONFINED

    @property
    def odd(self) -> bool:
        """Whether its owner may want to look at it.

        Not where only the load, or a resize that is not complete, takes CPUs from it.
        """
        expected = self.placement is Placement.DEFAULT or self.leaving
        return not self.right or (self.reason != "" and not expected)


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod that the CPU manager policy could not give CPUs of its own.

    Attributes:
        name: `namespace/pod`.
        why: the kubelet's text for it.
        held: whether its containers wait; otherwise they share.
    """

    name: str
    why: str
    held: bool


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The pools in force and every container.

    Attributes:
        pools: as configured, on the machine.
        containers: by name.
        draining: pool → how many devices pods hold that the pool has lost; includes pools that are
            no longer configured.
        enforcement: the way in which a container that starts now gets its CPUs.
        waiting_for: the fact that the agent needs before it touches containers; empty for none.
        offline: the machine's CPUs that are offline or withheld.
        blocked: CPUs that no container may have because two pools share their core.
        reserved: the CPUs of the default pool that the CPU manager policy gives to no container.
        refused: the pods that the policy could not serve.
        sets: shared set of the policy → its CPUs now; best-effort pods and system pods may have
            sets of their own.
        sizes: shared set → how many CPUs the load leaves to it.
        plugin_folders: where plugins for resources register; none if the agent asks none.
        plugins: their sockets.
        lost: the resources whose plugin is gone, and has been there.
        node_resources: plugins' resources for the node's status, if the agent writes it.
        nri: for which pod the connection to NRI waits, and until when; empty if it does not.
        withheld: the CPUs that run, and which cgroup keeps containers from them.
    """

    pools: NodePools
    containers: tuple[ContainerStatus, ...]
    waiting_for: str = ""
    draining: Mapping[str, int] = field(default_factory=dict)
    enforcement: Writer = Writer.CGROUP
    offline: CPUSet = field(default_factory=CPUSet)
    blocked: CPUSet = field(default_factory=CPUSet)
    reserved: CPUSet = field(default_factory=CPUSet)
    refused: tuple[RefusedPod, ...] = ()
    sets: Mapping[str, CPUSet] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    plugin_folders: tuple[str, ...] = ()
    plugins: tuple[PluginStatus, ...] = ()
    lost: tuple[str, ...] = ()
    node_resources: tuple[NodeResource, ...] = ()
    nri: str = ""
    withheld: tuple[Withheld, ...] = ()

    def offered(self, pool: Pool) -> CPUSet:
        """Return the CPUs of a pool that containers may have, free or not."""
        return pool.offered - self.offline - self.blocked

    def free(self, pool: Pool) -> CPUSet:
        """Return the CPUs of an exclusive pool that a container which starts now may get."""
        return self.offered(pool) - CPUSet.union(
            container.exclusive for container in self.containers
        )


def describe(
    facts: NodeFacts,
    resolution: Resolution,
    found: Iterable[FoundContainer],
    waiting_for: str = "",
    enforcement: Writer = Writer.CGROUP,
    *,
    nri: str = "",
    choices: Mapping[tuple[str, int], Choice] | None = None,
    plugins: PluginReport | None = None,
    notices: Mapping[ContainerRef, float] | None = None,
) -> NodeStatus:
    """Return the actual and the wanted CPUs of every container, and why.

    Args:
        facts: the node's facts.
        resolution: the decisions that follow from them.
        found: every container directory.
        waiting_for: as the attribute.
        enforcement: as the attribute.
        nri: as the attribute.
        choices: pool and CPU → the last choice when the kubelet asked.
        plugins: the agent's knowledge of plugins for resources.
        notices: container → when its notice ends, in Unix time.
    """
    plugins = plugins or PluginReport()
    containers = [
        _container(
            facts,
            resolution,
            container,
            choices=choices or {},
            plugins=plugins,
            notices=notices or {},
        )
        for container in found
    ]
    return NodeStatus(
        facts.pools.on(facts.topology.present),
        tuple(sorted(containers, key=lambda container: container.name)),
        waiting_for,
        {pool.name: pool.draining for pool in usage(facts) if pool.draining},
        enforcement,
        facts.topology.present - facts.topology.online,
        facts.blocked - resolution.grants.cpus,
        _reserved(facts),
        tuple(_refused(resolution)),
        {name: cpus for name, cpus in resolution.view.extents.items() if name in OF_POLICY},
        facts.sizes,
        plugins.folders,
        plugins.plugins,
        tuple(sorted(facts.plugins.served - plugins.registered)),
        plugins.node_resources,
        nri,
        facts.topology.withheld,
    )


def _reserved(facts: NodeFacts) -> CPUSet:
    if not facts.pools.cpu_manager.chooses:
        return CPUSet()
    cpus = default_pool.declared(facts.pools, facts.topology)
    idle = NodeView(facts.topology, facts.pools, cpus)
    return idle.free - facts.policy.available(idle) - facts.pools.cpu_manager.system_pods.cpus


def _refused(resolution: Resolution) -> Iterator[RefusedPod]:
    for uid, refusal in resolution.view.refused.items():
        pod = resolution.pods[uid]
        yield RefusedPod(f"{pod.namespace}/{pod.name}", refusal.error.as_kubelet, refusal.holds)


def _container(
    facts: NodeFacts,
    resolution: Resolution,
    found: FoundContainer,
    *,
    choices: Mapping[tuple[str, int], Choice],
    plugins: PluginReport,
    notices: Mapping[ContainerRef, float],
) -> ContainerStatus:
    key = (found.pod, ContainerID(found.id))
    assignment = resolution.assignment(key)
    placed = resolution.containers.get(key)
    request = (
        served_requests.counted(facts, placed.pod, placed.container) if placed else CPURequest()
    )
    shares = [
        _share(facts, placed, choices, pool, requested)
        for pool, requested in request.amounts.items()
        if placed
    ]
    if placed and (own := _own(resolution, placed)):
        shares = [own]
    pod = resolution.pods.get(found.pod)
    orchestration = pod.orchestration if pod else None
    qos = (orchestration and orchestration.qos) or (pod and pod.qos)
    return ContainerStatus(
        name=_name(resolution, key),
        placement=assignment.placement,
        wanted=assignment.cpus,
        found=found.cpus,
        reason=_STALE if assignment.stale else assignment.reason,
        exclusive=assignment.exclusive,
        shares=tuple(shares),
        qos=qos.value if qos else "",
        assigned=orchestration.cpus if orchestration else CPUSet(),
        answers=tuple(_answers(facts, resolution, plugins, placed)) if placed else (),
        changes=_changes(resolution, notices, placed) if placed else None,
        bubble=_bubble(resolution, placed) if placed else None,
    )


def _bubble(resolution: Resolution, placed: PlacedContainer) -> InBubble | None:
    grant = resolution.view.chosen.get(placed.pod.cgroup_uid)
    if grant is None or not (grant.bubble and grant.serves(placed.container)):
        return None
    return InBubble(grant.cpus, grant.owns_part(placed.container))


def _changes(
    resolution: Resolution, notices: Mapping[ContainerRef, float], placed: PlacedContainer
) -> OwnChanges | None:
    ref = ContainerRef(placed.pod.cgroup_uid, placed.container.name)
    grant = resolution.view.chosen.get(ref.pod)
    change = grant.changes.get(ref.name) if grant else None
    if grant is None or change is None:
        return None
    over = bool(change.leaving) and not grant.leaving[ref.name].in_force
    ends = notices.get(ref) if change.leaving and not over else None
    return OwnChanges(change.baseline, change.leaving, over, ends, change.resizes)


def _answers(
    facts: NodeFacts, resolution: Resolution, plugins: PluginReport, placed: PlacedContainer
) -> Iterator[PluginAnswer]:
    pod, container = placed.pod, placed.container
    ref = ContainerRef(pod.cgroup_uid, container.name)
    given = facts.plugins.answers.get(ref, {})
    grants = resolution.grants
    lacking = by_plugins.lacking(facts, grants, pod, container)
    for resource in sorted(given.keys() | lacking.keys()):
        has = given.get(resource, _NO_ANSWER)
        nodes = has.hint.nodes if has.hint else None
        why = ""
        if resource in lacking:
            why = by_plugins.reason(facts, grants, pod, container, (resource,)).as_kubelet
        yield PluginAnswer(
            resource,
            {**has.values, **_nic(has)},
            tuple(sorted(has.texts)),
            str(CPUSet(nodes or ())),
            why,
            plugins.confirmed.get((ref, resource), ""),
        )


def _nic(given: RecordedAnswer) -> Mapping[str, str]:
    """Return the name of a container's NIC, where the answer has it."""
    answers = () if given.refused else given.parts.values()
    said = (annotation for answer in answers for annotation in answer.annotations.items())
    names = (text for key, text in said if key.rpartition("/")[2] == _NIC_NAME)
    name = next((name for name in names if 0 < len(name) <= _LONGEST_NIC), "")
    return {"NIC": name} if name else {}


def _own(resolution: Resolution, placed: PlacedContainer) -> PoolShare | None:
    """Return a container's CPUs of the CPU manager policy; None if it has none."""
    pod, name = placed.pod, placed.container.name
    grant = resolution.view.chosen.get(pod.cgroup_uid)
    parts, reasons = (grant.parts, grant.reason(name)) if grant else ({}, ())
    given = grant.part(name) if grant and grant.serves(placed.container) else CPUSet()
    if not given and placed.assignment.cause is not Cause.MISFIT:
        return None
    at_once = {name, *planning.beside(pod.containers, name)}
    others = (each.name for each in pod.containers if each.name not in at_once)
    reused = (other for other in others if parts.get(other, CPUSet()) & given)
    return PoolShare(
        pool=POLICY_CPUS,
        requested=placed.container.ownable_cpus or pod.whole_cpus,
        devices=0,
        given=given,
        siblings=CPUSet(),
        reused_from=next(reused, ""),
        choice=Choice(given, reasons) if given and reasons else None,
        cpus=placed.assignment.exclusive,
    )


def _share(
    facts: NodeFacts,
    placed: PlacedContainer,
    choices: Mapping[tuple[str, int], Choice],
    pool: Resource,
    requested: int,
) -> PoolShare:
    pod, container = placed.pod, placed.container

    def allocated_to(name: str) -> AllocatedDevices:
        return facts.devices.get(ContainerRef(pod.cgroup_uid, name), {}).get(pool, _NO_GRANT)

    allocated = allocated_to(container.name)
    given = devices.exclusive_cpus(allocated.ids) if pool.kind.exclusive else CPUSet()
    # The kubelet gives only devices of init containers to other containers of the pod.
    before = takewhile(lambda earlier: earlier.name != container.name, pod.containers)
    shared_with = (
        earlier.name for earlier in before if allocated_to(earlier.name).ids & allocated.ids
    )
    advice = (choices.get((pool, cpu)) for cpu in given)
    # The kubelet asks for as many as it gives: another number was for another container.
    choice = next(
        (advised for advised in advice if advised and len(advised.cpus) == len(given)), None
    )
    return PoolShare(
        pool=pool,
        requested=requested,
        devices=len(allocated.ids),
        given=given,
        siblings=ownership.granted(facts, pool, allocated) - given,
        reused_from=next(shared_with, ""),
        choice=choice,
        cpus=placed.assignment.resources.get(pool, CPUSet()),
    )


def _name(resolution: Resolution, key: ContainerKey) -> str:
    pod = resolution.pods.get(key[0])
    if key[1] == POD_ITSELF:
        return f"{pod.namespace}/{pod.name}{_MOVED}" if pod else f"{key[0]}{_MOVED}"
    if pod is None:
        return f"{key[0]}/{key[1]}"
    placed = resolution.containers.get(key)
    return "/".join([pod.namespace, pod.name, *([placed.container.name] if placed else [])])
