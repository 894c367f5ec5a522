"""Requests and limits of pods and containers, and the QoS class and cgroup limits that follow.

`resources` of a pod's body is ResourceRequirements of k8s.io/api/core/v1/types.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Final

from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.quantity import Quantity
from cpupool.core.workloads import ContainerKind, QoSClass, pod_request_milli

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cpupool.core.errors import QuantityError
    from cpupool.core.names import Names
    from cpupool.core.requests import Resource
    from cpupool.core.workloads import Container

CPU: Final = "cpu"
MEMORY: Final = "memory"
NATIVE: Final = (CPU, MEMORY)
"""The resources of the QoS class."""
_EXTENDED: Final = re.compile(
    r"(?!requests\.)(?=[^/]{1,244}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_OF_KUBERNETES: Final = re.compile(
    r"cpu|memory|storage|ephemeral-storage|pods|(hugepages|attachable-volumes)-.*"
    r"|(requests|limits)\..*|.*kubernetes\.io/.*"
)
LONGEST_NAME: Final = 317
"""The longest name of an extended resource: a DNS subdomain, a slash, and 63 characters."""
_NAME: Final = re.compile(rf"[!-~]{{1,{LONGEST_NAME}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requests and limits of a container, or of a whole pod.

    Attributes:
        requests: resource → amount, of cpu, memory and the pools' resources.
        limits: the same.
    """

    requests: Mapping[str, Quantity] = field(default_factory=dict)
    limits: Mapping[str, Quantity] = field(default_factory=dict)

    @classmethod
    def read(
        cls, requests: Mapping[str, object], limits: Mapping[str, object], names: Names, path: str
    ) -> Requirements:
        """Read both parts of `resources`; null is no amount.

        Args:
            requests: resource → amount, a value of JSON or YAML.
            limits: the same.
            names: for the resources of pools.
            path: the place of `resources` in the pod's body.
        """
        parts = (
            {
                resource: Quantity.read(written, f"{path}.{part}.{resource}")
                for resource, written in amounts.items()
                if written is not None and (resource in NATIVE or names.pool_of(resource))
            }
            for part, amounts in (("requests", requests), ("limits", limits))
        )
        return cls(*parts)

    def of(self, resource: str) -> tuple[Quantity | None, Quantity | None]:
        """Return the limit and the request of one resource; None for no amount."""
        return self.limits.get(resource), self.requests.get(resource)

    def unreadable(self) -> Iterator[QuantityError]:
        """Yield why native amounts are no quantities, once for each resource."""
        for resource in NATIVE:
            errors = (amount.error for amount in self.of(resource) if amount)
            yield from islice(filter(None, errors), 1)

    def pools(self, names: Names) -> dict[Resource, int]:
        """Return the amounts of the pools' resources: resource → amount.

        For an extended resource the API server accepts equal requests and limits, or limits alone.

        Raises:
            QuantityError: an amount is not a whole number.
        """
        wanted = {**self.requests, **self.limits}
        pools = ((names.pool_of(resource), amount) for resource, amount in wanted.items())
        counts = ((pool, amount.count) for pool, amount in pools if pool is not None)
        return {pool: count for pool, count in counts if count}

    @property
    def limit_milli(self) -> int | None:
        """The cpu limit in milli-CPUs; None for no limit.

        Raises:
            QuantityError: it is not a quantity.
        """
        return _milli(self.limits.get(CPU)) or None

    def request(self, resource: str) -> Quantity | None:
        """Return the request for a resource, or the limit where only that is given."""
        return self.requests.get(resource, self.limits.get(resource))

    @property
    def request_milli(self) -> int:
        """The cpu request in milli-CPUs, or the limit where only that is given.

        Raises:
            QuantityError: an amount is no quantity.
        """
        return _milli(self.request(CPU))

    @property
    def whole_cpus(self) -> int:
        """The number of own CPUs that the static CPU manager gives to a Guaranteed container.

        Source: guaranteedCPUs in kubernetes pkg/kubelet/cm/cpumanager/policy_static.go.

        Raises:
            QuantityError: an amount is no quantity.
        """
        cpus, part = divmod(self.request_milli, MILLI_PER_CPU)
        return 0 if part else cpus

    @property
    def equal_cpus(self) -> int:
        """The whole number of CPUs to which a container is limited, and which it requests; or 0.

        Raises:
            QuantityError: an amount is no quantity.
        """
        return self.whole_cpus if self.limit_milli == self.request_milli else 0

    @property
    def guaranteed_cpus(self) -> int:
        """The same, if the container also requests the memory to which it is limited; or 0.

        Such a container can own CPUs in a pod with resources of its own. Source:
        IsContainerEquivalentQOSGuaranteed in kubernetes pkg/kubelet/cm/qos.

        Raises:
            QuantityError: an amount is no quantity.
        """
        limit, memory = self.limits.get(MEMORY), self.request(MEMORY)
        equal = limit is not None and memory is not None and memory.value == limit.value > 0
        return self.equal_cpus if equal else 0


