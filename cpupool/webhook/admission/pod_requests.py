"""A pod's requests to the pools, and the fields of its body that contain them.

A body is a dict with Kubernetes' field names (k8s.io/api/core/v1/types.go). The API server has not
validated it yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import ManifestError, Problem, QuantityError
from cpupool.core.names import ENABLE_SHARED_CPUS, STATIC_POD_MIRROR
from cpupool.core.pod_resources import CPU, PodResources, Requirements
from cpupool.core.pools import PoolKind
from cpupool.core.quantity import Quantity
from cpupool.core.requests import ResourceKind
from cpupool.core.visible import shown
from cpupool.core.workloads import ContainerKind
from cpupool.webhook.admission import annotation
from cpupool.webhook.admission.annotation import MAX_ANNOTATIONS_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cpupool.core.names import Names
    from cpupool.core.requests import Resource
    from cpupool.webhook.admission.annotation import ContainerProcesses

Body = Mapping[str, Any]
"""A pod, or a part of one."""

REQUESTING: Final = ("initContainers", "containers")
"""The lists of containers that may have requests; ephemeral containers may have none."""
MOST_CONTAINERS: Final = 1000
"""The API server waits for 5 s; the review of 1,000 containers takes some tenths of a second."""
_EPHEMERAL: Final = "ephemeralContainers"


@dataclass(frozen=True, slots=True)
class ContainerRequests:
    """A container and its requests.

    Attributes:
        path: its place, as `spec.containers[0]`.
        body: its fields.
        name: its name.
        command: its entry point; empty for the image's entry point.
        args: the arguments of the command.
        env: name and value of each variable; None for a value from a `valueFrom`.
        written: the amounts of its `resources`, of pools and native.
        requests: resource of a pool → amount, cores or milli-CPUs.
        enables_shared: how many devices of OpenShift's resource for shared CPUs it requests; 0
            where the resource is not switched on.
        doubtful: resources that are not a pool's while their name suggests a pool.
        unread: the pools whose request could not be read; a problem says why.
        readable: whether all requests could be read.
    """

    path: str
    body: Body
    name: str
    command: Sequence[str]
    args: Sequence[str]
    env: Sequence[tuple[str, str | None]]
    written: Requirements
    requests: Mapping[Resource, int]
    enables_shared: int
    doubtful: Sequence[str]
    unread: frozenset[Resource]
    readable: bool

    def of_kind(self, kind: ResourceKind) -> dict[Resource, int]:
        """Return the requests of one kind of pools."""
        return {
            resource: amount for resource, amount in self.requests.items() if resource.kind is kind
        }

    @property
    def kind(self) -> ContainerKind:
        """Its part in the life of the pod."""
        if not self.path.startswith("spec.initContainers"):
            return ContainerKind.APP
        sidecar = self.body.get("restartPolicy") == "Always"
        return ContainerKind.SIDECAR if sidecar else ContainerKind.INIT

    @property
    def resources(self) -> frozenset[str]:
        """The resources that it requests, or limits."""
        amounts = _amounts(self.body, self.path)
        return frozenset(name for part in amounts for name, amount in part.items() if amount)

    @property
    def has_pools(self) -> bool:
        """Whether its CPUs come from pools that it requests, not from its native request."""
        return bool(self.requests)

    @property
    def cpu_pools(self) -> str:
        """The value of `CPU_POOLS` in the container; empty where it has CPUs of no pool."""
        exclusive = bool(self.of_kind(ResourceKind.EXCLUSIVE))
        shared = bool(self.of_kind(ResourceKind.SHARED) or self.enables_shared)
        kinds = {PoolKind.EXCLUSIVE: exclusive, PoolKind.SHARED: shared}
        return "&".join(kind.value for kind, has in kinds.items() if has)


@dataclass(frozen=True, slots=True)
class PodRequests:
    """A pod and the requests of its containers.

    Attributes:
        body: the pod.
        containers: the containers that may have requests, init containers first.
        ephemeral: the ephemeral containers.
        resources: the amounts of the pod's own `resources`, and of these containers.
        annotations: all annotations of the pod.
        entries: container → its entry in the annotation of processes.
        problems: what is wrong with the form of the requests.
        asks: whether the pod requests anything, even in a form that cannot be read.
    """

    body: Body
    containers: tuple[ContainerRequests, ...]
    ephemeral: tuple[ContainerRequests, ...]
    resources: PodResources
    annotations: Mapping[str, str]
    entries: Mapping[str, ContainerProcesses]
    problems: tuple[Problem, ...]
    asks: bool

    @classmethod
    def read(cls, body: object, names: Names, *, mixed: bool = False) -> PodRequests:
        """Read a pod.

        Args:
            body: the pod.
            names: for the resource domain.
            mixed: whether cpupool serves OpenShift's resource; otherwise its requests are ignored.

        Raises:
            ManifestError: a field has another type than in Kubernetes.
        """
        problems: list[Problem] = []
        if body is None:
            raise ManifestError("", "", "there is no pod")
        pod = mapping(body, "")
        annotations = _annotations(mapping(pod.get("metadata"), "metadata"))
        spec = mapping(pod.get("spec"), "spec")
        reader = _Reader(names, mixed=mixed, problems=problems)
        containers = [
            container for part in REQUESTING for container in reader.containers(spec, part)
        ]
        ephemeral = tuple(reader.containers(spec, _EPHEMERAL))
        text = annotations.get(names.processes)
        path = f"metadata.annotations[{names.processes}]"
        entries: tuple[ContainerProcesses, ...] = ()
        # A text that is too long to be stored is refused for its length: reading it is a waste.
        if text is not None and len(text) <= MAX_ANNOTATIONS_BYTES:
            entries = annotation.parse(text, path, problems)
        requested = any(container.requests or container.enables_shared for container in containers)
        wanted = text is not None or problems or requested
        return cls(
            body=pod,
            containers=tuple(containers),
            ephemeral=ephemeral,
            resources=PodResources(
                Requirements.read(*_amounts(spec, "spec"), names, "spec.resources"),
                tuple((container.kind, container.written) for container in containers),
                _overhead(spec),
            ),
            annotations=annotations,
            entries={entry.container: entry for entry in entries},
            problems=tuple(problems),
            # The kubelet runs a static pod from its file, not from its mirror.
            asks=bool(wanted) and STATIC_POD_MIRROR not in annotations,
        )


def check_crowd(body: object, names: Names) -> Problem | None:
    """Refuse a pod that requests pools with so many containers that its review would be late.

    Raises:
        ManifestError: a field has another type than in Kubernetes.
    """
    spec = mapping(mapping(body, "").get("spec"), "spec")
    listed = {f"spec.{part}": _list(spec.get(part), f"spec.{part}") for part in REQUESTING}
    count = sum(map(len, listed.values()))
    if count <= MOST_CONTAINERS:
        return None
    for path, containers in listed.items():
        for place, container in enumerate(containers):
            where = f"{path}[{place}]"
            for amounts in _amounts(mapping(container, where), where):
                if any(map(names.pool_of, amounts)):
                    what = f"the pod requests pools and has {count} containers"
                    remedy = f"make several pods of at most {MOST_CONTAINERS} containers"
                    return Problem(what, remedy, path="spec.containers")
    return None


def mapping(value: object, path: str) -> Mapping[str, Any]:
    """Return an object, or an empty object for null.

    Raises:
        ManifestError: the value is neither.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ManifestError("", path, "this is not an object with texts for keys")
    return value


