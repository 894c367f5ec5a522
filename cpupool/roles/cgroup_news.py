"""What an event in the cgroups of pods asks for: a sweep at once, a sweep soon, or nothing.

The start of a pod is dozens of events, and few of them can leave a container on wrong CPUs.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.workloads import ContainerID
from cpupool.host import bandwidth, cgroup_memory, cgroup_names, cgroup_properties, partitions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.enforce.writers import Writers

_CPUS: Final = "cpuset.cpus"
_AT_ONCE: Final = {_CPUS} | bandwidth.FILES
"""What decides where, and for how long, the processes of a container run."""
_KEPT_FILES: Final = _AT_ONCE.union(cgroup_memory.FILES, cgroup_properties.FILES, partitions.FILES)
"""What is kept of a container, and put back when another program has written it."""


class Look(Enum):
    """When the cpusetter is to look at the containers."""

    AT_ONCE = "at once"
    SOON = "soon"
    NOT = "not"


def of(path: Path, writers: Writers, stays: Callable[[Path], bool], *, sets: bool) -> Look:
    """Return when the cpusetter is to look because something has changed.

    Args:
        path: the cgroup that is new or gone, or the file that was written.
        writers: who writes each container.
        stays: returns whether the container with this cgroup is where it belongs.
        sets: whether the cgroups there have the CPUs of containers.
    """
    directory = cgroup_names.is_cgroup(path.name)
    # Every exec writes cgroup.procs, which moves no container.
    if not directory and path.name not in _KEPT_FILES:
        return Look.NOT
    cgroup = path if directory else path.parent
    if writers.starting(ContainerID(cgroup_names.container_id(cgroup.name))):
        # The runtime brings it onto its CPUs, and names it once it has started.
        return Look.NOT
    if path.name == _CPUS and not writers.delays and stays(cgroup):
        # Most often the cpusetter has written it.
        return Look.NOT
    of_container = cgroup_names.pod_id(cgroup.parent.name) is not None
    runs = sets and path.is_dir() if directory else path.name in _AT_ONCE
    # A start that waits may wait for a container to go.
    return Look.AT_ONCE if (of_container and runs) or writers.delays else Look.SOON


def pod(path: Path) -> str | None:
    """Return the only pod whose containers a change can concern; None if it can concern others.

    Args:
        path: as for `of`.
    """
    if path.name.startswith("cpuset.cpus."):
        # On version 2 a partition takes CPUs from the cgroups around it.
        return None
    pods = (cgroup_names.pod_id(name) for name in reversed(path.parts))
    return next((pod for pod in pods if pod is not None), None)