def is_name(resource: str) -> bool:
    """Return whether a text can name a plugin's resource, as `NIC` or `example.com/nic`."""
    return _NAME.fullmatch(resource) is not None


def is_of_kubernetes(resource: str) -> bool:
    """Return whether Kubernetes knows a resource itself, as `cpu` or `hugepages-2Mi`.

    Source: IsStandardResourceName and IsNativeResource in pkg/apis/core/helper/helpers.go.
    """
    return _OF_KUBERNETES.fullmatch(resource) is not None


def is_extended(resource: str) -> bool:
    """Return whether a resource is not one of Kubernetes' own, as a device plugin's.

    Source: IsNativeResource in pkg/apis/core/v1/helper/helpers.go.
    """
    return "/" in resource and "kubernetes.io/" not in resource


def can_be_extended(resource: str) -> bool:
    """Return whether the name can be that of an extended resource.

    Source: IsExtendedResourceName in pkg/apis/core/v1/helper/helpers.go, where quotas put
    `requests.` before the name.
    """
    return is_extended(resource) and _EXTENDED.fullmatch(resource) is not None


def qos_class(pod: Requirements, containers: Iterable[Requirements]) -> QoSClass:
    """Compute a pod's QoS class as Kubernetes does.

    Source: pkg/apis/core/v1/helper/qos/qos.go.

    Args:
        pod: the pod's own `resources`; if they name cpu or memory, they replace the containers'.
        containers: the `resources` of each container, without ephemeral containers.

    Raises:
        QuantityError: an amount is no quantity.
    """
    pod_level = _positive(pod)
    parts = [pod_level] if any(pod_level) else [_positive(container) for container in containers]
    if not any(requests or limits for requests, limits in parts):
        return QoSClass.BEST_EFFORT
    limited = all(len(limits) == len(NATIVE) for _, limits in parts)
    equal = all(
        sum(requests.get(name, Decimal()) for requests, _ in parts)
        == sum(limits.get(name, Decimal()) for _, limits in parts)
        for name in NATIVE
    )
    return QoSClass.GUARANTEED if limited and equal else QoSClass.BURSTABLE


@dataclass(frozen=True, slots=True)
class Unequal:
    """A native resource whose limit is not its request.

    Attributes:
        container: the place among the pod's containers; None for the pod's own resources.
        resource: the resource.
        request: its request.
        limit: its limit; None for no limit.
    """

    container: int | None
    resource: str
    request: Quantity
    limit: Quantity | None


