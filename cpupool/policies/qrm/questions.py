"""The questions to plugins of the QoS Resource Manager.

Source: kubewharf/kubelet, pkg/apis/resourceplugin/v1alpha1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

from cpupool.core.workloads import ContainerKind, ContainerRef
from cpupool.policies.qrm import katalyst

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Container, Pod

_IN_INIT_LIST: Final = (ContainerKind.INIT, ContainerKind.SIDECAR)


class ContainerRole(Enum):
    """The part of a container in its pod, in the words of the plugin API."""

    INIT = 0
    MAIN = 1
    SIDECAR = 2


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The questions that a plugin wants.

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

    @classmethod
    def of(cls, pod: Pod, container: Container, resource: str, quantity: float) -> Self:
        """Return the request of a container for a resource."""
        described = pod.description
        in_init = container.kind in _IN_INIT_LIST
        siblings = [each for each in pod.containers if (each.kind in _IN_INIT_LIST) is in_init]
        labels, annotations = described.labels, described.annotations
        return cls(
            ContainerRef(pod.cgroup_uid, container.name),
            pod.namespace,
            pod.name,
            _role(pod, container, annotations),
            siblings.index(container),
            resource,
            quantity,
            katalyst.pod_role(labels, annotations),
            katalyst.pod_type(annotations),
            labels,
            annotations,
            pod.qos.value if pod.qos else "",
        )


def _role(pod: Pod, container: Container, annotations: Mapping[str, str]) -> ContainerRole:
    if container.kind is ContainerKind.INIT:
        return ContainerRole.INIT
    is_main = container.name == katalyst.main_container(pod, annotations)
    return ContainerRole.MAIN if is_main else ContainerRole.SIDECAR
