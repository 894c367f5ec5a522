"""Koordinator's classes: what their pods must request, and who may assign CPUs to a pod.

The rules count where a pool file has the CPU manager policy koordinator, and only for pods with
Koordinator's labels, annotations or resources. A pod that requests pools is outside that policy,
whatever its class, and so are the mirrors of static pods.

Source: pkg/webhook/pod/validating/cluster_colocation_profile.go in koordinator-sh/koordinator; the
proposal *Fine-grained CPU orchestration* for equal requests and limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.admission.pod_requests import Body, mapping
from cpupool.config.reader import hint, nearest
from cpupool.core.errors import Problem, QuantityError, Severity
from cpupool.core.koordinator import QoS
from cpupool.core.names import STATIC_POD_MIRROR
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.resources import NATIVE
from cpupool.core.workloads import ContainerKind, pod_request_milli
from cpupool.wire.annotation import shown
from cpupool.wire.koordinator import AnnotationError, json_object
from cpupool.wire.orchestration import (
    BATCH,
    OWNERS,
    PRIORITY_CLASS,
    PROD,
    QOS_CLASS,
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    SPEC_FIELDS,
    UNSET,
    priority_class,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.admission.pod_requests import ContainerRequests, PodRequests
    from cpupool.admission.rules import Rules

_CLASS_PATH: Final = f"metadata.labels[{QOS_CLASS}]"
_MOST_FIELDS: Final = 32
"""The search for the key that was meant takes time for each unknown key."""


def check(pod: PodRequests, rules: Rules) -> Iterator[Problem]:
    """Find what does not go with a pod's class, and what is wrong in `resource-spec`."""
    if not rules.koordinator or STATIC_POD_MIRROR in pod.annotations:
        return
    yield from _spec(pod.annotations.get(RESOURCE_SPEC))
    if any(container.requests or container.enables_shared for container in pod.containers):
        return
    labels = _texts(pod.body, "labels")
    qos = labels.get(QOS_CLASS, "")
    yield from _priority(qos, priority_class(labels, _number(pod.body)))
    if qos != QoS.BE.value:
        for container in pod.containers:
            yield from _batch(container)
    if qos in OWNERS:
        yield from _owner(qos, pod)


def check_metadata(new: Body, old: Body | None, rules: Rules, account: str) -> Iterator[Problem]:
    """Find metadata that the caller may not write.

    Args:
        new: a pod, or a Binding.
        old: the pod before; None for a new pod, empty for a Binding.
        rules: the rules of admission.
        account: the caller's user name; empty where it is not known.
    """
    if not rules.koordinator:
        return
    had, has = (_texts(body or {}, "annotations").get(RESOURCE_STATUS) for body in (old, new))
    if has != had and account not in rules.schedulers:
        other = f", not {shown(account)}" if account else ""
        keep = "leave it out" if had is None else "leave it as it was"
        yield Problem(
            f"only a scheduler may write this{other}",
            f"{keep}, or have an administrator add the account to --schedulers",
            path=f"metadata.annotations[{RESOURCE_STATUS}]",
        )
    if old is None:
        return
    before, after = _texts(old, "labels"), _texts(new, "labels")
    for key in (QOS_CLASS, PRIORITY_CLASS):
        if before.get(key) != after.get(key):
            yield Problem(
                f"it stays {shown(before.get(key, ''))} while the pod lives",
                "create the pod again",
                path=f"metadata.labels[{key}]",
            )


def _owner(qos: str, pod: PodRequests) -> Iterator[Problem]:
    """Find why a pod cannot own what it requests."""
    try:
        for container in pod.containers:
            yield from _equal(qos, container)
        milli = pod_request_milli(
            (_kind(container), container.written.request_milli) for container in pod.containers
        )
    except QuantityError as error:
        yield Problem(str(error), "correct it", path=error.path)
        return
    if not milli or milli % MILLI_PER_CPU:
        yield Problem(
            f"a pod of the class {qos} owns whole CPUs, and this one requests {milli}m",
            "make the sum of its containers a whole number of CPUs, or write the class LS",
            path=_CLASS_PATH,
        )


def _equal(qos: str, container: ContainerRequests) -> Iterator[Problem]:
    for resource in NATIVE:
        limit, request = container.written.of(resource)
        # The API server copies a limit to a request that is missing.
        if request is not None and (limit is None or limit.value != request.value):
            having = "missing" if limit is None else shown(limit.text)
            yield Problem(
                f"the request is {shown(request.text)} and the limit {having}: a pod of the class"
                f" {qos} owns what it requests",
                "make both the same",
                path=f"{container.path}.resources.limits.{resource}",
            )


def _priority(qos: str, priority: str) -> Iterator[Problem]:
    having = priority or "no priority class of Koordinator"
    if qos == QoS.LSR.value and priority != PROD:
        yield Problem(
            f"the class LSR goes with {PROD} alone, and the pod has {having}",
            f"write the label {PRIORITY_CLASS}: {PROD}",
            path=_CLASS_PATH,
        )
    if qos == QoS.BE.value and priority in {"", PROD}:
        yield Problem(
            f"the class BE goes with koord-mid, koord-batch or koord-free, and the pod has"
            f" {having}",
            f"write the label {PRIORITY_CLASS}: koord-batch",
            path=_CLASS_PATH,
        )


def _batch(container: ContainerRequests) -> Iterator[Problem]:
    path = f"{container.path}.resources"
    resources = mapping(container.body.get("resources"), path)
    for part in ("requests", "limits"):
        amounts = mapping(resources.get(part), f"{path}.{part}")
        for resource in filter(amounts.get, BATCH):
            yield Problem(
                "only pods of the class BE have this resource",
                f"write the label {QOS_CLASS}: {QoS.BE.value}, or request cpu and memory",
                path=f"{path}.{part}[{resource}]",
            )


def _spec(text: str | None) -> Iterator[Problem]:
    path = f"metadata.annotations[{RESOURCE_SPEC}]"
    try:
        fields = json_object(RESOURCE_SPEC, text)
    except AnnotationError as error:
        yield Problem(f"this {error.what}", error.remedy, path=path)
        return
    if len(fields) > _MOST_FIELDS:
        what = f"this has {len(fields)} fields, and Koordinator knows {len(SPEC_FIELDS)}"
        yield Problem(what, f"write {', '.join(SPEC_FIELDS)} alone", path=path)
        return
    for key, value in fields.items():
        known = SPEC_FIELDS.get(key)
        if known is None:
            # Koordinator may have new fields; a likeness is a mistake.
            near = nearest(key, SPEC_FIELDS)
            severity = Severity.ERROR if near else Severity.WARNING
            yield Problem(f"unknown key {shown(key)}", hint(key, SPEC_FIELDS), severity, path)
        elif value is not None and value not in (*known, *UNSET):
            written = value if isinstance(value, str) else repr(value)
            yield Problem(
                f"unknown value {shown(written)}", hint(written, known), path=f"{path}.{key}"
            )


def _kind(container: ContainerRequests) -> ContainerKind:
    if not container.path.startswith("spec.initContainers"):
        return ContainerKind.APP
    sidecar = container.body.get("restartPolicy") == "Always"
    return ContainerKind.SIDECAR if sidecar else ContainerKind.INIT


def _texts(body: Body, part: str) -> Mapping[str, str]:
    """Return the labels or the annotations of an object."""
    path = f"metadata.{part}"
    found = mapping(mapping(body.get("metadata"), "metadata").get(part), path)
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _number(body: Body) -> int | None:
    number = mapping(body.get("spec"), "spec").get("priority")
    return number if isinstance(number, int) else None
