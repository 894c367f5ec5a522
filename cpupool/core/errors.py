"""Every error that cpupool raises on purpose: what failed, the facts as fields, what to do.

`CPUPoolError` is the root, so a caller at an edge catches one class. Any other exception that
escapes is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.cpuset import CPUSet

_SHOWN_IDS = 8


class CPUPoolError(Exception):
    """Something failed that cpupool knows how to describe."""


class CPUSetParseError(CPUPoolError, ValueError):
    """A CPU list that is not one.

    Attributes:
        text: the whole list as given.
        piece: the part that is wrong.
        reason: why it is wrong.
    """

    def __init__(self, text: str, piece: str, reason: str) -> None:
        self.text = text
        self.piece = piece
        self.reason = reason
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        super().__init__(f"{shown!r} is not a CPU list: {piece[:60]!r} {reason}")


class QuantityError(CPUPoolError, ValueError):
    """A quantity outside Kubernetes' grammar, or not whole where a whole number is needed.

    Attributes:
        text: as written.
        reason: what it should be.
        path: where it stands in a pod's body; empty for any other text.
    """

    def __init__(self, text: str, reason: str, path: str = "") -> None:
        self.text = text
        self.reason = reason
        self.path = path
        super().__init__(f"{text[:60]!r} is not a quantity: {reason}")


class Severity(Enum):
    """Whether a problem stops the configuration or only deserves a look."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a file; `line` and `column` count from 1. Places sort in the order of reading."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration.

    Attributes:
        what: the fact, with numbers.
        remedy: what to do about it.
        severity: an error refuses the configuration, a warning does not.
        path: the key, as `pools.exclusive_a.cpus`.
        location: where it stands, if it came from a file.
        pool: the pool concerned, if one is.
        cpus: the CPUs concerned, if some are.
        unreadable: whether nothing in the file could be read because of it.
    """

    what: str
    remedy: str
    severity: Severity = Severity.ERROR
    path: str = ""
    location: Location | None = None
    pool: str | None = None
    cpus: CPUSet | None = None
    unreadable: bool = False

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        mark = "warning: " if self.severity is Severity.WARNING else ""
        path = f"{self.path}: " if self.path else ""
        return f"{where}{mark}{path}{self.what}; {self.remedy}"


class ConfigError(CPUPoolError):
    """A configuration that is refused, with every problem that was found.

    Attributes:
        problems: all of them, warnings included, in the order of the file.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def errors_in(problems: Iterable[Problem]) -> list[Problem]:
    """Leave the warnings out."""
    return [problem for problem in problems if problem.severity is Severity.ERROR]


