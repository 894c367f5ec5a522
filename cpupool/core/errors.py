"""Every error that cpupool raises on purpose: what failed, the facts as fields, what to do.

`CPUPoolError` is the root: a caller at an edge catches this class. Any other exception is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeVar

from cpupool.core import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cpupool.core.cpuset import CPUSet

_SHOWN_IDS = 8
_SHOWN = 200
_E = TypeVar("_E", bound=BaseException)


class CPUPoolError(Exception):
    """A failure that cpupool can describe: in one printable line, whatever words it quotes.

    An error that is made of another error has the text of that one.
    """

    def __str__(self) -> str:
        said = super().__str__()
        described = any(isinstance(part, CPUPoolError) for part in self.args)
        return said if described else visible.line(said)


class CPUSetParseError(CPUPoolError, ValueError):
    """A text that is not a CPU list.

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
        reason: the form that it should have.
        path: its place in a pod's body; empty for any other text.
    """

    def __init__(self, text: str, reason: str, path: str = "") -> None:
        self.text = text
        self.reason = reason
        self.path = path
        super().__init__(f"{text[:60]!r} is not a quantity: {reason}")


class Severity(Enum):
    """The weight of a problem: it refuses the configuration, or is only a warning."""

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
        location: its place, if it came from a file.
        pool: the pool concerned, if any.
        cpus: the CPUs concerned, if any.
        unreadable: whether the problem makes the whole file unreadable.
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
        return visible.line(f"{where}{mark}{path}{self.what}; {self.remedy}")


class ConfigError(CPUPoolError):
    """A refused configuration, with every problem that was found: a line for each.

    Attributes:
        problems: all problems, warnings included, in the order of the file.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(*self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def errors_in(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are errors, without the warnings."""
    return [problem for problem in problems if problem.severity is Severity.ERROR]


def said(error: BaseException) -> str:
    """Return the text of an error of foreign code; making the text may fail, and has no bound."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:_SHOWN]
    except Exception:  # noqa: BLE001  # the code is not ours
        return name


def refuse_errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems if all of them are warnings.

    Raises:
        ConfigError: with all problems, if one is an error.
    """
    found = tuple(problems)
    if errors_in(found):
        raise ConfigError(found)
    return found


class ManifestError(CPUPoolError):
    """A pod body, or a text of several, that Kubernetes would not accept.

    Attributes:
        source: the pod as namespace/name, or the place in the text.
        field: the field, as `spec.containers[0].name`; empty where the whole text is wrong.
    """

    def __init__(self, source: str, field: str, what: str) -> None:
        self.source = source
        self.field = field
        super().__init__(": ".join(part for part in (source, field, what) if part))


class NoObjectName(CPUPoolError, ValueError):
    """A text that cannot be the name of an object of the Kubernetes API.

    Attributes:
        name: the text.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name!r} is no name of an object; write it as `kubectl get` shows it")


class PodRefused(CPUPoolError):
    """A pod that the scheduler or the kubelet refuses.

    Attributes:
        pod: as namespace/name.
        reason: the word that Kubernetes shows, as `UnexpectedAdmissionError`.
    """

    def __init__(self, pod: str, reason: str, what: str) -> None:
        self.pod = pod
        self.reason = reason
        super().__init__(f"{pod}: {reason}: {what}")


class AllocationError(CPUPoolError):
    """A request for devices that the agent cannot serve.

    Attributes:
        pool: the pool of the request.
        ids: the device ids at fault.
    """

    def __init__(self, pool: str, what: str, remedy: str, ids: Iterable[str] = ()) -> None:
        self.pool = pool
        self.ids = tuple(ids)
        super().__init__(f"{pool}: {what}{_shown(self.ids)}; {remedy}")


class NoDevicesRequested(AllocationError):
    """A request that names no device at all."""


class UnknownDevices(AllocationError):
    """Device ids that this pool never listed."""


class UnavailableDevices(AllocationError):
    """Ids of this pool that are not available: offline, held otherwise, or parts of cores."""


class NotEnoughDevices(AllocationError):
    """A request for more devices than there are to choose from.

    Attributes:
        requested: how many devices the request is for.
        free: how many devices there are.
    """

    def __init__(self, pool: str, requested: int, free: int) -> None:
        self.requested = requested
        self.free = free
        super().__init__(
            pool, f"{requested} devices requested, {free} to choose from", "request fewer"
        )


class PlacementError(CPUPoolError):
    """A request that no choice of CPUs can serve.

    Attributes:
        reason: the kubelet's word for such a refusal, in Events and in a pod's status.
        as_kubelet: the text with which the kubelet refuses such a pod.
        passes: whether only a fact is missing, which the kubelet will name in a moment.
        heals: whether CPUs that become free can serve the request: only then its pod waits.
        remedy: what to do if the pod stays refused.
    """

    reason: ClassVar[str] = "UnexpectedAdmissionError"
    passes: ClassVar[bool] = False
    remedy: ClassVar[str] = (
        "request another number of CPUs in a new pod, or free CPUs of this node's default pool"
    )
    heals: bool = True

    def __init__(self, what: str, as_kubelet: str) -> None:
        self.as_kubelet = as_kubelet
        super().__init__(what)


class NotEnoughCPUs(PlacementError):
    """A request for more CPUs than are free.

    Attributes:
        requested: how many CPUs the request is for.
        available: how many CPUs are free.
    """

    def __init__(self, requested: int, available: int, *, has: int = 0) -> None:
        self.requested = requested
        self.available = available
        what = f"{requested} CPUs requested, {available} free"
        if has:
            what = f"cpu {has + requested} needs {requested} more than the {has} that it owns, and"
            what += f" {available} {'is' if available == 1 else 'are'} free"
        super().__init__(
            f"{what}; request fewer, or free some",
            "Allocate failed due to not enough cpus available to satisfy request:"
            f" requested={requested}, available={available}, which is unexpected",
        )


class SMTAlignmentError(PlacementError):
    """A request that whole cores cannot serve.

    Attributes:
        requested: how many CPUs the request is for.
        cpus_per_core: how many CPUs a core has.
        available: how many are free on whole cores; None where the request is not a multiple.
    """

    reason = "SMTAlignmentError"

    def __init__(self, requested: int, cpus_per_core: int, available: int | None = None) -> None:
        self.requested = requested
        self.cpus_per_core = cpus_per_core
        self.available = available
        if available is None:
            what = (
                f"{requested} CPUs requested of cores with {cpus_per_core};"
                f" request a multiple of {cpus_per_core}"
            )
            facts = f"requested {requested} cpus not multiple cpus per core = {cpus_per_core}"
        else:
            what = (
                f"{requested} CPUs requested, {available} free on whole cores;"
                " request fewer, or free some"
            )
            facts = (
                f"not enough free physical CPUs: available physical CPUs = {available},"
                f" requested CPUs = {requested}, CPUs per core = {cpus_per_core}"
            )
        super().__init__(what, f"SMT Alignment Error: {facts}")


class TopologyAffinityError(PlacementError):
    """A request whose CPUs cannot lie on the NUMA nodes that the Topology Manager's policy demands.

    Attributes:
        policy: the name of that policy.
    """

    reason = "TopologyAffinityError"

    def __init__(self, policy: str) -> None:
        self.policy = policy
        super().__init__(
            f"no NUMA nodes serve the request under the topology policy {policy};"
            " request fewer CPUs, or free some",
            "Resources cannot be allocated with Topology locality",
        )


class EmptyPodSharedPoolError(PlacementError):
    """A pod with resources of its own that leaves no CPU to some of its containers."""

    reason = "EmptyPodSharedPoolError"
    remedy = "request more cpu for the pod as a whole in a new pod, or less for its containers"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; {self.remedy}", f"pod rejected, {why}")


class DevicesUnnamed(PlacementError):
    """A pod whose devices, and so their NUMA nodes, the kubelet has not named yet."""

    passes = True

    def __init__(self) -> None:
        what = "the kubelet has not named the devices of the pod"
        super().__init__(f"{what}; wait, or check that its podresources socket answers", what)


class MemoryNodesRefused(CPUPoolError):
    """NUMA nodes from which no container can take its memory.

    Attributes:
        nodes: the nodes of the request.
        lacking: those of them that do not exist or have no memory.
        with_memory: the nodes of this machine that have memory.
    """

    def __init__(self, nodes: CPUSet, with_memory: CPUSet) -> None:
        self.nodes = nodes
        self.lacking = nodes - with_memory
        self.with_memory = with_memory
        what = f"no memory on NUMA node {self.lacking}" if nodes else "no NUMA node for its memory"
        super().__init__(f"{what}; this machine has memory on {with_memory}, choose from these")


class HostError(CPUPoolError):
    """An operation on this machine that failed."""


class HostFileError(HostError):
    """A file of the machine that cannot be read, or has unexpected content."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}; {remedy}")


class CgroupNotFound(HostError):
    """A cgroup that no longer exists; its container has ended."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: this cgroup is gone")


