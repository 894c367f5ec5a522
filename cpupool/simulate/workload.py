"""Workload traces: pods that come and go, with times; from JSON lines, or generated.

One JSON object per line, in the order of time. A pod comes with its containers:

    {"at_s": 0, "pod": "ns/web", "containers": [{"name": "c", "requests": {"exclusive_a": 2}}]}

`requests` are cores of exclusive pools and milli-CPUs of shared pools; `"kind"` can be `"init"` or
`"sidecar"`. `"cpu": 2` is a native request. A pod with native requests is Guaranteed, unless the
line says `"qos": "Burstable"`; then a container can have a `"limit"` beside its `"cpu"`. `"cpu"`
beside `"containers"` is the pod's own request, which replaces theirs, and `"overhead"` the cpu of
its sandbox. `"labels"` and `"annotations"` are Koordinator's, as
`{"koordinator.sh/qosClass": "LSR"}`, and cpupool's without a domain, as `{"cpu-moves": "any"}`.

Containers of a pod have other native requests from a resize in place on, and the pod goes, with:

    {"at_s": 4, "pod": "ns/web", "resize": {"c": 4}}
    {"at_s": 9.5, "pod": "ns/web", "ends": true}
"""

from __future__ import annotations

import json
import math
import random
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import MOST_NOTICE_S, notice_seconds
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import Advertised, Offer, advertised
from cpupool.core.errors import ConfigError, Location, Problem
from cpupool.core.names import MOVES, NOTICE, POLICY_CPUS, resource_named
from cpupool.core.orchestration import QoS
from cpupool.core.pools import MILLI_PER_CPU, PoolKind, is_name
from cpupool.core.requests import Resource, ResourceKind
from cpupool.core.suggestions import hint, nearest
from cpupool.core.workloads import Container, ContainerKind, CPUMoves, Pod, PodUID, QoSClass
from cpupool.kube import views
from cpupool.kube.fields import Field
from cpupool.policies.built_in import assignable
from cpupool.policies.koordinator import pod_annotations
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.names import Names
    from cpupool.core.pools import NodePools, Pool
    from cpupool.core.topology import CPUTopology
    from cpupool.kube.views import Body

MEAN_LIFETIME_S: Final = 3600
_LATEST_S: Final = 10**10
_MOST: Final = 10**9
"""The most CPUs, or milli-CPUs, of any pool."""
_MOST_PROBLEMS: Final = 10
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,252}", re.ASCII)
_MILLI_STEP: Final = 100
"""The smallest request of a generated pod for a shared pool."""
_KINDS: Final = {
    "app": ContainerKind.APP,
    "init": ContainerKind.INIT,
    "sidecar": ContainerKind.SIDECAR,
}
_WORDS: Final = {kind: word for word, kind in _KINDS.items()}
SPLIT: Final = "cpus-per-container"
"""cpupool's annotation, without a domain as the pools."""
_LEVEL: Final = "cpu"
_OVERHEAD: Final = "overhead"
_LIMIT: Final = "limit"
_LSR: Final = {pod_annotations.QOS_CLASS: QoS.LSR.value}

_Amounts = tuple[int, int]
_Line = Mapping[str, Any]
"""An object of JSON."""


@dataclass(frozen=True, slots=True)
class Event:
    """A pod that comes, is resized, or goes.

    Attributes:
        at_s: the time, in seconds from the beginning.
        pod: the pod; its UID is `namespace/name`. After a resize it has the new requests.
        ends: whether it goes.
        labels: its labels that have an effect here; `pod` has what they say.
        annotations: its annotations that have one, the one that splits a pod's CPUs among them.
        resize: the containers of a pod that is resized in place; empty for another event.
    """

    at_s: float
    pod: Pod
    ends: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    resize: tuple[str, ...] = ()


def pod_of(
    full_name: str,
    containers: Iterable[Container],
    level_milli: int | None = None,
    overhead_milli: int = 0,
    *,
    level_cpus: int = 0,
) -> Pod:
    """Return a pod with the name `namespace/name` in a trace."""
    namespace, _, name = full_name.partition("/")
    return Pod(
        PodUID(full_name),
        namespace,
        name,
        None,
        tuple(containers),
        level_milli=level_milli,
        level_cpus=level_cpus,
        overhead_milli=overhead_milli,
    )


