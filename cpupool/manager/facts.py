"""The facts about a node on which all decisions depend, as one value.

The roles bring the facts to the `Manager`. This module holds no decision: these are in `resolve`,
`choosing` and `ownership`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import NodeRules
from cpupool.core.plugin_facts import PluginFacts
from cpupool.core.pools import NodePools
from cpupool.core.topology import NO_CPUS, CPUTopology
from cpupool.core.workloads import ContainerID
from cpupool.policies.none.policy import NonePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.devices import DevicesByContainer, NodesOfDevices
    from cpupool.core.workloads import Pod, RuntimeContainer
    from cpupool.manager.mirror_pods import Identity
    from cpupool.manager.promises import Promise
    from cpupool.policies.base import CPUManagerPolicy
    from cpupool.policies.view import Size

ContainerKey = tuple[str, ContainerID]
"""The ids in a container's cgroup path: the pod's and its own."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Every fact that the decisions depend on.

    Attributes:
        pools: as configured.
        configured: whether a configuration was read; a node may have no pools.
        topology: from the last reading.
        pods: this node's pods; None until a first complete list is known.
        static: hash → the pod with this hash, for the static pods that listed pods claim to mirror.
        sighted: id → container or sandbox that the container runtime reported.
        devices: the devices that the kubelet gave to these pods.
        device_nodes: the NUMA nodes of the devices and of the memory of these pods, as far as the
            kubelet was asked: it has named all resources of a pod that is a key.
        promises: the devices that the kubelet gave to pods that are not known yet.
        kept_shared: the shared CPUs of containers that must not follow a change of their pools.
        blocked: CPUs that no container may get because, after a topology change, two pools share
            a core; owners keep them.
        static_cpus: the CPUs that the kubelet's static CPU manager gives out; empty under its
            policy none.
        policy: the configured policy for the default pool's CPUs.
        rules: the rules for its CPUs in labels and annotations of the node.
        sizes: shared set → how many CPUs the load leaves to it, as the policy decided last; empty
            while no set follows the load, and before the first measurement.
        recovered: whether the choices of an earlier agent are known, so that the policy may choose.
        plugins: the plugins for resources, and their answers.
        moved_unix_s: when the agent has begun to move containers within the last hour.
        idle: pods without a container's cgroup, where two pods claim a CPU or a pod has ended: such
            a pod owns nothing more.
    """

    pools: NodePools = field(default_factory=NodePools)
    configured: bool = False
    topology: CPUTopology = NO_CPUS
    pods: tuple[Pod, ...] | None = None
    static: Mapping[str, Identity] = field(default_factory=dict)
    sighted: Mapping[ContainerID, RuntimeContainer] = field(default_factory=dict)
    devices: DevicesByContainer = field(default_factory=dict)
    device_nodes: NodesOfDevices = field(default_factory=dict)
    promises: tuple[Promise, ...] = ()
    kept_shared: Mapping[ContainerKey, CPUSet] = field(default_factory=dict)
    blocked: CPUSet = field(default_factory=CPUSet)
    static_cpus: CPUSet = field(default_factory=CPUSet)
    policy: CPUManagerPolicy = field(default_factory=NonePolicy)
    rules: NodeRules = field(default_factory=NodeRules)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    recovered: bool = False
    plugins: PluginFacts = field(default_factory=PluginFacts)
    moved_unix_s: tuple[int, ...] = ()
    idle: frozenset[str] = frozenset()