class CgroupWriteRejected(HostError):
    """A value that the kernel refused, or accepted without effect.

    Attributes:
        path: the cgroup.
        value: the value that the agent wrote.
        errno: the kernel's answer, 0 where the value did not take effect.
    """

    def __init__(self, path: str, value: str, errno: int, reason: str) -> None:
        self.path = path
        self.value = value
        self.errno = errno
        super().__init__(f"{path}: the kernel did not take {value!r}: {reason}")


class PartitionUnsafe(HostError):
    """CPUs that the agent does not make a partition, because the kernel could block for ever.

    Attributes:
        path: the cgroup that is to be the partition.
        cpus: those of its CPUs on which unbound workqueues may run.
    """

    def __init__(self, path: str, cpus: CPUSet) -> None:
        self.path = path
        self.cpus = cpus
        super().__init__(
            f"{path}: unbound workqueues may run on its CPUs {cpus}, and then Linux can block for"
            " ever when it makes a partition; boot with workqueue.unbound_cpus=CPUS, without the"
            " CPUs of exclusive pools"
        )


class MemoryInUse(HostError):
    """A limit of memory that a container exceeds: the kernel would kill processes of it.

    Attributes:
        path: its cgroup.
        limit_bytes: the limit.
        used_bytes: its use of memory.
    """

    def __init__(self, path: str, limit_bytes: int, used_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.used_bytes = used_bytes
        # A text with the memory in use would be another one at each try.
        what = (
            f"{path}: it uses more than the {limit_bytes} bytes of memory that its new limit allows"
        )
        super().__init__(f"{what}; wait until it uses less, or raise the limit")


class ContainerNotFound(HostError):
    """A container that the runtime does not have: it has ended, or does not exist yet."""

    def __init__(self, container: str) -> None:
        self.container = container
        super().__init__(f"container {container}: the container runtime does not have it")


class RuntimeRefused(HostError):
    """A setting of a container that the container runtime did not make.

    Attributes:
        container: the container's id.
        what: the setting, as `CPUs 2-3`.
    """

    def __init__(self, container: str, what: str, reason: str) -> None:
        self.container = container
        self.what = what
        super().__init__(
            f"container {container}: the container runtime did not set {what}: {reason}"
        )


class RuntimeBusy(RuntimeRefused):
    """A request that the agent must repeat soon: an answer of its own comes, or came, first."""


class RuntimeSilent(RuntimeRefused):
    """A request that the container runtime has not answered yet; the agent may repeat it later."""


class RuntimeAwaitsAnswer(HostError):
    """The container runtime waits for an answer of the agent by NRI; the agent asks it later."""

    def __init__(self) -> None:
        super().__init__(
            "the container runtime waits for an answer of this agent by NRI; it is asked again"
            " after that"
        )


class RuntimeUnreachable(HostError):
    """A container that only the runtime may write, while the agent cannot reach the runtime."""

    def __init__(self, container: str) -> None:
        self.container = container
        super().__init__(
            f"container {container}: the container runtime has its CPUs and cannot be reached; "
            "start the runtime, or give cpupool its CRI or NRI socket"
        )


class ProtocolError(CPUPoolError):
    """An exchange with another program that failed."""


class RemoteProtocolError(ProtocolError):
    """A peer that broke the protocol, or does not answer."""


def without_frames(error: _E) -> _E:
    """Return the error with its text, and without the place where it was raised.

    Whatever holds an error also holds the frames with all their values, and may itself be one of
    these values.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _shown(ids: tuple[str, ...]) -> str:
    if not ids:
        return ""
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return f" ({', '.join(identifier[:70] for identifier in ids[:_SHOWN_IDS])}{more})"