def refuse_errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Give the problems back while they are warnings only.

    Raises:
        ConfigError: with all of them, if one is an error.
    """
    found = tuple(problems)
    if errors_in(found):
        raise ConfigError(found)
    return found


class ManifestError(CPUPoolError):
    """A pod body, or a text of several, that is not what Kubernetes would take.

    Attributes:
        source: the pod as namespace/name, or the place in the text.
        field: the field, as `spec.containers[0].name`; empty where the whole text is wrong.
    """

    def __init__(self, source: str, field: str, what: str) -> None:
        self.source = source
        self.field = field
        super().__init__(": ".join(part for part in (source, field, what) if part))


class PodRefused(CPUPoolError):
    """A pod that the scheduler or the kubelet does not let in.

    Attributes:
        pod: as namespace/name.
        reason: the word that Kubernetes shows, as `UnexpectedAdmissionError`.
    """

    def __init__(self, pod: str, reason: str, what: str) -> None:
        self.pod = pod
        self.reason = reason
        super().__init__(f"{pod}: {reason}: {what}")


class AllocationError(CPUPoolError):
    """A request for devices that cannot be served.

    Attributes:
        pool: the pool that was asked.
        ids: the device ids at fault.
    """

    def __init__(self, pool: str, what: str, remedy: str, ids: Iterable[str] = ()) -> None:
        self.pool = pool
        self.ids = tuple(ids)
        super().__init__(f"{pool}: {what}{_shown(self.ids)}; {remedy}")


class NoDevicesAsked(AllocationError):
    """A request that names no device at all."""


class UnknownDevices(AllocationError):
    """Ids that this pool never listed."""


class UnavailableDevices(AllocationError):
    """Ids of this pool that cannot be given out now: offline, held otherwise, or parts of cores."""


class NotEnoughDevices(AllocationError):
    """More devices asked for than there are to choose from.

    Attributes:
        requested: how many were asked for.
        free: how many there are.
    """

    def __init__(self, pool: str, requested: int, free: int) -> None:
        self.requested = requested
        self.free = free
        super().__init__(
            pool, f"{requested} devices requested, {free} to choose from", "ask for fewer"
        )


class PlacementError(CPUPoolError):
    """CPUs that cannot be chosen as they were asked for."""


class NotEnoughCPUs(PlacementError):
    """More CPUs asked for than are free.

    Attributes:
        requested: how many were asked for.
        available: how many are free.
    """

    def __init__(self, requested: int, available: int) -> None:
        self.requested = requested
        self.available = available
        super().__init__(
            f"{requested} CPUs requested, {available} free; ask for fewer, or free some"
        )


class SMTAlignmentError(PlacementError):
    """A request that whole cores cannot serve.

    Attributes:
        requested: how many CPUs were asked for.
        cpus_per_core: how many make a core.
        available: how many are free on whole cores; None where the request is no multiple.
    """

    def __init__(self, requested: int, cpus_per_core: int, available: int | None = None) -> None:
        self.requested = requested
        self.cpus_per_core = cpus_per_core
        self.available = available
        super().__init__(
            f"{requested} CPUs requested of cores with {cpus_per_core};"
            f" ask for a multiple of {cpus_per_core}"
            if available is None
            else f"{requested} CPUs requested, {available} free on whole cores;"
            " ask for fewer, or free some"
        )


class HostError(CPUPoolError):
    """This machine did not do what was asked of it."""


class HostFileError(HostError):
    """A file of the machine that cannot be read, or that holds something else than expected."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}; {remedy}")


class CgroupNotFound(HostError):
    """A cgroup that has vanished; its container has ended."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: this cgroup is gone")


class CgroupWriteRejected(HostError):
    """The kernel refused a value, or took it and runs with another.

    Attributes:
        path: the cgroup.
        value: what was written.
        errno: the kernel's answer, 0 where the value did not take effect.
    """

    def __init__(self, path: str, value: str, errno: int, reason: str) -> None:
        self.path = path
        self.value = value
        self.errno = errno
        super().__init__(f"{path}: the kernel did not take {value!r}: {reason}")


class ContainerNotFound(HostError):
    """A container that the runtime does not have; it has ended, or is not there yet."""

    def __init__(self, container: str) -> None:
        self.container = container
        super().__init__(f"container {container}: the container runtime does not have it")


class RuntimeRefused(HostError):
    """The container runtime did not set what a container is to have.

    Attributes:
        container: the container's id.
        what: as `CPUs 2-3`.
    """

    def __init__(self, container: str, what: str, reason: str) -> None:
        self.container = container
        self.what = what
        super().__init__(
            f"container {container}: the container runtime did not set {what}: {reason}"
        )


class RuntimeBusy(RuntimeRefused):
    """The container runtime waits for an answer of cpupool itself; it may be asked after that."""


class RuntimeSilent(RuntimeRefused):
    """The container runtime has not answered yet; it may be asked again in a while."""


class RuntimeUnreachable(HostError):
    """A container that only the runtime may write, while the runtime cannot be reached."""

    def __init__(self, container: str) -> None:
        self.container = container
        super().__init__(
            f"container {container}: the container runtime has its CPUs and cannot be reached; "
            "start the runtime, or give cpupool its CRI or NRI socket"
        )


class ProtocolError(CPUPoolError):
    """A conversation with another program that went wrong."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol, or is not there."""


def _shown(ids: tuple[str, ...]) -> str:
    if not ids:
        return ""
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return f" ({', '.join(identifier[:70] for identifier in ids[:_SHOWN_IDS])}{more})"
