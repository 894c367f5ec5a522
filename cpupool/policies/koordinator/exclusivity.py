"""The preference of a pod for cores, or NUMA nodes, without pods of the same preference.

With PCPULevel no pod of the same preference has a sibling of the pod's CPUs, and with NUMANodeLevel
none has a CPU of their NUMA nodes. Pods with another preference, or without one, are not avoided. A
preference for NUMA nodes that none can keep becomes a preference for cores; one that the machine
cannot keep has no effect. A preference never refuses a pod: the reasons of the choice say which
preference was not kept.

Source: pkg/scheduler/plugins/nodenumaresource in Koordinator 1.8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cpupool.core.assignments import Step
from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import ExclusivePolicy
from cpupool.policies.layout import Level

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cpupool.policies.accumulators.koordinator import OccupiedCPUs
    from cpupool.policies.layout import Layout

_RULE: Final = "exclusive policy"
_LEVELS: Final = {
    ExclusivePolicy.PHYSICAL_CORE: ("PCPULevel", Level.CORE),
    ExclusivePolicy.NUMA_NODE: ("NUMANodeLevel", Level.NODE),
}


@dataclass(frozen=True, slots=True)
class Apart:
    """A pod's preference, as far as the machine can keep it.

    Attributes:
        preference: the units that the pod's CPUs avoid.
        held: the CPUs of earlier pods, with their preferences.
        why: why this is not what the pod's author wrote; empty if it is.
    """

    preference: ExclusivePolicy
    held: Collection[OccupiedCPUs]
    why: str = ""

    def explained(self, among: CPUSet) -> Iterator[Step]:
        """Yield why another preference applies than the pod's author wrote."""
        if self.why:
            yield Step(_RULE, self.why, among)

    def unkept(self, layout: Layout, cpus: CPUSet) -> Iterator[Step]:
        """Yield that pods of the same preference are near the pod's CPUs."""
        if self.preference is ExclusivePolicy.NONE:
            return
        word, level = _LEVELS[self.preference]
        around = CPUSet.union(layout.groups[level][group] for group in layout.free(level, cpus))
        if near := around & _of(self.preference, self.held):
            yield Step(
                _RULE, f"{word} is not kept: pods of the same preference have CPUs {near}", cpus
            )


def apart(
    layout: Layout,
    preference: ExclusivePolicy,
    held: Collection[OccupiedCPUs],
    *,
    count: int,
    free: CPUSet,
    arm: bool,
) -> Apart:
    """Return the preference of a pod, as far as the machine can keep it.

    Args:
        layout: the machine.
        preference: the preference of the pod's author.
        held: the CPUs of earlier pods, with their preferences.
        count: how many CPUs the pod gets.
        free: the CPUs to choose from.
        arm: whether the machine is arm64, where only NUMA nodes are avoided.
    """
    why = ""
    if preference is ExclusivePolicy.NUMA_NODE:
        alike = _of(preference, held)
        nodes = layout.groups[Level.NODE].values()
        if not any(node.isdisjoint(alike) and len(node & free) >= count for node in nodes):
            # Pods that preferred a NUMA node of their own now keep to cores of their own.
            held = [
                replace(each, exclusive=ExclusivePolicy.PHYSICAL_CORE)
                if each.exclusive is preference
                else each
                for each in held
            ]
            preference = ExclusivePolicy.PHYSICAL_CORE
            why = "no NUMA node without pods of the same preference has room: PCPULevel applies"
    smt = layout.largest_core > 1
    if preference is ExclusivePolicy.PHYSICAL_CORE and (arm or not smt):
        # Where a core is a CPU, each core is one pod's.
        why = "on arm64 there is NUMANodeLevel only" if smt else why
        preference = ExclusivePolicy.NONE
    return Apart(preference, held, why)


def _of(preference: ExclusivePolicy, held: Collection[OccupiedCPUs]) -> CPUSet:
    return CPUSet.union(each.cpus for each in held if each.exclusive is preference)
