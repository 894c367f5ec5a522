"""The kubelet settings beside a PerformanceProfile's pools: those that its operator would make.

cpupool gives out the isolated CPUs, so the kubelet's CPU manager is `none`, and the kubelet keeps
every CPU outside the default pool from the scheduler. Source: kubeletconfig.go of
openshift/cluster-node-tuning-operator, below pkg/performanceprofile.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cpupool.config.kubelet_memory import AVAILABLE, USUAL_EVICTION
from cpupool.config.kubelet_settings import (
    CPU_MANAGER,
    CPU_MANAGER_OPTIONS,
    CPUS,
    EVICTION,
    KUBE,
    MEMORY_MANAGER,
    MOST_NUMA_NODES,
    NO_MEMORY_MANAGER,
    PINNED_MEMORY,
    RESERVED_MEMORY,
    SYSTEM,
    TOPOLOGY_MANAGER,
    TOPOLOGY_OPTIONS,
)
from cpupool.config.kubelet_start import MAX_NODES
from cpupool.config.performance_profile import DRA, SNIPPET, TOPOLOGY_POLICY
from cpupool.core import quantity
from cpupool.core.cpu_manager import NONE, TopologyPolicy
from cpupool.core.errors import ConfigError, Problem, QuantityError, Severity
from cpupool.core.pod_resources import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.config.performance_profile import PerformanceProfile
    from cpupool.core.topology import CPUTopology

SNIPPET_PATH: Final = f"metadata.annotations.{SNIPPET}"
_DRA_PATH: Final = f"metadata.annotations.{DRA}"
USUAL_TOPOLOGY_POLICY: Final = TopologyPolicy.BEST_EFFORT.value
"""The operator's, for a profile that names none."""
_USUAL_MEMORY: Final = {
    (KUBE, MEMORY): "500Mi",
    (SYSTEM, MEMORY): "500Mi",
    (EVICTION, AVAILABLE): USUAL_EVICTION,
    (EVICTION, "nodefs.available"): "10%",
    (EVICTION, "imagefs.available"): "15%",
    (EVICTION, "nodefs.inodesFree"): "5%",
}
_MAPS: Final = (KUBE, SYSTEM, EVICTION, CPU_MANAGER_OPTIONS, TOPOLOGY_OPTIONS)
_PINNED: Final = frozenset([TopologyPolicy.RESTRICTED.value, TopologyPolicy.SINGLE_NUMA_NODE.value])
_MEBIBYTE: Final = 2**20


def settings(
    profile: PerformanceProfile, snippet: Mapping[str, object], topology: CPUTopology | None
) -> dict[str, object]:
    """Return the settings, by their names in a KubeletConfiguration.

    Args:
        profile: the profile.
        snippet: the settings in its annotation; none without one.
        topology: the machine, which may have more NUMA nodes than a Topology Manager takes.

    Raises:
        ConfigError: the annotation has something else in place of a map, or no amount of memory.
    """
    made: dict[str, object] = {
        key: value for key, value in snippet.items() if key not in ("apiVersion", "kind")
    }
    for key in _MAPS:
        if key in made and not isinstance(made[key], dict):
            what = f"{key} is no map, so the Node Tuning Operator refuses the annotation"
            raise ConfigError([_problem(profile, SNIPPET_PATH, what, "write an object of texts")])
    made.pop(CPU_MANAGER_OPTIONS, None)
    made.pop(TOPOLOGY_MANAGER, None)
    made[CPU_MANAGER] = NONE
    if profile.dra:
        made |= {TOPOLOGY_MANAGER: NONE, MEMORY_MANAGER: NO_MEMORY_MANAGER}
    elif profile.topology_policy:
        made[TOPOLOGY_MANAGER] = profile.topology_policy
        if profile.topology_policy in _PINNED:
            made |= _pinned_memory(profile, made)
        if topology and len(topology.nodes) > MOST_NUMA_NODES:
            most = {MAX_NODES: str(len(topology.nodes))}
            made[TOPOLOGY_OPTIONS] = {**most, **_map(made, TOPOLOGY_OPTIONS)}
    made[CPUS] = str(profile.beside_default(topology))
    return made


