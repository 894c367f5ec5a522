"""The messages between a container runtime and an NRI plugin, as values.

Source: github.com/containerd/nri, pkg/api/api.proto.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from cpupool.core.cpuset import CPUSet
from cpupool.core.properties import NO_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.mounts import Mount
    from cpupool.core.properties import Properties
    from cpupool.core.workloads import ContainerID, RuntimeContainer
    from cpupool.manager.facts import ContainerKey

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_MENDED: Final = (0, 12, 1)


class ContainerState(Enum):
    """The state of a container's life."""

    UNKNOWN = "unknown"
    CREATED = "created"
    PAUSED = "paused"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CPUResources:
    """CPU resources of a container; an empty value, or None, is not set or does not change."""

    cpus: str
    quota_us: int | None
    period_us: int | None
    shares: int | None = None

    @property
    def cpu_set(self) -> CPUSet:
        """The CPUs; empty if the runtime has no list, or an unreadable one."""
        return CPUSet.parse_or_empty(self.cpus)


@dataclass(frozen=True, slots=True)
class NamedContainer:
    """A container that the runtime has described before.

    Attributes:
        id: the runtime's.
        known: its pod; None if the kubelet has not labelled it.
    """

    id: ContainerID
    known: RuntimeContainer | None

    @property
    def key(self) -> ContainerKey | None:
        """The ids in its cgroup's path; None if the kubelet has not labelled it."""
        return None if self.known is None else (self.known.pod, self.id)

    @property
    def title(self) -> str:
        """Its name in messages: namespace, pod and container; else its id."""
        known = self.known
        return f"{known.namespace}/{known.pod_name}/{known.name}" if known else self.id


@dataclass(frozen=True, slots=True)
class NRIContainer(NamedContainer):
    """A container as the runtime describes it; `known` has its devices, too.

    Attributes:
        cpu: the runtime's CPU resources for it.
        environment: its variables.
        state: the runtime's state of it.
        whole_cpus: the CPUs that it requests, if the kubelet's numbers show a whole number of them
            and a Guaranteed pod; 0 otherwise, and for a static pod.
        equal_cpus: the same in a pod of any class, unless the numbers show another limit.
        guaranteed: whether the numbers show a Guaranteed pod; false for a static pod.
        orchestrated: whether the pod's label names a class that owns CPUs, or a scheduler may have
            assigned some to the pod.
        static: whether the kubelet has the pod from a file, and not from the API server.
        limits: its memory, and its memory and swap together, as the runtime holds them.
    """

    cpu: CPUResources
    environment: Mapping[str, str]
    state: ContainerState
    whole_cpus: int = 0
    equal_cpus: int = 0
    guaranteed: bool = False
    orchestrated: bool = False
    static: bool = False
    limits: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Registered:
    """The runtime has accepted the plugin's name and index."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The runtime has introduced itself; answered.

    Attributes:
        runtime: its name, as `containerd`.
        version: its version.
        nri: the version of its NRI, as `v0.12.1`; empty if the runtime does not name it.
    """

    runtime: str
    version: str
    nri: str = ""

    @property
    def may_lock_up(self) -> bool:
        """Whether `Session.update` can lock the runtime up for good.

        Before containerd/nri 0.12.1 an update and the start of a container take two locks in
        opposite orders. A runtime without a clear version is treated as older.
        """
        version = _VERSION.match(self.nri)
        return version is None or tuple(map(int, version.groups())) < _MENDED


@dataclass(frozen=True, slots=True)
class Synchronize:
    """All sandboxes and containers of the runtime; to be answered.

    Attributes:
        call: for `Session.answer_synchronize`.
        sandboxes: of the kubelet's pods.
        containers: created and running ones.
    """

    call: int
    sandboxes: tuple[RuntimeContainer, ...]
    containers: tuple[NRIContainer, ...]

    @property
    def running(self) -> Iterator[NRIContainer]:
        """The containers that have not stopped."""
        return (
            container
            for container in self.containers
            if container.state is not ContainerState.STOPPED
        )


@dataclass(frozen=True, slots=True)
class CreateContainer:
    """A container is about to be created; to be answered.

    Attributes:
        call: for `Session.answer_create`.
        sandbox: its pod's; None where the kubelet has not labelled it.
        container: as the runtime would create it.
        deadline_s: the time in which the runtime needs the response; None if it is not known.
    """

    call: int
    sandbox: RuntimeContainer | None
    container: NRIContainer
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class StartContainer:
    """A created container is about to run its first instruction; to be answered.

    Its process exists, on the container's CPUs, and waits. A refusal ends the container in
    containerd. CRI-O logs the refusal and starts the container.

    Attributes:
        call: for `Session.answer_start`.
        container: the container.
        deadline_s: how long the runtime waits; None where that is not known.
    """

    call: int
    container: NamedContainer
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class UpdateContainer:
    """Another program changes the resources of a container; to be answered.

    Attributes:
        call: for `Session.answer_update`.
        container: its values before the change.
        asked: the wanted values.
        owns: how many CPUs of its own the change asks for, as `RuntimeContainer.owns`; None for as
            many as before.
    """

    call: int
    container: NRIContainer
    asked: CPUResources
    owns: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A container's process has been started; answered."""

    container: NamedContainer


@dataclass(frozen=True, slots=True)
class Ended:
    """A container has no process any more; answered.

    The runtime reports it when the container stops, because then its CPUs are free, and again when
    it removes the container: a container that never ran is only removed. A creation that the
    runtime takes back ends so, too.
    """

    id: ContainerID


@dataclass(frozen=True, slots=True)
class SandboxStarted:
    """A pod of the kubelet's has its sandbox; answered."""

    sandbox: RuntimeContainer


@dataclass(frozen=True, slots=True)
class SandboxRemoved:
    """A sandbox, the kubelet's or not, is gone; answered."""

    id: ContainerID


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The runtime is going down; answered."""


@dataclass(frozen=True, slots=True)
class Updated:
    """The runtime's response to `Session.update`.

    Attributes:
        call: what `Session.update` returned.
        failed: containers that were not updated.
        error: why the call as a whole failed; empty if it did not.
    """

    call: int
    failed: tuple[ContainerID, ...]
    error: str


Message: TypeAlias = (
    Registered
    | Configured
    | Synchronize
    | CreateContainer
    | StartContainer
    | UpdateContainer
    | Started
    | Ended
    | SandboxStarted
    | SandboxRemoved
    | Shutdown
    | Updated
)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """The values of a container that is being created.

    Attributes:
        cpus: its CPUs; an empty set changes nothing.
        environment: variables to set.
        annotations: annotations to set; the runtime shows them as the container's own.
        memory: the NUMA nodes of its memory; an empty set changes nothing.
        properties: its other properties.
        mounts: files and folders of the node to mount.
    """

    cpus: CPUSet
    environment: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    memory: CPUSet = field(default_factory=CPUSet)
    properties: Properties = NO_PROPERTIES
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """A change to a container that exists.

    Attributes:
        container: its id.
        cpus: as in `Adjustment`.
        properties: as in `Adjustment`; the OOM score does not change.
        ignore_failure: whether the runtime keeps a failure to itself.
    """

    container: ContainerID
    cpus: CPUSet
    properties: Properties = NO_PROPERTIES
    ignore_failure: bool = True
