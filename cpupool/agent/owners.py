"""The containers with CPUs of their own: what they must have, and what the last sweep found.

The keeper of own CPUs asks here which CPUs each container has. When a notice has ended, it takes
the CPUs away here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.host import processes
from cpupool.manager import resizing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.grants import Grants
    from cpupool.core.workloads import ContainerRef, Pod
    from cpupool.enforce.sweep import SweepReport
    from cpupool.host.cgroupfs import CgroupFS
    from cpupool.manager.manager import Manager
    from cpupool.manager.resizing import OwnCPUs


class NodeOwners:
    """The containers of the node, as `Owners`; any thread may call it.

    Args:
        manager: decides which CPUs containers own.
        tree: the cgroups.
        proc: the folder that stands for /proc.
        look: asks for a sweep.
        informed: returns whether the owner of each CPU is known.
    """

    def __init__(
        self,
        manager: Manager,
        tree: CgroupFS,
        proc: Path,
        *,
        look: Callable[[], None],
        informed: Callable[[], bool],
    ) -> None:
        self._manager, self._tree, self._proc = manager, tree, proc
        self._look, self._informed = look, informed
        self._found: tuple[FoundContainer, ...] = ()
        self._runs: Mapping[ContainerRef, CPUSet] | None = None
        self._noted: Grants | None = None

    def swept(self, report: SweepReport) -> Collection[ContainerRef] | None:
        """Take the report of a sweep; only the sweeping thread calls this.

        Returns:
            The containers whose CPUs another program had written; None if nothing is new.
        """
        if report.waiting_for:
            return None
        now = self._manager.snapshot()
        resolution, before = now.resolution, (self._runs, self._noted)
        changes = resizing.changes_cpus(now)
        if not report.uncertain:
            self._found = report.found
            if changes:
                self._noted = resolution.grants
                self._runs = resizing.runs_on(resolution, report.found)
        if not changes:
            return None
        foreign = {repair.path for repair in report.repairs if repair.foreign and not repair.error}
        written = (container for container in report.found if container.path in foreign)
        repaired = resizing.runs_on(resolution, written).keys()
        same = before[0] == self._runs and before[1] is self._noted
        return None if same and not repaired else repaired

    def own_cpus(self) -> Mapping[ContainerRef, OwnCPUs]:
        """Return the CPUs of the containers whose own CPUs can change while they run."""
        return resizing.own_cpus(self._manager.snapshot(), self._runs)

    def narrow(self, ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        """Take the leaving CPUs from a container."""
        narrowed = self._manager.narrow(ref, assigned, leaving)
        if narrowed:
            self._look()
        return narrowed

    def needs(self, ref: ContainerRef, cpus: CPUSet) -> bool | None:
        """Return whether a thread can run on none but these CPUs; None if none is in sight."""
        resolution = self._manager.snapshot().resolution
        threads = [
            allowed
            for each in self._found
            if each.pod == ref.pod and ref in resizing.runs_on(resolution, (each,))
            for allowed in processes.affinities(self._proc, self._tree.directory(each.path))
        ]
        if not any(threads):
            return None
        return any(allowed <= cpus for allowed in threads)

    def pod(self, uid: str) -> Pod | None:
        """Return a pod by the id in its cgroup's name; None if it is not listed."""
        return self._manager.snapshot().resolution.pods.get(uid)

    def remaining(self) -> Collection[str] | None:
        """Return the pods that are listed or have a cgroup; None while they are not known."""
        facts, resolution = self._manager.snapshot()
        if facts.pods is None or not self._informed():
            return None
        return {*resolution.pods, *(each.pod for each in self._found)}
