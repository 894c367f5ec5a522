"""CPUs that run, and that no container can have: another cgroup keeps them.

For containers such a CPU is as good as offline. `CPUTopology.online` is without it, so each
decision treats it as an offline CPU; only the messages name the cgroup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Withheld:
    """Some CPUs, and the cgroup that keeps containers from them.

    Attributes:
        cpus: the CPUs.
        cgroup: its path from the base of the cgroup hierarchy, as `/system.slice/x.service`.
        partition: its `cpuset.cpus.partition` if it is a partition with these CPUs (cgroup-v2.rst);
            empty for a cgroup above containers that lacks them.
    """

    cpus: CPUSet
    cgroup: str
    partition: str = ""

    @property
    def why(self) -> str:
        """The fact, in a clause."""
        if self.partition:
            state = f"cpuset.cpus.partition: {self.partition}"
            return f"CPUs {self.cpus} are for cgroup {self.cgroup} alone ({state})"
        return f"CPUs {self.cpus} are not in cgroup {self.cgroup}, which has all pods (cpuset.cpus)"

    @property
    def remedy(self) -> str:
        """The action that gives the CPUs to containers."""
        if self.partition:
            what = f"write member into cpuset.cpus.partition of {self.cgroup}"
            return f"{what} (systemd: remove CPUSetPartition=)"
        return f"add CPUs {self.cpus} to cpuset.cpus of {self.cgroup} (systemd: AllowedCPUs=)"


def why(cpus: CPUSet, withheld: Sequence[Withheld]) -> str:
    """Return why no container runs on these CPUs, as `CPUs 2 are offline`."""
    parts, offline = _split(cpus, withheld)
    clauses = [part.why for part in parts]
    return ", and ".join([*clauses, f"CPUs {offline} are offline"] if offline else clauses)


def remedy(cpus: CPUSet, withheld: Sequence[Withheld]) -> str:
    """Return the remedy: how containers can run on these CPUs again."""
    parts, offline = _split(cpus, withheld)
    steps = [part.remedy for part in parts]
    if offline:
        steps.append(f"bring {f'CPUs {offline}' if steps else 'them'} online")
    return ", and ".join(steps)


def all_of(withheld: Sequence[Withheld]) -> CPUSet:
    """Return all CPUs that are withheld."""
    return CPUSet.union(part.cpus for part in withheld)


def _split(cpus: CPUSet, withheld: Sequence[Withheld]) -> tuple[list[Withheld], CPUSet]:
    """Return the parts of some CPUs that are withheld, and the other CPUs."""
    cut = (Withheld(part.cpus & cpus, part.cgroup, part.partition) for part in withheld)
    return [part for part in cut if part.cpus], cpus - all_of(withheld)