def arrival(
    at_s: float, pod: Pod, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Event:
    """Return the arrival of a pod with labels and annotations that say how it gets its CPUs."""
    parsed = pod_annotations.of_pod(labels, annotations, None, split=SPLIT)
    words = {each.value: each for each in CPUMoves}
    return Event(
        at_s,
        replace(
            pod,
            orchestration=parsed,
            cpu_moves=words.get(annotations.get(MOVES, ""), CPUMoves.NEVER),
            notice_s=notice_seconds(annotations.get(NOTICE, "")),
        ),
        labels=dict(labels),
        annotations=dict(annotations),
    )


def movable(events: Iterable[Event], moves: CPUMoves) -> Iterator[Event]:
    """Yield the events with a word about moves for the pods that have none."""
    said: set[PodUID] = set()
    for event in events:
        uid = event.pod.uid
        if not (event.ends or event.resize):
            (said.add if MOVES in event.annotations else said.discard)(uid)
        pod = event.pod if uid in said else replace(event.pod, cpu_moves=moves)
        yield replace(event, pod=pod)


def resizing(at_s: float, pod: Pod, milli: Mapping[str, int]) -> Event:
    """Return the resize of a pod in place.

    Args:
        at_s: the time.
        pod: the pod before.
        milli: container → its new native request in milli-CPUs.
    """
    containers = tuple(
        _asking(pod, each, milli[each.name]) if each.name in milli else each
        for each in pod.containers
    )
    resized = tuple(each.name for each in containers if each.name in milli)
    return Event(at_s, replace(pod, containers=containers), resize=resized)


def _asking(pod: Pod, container: Container, milli: int) -> Container:
    """Return a container of a pod with another native request, and an equal limit if it has any."""
    limited, leveled = container.limit_milli is not None, pod.level_milli is not None
    own = _whole(milli) if _guaranteed(pod) else 0
    return replace(
        container,
        request_milli=milli,
        limit_milli=milli if limited else None,
        whole_cpus=0 if leveled else own,
        equal_cpus=_whole(milli) if limited and not leveled else 0,
        level_cpus=own if leveled else 0,
    )


def arrival_of(body: Body, names: Names) -> Event:
    """Return the arrival, at the beginning, of the pod with a manifest.

    Raises:
        ManifestError: the manifest is not a pod's.
    """
    pod = views.pod(views.created(body, "not-yet"), names)
    name = f"{pod.namespace}/{pod.name}"
    comes = pod_of(
        name, pod.containers, pod.level_milli, pod.overhead_milli, level_cpus=pod.level_cpus
    )
    return arrival(0, comes, *_texts_of(body, names))


def _texts_of(body: Body, names: Names) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations of a pod that have an effect in a trace.

    The priority class that the pod's priority stands for becomes a label.
    """
    read = Field.of(body)
    metadata, priority = read["metadata"], read["spec"]["priority"].value
    known = {key: key for key in pod_annotations.ANNOTATIONS}
    known |= {names.split: SPLIT, names.moves: MOVES, names.notice: NOTICE}
    labels = _known(metadata["labels"], {key: key for key in pod_annotations.LABELS})
    number = priority if isinstance(priority, int) else None
    named = pod_annotations.priority_class(labels, number)
    if named and not labels.get(pod_annotations.PRIORITY_CLASS):
        labels[pod_annotations.PRIORITY_CLASS] = named
    return labels, _known(metadata["annotations"], known)


def _known(found: Field, keys: Mapping[str, str]) -> dict[str, str]:
    return {keys[key]: text for key, text in found.texts().items() if key in keys}


def capacity_of(resource: Advertised, topology: CPUTopology) -> int:
    """Return the number of available devices: cores, milli-CPUs of a shared pool, or units."""
    offer = Offer.of(resource, topology, CPUSet(), ())
    if resource.pool.kind is PoolKind.SHARED:
        return resource.capacity if offer.some_cpu_runs else 0
    return sum(device.healthy for device in offer)


def read(file: str, text: str) -> tuple[Event, ...]:
    """Read a trace.

    Args:
        file: its name, for messages.
        text: its content; empty lines are ignored.

    Raises:
        ConfigError: with the first problems, each at its line.
    """
    events: list[Event] = []
    problems: list[Problem] = []
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            events.append(reader.event(line))
        except _LineError as error:
            location = Location(file, number, error.column)
            problems.append(Problem(error.what, error.remedy, location=location))
            if len(problems) == _MOST_PROBLEMS:
                break
    if not events and not problems:
        problems.append(
            Problem("there is no event in it", "name a trace with one", location=Location(file))
        )
    if problems:
        raise ConfigError(problems)
    return tuple(events)


def write(events: Iterable[Event]) -> str:
    """Write a trace that `read` reads back."""
    return "".join(f"{json.dumps(_line(event))}\n" for event in events)


def _line(event: Event) -> dict[str, object]:
    line: dict[str, object] = {"at_s": event.at_s, "pod": str(event.pod.uid)}
    if event.ends:
        return line | {"ends": True}
    if event.resize:
        asked = {each.name: _cpus(each.request_milli) for each in event.pod.containers}
        return line | {"resize": {name: asked[name] for name in event.resize}}
    if not _guaranteed(event.pod):
        line["qos"] = QoSClass.BURSTABLE.value
    texts = {"labels": dict(event.labels), "annotations": dict(event.annotations)}
    line |= {key: found for key, found in texts.items() if found}
    if event.pod.level_milli is not None:
        line[_LEVEL] = _cpus(event.pod.level_milli)
    if event.pod.overhead_milli:
        line[_OVERHEAD] = _cpus(event.pod.overhead_milli)
    return line | {"containers": [_container(container) for container in event.pod.containers]}


def _guaranteed(pod: Pod) -> bool:
    """Return whether containers of a pod own the whole CPUs that they request."""
    if pod.level_milli is not None:
        return bool(pod.level_cpus)
    return all(_whole(each.request_milli) == each.whole_cpus for each in pod.containers)


def _container(container: Container) -> dict[str, object]:
    line: dict[str, object] = {"name": container.name}
    if container.kind is not ContainerKind.APP:
        line["kind"] = _WORDS[container.kind]
    line["requests"] = dict(container.requests)
    if milli := container.request_milli:
        line["cpu"] = _cpus(milli)
    if container.limit_milli is not None:
        line[_LIMIT] = _cpus(container.limit_milli)
    return line


def _cpus(milli: int) -> float:
    """Return a number of CPUs as a trace has it."""
    return _whole(milli) or milli / MILLI_PER_CPU


def _whole(milli: int) -> int:
    """Return the number of CPUs; 0 if it is not a whole number."""
    cpus, part = divmod(milli, MILLI_PER_CPU)
    return 0 if part else cpus


def made_up(
    topology: CPUTopology,
    pools: NodePools,
    count: int,
    *,
    seed: int,
    load: float,
    resizes: float = 0,
) -> Iterator[Event]:
    """Generate a trace: Poisson arrivals, exponential lifetimes with a mean of an hour.

    A pod has one container that requests 1, 2, 4, 8, ... CPUs of one pool, up to half of the pool,
    each size half as often as the size before it. The unit is a core for a pool that promises whole
    cores, and a tenth of a CPU for a shared pool. The CPUs of a CPU manager policy are like a pool
    that LSR pods request natively: they own CPUs under each policy. The trace ends with the last
    arrival, so that its end shows a loaded node. No pod requests OpenShift's resource, which needs
    another resource.

    Args:
        topology: the machine.
        pools: its pools; no pod requests the default pool, or a pool without CPUs.
        count: how many pods come.
        seed: the same seed generates the same trace.
        load: how much of each pool the pods would hold on average if none were refused; 1 is all.
        resizes: the share of the pods with CPUs of a CPU manager policy that are resized once in
            their life, to another size.

    Raises:
        ConfigError: neither a pool nor a CPU manager policy has CPUs to give.
    """
    dice = random.Random(seed)  # noqa: S311  # a workload, no secret
    capacities = dict(_capacities(topology, pools))
    sizes = {resource: _sizes(unit, capacity) for resource, (capacity, unit) in capacities.items()}
    if not sizes:
        what = "neither a pool nor a CPU manager policy has CPUs to give"
        raise ConfigError([Problem(what, "add an exclusive or a shared pool", path="pools")])
    # Little's law: load x capacity = arrivals per second x mean size x mean lifetime.
    rates = [
        load * capacities[resource][0] / (_mean(weights) * MEAN_LIFETIME_S)
        for resource, weights in sizes.items()
    ]
    now_s = 0.0
    planned: list[tuple[float, int, bool, Event]] = []
    for number in range(count):
        now_s += dice.expovariate(sum(rates))
        while planned and planned[0][0] <= now_s:
            *_, event = heappop(planned)
            yield event
        (resource,) = dice.choices(list(sizes), rates)
        (amount,) = dice.choices(list(sizes[resource]), list(sizes[resource].values()))
        pod = pod_of(f"random/pod-{number}", [_requesting(resource, amount)])
        comes = arrival(round(now_s, 3), pod, _LSR if resource is POLICY_CPUS else {}, {})
        yield comes
        end_s, pod = now_s + dice.expovariate(1 / MEAN_LIFETIME_S), comes.pod
        others = [size for size in sizes[resource] if size != amount]
        # Without resizes the same seed makes the same pods as ever.
        if resizes and resource is POLICY_CPUS and others and dice.random() < resizes:
            at_s, milli = dice.uniform(now_s, end_s), dice.choice(others) * MILLI_PER_CPU
            resize = resizing(round(at_s, 3), pod, {each.name: milli for each in pod.containers})
            heappush(planned, (at_s, number, False, resize))
            pod = resize.pod
        heappush(planned, (end_s, number, True, Event(round(end_s, 3), pod, ends=True)))


def _capacities(topology: CPUTopology, pools: NodePools) -> Iterator[tuple[Resource, _Amounts]]:
    """Yield each resource that pods can request, with its amount and the smallest request."""
    for resource in advertised(pools):
        if resource.units is None and (capacity := capacity_of(resource, topology)):
            yield resource.name, (capacity, _unit(resource.pool, topology))
    if cpus := assignable(pools, topology):
        whole = pools.cpu_manager.options.full_pcpus_only
        unit = max(len(topology.core_of(cpu)) for cpu in cpus) if whole else 1
        yield POLICY_CPUS, (len(cpus), unit)


def _requesting(resource: Resource, amount: int) -> Container:
    if resource is POLICY_CPUS:
        return Container("main", request_milli=amount * MILLI_PER_CPU, whole_cpus=amount)
    return Container("main", requests={resource: amount})


def _unit(pool: Pool, topology: CPUTopology) -> int:
    """Return the smallest request of a pod for a pool."""
    if pool.kind is PoolKind.SHARED:
        return _MILLI_STEP
    if pool.policy.whole_cores:
        return max(len(topology.core_of(cpu) & pool.cpus) for cpu in pool.cpus)
    return 1


def _sizes(unit: int, capacity: int) -> dict[int, float]:
    """Return size of a request → its relative frequency."""
    sizes = [unit]
    while 4 * sizes[-1] <= capacity:
        sizes.append(2 * sizes[-1])
    return {size: 1 / size for size in sizes}


def _mean(weights: Mapping[int, float]) -> float:
    return sum(size * weight for size, weight in weights.items()) / sum(weights.values())


class _LineError(Exception):
    """A line that is not an event."""

    def __init__(self, what: str, remedy: str, column: int = 1) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy
        self.column = column


class _Reader:
    """A reader of lines that tracks the present pods."""

    def __init__(self) -> None:
        self._present: dict[str, Pod] = {}
        self._now_s = 0.0

    def event(self, line: str) -> Event:
        found = _object(line)
        at_s = self._time(found.get("at_s"))
        full_name = _full_name(found.get("pod"))
        if "ends" in found:
            return Event(at_s, self._ending(full_name, found), ends=True)
        if "resize" in found:
            return self._resized(at_s, full_name, found)
        return self._coming(at_s, full_name, found)

    def _ending(self, full_name: str, found: _Line) -> Pod:
        _allow_only(found, "an event", "at_s", "pod", "ends")
        if found["ends"] is not True:
            raise _LineError(f"ends is {_shown(found['ends'])}", "write true, or leave it out")
        if full_name not in self._present:
            raise _LineError(f"{full_name} ends, but is not there", "let it come on a line before")
        return self._present.pop(full_name)

    def _resized(self, at_s: float, full_name: str, found: _Line) -> Event:
        _allow_only(found, "an event", "at_s", "pod", "resize")
        asked = found["resize"]
        if not isinstance(asked, dict) or not asked:
            raise _LineError(f"resize is {_shown(asked)}", 'write {"container": CPUs, ...}')
        if (pod := self._present.get(full_name)) is None:
            what = f"{full_name} is resized, but is not there"
            raise _LineError(what, "let it come on a line before")
        containers = {each.name: each for each in pod.containers}
        for name in asked:
            if name not in containers:
                known = ", ".join(containers)
                raise _LineError(f"{full_name} has no container {_shown(name)}", f"use {known}")
            if containers[name].kind is ContainerKind.INIT:
                what = f"{name} is an init container"
                raise _LineError(what, "resize an app container or a sidecar")
            if not containers[name].request_milli:
                what = f"{name} requests no cpu, so no resize can change it"
                raise _LineError(what, "let it come with a cpu, or leave it out")
        milli = {name: _milli(name, cpus) for name, cpus in asked.items()}
        if none := [name for name, amount in milli.items() if not amount]:
            raise _LineError(f"the cpu of {none[0]} is 0", "write a number of CPUs above 0")
        event = resizing(at_s, pod, milli)
        self._present[full_name] = event.pod
        return event

    def _coming(self, at_s: float, full_name: str, found: _Line) -> Event:
        keys = ("at_s", "pod", "containers", "qos", _LEVEL, _OVERHEAD, "labels", "annotations")
        _allow_only(found, "an event", *keys)
        if full_name in self._present:
            raise _LineError(f"{full_name} comes, but is there", "end it before, or rename one")
        qos = _qos(found.get("qos", QoSClass.GUARANTEED.value))
        containers = _containers(found.get("containers"), guaranteed=qos is QoSClass.GUARANTEED)
        labels = _texts(found.get("labels", {}), "labels", pod_annotations.LABELS)
        known = (*pod_annotations.ANNOTATIONS, SPLIT, MOVES, NOTICE)
        annotations = _texts(found.get("annotations", {}), "annotations", known)
        _check_words(annotations)
        level = _milli(full_name, found[_LEVEL]) if _LEVEL in found else None
        overhead = _milli(full_name, found.get(_OVERHEAD, 0))
        cpus = 0
        if level is not None:
            cpus = _whole(level) if qos is QoSClass.GUARANTEED else 0
            containers = list(map(_leveled, containers))
        pod = pod_of(full_name, containers, level, overhead, level_cpus=cpus)
        event = arrival(at_s, pod, labels, annotations)
        self._present[full_name] = event.pod
        return event

    def _time(self, value: object) -> float:
        if not isinstance(value, int | float) or value is True or value is False:
            raise _LineError(f"at_s is {_shown(value)}", "write the seconds since the beginning")
        if not self._now_s <= value <= _LATEST_S:
            raise _LineError(
                f"at_s is {_shown(value)}, after {self._now_s:g}",
                f"let no time be before the last one, or after {_LATEST_S:,}",
            )
        self._now_s = value
        return value


def _object(line: str) -> _Line:
    try:
        found = json_text.load(line)
    except JSONRefused as error:
        said = "is no JSON" if error.line else "cannot be read"
        remedy = "write one object per line"
        raise _LineError(f"this {said}: {error.what}", remedy, error.column or 1) from error
    if not isinstance(found, dict):
        raise _LineError(f"this is {_shown(found)}", "write one object per line")
    return found


def _allow_only(found: _Line, what: str, *keys: str) -> None:
    if unknown := [key for key in found if key not in keys]:
        # A pod has cpupool's annotations with a domain, and a trace without one.
        meant = nearest(unknown[0].rpartition("/")[2], keys)
        remedy = f"did you mean {meant}?" if meant else f"use only {', '.join(keys)}"
        raise _LineError(f"{_shown(unknown[0])} is no key of {what}", remedy)


def _full_name(value: object) -> str:
    parts = value.split("/") if isinstance(value, str) else []
    if len(parts) != 2 or not all(map(_is_name, parts)):
        raise _LineError(f"pod is {_shown(value)}", "write namespace/name")
    return "/".join(parts)


def _texts(value: object, what: str, known: tuple[str, ...]) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise _LineError(f"{what} is {_shown(value)}", 'write {"key": "text", ...}')
    _allow_only(value, what, *known)
    for key, text in value.items():
        if not isinstance(text, str):
            raise _LineError(f"{key} in {what} is {_shown(text)}", "write a text, in quotes")
    return value


def _check_words(annotations: Mapping[str, str]) -> None:
    """Refuse the words about changes of CPUs that the webhook denies."""
    words = [moves.value for moves in CPUMoves]
    if (word := annotations.get(MOVES)) is not None and word not in words:
        raise _LineError(f"{MOVES} in annotations is {_shown(word)}", hint(word, words))
    if (notice := annotations.get(NOTICE)) is not None and notice_seconds(notice) is None:
        remedy = f"write a whole number of seconds from 0 to {MOST_NOTICE_S}, in quotes"
        raise _LineError(f"{NOTICE} in annotations is {_shown(notice)}", remedy)


def _containers(value: object, *, guaranteed: bool) -> list[Container]:
    if not isinstance(value, list) or not value:
        raise _LineError(f"containers is {_shown(value)}", "list at least one")
    containers = [_container_of(entry, guaranteed=guaranteed) for entry in value]
    names = [container.name for container in containers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise _LineError(f"there are two containers {twice[0]}", "rename one")
    # The kubelet starts init containers and sidecars, in their order, before the others.
    return sorted(containers, key=lambda container: container.kind is ContainerKind.APP)


def _leveled(container: Container) -> Container:
    """Return a container as it is in a pod with resources of its own."""
    return replace(container, whole_cpus=0, equal_cpus=0, level_cpus=container.whole_cpus)


def _container_of(value: object, *, guaranteed: bool) -> Container:
    if not isinstance(value, dict):
        raise _LineError(f"a container is {_shown(value)}", "write an object")
    _allow_only(value, "a container", "name", "kind", "requests", "cpu", _LIMIT)
    name, kind = value.get("name"), value.get("kind", "app")
    if not isinstance(name, str) or not _is_name(name):
        raise _LineError(f"a container's name is {_shown(name)}", "write a name")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _LineError(f"the kind of {name} is {_shown(kind)}", f"use one of {', '.join(_KINDS)}")
    requests = value.get("requests", {})
    if not isinstance(requests, dict):
        raise _LineError(
            f"the requests of {name} are {_shown(requests)}", 'write {"pool": amount, ...}'
        )
    for pool, amount in requests.items():
        if not is_name(pool):
            raise _LineError(
                f"{name} requests of {_shown(pool)}, which is no pool's name",
                "write it as the pool file does, without a domain",
            )
        if not isinstance(amount, int) or isinstance(amount, bool) or not 1 <= amount <= _MOST:
            raise _LineError(
                f"{name} requests {_shown(amount)} of {pool}",
                f"write a whole number up to {_MOST:,}: cores, or milli-CPUs of a shared pool",
            )
    requested = {_resource(key): n for key, n in requests.items()}
    milli = _milli(name, value.get("cpu", 0))
    limit = _milli(name, value[_LIMIT]) if _LIMIT in value else None
    if limit is not None and (limit < milli or (guaranteed and limit > milli)):
        what = f"the limit of {name} is {_cpus(limit)}, and its cpu {_cpus(milli)}"
        raise _LineError(what, "write no smaller one, and no other one in a Guaranteed pod")
    whole = _whole(milli)
    return Container(
        name,
        _KINDS[kind],
        requested,
        request_milli=milli,
        limit_milli=limit,
        whole_cpus=whole if guaranteed else 0,
        equal_cpus=whole if limit == milli else 0,
    )


def _milli(whose: str, cpus: object) -> int:
    if isinstance(cpus, int | float) and not isinstance(cpus, bool) and 0 <= cpus <= _MOST:
        milli = round(cpus * MILLI_PER_CPU)
        if math.isclose(milli, cpus * MILLI_PER_CPU):
            return milli
    what = f"the cpu of {whose} is {_shown(cpus)}"
    raise _LineError(what, "write a number of CPUs, with at most three digits after the point")


def _qos(value: object) -> QoSClass:
    for known in (QoSClass.GUARANTEED, QoSClass.BURSTABLE):
        if value == known.value:
            return known
    raise _LineError(f"qos is {_shown(value)}", "write Guaranteed or Burstable, or leave it out")


def _resource(pool: str) -> Resource:
    # A name that no pool can have gets any kind: no node has it.
    return resource_named(pool) or Resource(pool, ResourceKind.SHARED)


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _shown(value: object) -> str:
    return "missing" if value is None else reprlib.repr(value)
