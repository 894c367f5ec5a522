"""The CPU manager policy `none`: no container gets CPUs of its own, all share the default pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.names import POLICY_CPUS
from cpupool.policies.base import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod
    from cpupool.policies.base import Ask, Choice, CPUManagerPolicies, Demand, NodeView


@dataclass(frozen=True, slots=True)
class NonePolicy:
    """The policy `none`; every other policy places containers without own CPUs in the same way."""

    def wants(self, _pod: Pod) -> Mapping[str, int]:
        """Return nothing: no container gets CPUs of its own."""
        return {}

    def available(self, _view: NodeView) -> CPUSet:
        """Return no CPUs."""
        return CPUSet()

    def choose(self, _view: NodeView, ask: Ask) -> Choice:
        """Refuse every request.

        Raises:
            NotEnoughCPUs: always.
        """
        raise NotEnoughCPUs(ask.count, 0)

    def extents(self, view: NodeView) -> Mapping[str, CPUSet]:
        """Return the default pool's common CPUs, or others if there are none.

        With the default pool offline, the kernel would let its containers run on every CPU of the
        cgroup above. CPUs of no pool are better; the last choice is every CPU that no pod owns.
        """
        common = view.common
        unlisted = common - CPUSet.union(pool.reach(view.topology) for pool in view.pools)
        return {DEFAULT: view.cpus & common or unlisted or common}

    def place(self, view: NodeView, demand: Demand) -> CPUAssignment:
        """Return the CPUs that the container owns, or else the default pool's.

        Under `none` a container may own CPUs from the policy that was in force when its pod
        started.
        """
        chosen = view.chosen.get(demand.pod.cgroup_uid)
        own = chosen and chosen.parts.get(demand.container.name)
        if not own or not (online := own & view.topology.online):
            return view.default
        return CPUAssignment(
            Placement.POLICY,
            exclusive=online,
            offline=own - online,
            resources={POLICY_CPUS: online},
        )


BUILT_IN: Final[CPUManagerPolicies] = {"none": lambda _config, _machine: NonePolicy()}
"""The policies that a pool file can choose."""
