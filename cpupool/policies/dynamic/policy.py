"""The policy `dynamic`: `static` with resizes and moves that change the CPUs of a container.

A container keeps its baseline: the CPUs with which it began. An application may have pinned threads
there at its start (KEP-5554, which the kubelet does not have yet).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from cpupool.core.cpu_manager import COMPACTION, MAX_NOTICE
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.base import Choice, Operation, other_request
from cpupool.policies.dynamic import pod_words
from cpupool.policies.layout import Level
from cpupool.policies.static.policy import StaticPolicy, take, topology_hints

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.core.errors import Problem
    from cpupool.core.grants import Grant
    from cpupool.core.names import Names
    from cpupool.policies.base import ChoiceRequest, ContainerToPlace
    from cpupool.policies.hints import ResourceHints
    from cpupool.policies.view import NodeView

_NEAREST: Final = (Level.CORE, Level.UNCORE, Level.NODE, Level.SOCKET)


@dataclass(frozen=True, slots=True)
class DynamicPolicy(StaticPolicy):
    """The policy on one machine."""

    settings: ClassVar[frozenset[str]] = StaticPolicy.settings | {MAX_NOTICE, COMPACTION}
    resizes: ClassVar[bool] = True

    @classmethod
    def pod_problems(
        cls,
        annotations: Mapping[str, str],
        _requested: Mapping[str, Collection[str]],
        names: Names,
        max_notice_s: int | None,
    ) -> Iterator[Problem]:
        """Find words about changes of CPUs that no node can follow."""
        return pod_words.problems(annotations, names, max_notice_s)

    def hints(self, request: ChoiceRequest) -> ResourceHints:
        """Return the NUMA nodes on which a container's CPUs could lie.

        Those of a resize cover the nodes of the CPUs that the container keeps.
        """
        if request.operation is not Operation.RESIZE:
            # Slots make the class anew, and the short form of `super` has the first one.
            return super(DynamicPolicy, self).hints(request)
        return topology_hints(
            self.layout,
            request.count,
            self._usable(request),
            request.has & self.layout.cpus,
            align_by_socket=self.options.align_by_socket,
        )

    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        """Choose a container's own CPUs; those of a resize are the nearest to those that it keeps.

        The reusable CPUs come first: the container has not left them yet.

        Raises:
            SMTAlignmentError: the options promise whole cores, and there are too few.
            NotEnoughCPUs: fewer are free.
        """
        if request.operation is not Operation.RESIZE:
            return super(DynamicPolicy, self).choose(view, request)
        every = self._usable(request)
        if self.options.full_pcpus_only:
            self._refuse_parts_of_cores(
                replace(request, available=every | request.has), self.reserve(view)
            )
        around = every if request.nodes is None else every & self._around(request.nodes)
        chosen, proven = request.has, True
        for free in (around & request.reusable, around, every):
            for near in (*self._near(chosen), free):
                room = free & near & self.layout.cpus - chosen
                more = take(
                    self.layout, self.options, room, min(request.count - len(chosen), len(room))
                )
                chosen, proven = chosen | more.cpus, proven and more.proven
        if len(chosen) < request.count:
            has = len(request.has)
            raise NotEnoughCPUs(request.count - has, len(every), has=has)
        return Choice(chosen, proven=proven)

    def _usable(self, request: ChoiceRequest) -> CPUSet:
        """Return the CPUs that can come beside those that a container keeps.

        Whole cores are promised on every NUMA node: a half that is near is no CPU to take.
        """
        every = request.available | request.reusable
        if not self.options.full_pcpus_only:
            return every
        cores = self.layout.groups[Level.CORE].values()
        return every & CPUSet.union(core for core in cores if core <= every | request.has)

    def _near(self, cpus: CPUSet) -> Iterator[CPUSet]:
        """Yield the CPUs on the same cores, then on the same L3 caches, nodes and sockets."""
        for level in _NEAREST:
            groups = self.layout.groups[level].values()
            yield CPUSet.union(group for group in groups if not group.isdisjoint(cpus))

    def _unmet(self, grant: Grant, to_place: ContainerToPlace, requests: Mapping[str, int]) -> str:
        """Return the change of an owner that is not complete; empty for none."""
        name = to_place.container.name
        if leaving := grant.in_force(name) - grant.part(name):
            return f"it leaves CPUs {leaving} when its notice ends"
        if grant.bubble:
            return super(DynamicPolicy, self)._unmet(grant, to_place, requests)
        if grant.whole:
            # Its CPUs are of an earlier policy, and no resize changes them.
            return ""
        other, has = other_request(grant, to_place, requests)
        return f"{other}, and has CPUs {has} until the kubelet resizes it" if other else ""
