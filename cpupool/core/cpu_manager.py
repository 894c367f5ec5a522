"""The configuration of the CPU manager: how containers get the default pool's CPUs."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CPU_MANAGER: Final = "cpuManager"
"""The key of the pool file; the keys below it follow."""
POLICY: Final = "policy"
RESERVED: Final = "reserved"
OPTIONS: Final = "options"
TOPOLOGY_POLICY: Final = "topologyPolicy"
TOPOLOGY_SCOPE: Final = "topologyScope"
ON_MISFIT: Final = "onMisfit"
SUPPRESSION: Final = "resourceUsedThresholdWithBE"
ENABLE: Final = "enable"
THRESHOLD_PERCENT: Final = "cpuSuppressThresholdPercent"
MIN_PERCENT: Final = "cpuSuppressMinPercent"
"""The suppression and its keys have the names of a NodeSLO."""
MAX_NOTICE: Final = "maxNoticeSeconds"
COMPACTION: Final = "compaction"
MOVES_PER_HOUR: Final = "movesPerHour"
MINIMUM_AGE: Final = "minimumAgeSeconds"
ELIGIBLE: Final = "eligible"
POD_LEVEL: Final = "podLevelResources"
SYSTEM_PODS: Final = "systemPods"
NAMESPACES: Final = "namespaces"
CPUS: Final = "cpus"
SYSTEM_CPUS: Final = f"{CPU_MANAGER}.{SYSTEM_PODS}.{CPUS}"
"""The path of the CPUs of system pods in the pool file."""

NONE: Final = "none"
STATIC: Final = "static"
DYNAMIC: Final = "dynamic"
"""The names of policies; another one has its name beside it."""

_OFF: Final = "off"

USUAL_NOTICE_S: Final = 10
MOST_NOTICE_S: Final = 3600
USUAL_MOVES: Final = 6
MOST_MOVES: Final = 1000
USUAL_AGE_S: Final = 600
MOST_AGE_S: Final = 604_800
_NOTICE: Final = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)

TRUTH_VALUES: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}
"""The truth values of Go's strconv.ParseBool, with which the kubelet reads an option."""


def notice_seconds(text: str) -> int | None:
    """Read a whole number of seconds from 0 to `MOST_NOTICE_S`; None for another text."""
    seconds = int(text) if _NOTICE.fullmatch(text) else MOST_NOTICE_S + 1
    return seconds if seconds <= MOST_NOTICE_S else None


class TopologyPolicy(Enum):
    """The Topology Manager's policy for a pod's resources."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"
    NUMERIC = "numeric"
    """Each resource has a set of nodes of its own."""

    @property
    def of_kubelet(self) -> bool:
        """Whether the kubelet has this policy, too."""
        return self is not TopologyPolicy.NUMERIC


class Scope(Enum):
    """The part of a pod that the Topology Manager aligns at once."""

    CONTAINER = "container"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class TopologyHint:
    """A set of NUMA nodes.

    Attributes:
        nodes: their ids; None for any nodes.
        preferred: whether the nodes are as good as the machine allows.
    """

    nodes: frozenset[int] | None
    preferred: bool


class Misfit(Enum):
    """The treatment of a pod that cannot have the CPUs of its own that its request promises."""

    HOLD = "hold"
    """Its containers are not created; the kubelet tries again until the CPUs are free."""
    SHARE = "share"
    """Its containers start on the default pool, and move to their own CPUs once these are free."""
    FAIL = "fail"
    """Its containers are not created, and the agent sets the pod's phase to Failed."""


class RequestsCPU(Protocol):
    """A container with a native cpu request; the attributes are those of `workloads.Container`."""

    @property
    def whole_cpus(self) -> int:
        """Its whole request in a Guaranteed pod."""
        ...

    @property
    def equal_cpus(self) -> int:
        """Its whole request with an equal limit, in any pod."""
        ...


class Eligible(Enum):
    """The containers that get CPUs of their own for a whole cpu request with an equal limit."""

    POD = "pod"
    """Those of Guaranteed pods, as in the kubelet."""
    CONTAINER = "container"
    """All of them, whatever the other containers of the pod request."""

    def cpus(self, container: RequestsCPU) -> int:
        """Return how many CPUs of its own a container gets for its native request; 0 for none."""
        alone = container.equal_cpus if self is Eligible.CONTAINER else 0
        return container.whole_cpus or alone