def _annotations(metadata: Body) -> dict[str, str]:
    path = "metadata.annotations"
    found = mapping(metadata.get("annotations"), path)
    return {key: _text(value, f"{path}[{shown(key)}]") for key, value in found.items()}


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of containers that records requests that cannot be read."""

    names: Names
    mixed: bool
    problems: list[Problem]

    def containers(self, spec: Body, part: str) -> Iterator[ContainerRequests]:
        for place, value in enumerate(_list(spec.get(part), f"spec.{part}")):
            path = f"spec.{part}[{place}]"
            body = mapping(value, path)
            before = len(self.problems)
            amounts = _amounts(body, path)
            written = Requirements.read(*amounts, self.names, f"{path}.resources")
            resources = sorted({resource for part in amounts for resource in part})
            unread: set[Resource] = set()
            requests = self._requests(resources, written, path, unread)
            enables_shared = requests.pop(ENABLE_SHARED_CPUS, 0)
            yield ContainerRequests(
                path=path,
                body=body,
                name=_text(body.get("name"), f"{path}.name"),
                command=_texts(body.get("command"), f"{path}.command"),
                args=_texts(body.get("args"), f"{path}.args"),
                env=tuple(_variables(body, f"{path}.env")),
                written=written,
                requests=requests,
                enables_shared=enables_shared,
                doubtful=tuple(filter(self.names.is_doubtful, resources)),
                unread=frozenset(unread),
                readable=len(self.problems) == before,
            )

    def _requests(
        self, resources: Iterable[str], written: Requirements, path: str, unread: set[Resource]
    ) -> dict[Resource, int]:
        found: dict[Resource, int] = {}
        for resource in resources:
            where = f"{path}.resources.limits[{shown(resource)}]"
            pool = self._pool_of(resource, where)
            if pool is None:
                continue
            mixed = pool == ENABLE_SHARED_CPUS
            try:
                limit, request = (amount and amount.count for amount in written.of(resource))
            except QuantityError as error:
                remedy = "an exclusive pool counts cores, a shared one milli-CPUs"
                if mixed:
                    remedy = "set the request to 1 or remove it"
                self.problems.append(Problem(str(error), remedy, path=where, pool=pool))
                unread.add(pool)
                continue
            # The API server accepts a limit alone, and copies it to the request.
            if request is not None and request != limit:
                having = "missing" if limit is None else limit
                what = f"its limit is {having}, its request {request}"
                remedy = "set both to 1 or remove both" if mixed else "make both the same"
                self.problems.append(Problem(what, remedy, path=where, pool=pool))
                unread.add(pool)
            elif limit:
                found[pool] = limit
        return found

    def _pool_of(self, resource: str, path: str) -> Resource | None:
        pool, openshifts = self.names.pool_of(resource), self.names.resource(ENABLE_SHARED_CPUS)
        if pool is None and resource == f"{self.names.domain}/{ENABLE_SHARED_CPUS}":
            what = "no node has such a resource: it is OpenShift's, for pools of any domain"
            self.problems.append(Problem(what, f"write {openshifts}", path=path))
        return pool if self.mixed or resource != openshifts else None


def _amounts(body: Body, path: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the requests and the limits of a container or a pod."""
    path = f"{path}.resources"
    resources = mapping(body.get("resources"), path)
    requests, limits = (
        mapping(resources.get(part), f"{path}.{part}") for part in ("requests", "limits")
    )
    return requests, limits


