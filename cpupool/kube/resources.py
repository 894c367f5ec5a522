"""What the containers of a pod request, and what the kubelet makes of it."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cpupool.core import quantity
from cpupool.core.errors import QuantityError
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.workloads import ContainerKind, QoSClass
from cpupool.kube.fields import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Container
    from cpupool.kube.fields import Field

_CPU: Final = "cpu"
_QOS_RESOURCES: Final = (_CPU, "memory")


def container_fields(spec: Field) -> Iterator[tuple[ContainerKind, Field]]:
    """Give every container of a pod's spec, init containers first."""
    for found in spec["initContainers"]:
        sidecar = found["restartPolicy"].value == "Always"
        yield (ContainerKind.SIDECAR if sidecar else ContainerKind.INIT), found
    for found in spec["containers"]:
        yield ContainerKind.APP, found
    for found in spec["ephemeralContainers"]:
        yield ContainerKind.EPHEMERAL, found


def pool_requests(resources: Field, names: Names) -> dict[str, int]:
    """Read what a container requests: pool → amount.

    Raises:
        ManifestError: an amount is no count.
    """
    # For an extended resource the API server takes equal requests and limits, or limits alone.
    wanted = dict(resources["requests"].entries()) | dict(resources["limits"].entries())
    requests = {}
    for resource, amount in wanted.items():
        name = names.pool_of(resource)
        if name is None:
            continue
        try:
            count = quantity.parse_count(amount.number())
        except QuantityError as error:
            raise amount.error(str(error)) from error
        if count:
            requests[name] = count
    return requests


def qos(spec: Field, given: Field) -> QoSClass:
    """Read the class that the API server has set, or compute it as Kubernetes does.

    Source: pkg/apis/core/v1/helper/qos/qos.go. Pod-level resources stand for those of all
    containers; ephemeral containers have none.
    """
    if given.value is not None:
        try:
            return QoSClass(given.value)
        except ValueError:
            choices = ", ".join(known.value for known in QoSClass)
            raise given.error(f"{shown(given.value)} is none of {choices}") from None
    pod_level = _compute_resources(spec["resources"])
    parts = (
        [pod_level]
        if any(pod_level)
        else [
            _compute_resources(found["resources"])
            for kind, found in container_fields(spec)
            if kind is not ContainerKind.EPHEMERAL
        ]
    )
    if not any(requests or limits for requests, limits in parts):
        return QoSClass.BEST_EFFORT
    limited = all(len(limits) == len(_QOS_RESOURCES) for _, limits in parts)
    equal = all(
        sum(requests.get(name, Decimal()) for requests, _ in parts)
        == sum(limits.get(name, Decimal()) for _, limits in parts)
        for name in _QOS_RESOURCES
    )
    return QoSClass.GUARANTEED if limited and equal else QoSClass.BURSTABLE


def cpu_limit_milli(resources: Field) -> int | None:
    """Read the cpu limit of a container or, from `spec.resources`, of a pod; None for no limit.

    Raises:
        ManifestError: it is no quantity.
    """
    return _milli(resources["limits"][_CPU]) or None


def whole_cpus(resources: Field) -> int:
    """Tell how many CPUs of its own the kubelet's static CPU manager gives a Guaranteed container.

    Source: guaranteedCPUs in kubernetes pkg/kubelet/cm/cpumanager/policy_static.go.

    Raises:
        ManifestError: an amount is no quantity.
    """
    request = resources["requests"][_CPU]
    asked = resources["limits"][_CPU] if request.value is None else request
    cpus, part = divmod(_milli(asked), MILLI_PER_CPU)
    return 0 if part else cpus


def pod_limit_milli(
    spec: Field, qos_class: QoSClass, containers: Iterable[Container]
) -> int | None:
    """Compute what the kubelet limits a pod's cgroup to, in milli-CPUs; None for no limit.

    Source: ResourceConfigForPod in kubernetes pkg/kubelet/cm/helpers_linux.go, and PodLimits in
    component-helpers/resource/helpers.go.

    Args:
        spec: of the pod.
        qos_class: its class.
        containers: its containers, with their limits.

    Raises:
        ManifestError: an amount is no quantity.
    """
    limits = [
        (one.kind, one.limit_milli) for one in containers if one.kind is not ContainerKind.EPHEMERAL
    ]
    total = cpu_limit_milli(spec["resources"])
    declared = total is not None or all(limit is not None for _, limit in limits)
    if qos_class is QoSClass.BEST_EFFORT or not declared:
        return None
    if total is None:
        total = _largest_moment((kind, limit or 0) for kind, limit in limits)
    return total + _milli(spec["overhead"][_CPU])


def _largest_moment(limits: Iterable[tuple[ContainerKind, int]]) -> int:
    together = sidecars = peak = 0
    for kind, limit in limits:
        if kind is ContainerKind.INIT:
            peak = max(peak, sidecars + limit)
            continue
        together += limit
        if kind is ContainerKind.SIDECAR:
            sidecars += limit
    return max(together, peak)


def _milli(amount: Field) -> int:
    """Read an amount of cpu; 0 where there is none."""
    # The API's quantities round up to milli (MilliValue in apimachinery's quantity.go).
    return 0 if amount.value is None else max(0, math.ceil(_quantity(amount) * MILLI_PER_CPU))


def _compute_resources(resources: Field) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    """Read requests and limits of cpu and memory; a missing request is the limit."""
    limits = dict(_amounts(resources["limits"]))
    requests = limits | dict(_amounts(resources["requests"]))
    return _positive(requests), _positive(limits)


def _amounts(resources: Field) -> Iterator[tuple[str, Decimal]]:
    for name, amount in resources.entries():
        if name in _QOS_RESOURCES:
            yield name, _quantity(amount)


def _quantity(amount: Field) -> Decimal:
    try:
        return quantity.parse(amount.number())
    except QuantityError as error:
        raise amount.error(str(error)) from error


def _positive(amounts: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: amount for name, amount in amounts.items() if amount > 0}
