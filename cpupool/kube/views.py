"""The bodies of Kubernetes' objects as values, with the facts that placing pods on CPUs needs.

A body is a dict with Kubernetes' field names (k8s.io/api/core/v1/types.go). Fields that cpupool
does not read may hold anything.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import ManifestError, QuantityError
from cpupool.core.names import (
    CRIO_LOAD_BALANCING,
    DISABLE,
    NODE_CRITICAL,
    STATIC_POD_HASH,
    STATIC_POD_MIRROR,
)
from cpupool.core.node_topology import HUGE_PAGES
from cpupool.core.pod_resources import (
    CPU,
    MEMORY,
    PodResources,
    Requirements,
    is_extended,
    pod_limit_milli,
)
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.quantity import Quantity
from cpupool.core.workloads import (
    Container,
    ContainerID,
    ContainerKind,
    Node,
    Pod,
    PodUID,
    QoSClass,
)
from cpupool.kube.fields import Field, shown
from cpupool.policies.dynamic import pod_words
from cpupool.policies.koordinator import node_rules, pod_annotations
from cpupool.wire import node_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.names import Names

Body = Mapping[str, Any]
"""An object, most often a pod, as the API server writes it in JSON."""

COMPONENT: Final = "cpupool"
"""The component that our Events name as their source."""
_STATUS_LISTS: Final = (
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
)
_RUNNING: Final = "Running"
_FINISHED: Final = ("Succeeded", "Failed")
_YES_OR_NO: Final = {"true": True, "false": False}


def created(body: Body, uid: str) -> dict[str, Any]:
    """Copy a manifest as the API server would store it: with a namespace, a UID, and no status yet.

    Raises:
        ManifestError: the manifest has no metadata.
    """
    stored = copy.deepcopy(dict(body))
    metadata = stored.get("metadata")
    if not isinstance(metadata, dict):
        raise ManifestError("pod default/(no name)", "metadata", "is missing or not a mapping")
    metadata.setdefault("namespace", "default")
    metadata["uid"] = uid
    stored["status"] = {"phase": "Pending"}
    return stored


def pod(body: Body, names: Names) -> Pod:
    """Read one pod.

    Raises:
        ManifestError: a field that is read is missing or holds something else than it should.
    """
    top = Field.of(body)
    try:
        return _pod(top, names)
    except QuantityError as error:
        raise ManifestError(top.source, error.path, str(error)) from error


def node(body: Body) -> Node:
    """Read a node, with the rules for its CPUs in its labels and annotations.

    Raises:
        ManifestError: a label or an annotation is no text.
    """
    metadata = Field("node", "", body)["metadata"]
    labels = {key: value.text("") for key, value in metadata["labels"].entries()}
    annotations = {
        key: metadata["annotations"][key].text("")
        for key in node_rules.NODE_ANNOTATIONS
        if metadata["annotations"][key].value is not None
    }
    return Node(
        metadata["uid"].text(""),
        labels,
        node_rules.of_node(labels, annotations),
        node_status.resources(body),
    )


def node_name(body: Body) -> str:
    """Read the name of the node that a pod is bound to; empty before.

    Raises:
        ManifestError: it is no text.
    """
    return Field.of(body)["spec"]["nodeName"].text("")


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An Event of cpupool's.

    Attributes:
        at: when it was sent, as the API server writes times.
        reason: one word for it.
        message: what has happened and what to do.
        warning: whether a person should look.
    """

    at: str
    reason: str
    message: str
    warning: bool


def sent_event(body: Body) -> SentEvent | None:
    """Read an Event; None for one of another component.

    Raises:
        ManifestError: a field holds something else than text.
    """
    read = Field("Event", "", body)
    if read["source"]["component"].text("") != COMPONENT:
        return None
    return SentEvent(
        read["lastTimestamp"].text(""),
        read["reason"].text(""),
        read["message"].text(""),
        read["type"].text("") == "Warning",
    )


def why_not_running(body: Body, container: str) -> str:
    """Read why a pod's container does not run; empty where it does.

    Raises:
        ManifestError: a field that is read holds something else than it should.
    """
    read = Field.of(body)
    if read["metadata"]["deletionTimestamp"].value is not None:
        return "its pod is being deleted"
    status = read["status"]
    for found in status["containerStatuses"]:
        if found["name"].value != container:
            continue
        for state, how in found["state"].entries():
            return "" if state == "running" else f"{state}: {how['reason'].text('no reason')}"
    return f"its pod is {status['phase'].text('Pending')}"


