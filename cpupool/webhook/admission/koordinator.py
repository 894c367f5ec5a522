"""Koordinator's classes: what their pods must request, and who may assign CPUs to a pod.

The rules apply where a pool file has the CPU manager policy koordinator, and only for pods with
Koordinator's labels, annotations or resources. A pod that requests pools is outside that policy,
whatever its class, and so are the mirrors of static pods.

Source: pkg/webhook/pod/validating/cluster_colocation_profile.go in koordinator-sh/koordinator; the
proposal *Fine-grained CPU orchestration* for equal requests and limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.errors import Problem, QuantityError, Severity
from cpupool.core.names import STATIC_POD_MIRROR
from cpupool.core.orchestration import QoS
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.suggestions import hint, nearest
from cpupool.core.visible import shown
from cpupool.policies.koordinator.annotation_json import UNSET, AnnotationError, json_object
from cpupool.policies.koordinator.pod_annotations import (
    BATCH,
    LABEL_WORDS,
    LABELS,
    OWNERS,
    PRIORITY_CLASS,
    PROD,
    QOS_CLASS,
    RESOURCE_STATUS,
    WISHES,
    priority_class,
)
from cpupool.webhook.admission.pod_requests import Body, mapping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.webhook.admission.pod_requests import ContainerRequests, PodRequests
    from cpupool.webhook.admission.rules import Rules

_CLASS_PATH: Final = f"metadata.labels[{QOS_CLASS}]"
_MOST_FIELDS: Final = 32
"""The search for the key that was meant takes time for each unknown key."""


def check(pod: PodRequests, rules: Rules) -> Iterator[Problem]:
    """Find what does not go with a pod's class, and what is wrong in its preferences."""
    if not rules.koordinator or STATIC_POD_MIRROR in pod.annotations:
        return
    for key, known in WISHES.items():
        yield from _wish(key, known, pod.annotations.get(key))
    if any(container.requests or container.enables_shared for container in pod.containers):
        return
    labels = _texts(pod.body, "labels")
    qos = labels.get(QOS_CLASS, "")
    misfits = tuple(_priority(qos, priority_class(labels, _number(pod.body)), labels))
    yield from misfits
    yield from _words(labels, (QOS_CLASS,) if misfits else LABELS)
    if qos != QoS.BE.value:
        for container in pod.containers:
            yield from _batch(container)
    if qos in OWNERS:
        yield from _owner(qos, pod)


def owns(pod: PodRequests, rules: Rules) -> bool:
    """Return whether a pod of the class LSE or LSR requests whole CPUs."""
    owner = _texts(pod.body, "labels").get(QOS_CLASS) in OWNERS
    if not (rules.koordinator and owner) or any(each.requests for each in pod.containers):
        return False
    try:
        milli = pod.resources.request_milli
    except QuantityError:
        return False
    return milli > 0 and milli % MILLI_PER_CPU == 0


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
    for error in pod.resources.unreadable():
        yield Problem(str(error), "correct it", path=error.path)
    try:
        for found in pod.resources.unequal():
            place = found.container
            where = "spec" if place is None else pod.containers[place].path
            having = "missing" if found.limit is None else shown(found.limit.text)
            yield Problem(
                f"the request is {shown(found.request.text)} and the limit {having}: a pod of the"
                f" class {qos} owns what it requests",
                "make both the same",
                path=f"{where}.resources.limits.{found.resource}",
            )
        milli = pod.resources.request_milli
    except QuantityError:
        return
    if not milli or milli % MILLI_PER_CPU:
        overhead_milli = pod.resources.overhead_milli
        of_these = f", {overhead_milli}m of these as spec.overhead" if overhead_milli else ""
        own = pod.resources.level_milli is not None
        total = "the cpu of spec.resources" if own else "the sum of its containers"
        total += " and of spec.overhead" if overhead_milli else ""
        yield Problem(
            f"a pod of the class {qos} owns whole CPUs, and this one requests {milli}m{of_these}",
            f"make {total} a whole number of CPUs, or write the class LS",
            path=_CLASS_PATH,
        )


def _priority(qos: str, priority: str, labels: Mapping[str, str]) -> Iterator[Problem]:
    having, word = priority or "no priority class of Koordinator", labels.get(PRIORITY_CLASS)
    if word and not priority:
        having = f"the unknown value {shown(word)}"
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


def _words(labels: Mapping[str, str], keys: Iterable[str]) -> Iterator[Problem]:
    """Find labels whose words Koordinator does not know, and so ignores."""
    for key in keys:
        words = LABEL_WORDS[key]
        if (text := labels.get(key, "")) and text not in words:
            what = f"unknown value {shown(text)}"
            yield Problem(what, hint(text, words), path=f"metadata.labels[{key}]")


def _wish(
    annotation: str, known_fields: Mapping[str, Collection[str]], text: str | None
) -> Iterator[Problem]:
    path = f"metadata.annotations[{annotation}]"
    try:
        fields = json_object(annotation, text)
    except AnnotationError as error:
        yield Problem(f"this {error.what}", error.remedy, path=path)
        return
    if len(fields) > _MOST_FIELDS:
        what = f"this has {len(fields)} fields, and Koordinator knows {len(known_fields)}"
        yield Problem(what, f"write {', '.join(known_fields)} alone", path=path)
        return
    for key, value in fields.items():
        known = known_fields.get(key)
        if known is None:
            # Koordinator may have new fields; a likeness is a mistake.
            near = nearest(key, known_fields)
            severity = Severity.ERROR if near else Severity.WARNING
            yield Problem(f"unknown key {shown(key)}", hint(key, known_fields), severity, path)
        elif value is not None and value not in (*known, *UNSET):
            written = value if isinstance(value, str) else repr(value)
            yield Problem(
                f"unknown value {shown(written)}", hint(written, known), path=f"{path}.{key}"
            )


def _texts(body: Body, part: str) -> Mapping[str, str]:
    """Return the labels or the annotations of an object."""
    path = f"metadata.{part}"
    found = mapping(mapping(body.get("metadata"), "metadata").get(part), path)
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _number(body: Body) -> int | None:
    number = mapping(body.get("spec"), "spec").get("priority")
    return number if isinstance(number, int) else None
