"""The cgroups of containers as values: the found directories, and the programs that write them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.workloads import ContainerID

if TYPE_CHECKING:
    from cpupool.core.cpuset import CPUSet

POD_ITSELF: Final = ContainerID("")
"""The id of a pod's own directory; no container has this id."""


class Writer(Enum):
    """The program that writes a container's cgroup."""

    NRI = "nri"
    """The runtime, which asks cpupool's NRI plugin: right before the first instruction."""
    CRI = "cri"
    """The runtime, through CRI as the kubelet: right after the agent sees the container."""
    CGROUP = "cgroup"
    """cpupool itself: right after the agent sees the container, and sooner than through CRI."""


@dataclass(frozen=True, slots=True)
class CgroupNode:
    """The present state of one cgroup.

    Attributes:
        path: relative to the cgroup tree.
        cpus: its own set; empty where it inherits the parent's (cgroup v2) or has none yet (v1).
        children: the cgroups below; empty for an ancestor.
    """

    path: str
    cpus: CPUSet
    children: tuple[CgroupNode, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A directory below a pod's cgroup: a container, a sandbox, or something unknown.

    It may be the pod's own directory, if the kernel has moved a container's processes into it.

    Attributes:
        pod: the id in the pod's cgroup name: UID or static pod hash.
        id: the container id in the directory's name, or the whole name where it has none;
            `POD_ITSELF` for the pod's own directory.
        path: the directory, relative to the cgroup tree.
        cpus: the CPUs that it runs on now, in the kernel's text.
    """

    pod: str
    id: str
    path: str
    cpus: str
