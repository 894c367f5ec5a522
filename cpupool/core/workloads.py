"""Pods and containers, as far as placing them on CPUs needs to know them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Mapping

PodUID = NewType("PodUID", str)
ContainerID = NewType("ContainerID", str)
"""A runtime's id without its scheme: 64 hexadecimal digits, no `containerd://`."""


class QoSClass(Enum):
    """Kubernetes' quality of service class; it names the pod's place in the cgroup tree."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(Enum):
    """How a container takes part in its pod's life."""

    APP = "container"
    INIT = "init container"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral container"


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container of a pod, whichever of its restarts runs."""

    pod: PodUID
    name: str


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod's spec with what is known of its running instance.

    Attributes:
        name: unique in the pod.
        kind: app, init, sidecar or ephemeral.
        requests: pool name → amount, cores for an exclusive pool and milli-CPUs for a shared one.
        id: the running instance; None while none is reported.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    requests: Mapping[str, int] = field(default_factory=dict)
    id: ContainerID | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of this node.

    Attributes:
        uid: as in the API.
        namespace: its namespace.
        name: its name, unique in the namespace at any time.
        qos: its QoS class.
        containers: every kind, init containers first.
        cgroup_uid: the id in its cgroup's name: the config hash for a static pod, else `uid`.
        finished: it has succeeded or failed, and owns nothing any more.
    """

    uid: PodUID
    namespace: str
    name: str
    qos: QoSClass
    containers: tuple[Container, ...]
    cgroup_uid: str = ""
    finished: bool = False

    def __post_init__(self) -> None:
        if not self.cgroup_uid:
            object.__setattr__(self, "cgroup_uid", self.uid)