@dataclass(frozen=True, slots=True)
class PodResources:
    """The `resources` of a pod and of its containers, completed as the API server completes them.

    Source: SetDefaults_Pod in kubernetes pkg/apis/core/v1/defaults.go.

    Attributes:
        own: those of the pod itself.
        containers: kind and resources of each container, in their order.
        overhead: the cpu of the pod's sandbox; None for none.
    """

    own: Requirements
    containers: tuple[tuple[ContainerKind, Requirements], ...]
    overhead: Quantity | None = None

    def level(self, resource: str) -> Quantity | None:
        """Return the pod's own request for a resource; None without one.

        A pod with a limit alone has the request of its containers, or else its limit, as request.

        Raises:
            QuantityError: an amount is no quantity.
        """
        limit, request = self.own.of(resource)
        if request is not None or limit is None:
            return request
        requested = [
            (kind, amount)
            for kind, part in self.containers
            if kind is not ContainerKind.EPHEMERAL and (amount := part.request(resource))
        ]
        if not requested:
            return limit
        milli = pod_request_milli((kind, amount.milli) for kind, amount in requested)
        return Quantity.of_milli(milli, limit.path)

    @property
    def level_milli(self) -> int | None:
        """The pod's own cpu request in milli-CPUs; None without one.

        Raises:
            QuantityError: an amount is no quantity.
        """
        level = self.level(CPU)
        return None if level is None else level.milli

    @property
    def overhead_milli(self) -> int:
        """The cpu of the pod's sandbox, in milli-CPUs.

        Raises:
            QuantityError: it is no quantity.
        """
        return _milli(self.overhead)

    @property
    def request_milli(self) -> int:
        """The cpu request that the scheduler counts, in milli-CPUs.

        Raises:
            QuantityError: an amount is no quantity.
        """
        requests = [(kind, part.request_milli) for kind, part in self.containers]
        return pod_request_milli(requests, self.level_milli, self.overhead_milli)

    @property
    def qos(self) -> QoSClass:
        """The pod's QoS class.

        Raises:
            QuantityError: an amount is no quantity.
        """
        levels = {name: level for name in NATIVE if (level := self.level(name)) is not None}
        lasting = (part for kind, part in self.containers if kind is not ContainerKind.EPHEMERAL)
        return qos_class(Requirements(levels, self.own.limits), lasting)

    def unreadable(self) -> Iterator[QuantityError]:
        """Yield why native amounts are no quantities, once for each resource of each part."""
        parts = [self.own, *(part for _, part in self.containers)]
        yield from (error for part in parts for error in part.unreadable())
        if self.overhead and (error := self.overhead.error):
            yield error

    def unequal(self) -> Iterator[Unequal]:
        """Yield the limits that differ from their requests, except amounts that are no quantities.

        For a resource that the pod itself does not name, the containers decide.

        Raises:
            QuantityError: an amount is no quantity.
        """
        for resource in NATIVE:
            parts: list[tuple[int | None, Quantity, Quantity | None]]
            if (level := self.level(resource)) is not None:
                parts = [(None, level, self.own.limits.get(resource))]
            else:
                parts = [
                    (place, request, part.limits.get(resource))
                    for place, (kind, part) in enumerate(self.containers)
                    if kind is not ContainerKind.EPHEMERAL
                    and (request := part.request(resource)) is not None
                ]
            for place, request, limit in parts:
                known = request.number is not None and (limit is None or limit.number is not None)
                if known and (limit is None or limit.value != request.value):
                    yield Unequal(place, resource, request, limit)


def pod_limit_milli(
    pod: Requirements, overhead: Quantity | None, qos: QoSClass, containers: Iterable[Container]
) -> int | None:
    """Compute the kubelet's limit for a pod's cgroup, in milli-CPUs; None for no limit.

    Source: ResourceConfigForPod in kubernetes pkg/kubelet/cm/helpers_linux.go, and PodLimits in
    component-helpers/resource/helpers.go.

    Args:
        pod: the pod's own `resources`.
        overhead: the cpu of its sandbox; None for no overhead.
        qos: its QoS class.
        containers: its containers, with their limits.

    Raises:
        QuantityError: an amount is no quantity.
    """
    limits = [
        (container.kind, container.limit_milli)
        for container in containers
        if container.kind is not ContainerKind.EPHEMERAL
    ]
    total = pod.limit_milli
    declared = total is not None or all(limit is not None for _, limit in limits)
    if qos is QoSClass.BEST_EFFORT or not declared:
        return None
    return pod_request_milli(
        ((kind, limit or 0) for kind, limit in limits), total, _milli(overhead)
    )


def _milli(amount: Quantity | None) -> int:
    return 0 if amount is None else amount.milli


def _positive(requested: Requirements) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    """Return requests and limits of cpu and memory; a missing request is the limit."""
    limits = _amounts(requested.limits)
    return _amounts({**requested.limits, **requested.requests}), limits


def _amounts(parsed: Mapping[str, Quantity]) -> dict[str, Decimal]:
    values = {name: parsed[name].value for name in NATIVE if name in parsed}
    return {name: value for name, value in values.items() if value > 0}
