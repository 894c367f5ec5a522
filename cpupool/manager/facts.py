"""The facts that the decisions about a node follow from: values, and no decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools
from cpupool.core.topology import NO_CPUS, CPUTopology
from cpupool.core.workloads import ContainerID
from cpupool.policies.none import NonePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.devices import DeviceAssignments
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Pod, RuntimeContainer
    from cpupool.manager.static_pods import Identity
    from cpupool.policies.base import CPUManagerPolicy

ContainerKey = tuple[str, ContainerID]
"""The ids in a container's cgroup path: the pod's and its own."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Devices that Allocate has given out, to a pod that is not known yet.

    Attributes:
        number: counts promises.
        resource: whose they are.
        ids: the devices.
        told: the CPUs that the container is told.
    """

    number: int
    resource: Resource
    ids: frozenset[str]
    told: CPUSet = field(default_factory=CPUSet)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything that the decisions follow from.

    Attributes:
        pools: as configured.
        configured: whether somebody has said so; a node may well have no pools.
        topology: as last read.
        pods: this node's pods; None until a first complete list is known.
        static: hash → which pod it stands for, of the static pods that listed pods claim to mirror.
        sighted: the containers and sandboxes that the container runtime has told of, by id.
        devices: what the kubelet gave to these pods.
        promises: what it gave to pods that are not known yet.
        kept_shared: the shared CPUs of containers that must not follow a change of their pools.
        blocked: CPUs that nobody may have because a topology change brought two pools together.
        static_cpus: those that the kubelet's static CPU manager gives out; none under policy none.
        policy: gives out the default pool's CPUs, as configured.
        idle: pods that have no container's cgroup, where two pods claim a CPU: the one has ended.
    """

    pools: NodePools = field(default_factory=NodePools)
    configured: bool = False
    topology: CPUTopology = NO_CPUS
    pods: tuple[Pod, ...] | None = None
    static: Mapping[str, Identity] = field(default_factory=dict)
    sighted: Mapping[ContainerID, RuntimeContainer] = field(default_factory=dict)
    devices: DeviceAssignments = field(default_factory=dict)
    promises: tuple[Promise, ...] = ()
    kept_shared: Mapping[ContainerKey, CPUSet] = field(default_factory=dict)
    blocked: CPUSet = field(default_factory=CPUSet)
    static_cpus: CPUSet = field(default_factory=CPUSet)
    policy: CPUManagerPolicy = field(default_factory=NonePolicy)
    idle: frozenset[str] = frozenset()