def config_map(body: Body) -> dict[str, bytes]:
    """Read the entries of a ConfigMap, as its mounted folder shows them: file name → content.

    Raises:
        ManifestError: one is no text, or no base64.
    """
    read = Field("ConfigMap", "", body)
    # Half of a surrogate pair is JSON, and no text: the reader of the file refuses it.
    entries = {
        key: value.text("").encode(errors="surrogatepass") for key, value in read["data"].entries()
    }
    for key, value in read["binaryData"].entries():
        try:
            entries[key] = base64.b64decode(value.text(""), validate=True)
        except ValueError as error:
            raise value.error(f"is no base64: {error}") from error
    return entries


def environment(body: Body, container: str) -> dict[str, str]:
    """Read the variables that a container's spec gives a literal value.

    Raises:
        ManifestError: a variable without a name, or one that no process can carry.
    """
    literal = {}
    for _, found in _container_fields(Field.of(body)["spec"]):
        if found["name"].value != container:
            continue
        for variable in found["env"]:
            name, value = variable["name"].text(), variable["value"].text("")
            if "=" in name or "\0" in name + value:
                raise variable.error("a name has no '=', and neither part a NUL character")
            if variable["valueFrom"].value is None:
                literal[name] = value
    return literal


def command_lines(body: Body, program: str) -> Iterator[tuple[str, ...]]:
    """Yield the command line of each container of a pod that runs a program.

    A container without a command runs it if it has its name.

    Raises:
        ManifestError: a word is no text.
    """
    for _, found in _container_fields(Field.of(body)["spec"]):
        command = [word.text() for word in found["command"]]
        first = command[0] if command else found["name"].text("")
        if first.rpartition("/")[2] == program:
            yield (*(command or [first]), *(word.text() for word in found["args"]))


def _pod(top: Field, names: Names) -> Pod:
    metadata, spec, status = top["metadata"], top["spec"], top["status"]
    annotations = metadata["annotations"]
    static = annotations[STATIC_POD_HASH].text("")
    # The kubelet writes the hash into both; a forged mark names no cgroup.
    mirrored = static and annotations[STATIC_POD_MIRROR].text("") == static and static.isalnum()
    uid = PodUID(metadata["uid"].name())
    pod_level = _requirements(spec["resources"], names)
    requested = [
        (kind, found, _requirements(found["resources"], names))
        for kind, found in _container_fields(spec)
    ]
    resources = PodResources(
        pod_level, tuple((kind, needs) for kind, _, needs in requested), _overhead(spec)
    )
    qos = _qos(status["qosClass"]) or resources.qos
    # A kubelet without the gate PodLevelResourceManagers gives no CPUs of their own to containers
    # of a pod with resources of its own (KEP-2837, KEP-5526).
    leveled = bool(pod_level.requests or pod_level.limits)
    guaranteed = qos is QoSClass.GUARANTEED
    orchestrated = pod_annotations.of_pod(
        metadata["labels"].texts(),
        annotations.texts(),
        _priority(spec["priority"]),
        split=names.split,
    )
    changes = pod_words.of_pod(annotations.texts(), names)
    containers = tuple(_containers(top, requested, names, leveled=leveled, guaranteed=guaranteed))
    return Pod(
        uid=uid,
        namespace=metadata["namespace"].name("default"),
        name=metadata["name"].name(),
        qos=qos,
        containers=containers,
        cgroup_uid=static if mirrored else "",
        finished=status["phase"].text("") in _FINISHED,
        running=status["phase"].text("") == _RUNNING,
        limit_milli=pod_limit_milli(pod_level, resources.overhead, qos, containers),
        level_milli=resources.level_milli,
        level_cpus=_whole(resources.level_milli) if guaranteed else 0,
        overhead_milli=resources.overhead_milli,
        node_critical=spec["priorityClassName"].text("") == NODE_CRITICAL,
        created=metadata["creationTimestamp"].text(""),
        created_s=metadata["creationTimestamp"].unix_s(),
        ending=metadata["deletionTimestamp"].text("") != "",
        ends_s=metadata["deletionTimestamp"].unix_s(),
        unequal=_unequal(resources, containers) if orchestrated else "",
        orchestration=orchestrated,
        memory_migrates=_YES_OR_NO.get(annotations[names.memory_migrates].text("false")),
        notice_s=changes.notice_s,
        cpu_moves=changes.moves,
        misread=changes.misread,
    )


def _unequal(resources: PodResources, containers: tuple[Container, ...]) -> str:
    """Return `Pod.unequal`."""
    found = next(resources.unequal(), None)
    if found is None:
        return ""
    whose = "pod" if found.container is None else f"container {containers[found.container].name}"
    limit = f"the limit {shown(found.limit.text)}" if found.limit else "no limit"
    return f"{whose} requests {shown(found.request.text)} of {found.resource} and has {limit}"


