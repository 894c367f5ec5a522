"""The CPU manager policy `none`: no container gets CPUs of its own, all share the default pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.grants import WHOLE_POD, Sharing, Source
from cpupool.core.names import ENABLE_SHARED_CPUS, POLICY_CPUS
from cpupool.core.quota import Limit
from cpupool.core.workloads import ContainerRef
from cpupool.policies.base import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpu_time import CPUUse
    from cpupool.core.grants import Grant
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container, Pod
    from cpupool.policies.base import Ask, Choice, CPUManagerPolicy, Demand, NodeView, Size
    from cpupool.policies.hints import ResourceHints


@dataclass(frozen=True, slots=True)
class NonePolicy:
    """The policy `none`; every other policy places containers without own CPUs in the same way."""

    def wants(self, _pod: Pod) -> Mapping[str, int]:
        """Return nothing: no container gets CPUs of its own."""
        return {}

    def hints(self, _ask: Ask) -> ResourceHints | None:
        """Return None: CPUs may lie on any nodes."""
        return None

    def sharing(self, _pod: Pod) -> Sharing:
        """Return that no other pod runs on the CPUs of an owner."""
        return Sharing.NONE

    def available(self, _view: NodeView) -> CPUSet:
        """Return no CPUs."""
        return CPUSet()

    def narrowed(self, _view: NodeView, ask: Ask) -> Ask:
        """Return the request as it is."""
        return ask

    def home(self, _view: NodeView, _pod: Pod) -> int | None:
        """Return None: pods share the CPUs of all NUMA nodes."""
        return None

    def sizes(self, _view: NodeView, _use: CPUUse) -> Mapping[str, Size]:
        """Return nothing: no shared set follows the load."""
        return {}

    @property
    def settled(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def remembering(self, _settled: Mapping[str, str]) -> CPUManagerPolicy:
        """Return this policy: it settles nothing."""
        return self

    def choose(self, _view: NodeView, ask: Ask) -> Choice:
        """Refuse every request.

        Raises:
            NotEnoughCPUs: always.
        """
        raise NotEnoughCPUs(ask.count, 0)

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return the default pool's common CPUs."""
        return {DEFAULT: view.cpus & view.common}

    def place(self, view: NodeView, demand: Demand) -> CPUAssignment:
        """Return the CPUs that the container owns, or else the default pool's.

        Under `none` a container may own CPUs from the policy that was in force when its pod
        started.
        """
        chosen = view.chosen.get(demand.pod.cgroup_uid)
        own = chosen.part(demand.container.name) if chosen else CPUSet()
        ref = ContainerRef(demand.pod.cgroup_uid, demand.container.name)
        if lost := view.claimed.get(ref, CPUSet()) - own:
            holders = view.others_with(lost, demand.pod)
            owner = f"pod {holders}" if holders else "another pod"
            why = f"its plugin has named CPUs {lost} for it alone, which {owner} owns"
            return view.confined(Cause.ANSWER, why)
        if chosen and own and (online := own & view.topology.online):
            pooled = _pool_cpus(view, demand.container)
            plugged = chosen.source is Source.PLUGIN
            return CPUAssignment(
                Placement.PLUGIN if plugged else Placement.POLICY,
                exclusive=online,
                shared=CPUSet.union(pooled.values()),
                reason=_resized(chosen, demand),
                offline=own - online,
                resources={POLICY_CPUS: online, **pooled},
                limit=None if plugged else Limit(None),
            )
        if own:
            return view.confined(Cause.OFFLINE, f"its CPUs {own} are offline")
        refusal = view.refused.get(demand.pod.cgroup_uid)
        if refusal and self.wants(demand.pod).keys() & {demand.container.name, WHOLE_POD}:
            return view.confined(Cause.MISFIT, refusal.error.as_kubelet)
        return view.default


def _resized(grant: Grant, demand: Demand) -> str:
    """Return that a pod requests another number of CPUs than it has; empty if it does not.

    An owner keeps its CPUs until it ends, whatever an in-place resize changes (KEP-1287).
    """
    pod, container = demand.pod, demand.container
    if pod.qos is None or grant.source is Source.PLUGIN:
        return ""
    together = WHOLE_POD in grant.parts
    requested = pod.whole_cpus if together else container.whole_cpus
    has = grant.parts[WHOLE_POD if together else container.name]
    if requested == len(has):
        return ""
    requester = "its pod" if together else "it"
    now = f"cpu {requested}" if requested else "no whole number of CPUs"
    return f"{requester} requests {now} since a resize, and keeps CPUs {has} until the pod ends"


def _pool_cpus(view: NodeView, container: Container) -> Mapping[Resource, CPUSet]:
    """Return the CPUs of OpenShift's resource, which a container may use beside its own CPUs."""
    if ENABLE_SHARED_CPUS not in container.requests:
        return {}
    pool = view.pools.behind(ENABLE_SHARED_CPUS)
    if pool is None:
        return {}
    return {ENABLE_SHARED_CPUS: pool.cpus & view.common}
