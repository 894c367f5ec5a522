"""The description of a pod for plugins for resources: labels, annotations and requests.

For the main container an annotation may request a thing that is no resource of Kubernetes, such as
a NIC that several pods share (story 3 of the proposal *QoS Resource Manager*).
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cpupool.core.pod_resources import is_name, is_of_kubernetes
from cpupool.core.quantity import Quantity, is_amount
from cpupool.kube import views
from cpupool.kube.fields import Field
from cpupool.policies.qrm import katalyst
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Pod
    from cpupool.kube.views import Body

_DAEMON_SET: Final = "DaemonSet"
_MOST: Final = Decimal(2**63 - 1)
"""The largest quantity of Kubernetes."""
_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


def pod(body: Body, names: Names) -> Pod:
    """Read one pod with its description.

    Raises:
        ManifestError: a field that is read is missing or holds something else than it should.
    """
    read, top = views.pod(body, names), Field.of(body)
    metadata, requested = top["metadata"], dict(_requested(top["spec"]))
    annotations = metadata["annotations"].texts()
    main = katalyst.main_container(read, annotations)
    more, unclear = _annotated(annotations, names, requested.get(main))
    return replace(
        read,
        containers=tuple(
            replace(
                container,
                quantities=requested[container.name] | (more if container.name == main else {}),
            )
            for container in read.containers
        ),
        description=katalyst.described(
            metadata["labels"].texts(),
            annotations,
            of_daemon_set=any(
                owner["kind"].value == _DAEMON_SET for owner in metadata["ownerReferences"]
            ),
            unclear=unclear,
        ),
    )


def _requested(spec: Field) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each container with its requests.

    Without a request the limit is the request, as the API server sets it.
    """
    for listed in _LISTS:
        for found in spec[listed]:
            read = {
                resource: Quantity.read(amount.value, amount.path).number
                for part in ("limits", "requests")
                for resource, amount in found["resources"][part].entries()
                if amount.value is not None
            }
            # The API server cuts a quantity there; a static pod's file may have more.
            amounts = {
                resource: float(min(number, _MOST))
                for resource, number in read.items()
                if number and number > 0
            }
            yield found["name"].text(), amounts


def _annotated(
    annotations: Mapping[str, str], names: Names, requested: Mapping[str, float] | None
) -> tuple[dict[str, float], str]:
    """Return the requests in an annotation for the main container, or why they have no effect.

    Args:
        annotations: those of the pod.
        names: the annotation's name.
        requested: the main container's own requests; None if the pod has no such container.
    """
    text = annotations.get(names.requests)
    if text is None:
        return {}, ""
    if requested is None:
        return {}, f"{names.requests} is for the main container, which the pod does not have"
    try:
        read = json_text.load(text)
    except JSONRefused:
        read = None
    amounts = (
        {resource: Quantity.read(amount).number for resource, amount in read.items()}
        if isinstance(read, dict)
        else {}
    )
    # The API server limits quantities, but not those of an annotation.
    found = {resource: float(amount) for resource, amount in amounts.items() if amount}
    if len(found) < max(1, len(amounts)) or not all(
        each > 0 and is_amount(each) for each in found.values()
    ):
        return {}, f'{names.requests} is no JSON object of quantities above 0, as {{"NIC": "1"}}'
    wrong = (_wrong(resource, names, requested) for resource in sorted(found))
    if why := next(filter(None, wrong), ""):
        return {}, f"{names.requests} requests {why}"
    return found, ""


def _wrong(resource: str, names: Names, requested: Container[str]) -> str:
    """Return why an annotation may not request a resource; empty if it may."""
    if not is_name(resource):
        return f"{resource[:60]!r}, which names no resource"
    if is_of_kubernetes(resource) or names.pool_of(resource) is not None:
        return f"{resource}, which only the container can request"
    if resource in requested:
        return f"{resource}, which the container requests, too"
    return ""
