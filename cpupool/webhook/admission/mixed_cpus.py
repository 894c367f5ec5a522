"""OpenShift's resource for shared CPUs in addition to a container's own: which pods may have it.

OpenShift's API server does the same for its own nodes, but checks only app containers. Here init
containers count, too: the kubelet gives them exclusive CPUs as well.

Source: openshift/enhancements, node-tuning/mixed-cpu-node-plugin.md, and openshift/kubernetes,
openshift-kube-apiserver/admission/autoscaling/mixedcpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError, Problem, QuantityError
from cpupool.core.names import (
    CRIO_SHARED_CPUS,
    ENABLE_SHARED_CPUS,
    MIXED_CPUS_ALLOWED,
    OPENSHIFT_DOMAIN,
)
from cpupool.core.pod_resources import CPU, NATIVE
from cpupool.core.requests import ResourceKind
from cpupool.core.visible import shown
from cpupool.webhook.admission.pod_requests import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.webhook.admission.pod_requests import ContainerRequests, PodRequests

Namespaces = Callable[[str], Mapping[str, object]]
"""A function that returns the annotations of a namespace, or raises `NamespaceUnknown`."""

RESOURCE: Final = f"{OPENSHIFT_DOMAIN}/{ENABLE_SHARED_CPUS}"
_ENABLE: Final = "enable"
_REMEDY: Final = "set the request to 1 or remove it"


class NamespaceUnknown(CPUPoolError):
    """A namespace whose annotations the webhook cannot read."""


def no_api_server(_namespace: str) -> Mapping[str, object]:
    """Replace the question to the API server where there is no API server.

    Raises:
        NamespaceUnknown: always.
    """
    raise NamespaceUnknown(
        "the webhook knows no API server; run it in a pod of the cluster, or with --api-server"
    )


def check(pod: PodRequests) -> Iterator[Problem]:
    """Find why containers cannot have the shared CPUs that they request."""
    asking = [container for container in pod.containers if container.enables_shared]
    for container in asking:
        yield from _container(container)
    native = [container for container in asking if not container.has_pools]
    for container in native:
        yield from _whole(container)
    if native:
        yield from _guaranteed(pod, shown(native[0].name))


def check_namespace(namespace: str, namespaces: Namespaces) -> Iterator[Problem]:
    """Find why pods of a namespace may not request the resource."""
    path = "metadata.namespace"
    try:
        annotations = namespaces(namespace)
    except NamespaceUnknown as error:
        what = f"whether {shown(namespace)} may have {RESOURCE} is not known: {error}"
        yield Problem(what, "then create the pod again", path=path)
        return
    if MIXED_CPUS_ALLOWED not in annotations:
        yield Problem(
            f"{shown(namespace)} is not allowed to have {RESOURCE}: it lacks the annotation"
            f" {MIXED_CPUS_ALLOWED}",
            "have an administrator add it, or remove the request",
            path=path,
        )


def marks(pod: PodRequests) -> dict[str, str]:
    """Return the annotations that mark such containers for other programs, as CRI-O.

    cpupool itself does not read them. An annotation that names a container without a request
    stays, as on OpenShift.
    """
    asking = (container.name for container in pod.containers if container.enables_shared)
    return {f"{CRIO_SHARED_CPUS}/{name}": _ENABLE for name in asking}


def _container(container: ContainerRequests) -> Iterator[Problem]:
    path = f"{container.path}.resources.limits[{RESOURCE}]"
    if container.enables_shared > 1:
        what = f"{container.enables_shared} are requested, and the first brings all the shared CPUs"
        yield Problem(what, _REMEDY, path=path)
    if shared := container.of_kind(ResourceKind.SHARED):
        what = f"the container requests the shared pool {shown(min(shared))}, too"
        yield Problem(what, "remove one of the two requests", path=path)


def _whole(container: ContainerRequests) -> Iterator[Problem]:
    """Find why the kubelet would give a container no CPUs of its own, except the QoS class.

    Source: kubernetes pkg/kubelet/cm/cpumanager/policy_static.go, guaranteedCPUs.
    """
    limit = container.written.limits.get(CPU)
    cpus = limit and limit.number
    if cpus and cpus != cpus.to_integral_value():
        yield Problem(
            f"{cpus.normalize():f} is no whole number of CPUs, so container"
            f" {shown(container.name)} has none of its own to which shared ones could be added",
            "write a whole number, or request an exclusive pool",
            path=f"{container.path}.resources.limits.cpu",
        )


def _guaranteed(pod: PodRequests, name: str) -> Iterator[Problem]:
    """Find why the admitted pod is not Guaranteed, which the container with this name needs.

    Source: kubernetes pkg/apis/core/v1/helper/qos/qos.go; the API server defaults a missing request
    to its limit.
    """
    why = f"and container {name} gets CPUs of its own only in a Guaranteed pod"
    spec = mapping(pod.body.get("spec"), "spec")
    if mapping(spec.get("resources"), "spec.resources"):
        what = "the kubelet gives no exclusive CPUs to a pod with resources of its own"
        remedy = f"write them at the containers, or request an exclusive pool for {name}"
        yield Problem(what, remedy, path="spec.resources")
    for container in pod.containers:
        path = f"{container.path}.resources"
        if container.has_pools:
            remedy = f"move it to a pod of its own, or request an exclusive pool for {name}"
            yield Problem(f"it requests pools, {why}", remedy, path=path)
            continue
        otherwise = f"or request an exclusive pool for {name}"
        for resource in NATIVE:
            where = f"{path}.limits.{resource}"
            try:
                limit, request = (
                    amount and amount.value for amount in container.written.of(resource)
                )
            except QuantityError as error:
                yield Problem(str(error), "correct it", path=where)
                continue
            if not limit:
                yield Problem(f"there is none, {why}", f"write one, {otherwise}", path=where)
            elif request is not None and request != limit:
                remedy = f"make both the same, {otherwise}"
                yield Problem(f"the request is another, {why}", remedy, path=where)
