"""What a plugin of the QoS Resource Manager is asked, and what it answers.

Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from cpupool.core.errors import CPUPoolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.workloads import ContainerRef


class ContainerRole(Enum):
    """The part of a container in its pod, in the words of the plugin API."""

    INIT = 0
    MAIN = 1
    SIDECAR = 2


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """What a plugin wants to be asked.

    Attributes:
        pre_start: before each start of a container.
        aligned: for hints, whose merge it gets with the request for an allocation.
        reconciled: what each container has now, again and again.
    """

    pre_start: bool = False
    aligned: bool = False
    reconciled: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A container's request for one resource.

    Attributes:
        container: the container.
        namespace: its pod's namespace.
        pod_name: its pod's name.
        role: its part in the pod.
        index: its place among the containers, or the init containers, of the pod's spec.
        resource: the name under which the plugin is registered.
        quantity: in the base unit of the resource: CPUs, or bytes.
        pod_role: the pod's role for the plugin; empty for none.
        pod_type: the pod's type for the plugin; empty for none.
        labels: the pod's.
        annotations: the pod's.
        qos_class: Kubernetes' QoS class of the pod.
    """

    container: ContainerRef
    namespace: str
    pod_name: str
    role: ContainerRole
    index: int
    resource: str
    quantity: float
    pod_role: str = ""
    pod_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    qos_class: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a container has of one resource.

    Attributes:
        oci_property: what `value` sets, by the Go name in the CRI's LinuxContainerResources; empty
            for nothing.
        value: as the container runtime reads it.
        quantity: how much that is.
        scalar: whether quantities can be compared, so that one that is enough is kept.
        of_node: whether the node's status names the resource.
        env: variables of the container.
        annotations: annotations of the container.
        hints: the NUMA nodes of the allocation; None for no preference.
        by_node: NUMA node → quantity.
    """

    oci_property: str = ""
    value: str = ""
    quantity: float = 0.0
    scalar: bool = False
    of_node: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[TopologyHint, ...] | None = None
    by_node: Mapping[int, int] = field(default_factory=dict)


class PluginError(CPUPoolError):
    """A plugin does not answer, or refuses.

    Attributes:
        resource: the resource that it is for.
        refused: whether it has answered, with a refusal.
        why: the plugin's words, or the fact.
    """

    def __init__(self, resource: str, why: str, remedy: str, *, refused: bool = False) -> None:
        self.resource = resource
        self.refused = refused
        self.why = why
        super().__init__(f"the plugin for {resource} {why}; {remedy}")
