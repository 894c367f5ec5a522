"""The resources of a container in NRI's messages.

Source: github.com/containerd/nri, pkg/api/api.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.api import nri_pb2
from cpupool.core.properties import Properties
from cpupool.runtime.nri.messages import CPUResources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import ContainerID
    from cpupool.runtime.nri.messages import Adjustment, Update

_READ_ONLY: Final = ("rbind", "rprivate", "ro")
"""The options of a mount that the kubelet asks for as read-only, as runtimes write them."""


def read_cpu(cpu: nri_pb2.LinuxCPU) -> CPUResources:
    """Read the CPU resources of a container, or of a change."""
    return CPUResources(
        cpu.cpus,
        cpu.quota.value if cpu.HasField("quota") else None,
        cpu.period.value if cpu.HasField("period") else None,
        cpu.shares.value or None,
    )


def read_limits(memory: nri_pb2.LinuxMemory) -> Properties:
    """Read the limits of memory, and of memory and swap together; 0 sets none."""
    return Properties(memory_bytes=memory.limit.value or None, swap_bytes=memory.swap.value or None)


def write_adjustment(adjustment: Adjustment) -> nri_pb2.ContainerAdjustment:
    """Write the values of a new container; an absent field changes nothing."""
    written = nri_pb2.ContainerAdjustment(annotations=adjustment.annotations)
    for name, value in adjustment.environment.items():
        written.env.add(key=name, value=value)
    for mount in adjustment.mounts:
        written.mounts.add(
            destination=mount.container_path,
            type="bind",
            source=mount.host_path,
            options=_READ_ONLY,
        )
    resources = _resources(adjustment.cpus, adjustment.properties)
    if adjustment.memory:
        resources.cpu.mems = str(adjustment.memory)
    if resources.ByteSize():
        written.linux.resources.CopyFrom(resources)
    if (score := adjustment.properties.oom_score_adj) is not None:
        written.linux.oom_score_adj.value = score
    return written


def write_update(memory: Mapping[ContainerID, CPUSet], update: Update) -> nri_pb2.ContainerUpdate:
    """Write a change of a container.

    Args:
        memory: container → its memory nodes: with each update a runtime writes all values that it
            remembers of a container.
        update: the change.
    """
    written = nri_pb2.ContainerUpdate(
        container_id=update.container, ignore_failure=update.ignore_failure
    )
    resources = _resources(update.cpus, update.properties)
    if resources.ByteSize():
        if nodes := memory.get(update.container):
            resources.cpu.mems = str(nodes)
        written.linux.resources.CopyFrom(resources)
    return written


def _resources(cpus: CPUSet, properties: Properties) -> nri_pb2.LinuxResources:
    # A field that is only looked at would be sent, empty.
    written = nri_pb2.LinuxResources(unified=properties.unified)
    if cpus:
        written.cpu.cpus = str(cpus)
    if properties.shares is not None:
        written.cpu.shares.value = properties.shares
    if properties.bandwidth is not None:
        written.cpu.quota.value = properties.bandwidth.quota_us
        written.cpu.period.value = properties.bandwidth.period_us
    if properties.memory_bytes is not None:
        written.memory.limit.value = properties.memory_bytes
    if properties.swap_bytes is not None:
        written.memory.swap.value = properties.swap_bytes
    return written
