"""The interface of a CPU manager policy: pure functions of a view of the node.

A role asks, a policy decides, the manager records the decision as a grant. A policy does no I/O and
keeps no state: its earlier decisions are among the grants in the view. Every policy derives from
`CPUManagerPolicy`. It must say how many CPUs a pod requests, and choose them; the rest has a
default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from cpupool.core import withheld
from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpu_manager import ON_MISFIT, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import WHOLE_POD, Sharing, Source
from cpupool.core.names import ENABLE_SHARED_CPUS, POLICY_CPUS
from cpupool.core.orchestration import NodeRules
from cpupool.core.pools import NodePools
from cpupool.core.requests import NO_REQUEST
from cpupool.core.workloads import ContainerRef, QoSClass
from cpupool.policies import cpu_limit
from cpupool.policies.view import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cpupool.core.assignments import Step
    from cpupool.core.cpu_time import CPUUse
    from cpupool.core.devices import AllocatedDevices
    from cpupool.core.errors import Problem
    from cpupool.core.grants import Grant
    from cpupool.core.names import Names
    from cpupool.core.orchestration import NodeRules
    from cpupool.core.pools import NodePools
    from cpupool.core.requests import CPURequest, Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, Pod
    from cpupool.policies.hints import ResourceHints
    from cpupool.policies.view import NodeView, Size


@dataclass(frozen=True, slots=True)
class Choice:
    """CPUs that a policy chose, and how.

    Attributes:
        cpus: as many CPUs as requested.
        steps: the reasons, in their order.
        proven: whether no better choice exists by the rules; otherwise this is the best choice
            that the search found.
        parts: container → its part of the CPUs, where the containers of a pod do not share them.
        bubble: whether the other containers share only what no part has (`core/grants.py`).
    """

    cpus: CPUSet
    steps: tuple[Step, ...] = ()
    proven: bool = True
    parts: Mapping[str, CPUSet] = field(default_factory=dict)
    bubble: bool = False


class Operation(Enum):
    """The reason for which a policy chooses."""

    CREATE = "create"
    """A container starts and has no CPUs yet, or the kubelet asks for advice about one."""
    RESIZE = "resize"
    """A container runs, and its request has changed. It keeps the CPUs of `ChoiceRequest.has`."""


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """A request to a policy: choose CPUs that a container has of its own.

    Attributes:
        resource: the resource that they come with.
        count: how many CPUs.
        available: the CPUs to choose from.
        reusable: CPUs of its pod that no container has at the same time. For a pool they
            come first, as the kubelet demands (must_include_deviceIDs in
            deviceplugin/v1beta1/api.proto).
        others: CPUs of the resource that other pods have.
        has: CPUs that the container has already, and keeps.
        nodes: the NUMA nodes that come first; None for any.
        pod: the pod of the container; None for a container that requests a pool.
        operation: why the policy chooses.
    """

    resource: Resource
    count: int
    available: CPUSet
    reusable: CPUSet = field(default_factory=CPUSet)
    others: CPUSet = field(default_factory=CPUSet)
    has: CPUSet = field(default_factory=CPUSet)
    nodes: frozenset[int] | None = None
    pod: Pod | None = None
    operation: Operation = Operation.CREATE


class ContainerToPlace(NamedTuple):
    """A container to place, with all that decides its CPUs.

    Attributes:
        pod: its pod.
        container: the container in its pod's spec.
        request: the part of its request that cpupool serves.
        devices: the devices that the kubelet gave it for this request.
        kept: the shared CPUs that it keeps after an edit of its pools; None if it follows the edit.
    """

    pod: Pod
    container: Container
    request: CPURequest = NO_REQUEST
    devices: Mapping[Resource, AllocatedDevices] = MappingProxyType({})
    kept: CPUSet | None = None


class CPUManagerPolicy(ABC):
    """A policy for containers that request no pool, on the default pool's CPUs.

    The class describes the policy on any machine, its object decides on one.

    Attributes:
        settings: the keys of `cpuManager` in a pool file that the policy has, beside `policy`.
        kubelet_options: the options of the kubelet's policy `static` that it follows.
        topology_policies: the values of `topologyPolicy` that it follows.
        scopes: the values of `topologyScope` that it follows.
        needs_reserved: whether a pool file must reserve CPUs, so that the containers without CPUs
            of their own always have one.
        reads_classes: whether it goes by the QoS classes in labels of pods, so that their rules
            apply.
        owner_classes: the classes whose pods own CPUs.
        priority_classes: PriorityClass → its value: those that the policy's scheduler installs.
        resizes: whether a container's own CPUs follow an in-place resize of its pod.
        asks_plugins: whether plugins for resources choose the CPUs.
        sharers_stay: whether a pod without CPUs of its own moves no container of another pod: when
            it comes, changes its state or ends.
        beside_kubelet: whether the kubelet's static CPU manager may give out CPUs beside it.
        resizes: whether a container that runs can get more or fewer CPUs of its own.
        instead_of_kubelet: the change that gives CPUs of the policy to pods of the kubelet's static
            CPU manager; empty for none.
    """

    __slots__ = ()

    settings: ClassVar[frozenset[str]] = frozenset({ON_MISFIT})
    kubelet_options: ClassVar[tuple[str, ...]] = ()
    topology_policies: ClassVar[frozenset[TopologyPolicy]] = frozenset(
        policy for policy in TopologyPolicy if policy.of_kubelet
    )
    scopes: ClassVar[frozenset[Scope]] = frozenset(Scope)
    needs_reserved: ClassVar[bool] = False
    reads_classes: ClassVar[bool] = False
    owner_classes: ClassVar[tuple[str, ...]] = ()
    priority_classes: ClassVar[Mapping[str, int]] = {}
    resizes: ClassVar[bool] = False
    asks_plugins: ClassVar[bool] = False
    sharers_stay: ClassVar[bool] = False
    beside_kubelet: ClassVar[bool] = False
    instead_of_kubelet: ClassVar[str] = ""

    @property
    def kind(self) -> type[CPUManagerPolicy]:
        """The class that describes the policy."""
        return type(self)

    @classmethod
    def of_pools(cls, _pools: NodePools, _topology: CPUTopology) -> Self:
        """Return the policy for the pools of a machine.

        Raises:
            ConfigError: the configuration is not valid on the machine.
        """
        return cls()

    @staticmethod
    def may_own(_labels: Mapping[str, str], _annotations: Mapping[str, str]) -> bool:
        """Return whether the words on a pod may give it CPUs of its own.

        The agent asks this about a container whose pod it does not know yet.
        """
        return False

    @staticmethod
    def irregular(_pod: Pod) -> str:
        """Return which rule of its class a pod breaks that runs all the same; empty for none."""
        return ""

    def asked_alignment(self, _rules: NodeRules, _pod: Pod | None) -> TopologyPolicy | None:
        """Return how strictly a pod's CPUs lie near its devices by its own word, or the node's.

        None leaves this to the pool file; None for the pod asks for any pod of the node.
        """
        return None

    @classmethod
    def pod_problems(
        cls,
        _annotations: Mapping[str, str],
        _requested: Mapping[str, Collection[str]],
        _names: Names,
        _max_notice_s: int | None,
    ) -> Iterable[Problem]:
        """Return the errors of a pod's author in the policy's own labels and annotations.

        Args:
            annotations: the pod's.
            requested: the place of each container → the resources that it requests, or limits.
            names: for the resource domain.
            max_notice_s: the longest notice that any node gives before it takes CPUs; None where
                no pool file is known that says it.
        """
        return ()

    def shared(self, view: NodeView, _pod: Pod) -> CPUAssignment:
        """Return the CPUs of a pod's sandbox, and of its containers without CPUs of their own."""
        return view.default

    @abstractmethod
    def requests(self, pod: Pod) -> Mapping[str, int]:
        """Return container → the number of its own CPUs, in the order of choosing.

        `WHOLE_POD` stands for all containers of a pod that share one set. A container that requests
        a pool has the pool's CPUs instead: the caller leaves it out, and nothing else.
        """

    @abstractmethod
    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        """Choose a container's own CPUs.

        A container that starts again keeps the CPUs that it has (`ChoiceRequest.has`). A resize
        comes only to a policy that `resizes`; its choice has the CPUs that the container keeps.

        Raises:
            NotEnoughCPUs: there are fewer.
            SMTAlignmentError: the policy promises whole cores, and there are too few.
        """

    def available(self, view: NodeView) -> CPUSet:
        """Return the CPUs that a container can get as its own: all that are free.

        The caller never gives away the last CPU of the containers without CPUs of their own.
        """
        return view.free

    def narrowed(self, _view: NodeView, request: ChoiceRequest) -> ChoiceRequest:
        """Return a request for some of the available CPUs only, before they are aligned.

        Raises:
            PlacementError: the policy never has CPUs for it.
        """
        return request

    def hints(self, _request: ChoiceRequest) -> ResourceHints | None:
        """Return the NUMA nodes on which a container's CPUs could lie; None for any nodes."""
        return None

    def sharing(self, _pod: Pod) -> Sharing:
        """Return which others may run on the CPUs that a pod owns: none."""
        return Sharing.NONE

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return shared set → the CPUs that it has now; a set may be empty, `DEFAULT` is there."""
        return {DEFAULT: view.free}

    def place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        """Return the CPUs that the container owns, or else the default pool's.

        The owned CPUs may be of an earlier policy, which was in force when the pod started. The
        view has this pod alone; a container that is confined is placed again with all pods in view.
        """
        chosen, container = view.chosen.get(to_place.pod.cgroup_uid), to_place.container
        own = CPUSet()
        if chosen and chosen.serves(container):
            own = chosen.in_force(container.name)
        ref = ContainerRef(to_place.pod.cgroup_uid, container.name)
        if lost := view.claimed.get(ref, CPUSet()) - own:
            holders = view.others_with(lost, to_place.pod)
            owner = f"pod {holders}" if holders else "another pod"
            why = f"its plugin gives it CPUs {lost} exclusively, but {owner} owns them"
            return view.confined(Cause.ANSWER, why)
        if chosen and own and (online := own & view.topology.online):
            pooled = pool_cpus(view, container)
            plugged = chosen.source is Source.PLUGIN
            requests = {} if plugged else self.requests(to_place.pod)
            return CPUAssignment(
                Placement.PLUGIN if plugged else Placement.POLICY,
                exclusive=online,
                shared=CPUSet.union(pooled.values()),
                reason="" if plugged else self._unmet(chosen, to_place, requests),
                offline=own - online,
                resources={POLICY_CPUS: online, **pooled},
                limit=None if plugged else cpu_limit.of_policy(chosen, container, requests),
            )
        if own:
            return view.confined(Cause.OFFLINE, f"its {withheld.why(own, view.topology.withheld)}")
        refusal = view.refused.get(to_place.pod.cgroup_uid)
        if refusal and self.requests(to_place.pod).keys() & {container.name, WHOLE_POD}:
            return view.confined(Cause.MISFIT, refusal.error.as_kubelet)
        return self.shared(view, to_place.pod)

    def _unmet(self, grant: Grant, to_place: ContainerToPlace, requests: Mapping[str, int]) -> str:
        """Return in which way an owner has other CPUs than it requests; empty for none.

        An owner keeps its CPUs until it ends, whatever an in-place resize changes (KEP-1287).
        """
        other, has = other_request(grant, to_place, requests)
        return f"{other} since a resize, and keeps CPUs {has} until the pod ends" if other else ""

    def home(self, _view: NodeView, _pod: Pod) -> int | None:
        """Return the NUMA node whose shared CPUs a pod has; None if it has those of all.

        The view has the earlier choices.
        """
        return None

    def sizes(self, _view: NodeView, _use: CPUUse) -> Mapping[str, Size]:
        """Return shared set → how many CPUs the load leaves to it; no set that does not follow it.

        The view has the sizes until now, and the use is what CPUs and pods use now.
        """
        return {}

    def floor(self) -> CPUSet:
        """Return the CPUs that the pool file reserves: no container may ever own them."""
        return CPUSet()

    @property
    def settled(self) -> Mapping[str, str]:
        """The settings that the policy has made for its configuration itself; empty for none."""
        return {}

    def remembering(self, _settled: Mapping[str, str]) -> CPUManagerPolicy:
        """Return this policy with what an earlier one has settled for the same configuration."""
        return self


def other_request(
    grant: Grant, to_place: ContainerToPlace, requests: Mapping[str, int]
) -> tuple[str, CPUSet]:
    """Return what a pod requests in place of the CPUs that it has, and these.

    The text is empty if the CPUs are as many as requested.
    """
    pod, container = to_place.pod, to_place.container
    part = grant.part(container.name)
    if pod.qos is None:
        return "", part
    if grant.bubble:
        owned = part if grant.owns_part(container) else CPUSet()
        if pod.level_cpus == len(grant.assigned):
            return _other("it", container.level_cpus, len(owned)), part
        return _other("its pod", pod.level_cpus, len(grant.assigned)), grant.assigned
    if grant.whole:
        whole = grant.parts[WHOLE_POD]
        return _other("its pod", requests.get(WHOLE_POD, pod.whole_cpus), len(whole)), whole
    # By a setting until now it may have been eligible.
    requested = requests.get(container.name, container.ownable_cpus)
    other = _other("it", requested, len(part))
    unlimited = other and not requested and pod.qos is QoSClass.BURSTABLE
    return f"{other} with an equal limit" if unlimited else other, part


def _other(whose: str, requested: int, has: int) -> str:
    if requested == has:
        return ""
    return f"{whose} requests {f'cpu {requested}' if requested else 'no whole number of CPUs'}"


def pool_cpus(view: NodeView, container: Container) -> Mapping[Resource, CPUSet]:
    """Return the CPUs of OpenShift's resource, which a container may use beside its own CPUs."""
    if ENABLE_SHARED_CPUS not in container.requests:
        return {}
    pool = view.pools.behind(ENABLE_SHARED_CPUS)
    if pool is None:
        return {}
    return {ENABLE_SHARED_CPUS: pool.cpus & view.common}
