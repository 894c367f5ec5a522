"""The policy `qrm`: plugins of the QoS Resource Manager say which CPUs a container has.

CPUs of an exclusive answer are the container's own. A container with another answer runs on the
answered CPUs, a container without one on all CPUs of the policy; both without the CPUs that other
containers own. The reserved CPUs are no container's own, so that these sets never run empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.workloads import ContainerRef
from cpupool.policies.base import CPUManagerPolicy
from cpupool.policies.qrm import pod_words
from cpupool.policies.static.policy import COMMON_SETTINGS, StaticPolicy
from cpupool.policies.view import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.core.errors import Problem
    from cpupool.core.names import Names
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import Choice, ChoiceRequest, ContainerToPlace
    from cpupool.policies.view import NodeView

QRM: Final = "qrm"
"""Its name in a pool file."""


@dataclass(frozen=True, slots=True)
class QRMPolicy(StaticPolicy):
    """The policy on one machine; it counts and keeps its reserved CPUs as the policy `static`."""

    settings: ClassVar[frozenset[str]] = COMMON_SETTINGS
    kubelet_options: ClassVar[tuple[str, ...]] = ()
    topology_policies: ClassVar[frozenset[TopologyPolicy]] = frozenset(TopologyPolicy)
    asks_plugins: ClassVar[bool] = True
    sharers_stay: ClassVar[bool] = False

    @classmethod
    def pod_problems(
        cls,
        annotations: Mapping[str, str],
        requested: Mapping[str, Collection[str]],
        _names: Names,
        _max_notice_s: int | None,
    ) -> Iterator[Problem]:
        """Find words for plugins that are misspelt, and a resource that no plugin offers."""
        return pod_words.problems(annotations, requested)

    def requests(self, _pod: Pod) -> Mapping[str, int]:
        """Return nothing: the policy itself chooses no CPUs."""
        return {}

    def choose(self, _view: NodeView, request: ChoiceRequest) -> Choice:
        """Refuse every request.

        Raises:
            NotEnoughCPUs: always.
        """
        raise NotEnoughCPUs(request.count, 0)

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return the CPUs of containers without an answer."""
        return {DEFAULT: view.free}

    def place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        """Return the CPUs of the container's answer, or of containers without one."""
        assignment = CPUManagerPolicy.place(self, view, to_place)
        if assignment.placement is not Placement.DEFAULT:
            return assignment
        ref = ContainerRef(to_place.pod.cgroup_uid, to_place.container.name)
        answered = view.answered.get(ref, CPUSet()) & view.free
        return CPUAssignment(Placement.PLUGIN, shared=answered) if answered else assignment
