"""The kubelet's static CPU Manager policy: exclusive CPUs for containers that request whole CPUs.

The results equal those of the kubelet 1.36, pkg/kubelet/cm/cpumanager/policy_static.go and
policy_options.go (KEP-3570; the options KEP-2625, 2902, 3327, 4176, 4540 and 4800), except that
this policy never gives out a CPU that is not free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Self
from zlib import crc32

from cpupool.core import default_pool, withheld
from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpu_manager import (
    CPU_MANAGER,
    ELIGIBLE,
    ON_MISFIT,
    OPTIONS,
    POD_LEVEL,
    RESERVED,
    SYSTEM_CPUS,
    SYSTEM_PODS,
    TOPOLOGY_POLICY,
    TOPOLOGY_SCOPE,
    Eligible,
    Scope,
    StaticOptions,
    SystemPods,
    TopologyPolicy,
    option_name,
    option_path,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    ConfigError,
    EmptyPodSharedPoolError,
    Problem,
    SMTAlignmentError,
    refuse_errors,
)
from cpupool.core.grants import WHOLE_POD
from cpupool.core.workloads import ContainerKind
from cpupool.policies.accumulators.kubelet import Taken, take_distributed, take_packed
from cpupool.policies.base import Choice, CPUManagerPolicy
from cpupool.policies.hints import ResourceHints, generate
from cpupool.policies.layout import Layout, Level
from cpupool.policies.view import DEFAULT, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import ChoiceRequest
    from cpupool.policies.view import NodeView

COMMON_SETTINGS: Final = frozenset({RESERVED, OPTIONS, TOPOLOGY_POLICY, TOPOLOGY_SCOPE, ON_MISFIT})
"""The settings of the policies that derive from this one, which have other rules for owners."""


@dataclass(frozen=True, slots=True)
class StaticPolicy(CPUManagerPolicy):
    """The policy on one machine.

    Attributes:
        layout: the machine.
        options: the admin's options.
        reserved: CPUs that no container owns; fewer than configured if the machine has no more.
        counted: whether the configuration says only how many CPUs are reserved.
        eligible: which containers own CPUs.
        system_pods: the pods that have CPUs of the default pool which `layout` lacks.
        pod_level: whether a Guaranteed pod with resources of its own has a bubble, or each of its
            containers CPUs of its own; None for neither.
    """

    settings: ClassVar[frozenset[str]] = COMMON_SETTINGS | {ELIGIBLE, SYSTEM_PODS, POD_LEVEL}
    kubelet_options: ClassVar[tuple[str, ...]] = tuple(StaticOptions.names())
    needs_reserved: ClassVar[bool] = True
    sharers_stay: ClassVar[bool] = True

    layout: Layout
    options: StaticOptions
    reserved: CPUSet
    counted: bool = False
    eligible: Eligible = Eligible.POD
    system_pods: SystemPods = field(default_factory=SystemPods)
    pod_level: Scope | None = None

    @classmethod
    def of_pools(cls, pools: NodePools, topology: CPUTopology) -> Self:
        """Return the policy for the default pool's online CPUs of a machine.

        Whether too many CPUs are reserved is a rule of pool files (`config/cpu_manager.py`): a file
        that is in force stays, however many CPUs go offline.

        Raises:
            ConfigError: the configuration is not valid on the machine.
        """
        config, cpus = pools.cpu_manager, default_pool.online(pools, topology)
        torn = topology.with_running_siblings(cpus) - cpus
        if config.options.full_pcpus_only and torn:
            what = f"the default pool lacks CPUs {torn}, siblings of its own: their cores are torn"
            remedy = f"add {torn} to the default pool, or turn the option off"
            path = option_path("full_pcpus_only")
            raise ConfigError([Problem(what, remedy, path=path, cpus=torn)])
        cpus -= config.system_pods.cpus
        layout = Layout.of_topology(topology, cpus)
        reserved = CPUSet() if config.reserved is None else config.reserved
        there = min(reserved, len(cpus)) if isinstance(reserved, int) else reserved & cpus
        policy = cls.of(layout, config.options, there, config.topology_policy)
        return replace(
            policy,
            eligible=config.eligible,
            system_pods=config.system_pods,
            pod_level=config.topology_scope if config.pod_level else None,
        )

    @classmethod
    def of(
        cls,
        layout: Layout,
        options: StaticOptions,
        reserved: CPUSet | int,
        topology_policy: TopologyPolicy = TopologyPolicy.NONE,
    ) -> Self:
        """Return the policy for a machine.

        Args:
            layout: the machine.
            options: the admin's options.
            reserved: CPUs that no container may own, or how many CPUs to reserve.
            topology_policy: the policy of the node's Topology Manager.

        Raises:
            ConfigError: options contradict each other or the machine, or the machine does not have
                the reserved CPUs.
        """
        refuse_errors(_problems(layout, options, topology_policy))
        path = f"{CPU_MANAGER}.{RESERVED}"
        if isinstance(reserved, int):
            if reserved > len(layout.cpus):
                what = f"{reserved} CPUs are more than the {len(layout.cpus)} CPUs of the policy"
                raise ConfigError([Problem(what, "reserve fewer", path=path)])
            first = take(layout, options, layout.cpus, reserved).cpus
            return cls(layout, options, first, counted=True)
        if missing := reserved - layout.cpus:
            what = f"CPUs {missing} are not among {layout.cpus}, the CPUs of the policy"
            raise ConfigError([Problem(what, "reserve others", path=path, cpus=missing)])
        return cls(layout, options, reserved)

    def requests(self, pod: Pod) -> Mapping[str, int]:
        """Return the eligible containers, with the numbers, or a bubble; none of a system pod."""
        if pod.is_one_of(self.system_pods):
            return {}
        if self.pod_level is Scope.POD and pod.level_cpus:
            return {WHOLE_POD: pod.level_cpus}
        counts = {container.name: self.eligible.cpus(container) for container in pod.containers}
        if self.pod_level is Scope.CONTAINER:
            counts |= {each.name: each.level_cpus for each in pod.containers if each.level_cpus}
        return {name: count for name, count in counts.items() if count}

    def available(self, view: NodeView) -> CPUSet:
        """Return the CPUs that have no owner and are not reserved; none of cores never whole."""
        never = self.layout.short if self.options.full_pcpus_only else CPUSet()
        return (view.free & self.layout.cpus) - self.reserve(view) - never

    def floor(self) -> CPUSet:
        """Return the reserved CPUs."""
        return self.reserved

    def reserve(self, view: NodeView) -> CPUSet:
        """Return the CPUs that no container gets now: those that are reserved.

        If pods own CPUs of a number since the machine had other CPUs online, free CPUs stand in for
        these until the pods end.
        """
        owned = self.reserved & view.grants.cpus
        if not (self.counted and owned):
            return self.reserved
        spare = view.free & self.layout.cpus - self.reserved
        count = min(len(owned), len(spare))
        return self.reserved | take(self.layout, self.options, spare, count).cpus

    @property
    def settled(self) -> Mapping[str, str]:
        """The CPUs that a number reserves, and the facts behind this; empty for listed CPUs."""
        if not self.counted:
            return {}
        places = (sorted(self.layout.places.items()), str(self.layout.short))
        return {
            RESERVED: str(self.reserved),
            OPTIONS: " ".join(self.options.written()),
            "cpus": str(self.layout.cpus),
            # A core has another id if its lowest CPU, of another pool, goes offline.
            "places": f"{crc32(repr(places).encode()):08x}",
        }

    def remembering(self, settled: Mapping[str, str]) -> CPUManagerPolicy:
        """Return this policy with the CPUs that an earlier one reserved for the same number.

        Another version of the agent may choose others; an older one has recorded fewer conditions.
        On other CPUs the number is another choice.
        """
        reserved = CPUSet.parse_or_empty(settled.get(RESERVED, ""))
        alike = settled.items() <= {**self.settled, RESERVED: str(reserved)}.items()
        if alike and len(reserved) == len(self.reserved) and reserved <= self.layout.cpus:
            return replace(self, reserved=reserved)
        return self

    def hints(self, request: ChoiceRequest) -> ResourceHints:
        """Return the NUMA nodes on which a container's CPUs could lie.

        If the container has its CPUs already, these are their nodes, or none if it requests
        another number of CPUs.

        Raises:
            EmptyPodSharedPoolError: a bubble leaves no CPU to some containers.
        """
        if bubble := self._bubble(request):
            _refuse_empty_rest(bubble)
        by_socket = self.options.align_by_socket
        if not request.has:
            return topology_hints(
                self.layout,
                request.count,
                request.available,
                request.reusable,
                align_by_socket=by_socket,
            )
        if len(request.has) != request.count:
            return ResourceHints(())
        # The place of an offline CPU is not known.
        has = request.has & self.layout.cpus
        return topology_hints(self.layout, len(has), has, CPUSet(), align_by_socket=by_socket)

    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        """Choose a container's own CPUs; a container that has some keeps them.

        Raises:
            EmptyPodSharedPoolError: a bubble leaves no CPU to some containers.
            SMTAlignmentError: the options promise whole cores, and there are too few.
            NotEnoughCPUs: fewer are free.
        """
        bubble = self._bubble(request)
        if bubble:
            _refuse_empty_rest(bubble)
        if self.options.full_pcpus_only:
            self._refuse_parts_of_cores(request, self.reserve(view))
        if request.has:
            return Choice(request.has)
        running = (request.available | request.reusable) & self.layout.cpus
        taken = self._take_near(running, request.count, request.nodes)
        if bubble:
            parts = self._parts(bubble, taken.cpus)
            return Choice(taken.cpus, proven=taken.proven, parts=parts, bubble=True)
        return Choice(taken.cpus, proven=taken.proven)

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return the rest of the default pool, without CPUs that are strictly reserved.

        The CPUs of system pods are a set of their own, if there are such pods.
        """
        free, system = view.free - self.system_pods.cpus, view.free & self.system_pods.cpus
        if self.options.strict_cpu_reservation:
            free -= self.reserve(view)
        return {DEFAULT: free, SYSTEM: system} if self.system_pods.cpus else {DEFAULT: free}

    def shared(self, view: NodeView, pod: Pod) -> CPUAssignment:
        """Return the default pool's CPUs, or those of system pods while there are any."""
        if not pod.is_one_of(self.system_pods):
            return view.default
        cpus = self.system_pods.cpus
        if there := view.extents[SYSTEM]:
            return CPUAssignment(Placement.DEFAULT, default=there)
        if cpus.isdisjoint(view.topology.online):
            lost = withheld.why(cpus, view.topology.withheld)
            return view.confined(Cause.OFFLINE, f"the {lost}, all of {SYSTEM_CPUS}")
        why = f"pods own the CPUs {cpus} of {SYSTEM_CPUS}, and keep them until they end"
        return replace(view.default, reason=why)

    def _bubble(self, request: ChoiceRequest) -> Pod | None:
        """Return the pod whose bubble is requested; None for CPUs of a container."""
        pod = request.pod
        # A policy that derives from this one may give CPUs to whole pods by other rules.
        bubbles = self.pod_level is Scope.POD
        return pod if pod and bubbles and WHOLE_POD in self.requests(pod) else None

    def _parts(self, pod: Pod, bubble: CPUSet) -> Mapping[str, CPUSet]:
        """Return the parts of a bubble: container → CPUs; without those that share the rest.

        An init container that owns none runs on all CPUs that no sidecar before it owns. The
        options hold for the bubble as a whole: a part may be a part of a core.

        Source: AllocatePod in the kubelet's policy_static.go.
        """
        parts, left = {}, bubble
        for container in pod.containers:
            count, ends = container.level_cpus, container.kind is ContainerKind.INIT
            if count:
                parts[container.name] = take(self.layout, self.options, left, count).cpus
            elif ends:
                parts[container.name] = left
            if count and not ends:
                left -= parts[container.name]
        return parts

    def _refuse_parts_of_cores(self, request: ChoiceRequest, reserved: CPUSet) -> None:
        size = self.layout.usual(Level.CORE)
        if request.count % size:
            raise SMTAlignmentError(request.count, size)
        # A core with a reserved CPU is never whole. The sum is also without the CPUs that the pod's
        # init containers leave, so the kubelet may refuse a container that could run on them.
        cores = self.layout.groups[Level.CORE].values()
        partly_reserved = CPUSet.union(core for core in cores if not core.isdisjoint(reserved))
        whole = len(request.available - partly_reserved)
        if request.count > whole:
            raise SMTAlignmentError(request.count, size, whole)

    def _take_near(self, free: CPUSet, count: int, nodes: Collection[int] | None) -> Taken:
        near = Taken(CPUSet())
        if nodes is not None:
            around = free & self._around(nodes)
            near = take(self.layout, self.options, around, min(count, len(around)))
        rest = take(self.layout, self.options, free - near.cpus, count - len(near.cpus))
        return Taken(near.cpus | rest.cpus, near.proven and rest.proven)

    def _around(self, nodes: Collection[int]) -> CPUSet:
        by_node = self.layout.groups[Level.NODE]
        cpus = CPUSet.union(by_node.get(node, CPUSet()) for node in nodes)
        if not self.options.align_by_socket:
            return cpus
        sockets = self.layout.groups[Level.SOCKET].values()
        return CPUSet.union(socket for socket in sockets if not socket.isdisjoint(cpus))


