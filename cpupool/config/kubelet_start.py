"""The settings with which a kubelet does not start, whatever the pools are.

Sources: kubernetes pkg/kubelet/apis/config/validation/validation.go, pkg/kubelet/cm/cpumanager
(policy_options.go, cpu_manager.go), pkg/kubelet/cm/topologymanager (policy_options.go,
topology_manager.go), pkg/kubelet/cm/memorymanager/memory_manager.go.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cpupool.config.kubelet_settings import (
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
    TOPOLOGY_SCOPE,
)
from cpupool.config.reader import WHOLE_NUMBER
from cpupool.core.cpu_manager import (
    NONE,
    STATIC,
    TRUTH_VALUES,
    Scope,
    StaticOptions,
    TopologyPolicy,
)
from cpupool.core.suggestions import hint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from cpupool.config.kubelet_settings import KubeletConfig, KubeletNeeds
    from cpupool.core.errors import Problem

MAX_NODES: Final = "max-allowable-numa-nodes"
_GATE: Final = "TopologyManagerPolicyOptions"
_BETA_GATE: Final = "TopologyManagerPolicyBetaOptions"
_ALPHA_GATE: Final = "TopologyManagerPolicyAlphaOptions"
_ALPHA_OPTIONS: Final = ("numa-allocation-strategy", "numa-score-weights")
_CLOSEST: Final = "prefer-closest-numa-nodes"
_POLICIES: Final = tuple(policy.value for policy in TopologyPolicy if policy.of_kubelet)
_SCOPES: Final = tuple(scope.value for scope in Scope)
_NONE_KEPT: Final = Decimal()
_MEMORY_POLICIES: Final = (NO_MEMORY_MANAGER, PINNED_MEMORY)


def refusals(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    """Find the settings with which the kubelet does not start on this machine."""
    looks: tuple[Callable[[KubeletConfig, KubeletNeeds], Iterator[Problem]], ...] = (
        _words,
        _static,
        _topology_options,
        _numa_nodes,
        _cgroups,
        _memory,
    )
    for look in looks:
        yield from look(config, needs)


def _words(config: KubeletConfig, _: KubeletNeeds) -> Iterator[Problem]:
    for path, word, known in (
        (TOPOLOGY_MANAGER, config.topology_manager_policy, _POLICIES),
        (TOPOLOGY_SCOPE, config.topology_manager_scope, _SCOPES),
        (MEMORY_MANAGER, config.memory_manager_policy, _MEMORY_POLICIES),
    ):
        if word not in known:
            yield _refusal(config, path, f"with {word[:63]!r}", hint(word, known))


def _static(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    if config.cpu_manager_policy != STATIC:
        return
    if config.reserved_milli == 0:
        yield _refusal(
            config,
            CPUS,
            "with the static CPU manager and no reserved cpu",
            f"set {CPUS}{f' to {needs.reserved_cpus}' if needs.reserved_cpus else ''}",
        )
    names, options = StaticOptions.names(), config.cpu_manager_options
    yield from _unknown(config, CPU_MANAGER_OPTIONS, names)
    yield from _no_truth(config, CPU_MANAGER_OPTIONS, options, names)
    chosen = {
        names[name]: TRUTH_VALUES.get(text, False)
        for name, text in options.items()
        if name in names
    }
    strict = config.topology_manager_policy == TopologyPolicy.SINGLE_NUMA_NODE.value
    policy = TopologyPolicy.SINGLE_NUMA_NODE if strict else TopologyPolicy.NONE
    for problem in StaticOptions(**chosen).contradictions(policy):
        yield _refusal(config, CPU_MANAGER_OPTIONS, f"because {problem.what}", problem.remedy)


def _topology_options(config: KubeletConfig, _: KubeletNeeds) -> Iterator[Problem]:
    options = config.topology_manager_options
    if not options:
        return
    if config.feature_gates.get(_GATE) is False:
        without = f"with options of the Topology Manager and without the feature gate {_GATE}"
        yield _refusal(config, TOPOLOGY_OPTIONS, without, f"remove featureGates.{_GATE}")
    if config.topology_manager_policy == NONE:
        # The kubelet does not read them then.
        return
    yield from _unknown(config, TOPOLOGY_OPTIONS, (_CLOSEST, MAX_NODES, *_ALPHA_OPTIONS))
    yield from _no_truth(config, TOPOLOGY_OPTIONS, options, (_CLOSEST,))
    for name in sorted(options.keys() & {*_ALPHA_OPTIONS}):
        if not config.feature_gates.get(_ALPHA_GATE):
            what = f"with {name} and without the feature gate {_ALPHA_GATE}"
            remedy = f"remove it, or set featureGates.{_ALPHA_GATE} to true"
            yield _refusal(config, f"{TOPOLOGY_OPTIONS}.{name}", what, remedy)
    if MAX_NODES in options and config.feature_gates.get(_BETA_GATE) is False:
        what = (
            f"with {MAX_NODES} and without the feature gate {_BETA_GATE} (before Kubernetes 1.35)"
        )
        remedy = f"remove featureGates.{_BETA_GATE}"
        yield _refusal(config, f"{TOPOLOGY_OPTIONS}.{MAX_NODES}", what, remedy)


def _numa_nodes(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    if config.topology_manager_policy == NONE:
        return
    path, remedy = f"{TOPOLOGY_OPTIONS}.{MAX_NODES}", f'"{max(needs.node_count, MOST_NUMA_NODES)}"'
    text = config.topology_manager_options.get(MAX_NODES)
    if text is None:
        if needs.node_count > MOST_NUMA_NODES:
            what = (
                f"with a Topology Manager's policy on {needs.node_count} NUMA nodes and without the"
                f" option {MAX_NODES}"
            )
            yield _refusal(
                config, path, what, f"set {path} to {remedy}, or {TOPOLOGY_MANAGER} to {NONE}"
            )
        return
    # strconv.Atoi takes a sign and leading zeros, too.
    plain = text.removeprefix("+").lstrip("0")
    number = int(plain) if WHOLE_NUMBER.fullmatch(plain) else 0
    if number < MOST_NUMA_NODES:
        what = f"with {text[:63]!r}, which is no number from {MOST_NUMA_NODES} on"
        yield _refusal(config, path, what, f"set it to {remedy}")
    elif number < needs.node_count:
        what = f"with {number} on a machine of {needs.node_count} NUMA nodes"
        yield _refusal(config, path, what, f"set it to {remedy}")


def _cgroups(config: KubeletConfig, _: KubeletNeeds) -> Iterator[Problem]:
    if config.reserved_cpus and config.reserved_cgroups:
        named = " and ".join(config.reserved_cgroups)
        yield _refusal(config, CPUS, f"with {CPUS} and {named}", "remove one of the two")


def _memory(config: KubeletConfig, _: KubeletNeeds) -> Iterator[Problem]:
    kept, reserved = config.kept_memory, config.reserved_memory
    if config.memory_manager_policy != PINNED_MEMORY or not kept:
        return
    for name in sorted(kept.keys() | reserved.keys()):
        needed, listed = kept.get(name, _NONE_KEPT), reserved.get(name, _NONE_KEPT)
        if needed != listed:
            what = (
                f"with {MEMORY_MANAGER} {PINNED_MEMORY} and {listed:f} bytes of {name} here, where"
                f" {SYSTEM}, {KUBE} and {EVICTION} keep {needed:f}"
            )
            remedy = f"list {needed:f} bytes of {name} in sum over the NUMA nodes"
            yield _refusal(config, RESERVED_MEMORY, what, remedy)


def _unknown(config: KubeletConfig, path: str, known: Collection[str]) -> Iterator[Problem]:
    options = (
        config.cpu_manager_options
        if path == CPU_MANAGER_OPTIONS
        else config.topology_manager_options
    )
    for name in sorted(options.keys() - {*known}):
        what = f"with the option {name[:63]!r}, which is not known"
        yield _refusal(config, f"{path}.{name}", what, hint(name, known))


def _no_truth(
    config: KubeletConfig, path: str, options: Mapping[str, str], names: Collection[str]
) -> Iterator[Problem]:
    for name in sorted(options.keys() & {*names}):
        if options[name] not in TRUTH_VALUES:
            what = f"with {options[name][:63]!r}, which is no truth value"
            yield _refusal(config, f"{path}.{name}", what, 'write "true" or "false"')


def _refusal(config: KubeletConfig, path: str, why: str, remedy: str) -> Problem:
    return config.problem(path, f"the kubelet does not start {why}", remedy)