def _overhead(spec: Body) -> Quantity | None:
    path = "spec.overhead"
    cpu = mapping(spec.get("overhead"), path).get(CPU)
    return None if cpu is None else Quantity.read(cpu, f"{path}.{CPU}")


def _variables(body: Body, path: str) -> Iterator[tuple[str, str | None]]:
    for place, value in enumerate(_list(body.get("env"), path)):
        where = f"{path}[{place}]"
        variable = mapping(value, where)
        elsewhere = variable.get("valueFrom") is not None
        text = None if elsewhere else _text(variable.get("value"), f"{where}.value")
        yield _text(variable.get("name"), f"{where}.name"), text


def _list(value: object, path: str) -> Sequence[object]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ManifestError("", path, "this is not a list")
    return value


def _texts(value: object, path: str) -> tuple[str, ...]:
    return tuple(_text(item, f"{path}[{place}]") for place, item in enumerate(_list(value, path)))


def _text(value: object, path: str) -> str:
    """Return a text, or an empty text for null, as the API server does."""
    if value is None:
        return ""
    if not isinstance(value, str):
        # Python turns no number of thousands of digits into text.
        plain = isinstance(value, int) and abs(value) < 2**63
        remedy = f'; write "{json.dumps(value)}"' if plain else ""
        raise ManifestError("", path, f"this is not text{remedy}")
    return value
