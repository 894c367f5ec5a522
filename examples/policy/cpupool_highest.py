"""A CPU manager policy: every container gets the highest free CPU.

A container that requests several whole CPUs gets as many of the highest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.assignments import Step
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.base import Choice, CPUManagerPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod
    from cpupool.policies.base import ChoiceRequest
    from cpupool.policies.view import NodeView


@dataclass(frozen=True, slots=True)
class HighestCPUs(CPUManagerPolicy):
    """The policy on one machine."""

    def requests(self, pod: Pod) -> Mapping[str, int]:
        """Return one CPU for each container, or as many as it requests."""
        return {container.name: container.whole_cpus or 1 for container in pod.containers}

    def choose(self, _view: NodeView, request: ChoiceRequest) -> Choice:
        """Choose the highest of the available CPUs.

        Raises:
            NotEnoughCPUs: there are fewer.
        """
        if request.has:
            return Choice(request.has)
        highest = CPUSet(sorted(request.available)[-request.count :])
        if len(highest) < request.count:
            raise NotEnoughCPUs(request.count, len(highest))
        return Choice(highest, (Step("highest", "the highest CPUs that are free", highest),))