@dataclass(frozen=True, slots=True)
class SystemPods:
    """The pods of some namespaces, which run on CPUs where nobody else runs.

    Attributes:
        namespaces: the namespaces; none if no pod is a system pod.
        cpus: the CPUs, of the default pool.
    """

    namespaces: tuple[str, ...] = ()
    cpus: CPUSet = field(default_factory=CPUSet)

    def __str__(self) -> str:
        return f"CPUs {self.cpus} for {', '.join(self.namespaces)}"


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """The options of the policy `static`, named as the kubelet's `cpuManagerPolicyOptions`.

    Attributes:
        full_pcpus_only: containers get only whole cores.
        distribute_cpus_across_numa: a container that needs several NUMA nodes gets the same number
            of CPUs on each.
        align_by_socket: all NUMA nodes of a socket are as good as one.
        distribute_cpus_across_cores: each CPU of a container is on its own core, if possible.
        strict_cpu_reservation: the shared pool does not run on reserved CPUs either.
        prefer_align_cpus_by_uncorecache: a container lies behind the fewest uncore caches.
    """

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False

    @classmethod
    def names(cls) -> Mapping[str, str]:
        """Return the kubelet's name of each option → the attribute."""
        return {option_name(field.name): field.name for field in fields(cls)}

    def written(self) -> dict[str, str]:
        """Return the options that are on, as the kubelet's option map."""
        return {name: "true" for name, field in self.names().items() if getattr(self, field)}

    @property
    def spreading(self) -> str:
        """The name of an option that lays the CPUs of a container apart; empty if none does."""
        spread = ("distribute_cpus_across_numa", "distribute_cpus_across_cores")
        return next((option_name(each) for each in spread if getattr(self, each)), "")

    def contradictions(self, topology_policy: TopologyPolicy) -> Iterator[Problem]:
        """Find options that contradict each other or the policy for a pod's resources.

        Source: NewStaticPolicyOptions and ValidateStaticPolicyOptions in
        pkg/kubelet/cm/cpumanager/policy_options.go.
        """
        for option, other in _CONFLICTS:
            if getattr(self, option) and getattr(self, other):
                what = f"{option_name(option)} and {option_name(other)} contradict each other"
                yield Problem(what, "choose one of them", path=option_path(other))
        if self.align_by_socket and topology_policy is TopologyPolicy.SINGLE_NUMA_NODE:
            yield Problem(
                f"{TOPOLOGY_POLICY} demands a single NUMA node, not a socket",
                f"turn {option_name('align_by_socket')} off, or choose another {TOPOLOGY_POLICY}",
                path=option_path("align_by_socket"),
            )


_CONFLICTS: Final = (
    ("full_pcpus_only", "distribute_cpus_across_cores"),
    ("distribute_cpus_across_numa", "distribute_cpus_across_cores"),
    ("prefer_align_cpus_by_uncorecache", "distribute_cpus_across_cores"),
    ("prefer_align_cpus_by_uncorecache", "distribute_cpus_across_numa"),
)


@dataclass(frozen=True, slots=True)
class Suppression:
    """The bounds within which the load takes CPUs from best-effort pods.

    Source: ResourceThresholdStrategy with the policy `cpuset`, apis/slo/v1alpha1/nodeslo_types.go.

    Attributes:
        threshold_percent: the part of the CPUs that all pods and the system may use together.
        min_percent: the part of the CPUs that best-effort pods have in any case.
    """

    threshold_percent: int = 65
    min_percent: int = 0

    def __str__(self) -> str:
        least = f", at least {self.min_percent} %" if self.min_percent else ""
        return f"{self.threshold_percent} %{least}"


@dataclass(frozen=True, slots=True)
class Compaction:
    """The bounds within which the agent moves own CPUs of running containers.

    Attributes:
        moves_per_hour: how many moves may begin on the node within an hour.
        minimum_age_s: how old a pod is, and how long ago the CPUs of its container have changed,
            before the container moves.
    """

    moves_per_hour: int = USUAL_MOVES
    minimum_age_s: int = USUAL_AGE_S

    def __str__(self) -> str:
        return f"{self.moves_per_hour} moves an hour, of CPUs {self.minimum_age_s} s old"