def notes(profile: PerformanceProfile, snippet: Mapping[str, object]) -> Iterator[Problem]:
    """Name the settings of the profile for the kubelet that the result does not have.

    Raises:
        ConfigError: two of its switches exclude each other.
    """
    if profile.dra and profile.mixed:
        what = "with this and mixed CPUs the Node Tuning Operator refuses the profile"
        raise ConfigError([_problem(profile, _DRA_PATH, what, "switch one of them off")])
    if profile.dra:
        what = "a driver gives out CPUs and memory by claims, and cpupool knows no claims"
        remedy = "run no such driver for CPUs beside cpupool"
        yield _problem(profile, _DRA_PATH, what, remedy, Severity.WARNING)
        if profile.topology_policy not in ("", NONE):
            yield _problem(
                profile,
                TOPOLOGY_POLICY,
                f"with the driver the Node Tuning Operator sets {TOPOLOGY_MANAGER} to {NONE}, so"
                f" {profile.topology_policy} is not carried over",
                f"set {TOPOLOGY_MANAGER} to {profile.topology_policy}, if the kubelet shall bring"
                " the CPUs of pools and other devices together",
                Severity.WARNING,
            )
    options = {"full-pcpus-only": "true"} if _strict(profile) and not profile.dra else {}
    options |= {str(name): str(value) for name, value in _map(snippet, CPU_MANAGER_OPTIONS).items()}
    if options:
        given = ", ".join(f"{name}: {value}" for name, value in options.items())
        yield _problem(
            profile,
            SNIPPET_PATH if CPU_MANAGER_OPTIONS in snippet else TOPOLOGY_POLICY,
            f"{CPU_MANAGER_OPTIONS} ({given}) is not carried over: the kubelet's CPU manager is"
            f" {NONE}, and with options it does not start",
            "set the rules of the pool exclusive_isolated instead; without rules it gives whole"
            " cores",
            Severity.WARNING,
        )
    overridden = [key for key in (CPU_MANAGER, CPUS, TOPOLOGY_MANAGER) if key in snippet]
    if overridden:
        yield _problem(
            profile,
            SNIPPET_PATH,
            f"{' and '.join(overridden)} is not carried over: the profile decides it",
            "remove it there",
            Severity.WARNING,
        )


def _strict(profile: PerformanceProfile) -> bool:
    return profile.topology_policy == TopologyPolicy.SINGLE_NUMA_NODE.value


def _pinned_memory(profile: PerformanceProfile, made: Mapping[str, object]) -> dict[str, object]:
    """Return the memory manager's settings: it starts only if these amounts agree."""
    kept = {key: dict(_map(made, key)) for key in (KUBE, SYSTEM, EVICTION)}
    for (key, name), usual in _USUAL_MEMORY.items():
        kept[key].setdefault(name, usual)
    total = Decimal()
    for key, name in ((KUBE, MEMORY), (SYSTEM, MEMORY), (EVICTION, AVAILABLE)):
        try:
            total += quantity.parse(str(kept[key][name]))
        except QuantityError as error:
            where = f"{key}.{name}: {error}"
            remedy = "write an amount of memory, as 100Mi"
            raise ConfigError([_problem(profile, SNIPPET_PATH, where, remedy)]) from error
    whole, rest = divmod(total, _MEBIBYTE)
    limit = f"{total:f}" if rest else f"{whole:f}Mi"
    listed = made.get(RESERVED_MEMORY, [{"numaNode": 0, "limits": {MEMORY: limit}}])
    return {**kept, MEMORY_MANAGER: PINNED_MEMORY, RESERVED_MEMORY: listed}


def _map(made: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = made.get(key)
    return found if isinstance(found, dict) else {}


def _problem(
    profile: PerformanceProfile,
    path: str,
    what: str,
    remedy: str,
    severity: Severity = Severity.ERROR,
) -> Problem:
    return Problem(what, remedy, severity, path=path, location=profile.locate(path))
