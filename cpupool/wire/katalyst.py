"""Labels and annotations by which Katalyst, and the QRM proposal, describe a pod to plugins.

Source: kubewharf/katalyst-api, pkg/consts, and the proposal *QoS Resource Manager*. The proposal
has a pod's role and type in annotations of other names.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.resource_plugins import ContainerRole, Question
from cpupool.core.workloads import ContainerKind, ContainerRef, PodDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Container, Pod

POD_ROLE: Final = "katalyst.kubewharf.io/pod_role"
POD_TYPE: Final = "katalyst.kubewharf.io/pod_type"
PROPOSED_ROLE: Final = "kubernetes.io/pod-role"
PROPOSED_TYPE: Final = "kubernetes.io/resource-type"
MAIN_CONTAINER: Final = "kubernetes.io/main-container-name"
QOS_LEVEL: Final = "katalyst.kubewharf.io/qos_level"
RECLAIMED_MILLI: Final = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
"""The resource that reclaimed pods request, in thousandths of a CPU."""
SKIP_ADMIT: Final = "katalyst.kubewharf.io/skip_qrm_admit"

_NO_DESCRIPTION: Final = PodDescription()
_IN_INIT_LIST: Final = (ContainerKind.INIT, ContainerKind.SIDECAR)


class QoSLevel(Enum):
    """Katalyst's class of a pod."""

    SHARED = "shared_cores"
    DEDICATED = "dedicated_cores"
    RECLAIMED = "reclaimed_cores"
    SYSTEM = "system_cores"


def qos_level(pod: Pod) -> QoSLevel:
    """Return the class of a pod; shared for one without a known class."""
    written = (pod.description or _NO_DESCRIPTION).annotations.get(QOS_LEVEL, "")
    return next((level for level in QoSLevel if level.value == written), QoSLevel.SHARED)


def is_left_out(pod: Pod) -> bool:
    """Return whether no plugin is asked for a pod: one of a DaemonSet, unless it is of the system.

    A pod that only the container runtime has reported has no description.
    """
    described = pod.description
    if described is None:
        return True
    return described.of_daemon_set and qos_level(pod) is not QoSLevel.SYSTEM


def waits_for_reconcile(pod: Pod) -> bool:
    """Return whether a pod starts without an answer, and gets it when plugins list what it has."""
    return (pod.description or _NO_DESCRIPTION).annotations.get(SKIP_ADMIT) == "true"


def question(pod: Pod, container: Container, resource: str, quantity: float) -> Question:
    """Return the request of a container for a resource."""
    described = pod.description or _NO_DESCRIPTION
    in_init = container.kind in _IN_INIT_LIST
    siblings = [each for each in pod.containers if (each.kind in _IN_INIT_LIST) is in_init]
    labels, annotations = described.labels, described.annotations
    return Question(
        ContainerRef(pod.cgroup_uid, container.name),
        pod.namespace,
        pod.name,
        _role(pod, container, annotations),
        siblings.index(container),
        resource,
        quantity,
        pod_role(labels, annotations),
        pod_type(annotations),
        labels,
        annotations,
        pod.qos.value if pod.qos else "",
    )


def pod_role(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return the role of a pod for plugins; empty for none."""
    named = labels.get(POD_ROLE) or annotations.get(POD_ROLE)
    return named or annotations.get(PROPOSED_ROLE, "")


def pod_type(annotations: Mapping[str, str]) -> str:
    """Return the type of a pod for plugins; empty for none."""
    return annotations.get(POD_TYPE) or annotations.get(PROPOSED_TYPE, "")


def main_container(pod: Pod, annotations: Mapping[str, str]) -> str:
    """Return the name of a pod's main container: the annotated one, or the first that lasts."""
    apps = (each.name for each in pod.containers if each.kind is ContainerKind.APP)
    return annotations.get(MAIN_CONTAINER) or next(apps, "")


def _role(pod: Pod, container: Container, annotations: Mapping[str, str]) -> ContainerRole:
    if container.kind is ContainerKind.INIT:
        return ContainerRole.INIT
    is_main = container.name == main_container(pod, annotations)
    return ContainerRole.MAIN if is_main else ContainerRole.SIDECAR
