"""The kubelet's configuration, and the check whether it suits the pools of a node.

The scheduler counts a node's `cpu` as all online CPUs less what the kubelet reserves, and knows
nothing of pools; so all CPUs outside the default pool must be reserved, or the scheduler uses them
twice. Sources: kubernetes cmd/kubelet/app/server.go (`reservedSystemCPUs` takes the place of every
other cpu reservation), pkg/kubelet/cm/node_container_manager_linux.go (what is allocatable),
pkg/kubelet/apis/config/v1beta1/defaults.go, pkg/kubelet/cm/topologymanager (at most 8 NUMA nodes).
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from cpupool.config import document, kubelet_memory, kubelet_start
from cpupool.config.document import Origin, Table
from cpupool.config.kubelet_settings import (
    CPU_MANAGER,
    CPU_MANAGER_OPTIONS,
    CPUS,
    FEATURE_GATES,
    KIND,
    KUBE,
    KUBE_CGROUP,
    MEMORY_MANAGER,
    NO_MEMORY_MANAGER,
    SYSTEM,
    SYSTEM_CGROUP,
    TOPOLOGY_MANAGER,
    TOPOLOGY_OPTIONS,
    TOPOLOGY_SCOPE,
    KubeletConfig,
    KubeletNeeds,
)
from cpupool.config.kubelet_sources import merged, overridden
from cpupool.config.reader import Reader
from cpupool.core import quantity
from cpupool.core.cpu_manager import NONE, STATIC, TRUTH_VALUES, Scope
from cpupool.core.cpuset import CPUSet, format_ids
from cpupool.core.errors import (
    Problem,
    QuantityError,
    Severity,
    refuse_errors,
)
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.quantity import as_quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cpupool.config.document import Value

_CONFIGZ: Final = "kubeletconfig"
"""The key under which /configz holds the configuration, without a kind of its own."""
_CGROUPS: Final = (SYSTEM_CGROUP, KUBE_CGROUP)


def parse(name: str, text: str | bytes) -> KubeletConfig:
    """Read a KubeletConfiguration, or the kubelet's answer to /configz, as YAML or JSON.

    Raises:
        ConfigError: it is something else, or a value that matters here cannot be read.
    """
    root, wrapped = _read(name, text)
    return _config(wrapped or root, complete=wrapped is not None)


def table(name: str, text: str | bytes) -> Table:
    """Read a KubeletConfiguration, or the answer to /configz, to merge it with others.

    Raises:
        ConfigError: it is something else.
    """
    root, wrapped = _read(name, text)
    return wrapped or root


def effective(
    file: Table, drop_ins: Sequence[Table], flags: Table, *, complete: bool
) -> KubeletConfig:
    """Return the configuration that the kubelet uses.

    Args:
        file: the settings in the kubelet's file.
        drop_ins: those in the files of its folder, in the order of merging.
        flags: those on its command line.
        complete: as the attribute.

    Raises:
        ConfigError: a value that matters here cannot be read.
    """
    return _config(overridden(merged(file, *drop_ins), flags), complete=complete)


def _read(name: str, text: str | bytes) -> tuple[Table, Table | None]:
    """Return the document, and the configuration in an answer of /configz."""
    reader = Reader([])
    root = reader.part(document.read(text, Origin(name), reader.problems))
    refuse_errors(reader.problems)
    wrapped = root.get(_CONFIGZ)
    if isinstance(wrapped, Table):
        return root, wrapped
    if reader.word(root.get("kind")) != KIND:
        what = f"this is neither a {KIND} nor an answer of /configz"
        reader.refuse(root, what, "give one of the two")
    refuse_errors(reader.problems)
    return root, None


def _config(written: Table, *, complete: bool) -> KubeletConfig:
    """Read the settings; those of an answer of /configz have paths as those of a file."""
    reader, found = Reader([]), merged(written)
    config = KubeletConfig(
        cpu_manager_policy=reader.word(found.get(CPU_MANAGER)) or NONE,
        cpu_manager_options=reader.words(found.get(CPU_MANAGER_OPTIONS)),
        memory_manager_policy=reader.word(found.get(MEMORY_MANAGER)) or NO_MEMORY_MANAGER,
        topology_manager_policy=reader.word(found.get(TOPOLOGY_MANAGER)) or NONE,
        topology_manager_scope=reader.word(found.get(TOPOLOGY_SCOPE)) or Scope.CONTAINER.value,
        system_reserved_milli=_milli(reader, reader.part(found.get(SYSTEM)).get("cpu")),
        kube_reserved_milli=_milli(reader, reader.part(found.get(KUBE)).get("cpu")),
        reserved_cpus=reader.cpus(found.get(CPUS)) or CPUSet(),
        locations={
            path.removeprefix(f"{_CONFIGZ}."): where
            for path, where in document.locations(found).items()
        }
        | {"": found.location},
        complete=complete,
        topology_manager_options=reader.words(found.get(TOPOLOGY_OPTIONS)),
        feature_gates={
            name: TRUTH_VALUES.get(text, True)
            for name, text in reader.words(found.get(FEATURE_GATES)).items()
        },
        reserved_cgroups=tuple(key for key in _CGROUPS if reader.word(found.get(key))),
        kept_memory=kubelet_memory.kept(reader, found),
        reserved_memory=kubelet_memory.reserved(reader, found),
    )
    refuse_errors(reader.problems)
    return config


def check(config: KubeletConfig, needs: KubeletNeeds) -> tuple[Problem, ...]:
    """Find where a kubelet's configuration and the pools of its node disagree."""
    looks = (_cpu_manager, _reserved_cpus, _reservation, _topology_manager)
    found = [problem for look in looks for problem in look(config, needs)]
    return (*found, *kubelet_start.refusals(config, needs))