def _refuse_empty_rest(pod: Pod) -> None:
    """Raise an error if the bubble of a pod leaves no CPU to some of its containers.

    Source: validatePodScopeResources in the kubelet's policy_static.go, with its texts.

    Raises:
        EmptyPodSharedPoolError: it leaves none.
    """
    left, shares = pod.level_cpus, False
    for container in pod.containers:
        count = container.level_cpus
        if container.kind is ContainerKind.INIT:
            if count > left:
                raise EmptyPodSharedPoolError(
                    f"largest exclusive init container requests {count} cpus, but only {left}"
                    " available"
                )
            if not count and left <= 0:
                raise EmptyPodSharedPoolError(
                    "pod has shared init containers but no cpus available for them"
                )
        elif container.kind is not ContainerKind.EPHEMERAL:
            left -= count
            shares |= not count
    if shares and left <= 0:
        raise EmptyPodSharedPoolError(
            "sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared"
            " containers"
        )


def topology_hints(
    layout: Layout, count: int, available: CPUSet, reusable: CPUSet, *, align_by_socket: bool
) -> ResourceHints:
    """Return the NUMA nodes that could give `count` CPUs.

    Args:
        layout: the machine.
        count: how many CPUs to choose.
        available: CPUs that are free.
        reusable: CPUs that the pod has already and would use again; every hint covers them.
        align_by_socket: whether the nodes of a socket are as good as one.
    """
    nodes = layout.groups[Level.NODE]
    sockets = {node: {layout.places[cpu].socket for cpu in cpus} for node, cpus in nodes.items()}
    return generate(
        count,
        {node: len(cpus) for node, cpus in nodes.items()},
        {node: len(cpus & available) + len(cpus & reusable) for node, cpus in nodes.items()},
        required=[node for node, cpus in nodes.items() if not cpus.isdisjoint(reusable)],
        sockets=sockets if align_by_socket else None,
    )


def take(layout: Layout, options: StaticOptions, available: CPUSet, count: int) -> Taken:
    """Take CPUs of those available in the order of the kubelet.

    Raises:
        NotEnoughCPUs: fewer are available.
    """
    spread = options.distribute_cpus_across_cores
    if options.distribute_cpus_across_numa:
        group = layout.usual(Level.CORE) if options.full_pcpus_only else 1
        return take_distributed(layout, available, count, group=group, spread=spread)
    by_uncore = options.prefer_align_cpus_by_uncorecache
    return take_packed(layout, available, count, spread=spread, by_uncore=by_uncore)


def _problems(
    layout: Layout, options: StaticOptions, topology_policy: TopologyPolicy
) -> Iterator[Problem]:
    yield from options.contradictions(topology_policy)
    sockets, nodes = len(layout.groups[Level.SOCKET]), len(layout.groups[Level.NODE])
    if options.align_by_socket and sockets > nodes:
        what = f"the machine has {sockets} sockets and only {nodes} NUMA nodes"
        remedy = f"turn {option_name('align_by_socket')} off"
        yield Problem(what, remedy, path=option_path("align_by_socket"))
