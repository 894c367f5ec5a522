"""A policy of a package, whose bugs hold pods and end no agent.

A choice that fails, or that breaks the rules for choices, refuses the pod: `onMisfit` says whether
it waits. Every other answer that fails has a default that gives no pod another pod's CPUs. An
answer of another type than the interface has fails, too: else its error would come up later,
outside the guard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from cpupool.core.assignments import CPUAssignment, Placement, Step
from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError, said
from cpupool.core.grants import WHOLE_POD, Sharing
from cpupool.manager import planning
from cpupool.policies import built_in
from cpupool.policies.base import Choice, ChoiceRequest, CPUManagerPolicy, Operation, pool_cpus
from cpupool.policies.hints import ResourceHints
from cpupool.policies.pools.policy import PoolsPolicy
from cpupool.policies.view import DEFAULT, Size
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.cpu_time import CPUUse
    from cpupool.core.orchestration import NodeRules
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import ContainerToPlace
    from cpupool.policies.view import NodeView

log = logs.get(__name__)
_T = TypeVar("_T")
_SHOWN = 100


class PolicyFailed(PlacementError):
    """A policy that has raised an error, or has given an answer that breaks the rules.

    The pod waits: another answer of the policy can serve it.

    Attributes:
        policy: its name in the pool file.
    """

    def __init__(self, policy: str, what: str) -> None:
        self.policy = policy
        failed = f"the CPU manager policy {policy} {what}"
        super().__init__(f"{failed}; correct the policy, or name another in the pool file", failed)


def checked(policy: str, request: ChoiceRequest, choice: Choice) -> Choice:
    """Return a choice of a policy.

    Raises:
        PolicyFailed: it has another size than asked, or CPUs that the policy cannot give.
    """
    cpus, free = choice.cpus, request.available | request.reusable
    if request.operation is Operation.RESIZE:
        free |= request.has
        if lost := request.has - cpus:
            raise PolicyFailed(policy, f"has left out CPUs {lost}, which the container keeps")
    if len(cpus) != request.count:
        raise PolicyFailed(
            policy, f"has chosen {len(cpus)} CPUs ({cpus}) of {request.count} requested"
        )
    if strange := cpus - free:
        raise PolicyFailed(policy, f"has chosen CPUs {strange}, which are not free")
    if strange := CPUSet.union(choice.parts.values()) - cpus:
        raise PolicyFailed(policy, f"has given a container CPUs {strange} beside its choice")
    return choice


def made(pools: NodePools, topology: CPUTopology) -> CPUManagerPolicy:
    """Return the policy of a pool file on a machine; of a package with its guard.

    Raises:
        ConfigError: the configuration is not valid on the machine, or there is no such policy.
    """
    policy, manager = built_in.made(pools, topology), pools.cpu_manager
    return policy if manager.installed is None else Guard(policy, manager.policy)


@dataclass(frozen=True, slots=True)
class Guard(CPUManagerPolicy):
    """A policy of a package.

    Attributes:
        policy: the policy.
        name: its name in the pool file.
    """

    policy: CPUManagerPolicy
    name: str

    @property
    def kind(self) -> type[CPUManagerPolicy]:
        """The class of the policy."""
        return type(self.policy)

    def requests(self, pod: Pod) -> Mapping[str, int]:
        """Return how many CPUs the policy requests; one for each container where it fails.

        `choose` refuses such a pod, so it does not start as one that requests nothing.
        """
        fallback = {each.name: 1 for each in pod.containers}
        return self._or(fallback, partial(self._requested, pod))

    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        """Choose as the policy does.

        Raises:
            PolicyFailed: it has failed, or it does not know what the pod requests.
            PlacementError: it refuses the request.
        """
        return self._tried(partial(self._choice, view, request))

    def narrowed(self, view: NodeView, request: ChoiceRequest) -> ChoiceRequest:
        """Narrow a request as the policy does.

        Raises:
            PolicyFailed: it has failed.
            PlacementError: it refuses the request.
        """
        return self._tried(partial(self._narrowed, view, request))

    def hints(self, request: ChoiceRequest) -> ResourceHints | None:
        """Return the NUMA nodes that the policy names.

        Raises:
            PolicyFailed: it has failed.
        """
        return self._tried(partial(self._hints, request))

    def available(self, view: NodeView) -> CPUSet:
        """Return the CPUs that the policy can give; none where it fails."""
        return self._or(CPUSet(), lambda: _a(CPUSet, self.policy.available(view)))

    def sharing(self, pod: Pod) -> Sharing:
        """Return which others may run on a pod's CPUs; none where the policy fails."""
        return self._or(Sharing.NONE, lambda: _a(Sharing, self.policy.sharing(pod)))

    def shared(self, view: NodeView, pod: Pod) -> CPUAssignment:
        """Return the CPUs of a pod that owns none; those of all where the policy fails."""
        usual = CPUManagerPolicy.shared(self, view, pod)
        return self._or(usual, partial(self._sharing, view, pod))

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return the shared sets; all free CPUs for every container where the policy fails."""
        return self._or(CPUManagerPolicy.extents(self, view), partial(self._extents, view))

    def place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        """Place a container; on its own CPUs, or on those of all, where the policy fails."""
        usual = partial(CPUManagerPolicy.place, self, view, to_place)
        placed: CPUAssignment | None = self._or(None, partial(self._place, view, to_place))
        return placed or usual()

    def home(self, view: NodeView, pod: Pod) -> int | None:
        """Return the NUMA node of a pod; None where the policy fails."""
        return self._or(None, partial(self._home, view, pod))

    def sizes(self, view: NodeView, use: CPUUse) -> Mapping[str, Size]:
        """Return the sizes of shared sets; those until now where the policy fails."""
        return self._or(view.sizes, lambda: _map(Size, self.policy.sizes(view, use)))

    def asked_alignment(self, rules: NodeRules, pod: Pod | None) -> TopologyPolicy | None:
        """Return how strictly a pod is aligned; as the pool file says where the policy fails."""
        return self._or(None, partial(self._asked_alignment, rules, pod))

    def floor(self) -> CPUSet:
        """Return the reserved CPUs; none where the policy fails."""
        return self._or(CPUSet(), lambda: _a(CPUSet, self.policy.floor()))

    @property
    def settled(self) -> Mapping[str, str]:
        """The settings that the policy has settled; none where it fails."""
        return self._or({}, lambda: _map(str, self.policy.settled))

    def remembering(self, settled: Mapping[str, str]) -> CPUManagerPolicy:
        """Return the policy with what an earlier one has settled; unchanged where it fails."""
        policy = self._or(self.policy, partial(self._remembering, settled))
        return Guard(policy, self.name)

    def _requested(self, pod: Pod) -> Mapping[str, int]:
        requests = dict(self.policy.requests(pod))
        known = {WHOLE_POD, *(each.name for each in pod.containers)}
        if strange := requests.keys() - known:
            raise ValueError(f"the pod has no container {strange}")
        if wrong := {name: n for name, n in requests.items() if not isinstance(n, int) or n < 1}:
            raise ValueError(f"{wrong} are no numbers of CPUs: name 1 or more, or leave it out")
        return requests

    def _choice(self, view: NodeView, request: ChoiceRequest) -> Choice:
        requests = self._requested(request.pod) if request.pod else {}
        choice = _a(Choice, self.policy.choose(view, request))
        _a(CPUSet, choice.cpus)
        for step in _a(tuple, choice.steps):
            _a(Step, step)
        # Only CPUs that all containers of a pod share have parts, and a part is not empty.
        whole = WHOLE_POD in requests and request.pod
        known = {each.name for each in whole.containers} if whole else set()
        parts = _map(CPUSet, choice.parts)
        if not (parts.keys() <= known and all(parts.values())):
            raise ValueError(f"{parts} are no parts of its choice")
        if _a(bool, choice.bubble):
            if not whole:
                raise ValueError("a bubble is a pod's, and no container's")
            if CPUSet.overlap(planning.lasting(whole, parts)):
                raise ValueError(f"two containers own the same CPUs of {parts}")
        return choice

    def _narrowed(self, view: NodeView, request: ChoiceRequest) -> ChoiceRequest:
        narrowed = _a(ChoiceRequest, self.policy.narrowed(view, request))
        if strange := narrowed.available - request.available:
            raise ValueError(f"CPUs {strange} are not available")
        if narrowed != replace(request, available=narrowed.available):
            raise ValueError("the narrowed request asks for something else")
        return narrowed

    def _hints(self, request: ChoiceRequest) -> ResourceHints | None:
        answer = self.policy.hints(request)
        if answer is not None:
            for hint in _a(ResourceHints, answer).hints:
                _a(TopologyHint, hint)
        return answer

    def _asked_alignment(self, rules: NodeRules, pod: Pod | None) -> TopologyPolicy | None:
        answer = self.policy.asked_alignment(rules, pod)
        return answer if answer is None else _a(TopologyPolicy, answer)

    def _home(self, view: NodeView, pod: Pod) -> int | None:
        home = self.policy.home(view, pod)
        if home is not None and home not in view.topology.nodes:
            raise ValueError(f"the machine has no NUMA node {home!r}")
        return home

    def _remembering(self, settled: Mapping[str, str]) -> CPUManagerPolicy:
        return _a(self.kind, self.policy.remembering(settled))

    def _extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        extents = _map(CPUSet, self.policy.extents(view))
        if strange := extents[DEFAULT] - view.free:
            raise ValueError(f"CPUs {strange} are not free for all")
        if strange := CPUSet.union(extents.values()) - view.common - _lent(view):
            raise ValueError(f"CPUs {strange} are another pod's")
        if pools := extents.keys() & PoolsPolicy().extents(view).keys():
            raise ValueError(f"{pools} are pools")
        return extents

    def _place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        assignment = self._assigned(view, self.policy.place(view, to_place), "container")
        chosen = view.chosen.get(to_place.pod.cgroup_uid)
        own = chosen.cpus if chosen else CPUSet()
        if strange := (assignment.exclusive | assignment.offline) - own:
            raise ValueError(f"CPUs {strange} are not its pod's own")
        asked = pool_cpus(view, to_place.container).values()
        room = CPUSet.union((own, _lent(view), _shared(view), *asked))
        if strange := assignment.cpus - (room & view.topology.online):
            raise ValueError(f"CPUs {strange} are not for this container")
        return assignment

    def _sharing(self, view: NodeView, pod: Pod) -> CPUAssignment:
        assignment = self._assigned(view, self.policy.shared(view, pod), "pod")
        if own := assignment.exclusive | assignment.offline:
            raise ValueError(f"CPUs {own} are not the pod's own")
        room = _lent(view) | _shared(view)
        if strange := assignment.cpus - (room & view.topology.online):
            raise ValueError(f"CPUs {strange} are not for this pod")
        return assignment

    def _assigned(self, view: NodeView, answer: CPUAssignment, who: str) -> CPUAssignment:
        assignment = _a(CPUAssignment, answer)
        _a(Placement, assignment.placement)
        to_kubelet = assignment.placement is Placement.KUBELET and self.kind.beside_kubelet
        if view.default.cpus and not (assignment.cpus or to_kubelet):
            raise ValueError(f"the {who} has no CPUs")
        return assignment

    def _tried(self, asked: Callable[[], _T]) -> _T:
        try:
            return asked()
        except PlacementError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the code is not ours
            failed = PolicyFailed(self.name, f"has failed: {said(error)}")
        # Outside the block, the error does not keep the frames of the first.
        raise failed

    def _or(self, otherwise: _T, asked: Callable[[], _T]) -> _T:
        try:
            return self._tried(asked)
        except PlacementError as error:
            _tell(str(error))
            return otherwise


@lru_cache(maxsize=64)
def _tell(bug: str) -> None:
    """Log a bug once: the same question comes for each container, at each change of the node."""
    log.error("policy has failed", error=bug)


def _a(kind: type[_T], answer: object) -> _T:
    """Return an answer that has the type of the interface."""
    if not isinstance(answer, kind):
        raise TypeError(f"{answer!r:.{_SHOWN}} is no {kind.__name__}")
    return answer


def _map(kind: type[_T], answer: Mapping[str, _T]) -> Mapping[str, _T]:
    """Return an answer that maps names to values of a type."""
    return {_a(str, name): _a(kind, value) for name, value in answer.items()}


def _shared(view: NodeView) -> CPUSet:
    """Return the CPUs of the shared sets that are no pools."""
    pools = PoolsPolicy().extents(view).keys()
    sets = (cpus for name, cpus in view.extents.items() if name not in pools)
    return CPUSet.union((view.free, view.default.default, *sets))


def _lent(view: NodeView) -> CPUSet:
    """Return the online CPUs of owners who share them."""
    owned = view.grants.of_pods
    lent = CPUSet.union(has.cpus for _, has in owned if has.sharing is not Sharing.NONE)
    return lent & view.topology.online