def milli_of(text: str) -> int:
    """Read an amount of cpu; as in Kubernetes, less than a milli-CPU becomes one.

    Raises:
        QuantityError: it is none, or a negative one.
    """
    value = quantity.parse(text) * MILLI_PER_CPU
    if not 0 <= value < 2**63:
        raise QuantityError(text, "write an amount of cpu, as 2 or 500m")
    return ceil(value)


def _cpu_manager(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    if config.cpu_manager_policy == STATIC and needs.static:
        if loose := needs.online - needs.given - config.reserved_cpus:
            which = "that no container may own" if needs.chooses else "of shared pools"
            yield config.problem(
                CPUS,
                f"the kubelet gives CPUs {loose} {which} to containers as their own",
                f"set {CPUS} to {needs.reserved_cpus | config.reserved_cpus}",
            )
    elif config.cpu_manager_policy != NONE:
        yield config.problem(
            CPU_MANAGER,
            f"the kubelet's CPU manager is {config.cpu_manager_policy[:63]!r} and"
            f" {'gives out the same CPUs' if needs.chooses else 'writes the same cpusets'}"
            " as cpupool",
            "drain the node, stop the kubelet, set none, delete its cpu_manager_state, start it",
        )
    elif options := " and ".join(config.cpu_manager_options):
        yield config.problem(
            CPU_MANAGER_OPTIONS,
            f"with {CPU_MANAGER}: {NONE} the kubelet does not start, as {options} is set",
            f"remove {CPU_MANAGER_OPTIONS}; the pool file has these options in cpuManager",
        )


def _reserved_cpus(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    listed = config.reserved_cpus
    if absent := listed - needs.online:
        yield config.problem(
            CPUS,
            f"CPUs {absent} are not online, so the kubelet does not start",
            f"list some of {needs.online}",
        )
    amounts_milli = config.system_reserved_milli + config.kube_reserved_milli
    # A kubelet that runs may show the number of the list in systemReserved.
    if listed and amounts_milli not in (0, config.reserved_milli):
        yield config.problem(
            CPUS,
            f"the number of these CPUs, {len(listed)}, takes the place of the cpu in {SYSTEM} and"
            f" {KUBE}",
            "remove one of the two, so that the number is clear",
            Severity.WARNING,
        )


def _reservation(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    path = CPUS if config.reserved_cpus else f"{SYSTEM}.cpu"
    reserved, enough = as_quantity(config.reserved_milli), as_quantity(needs.reserved_milli)
    reserves = f"the kubelet reserves {reserved} cpu, and {_spelled(needs)}"
    lacking_milli = needs.reserved_milli - config.reserved_milli
    surplus_milli = config.reserved_milli - len(needs.online) * MILLI_PER_CPU
    unused_milli = -lacking_milli if needs.chooses else 0
    if lacking_milli > 0:
        given = f"{as_quantity(lacking_milli)} away that the default pool lacks"
        if needs.chooses:
            given = f"{as_quantity(lacking_milli)} cpu away that the CPU manager cannot give"
        yield config.problem(
            path,
            f"{reserves}: the scheduler gives {given}",
            _right_amount(config, needs, path),
        )
    elif surplus_milli > 0:
        yield config.problem(
            path,
            f"{reserved} of {len(needs.online)} CPUs are reserved, so the kubelet does not start",
            f"reserve {enough}",
        )
    elif surplus_milli == 0 and needs.schedulable_milli:
        yield config.problem(
            path,
            f"all {len(needs.online)} CPUs are reserved: a pod that requests cpu finds no room",
            f"reserve {enough} to offer the default pool ({needs.default})",
            Severity.WARNING,
        )
    elif unused_milli > 0:
        unused = f"{as_quantity(unused_milli)} cpu that the CPU manager can give stays unused"
        yield config.problem(
            path,
            f"{reserves}: {unused}",
            _right_amount(config, needs, path),
            Severity.WARNING,
        )


def _right_amount(config: KubeletConfig, needs: KubeletNeeds, path: str) -> str:
    if config.reserved_cpus:
        return f"set {path} to {needs.reserved_cpus}"
    amount_milli = needs.reserved_milli - config.kube_reserved_milli
    if amount_milli < 0:
        return f"set {KUBE}.cpu and {path} to {as_quantity(needs.reserved_milli)} together"
    return f"set {path} to {as_quantity(amount_milli)}"


def _topology_manager(config: KubeletConfig, needs: KubeletNeeds) -> Iterator[Problem]:
    policy = needs.topology_manager_policy
    if config.topology_manager_policy == NONE != policy:
        pools = ", ".join(
            f"{name} (NUMA nodes {format_ids(nodes)})" for name, nodes in needs.spanning.items()
        )
        # It may also be set where cpupool does not look.
        so = "" if config.topology_manager else ", unless a drop-in or a flag sets another policy"
        yield config.problem(
            TOPOLOGY_MANAGER,
            f"with {NONE}, the kubelet does not bring the CPUs of {pools} and a pod's other devices"
            f" together{so}",
            f"set {policy}, or single-numa-node, which refuses pods that one node cannot hold",
            Severity.WARNING,
        )


def _spelled(needs: KubeletNeeds) -> str:
    outside = len(needs.online - needs.default)
    kept = f"; the CPU manager {needs.kept}"
    usual = f", and {as_quantity(needs.usual_milli)} is for daemons" if needs.usual_milli else ""
    return (
        f"{outside} of {len(needs.online)} CPUs are outside the default pool"
        f" ({str(needs.default) or 'empty'}{kept if needs.chooses else ''}){usual}"
    )


def _milli(reader: Reader, value: Value) -> int:
    text = reader.word(value)
    try:
        return milli_of(text) if text else 0
    except QuantityError as error:
        reader.refuse(value, str(error), "write an amount of cpu, as 2 or 500m")
        return 0