def _whole(milli: int | None) -> int:
    cpus, rest = divmod(milli or 0, MILLI_PER_CPU)
    return 0 if rest else cpus


def _priority(found: Field) -> int | None:
    return found.value if isinstance(found.value, int) else None


def _container_fields(spec: Field) -> Iterator[tuple[ContainerKind, Field]]:
    """Return every container of a pod's spec, init containers first."""
    for found in spec["initContainers"]:
        sidecar = found["restartPolicy"].value == "Always"
        yield (ContainerKind.SIDECAR if sidecar else ContainerKind.INIT), found
    for found in spec["containers"]:
        yield ContainerKind.APP, found
    for found in spec["ephemeralContainers"]:
        yield ContainerKind.EPHEMERAL, found


def _requirements(resources: Field, names: Names) -> Requirements:
    """Read `resources` of a container or of a pod."""
    requests, limits = (
        {key: amount.value for key, amount in resources[part].entries()}
        for part in ("requests", "limits")
    )
    return Requirements.read(requests, limits, names, resources.path)


def _overhead(spec: Field) -> Quantity | None:
    cpu = spec["overhead"][CPU]
    return None if cpu.value is None else Quantity.read(cpu.value, cpu.path)


def _qos(given: Field) -> QoSClass | None:
    """Read the class that the API server has set; None where it has set none."""
    if given.value is None:
        return None
    try:
        return QoSClass(given.value)
    except ValueError:
        choices = ", ".join(known.value for known in QoSClass)
        raise given.error(f"{shown(given.value)} is none of {choices}") from None


def _containers(
    body: Field,
    requested: Iterable[tuple[ContainerKind, Field, Requirements]],
    names: Names,
    *,
    leveled: bool,
    guaranteed: bool,
) -> Iterator[Container]:
    spec, annotations = body["spec"], body["metadata"]["annotations"]
    ids = dict(_running_ids(body["status"]))
    seen: set[str] = set()
    for kind, found, needs in requested:
        name = found["name"].name()
        if name in seen:
            raise found["name"].error(f"{name!r} is the name of two containers")
        seen.add(name)
        lasts = kind is not ContainerKind.EPHEMERAL
        can_own = lasts and not leveled
        yield Container(
            name,
            kind,
            needs.pools(names),
            ids.get(name),
            request_milli=needs.request_milli,
            limit_milli=needs.limit_milli,
            whole_cpus=needs.whole_cpus if can_own and guaranteed else 0,
            equal_cpus=needs.equal_cpus if can_own else 0,
            level_cpus=needs.guaranteed_cpus if lasts and leveled and guaranteed else 0,
            balanced=not _unbalanced(annotations, name, names),
            lasting=_lasting(kind, found["resources"], needs, guaranteed=guaranteed),
        )
    if not seen:
        raise spec["containers"].error("is missing")


def _lasting(
    kind: ContainerKind, resources: Field, needs: Requirements, *, guaranteed: bool
) -> frozenset[str]:
    """Return `Container.lasting`.

    Source: IsExclusive in kubernetes-sigs/scheduler-plugins,
    pkg/noderesourcetopology/resourcerequests.
    """
    if kind not in {ContainerKind.APP, ContainerKind.SIDECAR}:
        return frozenset()
    requested = {name for part in ("requests", "limits") for name, _ in resources[part].entries()}
    found = set(filter(is_extended, requested))
    if guaranteed:
        found |= {CPU} if needs.whole_cpus else set()
        found |= {name for name in requested if name == MEMORY or name.startswith(HUGE_PAGES)}
    return frozenset(found)


def _unbalanced(annotations: Field, container: str, names: Names) -> bool:
    """Return whether a pod requests no load balancing for all of its containers or this one."""
    of_one = f"{CRIO_LOAD_BALANCING}/{container}"
    keys = (CRIO_LOAD_BALANCING, of_one, names.load_balancing)
    return any(annotations[key].value == DISABLE for key in keys)


def _running_ids(status: Field) -> Iterator[tuple[str, ContainerID]]:
    """Return each container's instance, unless it has ended.

    While a container waits for its restart, the status still carries the id of the instance that
    has ended.
    """
    for statuses in _STATUS_LISTS:
        for found in status[statuses]:
            identifier = found["containerID"].text("")
            ended = found["state"]["terminated"].value is not None
            previous = found["lastState"]["terminated"]["containerID"].value
            if identifier and not ended and identifier != previous:
                bare = identifier.rpartition("://")[2]
                yield found["name"].text(), ContainerID(bare)