@dataclass(frozen=True, slots=True)
class CPUManager:
    """The settings by which containers get the default pool's CPUs.

    Attributes:
        policy: the name of the CPU manager policy.
        reserved: CPUs of the default pool that no container owns, or how many; None where the file
            does not say.
        options: the policy's options.
        topology_policy: how strictly a container's CPUs lie on the NUMA nodes of its devices.
        on_misfit: how to treat a pod that cannot have CPUs of its own.
        declared: whether the pool file names the policy `none`: then containers get the default
            pool's CPUs also without any pool, as under the other policies.
        suppression: how the policy suppresses best-effort pods; None where it does not.
        topology_scope: whether the NUMA nodes are those of a container, or of a whole pod.
        max_notice_s: the longest notice, in seconds, before a running container loses CPUs; a pod
            that names none has this one.
        eligible: which containers get CPUs of their own.
        system_pods: the pods that run on CPUs where nobody else runs.
        pod_level: whether Guaranteed pods with resources of their own (`spec.resources`) get CPUs.
        compaction: how much the agent may move own CPUs of running containers; None for no move.
        installed: the class of a policy that is not built in, of a package; else None. It follows
            from the name.
    """

    policy: str = NONE
    reserved: CPUSet | int | None = None
    options: StaticOptions = field(default_factory=StaticOptions)
    topology_policy: TopologyPolicy = TopologyPolicy.NONE
    on_misfit: Misfit = Misfit.HOLD
    declared: bool = False
    suppression: Suppression | None = None
    topology_scope: Scope = Scope.CONTAINER
    max_notice_s: int = USUAL_NOTICE_S
    eligible: Eligible = Eligible.POD
    system_pods: SystemPods = field(default_factory=SystemPods)
    pod_level: bool = False
    compaction: Compaction | None = None
    installed: type[object] | None = field(default=None, compare=False)

    @property
    def follows_load(self) -> bool:
        """Whether the size of a shared set depends on the load of the node."""
        return self.suppression is not None

    @property
    def chooses(self) -> bool:
        """Whether the policy gives containers CPUs of their own."""
        return self.policy != NONE

    @property
    def bubbles(self) -> bool:
        """Whether a pod with resources of its own owns CPUs as a whole."""
        return self.pod_level and self.topology_scope is Scope.POD

    @property
    def named(self) -> str:
        """The policy and its options, as text."""
        return ", ".join((self.policy, *self.options.written()))

    @property
    def settings(self) -> Mapping[str, str]:
        """Key of the pool file → its value as text."""
        return {
            POLICY: self.policy,
            RESERVED: _reserved_text(self.reserved),
            OPTIONS: " and ".join(self.options.written()) or NONE,
            TOPOLOGY_POLICY: self.topology_policy.value,
            TOPOLOGY_SCOPE: self.topology_scope.value,
            ON_MISFIT: self.on_misfit.value,
            SUPPRESSION: str(self.suppression or _OFF),
            MAX_NOTICE: str(self.max_notice_s),
            ELIGIBLE: self.eligible.value,
            SYSTEM_PODS: str(self.system_pods) if self.system_pods.cpus else _OFF,
            POD_LEVEL: str(self.pod_level).lower(),
            COMPACTION: str(self.compaction or _OFF),
        }

    def written(self) -> dict[str, Any]:
        """Return the configuration as JSON values: key of the pool file → value."""
        reserved, system = self.reserved, self.system_pods
        return {
            POLICY: self.policy,
            RESERVED: reserved if isinstance(reserved, int) else reserved and str(reserved),
            OPTIONS: list(self.options.written()),
            TOPOLOGY_POLICY: self.topology_policy.value,
            TOPOLOGY_SCOPE: self.topology_scope.value,
            ON_MISFIT: self.on_misfit.value,
            SUPPRESSION: self.suppression and asdict(self.suppression),
            MAX_NOTICE: self.max_notice_s,
            ELIGIBLE: self.eligible.value,
            SYSTEM_PODS: {NAMESPACES: list(system.namespaces), CPUS: str(system.cpus)},
            POD_LEVEL: self.pod_level,
            COMPACTION: self.compaction and asdict(self.compaction),
            "declared": self.declared,
        }

    def changes(self, later: CPUManager) -> Iterator[str]:
        """Describe each setting that differs from a later configuration."""
        before = self.settings
        for key, value in later.settings.items():
            if before[key] != value:
                yield f"{CPU_MANAGER}.{key} from {before[key]} to {value}"


def _reserved_text(reserved: CPUSet | int | None) -> str:
    if isinstance(reserved, int):
        return f"{reserved} CPU{'s' * (reserved != 1)}"
    return f"CPUs {reserved}" if reserved else NONE


def option_name(attribute: str) -> str:
    """Return the kubelet's name of an option of `StaticOptions`."""
    return attribute.replace("_", "-")


def option_path(attribute: str) -> str:
    """Return the path of an option in the pool file."""
    return f"{CPU_MANAGER}.{OPTIONS}.{option_name(attribute)}"
