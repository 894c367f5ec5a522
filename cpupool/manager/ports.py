"""The sources that the learner asks for facts; adapters satisfy them structurally."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.devices import PodDevices
    from cpupool.core.workloads import Pod, RuntimeContainer


class PodSource(Protocol):
    """The source of this node's pods."""

    def pods(self) -> tuple[Pod, ...] | None:
        """Return every pod of this node, or None until a first complete list is known.

        Raises:
            CPUPoolError: the source cannot be read now.
        """
        ...


class DeviceSource(Protocol):
    """The kubelet's podresources: which devices it gave to which container."""

    def by_pod_name(self) -> Mapping[tuple[str, str], PodDevices]:
        """Return (namespace, pod name) → container name → resource name → devices.

        Raises:
            RemoteProtocolError: the kubelet does not answer.
        """
        ...

    def allocatable_cpus(self) -> CPUSet:
        """Return the CPUs that the kubelet's CPU manager gives out; empty under its policy none.

        Raises:
            RemoteProtocolError: the kubelet does not answer.
        """
        ...


class CheckpointSource(Protocol):
    """The kubelet's checkpoint file, which also has init containers."""

    def by_pod_uid(self) -> Mapping[str, PodDevices]:
        """Return pod UID → container name → resource name → devices.

        Raises:
            CPUPoolError: the file is missing or damaged.
        """
        ...


class ContainerSource(Protocol):
    """The container runtime, which recognises containers and sandboxes by their ids."""

    def connected(self) -> bool:
        """Return whether the runtime can answer now; makes no call, or a short one."""
        ...

    def recognise(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        """Return the containers and sandboxes with these ids that the runtime knows.

        Raises:
            CPUPoolError: the runtime does not answer.
        """
        ...

    def chosen(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        """Return those of these containers for which an agent has chosen CPUs.

        Raises:
            CPUPoolError: the runtime does not answer.
        """
        ...
