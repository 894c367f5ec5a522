"""The CPU manager of a pool file: its keys, and the rules for the CPUs that it reserves.

The option names, their values and their conflicts are those of the kubelet's
`cpuManagerPolicyOptions` (pkg/kubelet/cm/cpumanager/policy_options.go), and as in the kubelet the
policy `none` takes no options, and the policy `static` needs reserved CPUs (policy_static.go).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.config.document import Table, Text
from cpupool.config.reader import WHOLE_NUMBER, entries, nearest
from cpupool.core.cpu_manager import (
    CPU_MANAGER,
    CPU_MANAGER_POLICIES,
    ENABLE,
    KOORDINATOR,
    MIN_PERCENT,
    NONE,
    ON_MISFIT,
    OPTIONS,
    POLICY,
    QRM,
    RESERVED,
    STATIC,
    SUPPRESSION,
    THRESHOLD_PERCENT,
    TOPOLOGY_POLICY,
    TOPOLOGY_SCOPE,
    TRUTH_VALUES,
    CPUManager,
    Misfit,
    Scope,
    StaticOptions,
    Suppression,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, Problem, Severity
from cpupool.core.pools import PoolKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.config.document import Value
    from cpupool.config.reader import Reader
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

_KEYS: Final = (
    POLICY,
    RESERVED,
    OPTIONS,
    TOPOLOGY_POLICY,
    TOPOLOGY_SCOPE,
    ON_MISFIT,
    SUPPRESSION,
)
_TOPOLOGY_POLICIES: Final = {policy.value: policy for policy in TopologyPolicy}
_SCOPES: Final = {scope.value: scope for scope in Scope}
_MISFITS: Final = {misfit.value: misfit for misfit in Misfit}
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    KOORDINATOR: ("full-pcpus-only", "distribute-cpus-across-numa"),
    QRM: (),
}
"""The kubelet's options that a policy follows, where it does not follow all."""
_SUPPRESSION: Final = (ENABLE, THRESHOLD_PERCENT, MIN_PERCENT)
_PERCENT: Final = {str(percent): percent for percent in range(101)}
_RESERVED_FORM: Final = "write how many CPUs, as 2, or a CPU list, as 0-1,32-33; 2-2 is CPU 2 alone"


def read(reader: Reader, value: Value, known: Collection[str]) -> CPUManager:
    """Read how containers get the default pool's CPUs; under `none` for a null.

    Args:
        reader: notes what is wrong.
        value: the table `cpuManager`.
        known: the policies that it can name.
    """
    table = reader.table(value, _KEYS)
    if table is None:
        return CPUManager()
    named = table.get(POLICY)
    reader.choice(named, {name: name for name in known}, NONE)
    # The name of an unknown policy stays: other rules find what else is wrong with such a file.
    policy = named.text if isinstance(named, Text) and named.text else NONE
    manager = CPUManager(
        policy,
        _reserved(reader, table.get(RESERVED)),
        _options(reader, table.get(OPTIONS)),
        reader.choice(table.get(TOPOLOGY_POLICY), _TOPOLOGY_POLICIES, TopologyPolicy.NONE),
        reader.choice(table.get(ON_MISFIT), _MISFITS, Misfit.HOLD),
        suppression=_suppression(reader, table.get(SUPPRESSION)),
        topology_scope=reader.choice(table.get(TOPOLOGY_SCOPE), _SCOPES, Scope.CONTAINER),
    )
    if not manager.chooses:
        _refuse_settings_of_none(reader, table)
        return CPUManager(declared=not _is_empty(named))
    if policy in _OPTIONS:
        _refuse_strange_options(reader, policy, table.get(OPTIONS))
    if policy != QRM and not manager.topology_policy.of_kubelet:
        what = f"the policy {policy} has one set of NUMA nodes for all resources"
        reader.refuse(table.get(TOPOLOGY_POLICY), what, f"write another, or policy: {QRM}")
    if manager.topology_scope is Scope.POD:
        _refuse_scope(reader, manager, table.get(TOPOLOGY_SCOPE))
    if policy != KOORDINATOR and not _is_empty(suppression := table.get(SUPPRESSION)):
        what = f"the policy {policy} does not suppress best-effort pods"
        reader.refuse(suppression, what, f"remove it, or write policy: {KOORDINATOR}")
    unknown = table.entries.keys() - set(_KEYS)
    misspelt = RESERVED in {nearest(key, _KEYS) for key in unknown}
    if policy in CPU_MANAGER_POLICIES and _is_empty(table.get(RESERVED)) and not misspelt:
        reader.refuse(
            table.get(RESERVED),
            f"the policy {policy} needs a reserved CPU, so that the containers without CPUs of"
            " their own always have one",
            _RESERVED_FORM,
        )
    return manager


def validate(pools: NodePools, topology: CPUTopology | None) -> Iterator[Problem]:
    """Find everything wrong with the CPU manager's settings, on a machine or without one."""
    manager = pools.cpu_manager
    if manager.chooses:
        yield from manager.options.contradictions(manager.topology_policy)
        yield from _wrongly_reserved(pools, topology)


def _refuse_settings_of_none(reader: Reader, table: Table) -> None:
    for key, entry in entries(table):
        if key in _KEYS and key != POLICY and not _is_empty(entry):
            what = f"the policy {NONE} has no such setting"
            other = KOORDINATOR if key == SUPPRESSION else STATIC
            reader.refuse(entry, what, f"remove it, or write policy: {other}", entry.key)


def _refuse_scope(reader: Reader, manager: CPUManager, value: Value) -> None:
    remedy = f"write {Scope.CONTAINER.value}"
    if manager.policy == KOORDINATOR:
        what = f"the policy {KOORDINATOR} aligns what shares one set of CPUs"
        reader.refuse(value, what, remedy)
    elif not manager.topology_policy.of_kubelet:
        named = manager.topology_policy.value
        what = f"the topology policy {named} has nodes for each resource of a container"
        reader.refuse(value, what, f"{remedy}, or another {TOPOLOGY_POLICY}")


def _refuse_strange_options(reader: Reader, policy: str, value: Value) -> None:
    # The keys that no policy knows are refused already.
    for name, entry in entries(value if isinstance(value, Table) else None):
        if name in StaticOptions.names() and name not in _OPTIONS[policy]:
            what = f"the policy {policy} has no such option"
            remedy = f"remove it: {policy} has {' and '.join(_OPTIONS[policy]) or 'none'}"
            reader.refuse(entry, what, remedy, entry.key)


def _reserved(reader: Reader, value: Value) -> CPUSet | int | None:
    text = reader.text(value)
    if text is None or not text.text:
        return None
    written = text.text.strip()
    if WHOLE_NUMBER.fullmatch(written):
        return int(written)
    if not written or written.isdecimal():
        what = f"{written[:63]!r} is not a number of CPUs from 1 to 999999999"
        reader.refuse(value, what, _RESERVED_FORM)
        return None
    try:
        return CPUSet.parse(written)
    except CPUSetParseError as error:
        reader.refuse(value, str(error), _RESERVED_FORM)
        return None


def _options(reader: Reader, value: Value) -> StaticOptions:
    names = StaticOptions.names()
    table = reader.table(value, names)
    chosen = {}
    for name, entry in entries(table):
        text = reader.text(entry) if name in names else None
        if text is not None:
            chosen[names[name]] = _truth(reader, text)
    return StaticOptions(**chosen)


def _suppression(reader: Reader, value: Value) -> Suppression | None:
    """Read how best-effort pods are suppressed; None where they are not."""
    table = reader.table(value, _SUPPRESSION)
    if table is None:
        return None
    enable = reader.text(table.get(ENABLE))
    enabled = enable is not None and bool(enable.text) and _truth(reader, enable)
    usual = Suppression()
    read = Suppression(
        _percent(reader, table.get(THRESHOLD_PERCENT), usual.threshold_percent),
        _percent(reader, table.get(MIN_PERCENT), usual.min_percent),
    )
    if read.min_percent > read.threshold_percent:
        what = (
            f"best-effort pods have {read.min_percent} % in any case, and all pods together may use"
            f" {read.threshold_percent} %"
        )
        reader.refuse(table.get(MIN_PERCENT), what, f"write less than in {THRESHOLD_PERCENT}")
    return read if enabled else None


def _percent(reader: Reader, value: Value, absent: int) -> int:
    text = reader.text(value)
    if text is None or not text.text:
        return absent
    if text.text not in _PERCENT:
        what = f"{text.text[:63]!r} is not a percentage"
        reader.refuse(value, what, "write a whole number from 0 to 100, without the sign")
    return _PERCENT.get(text.text, absent)


def _truth(reader: Reader, text: Text) -> bool:
    """Take a text for a truth value; false for what is none."""
    if text.text not in TRUTH_VALUES:
        reader.refuse(text, f"{text.text[:63]!r} is not a truth value", "write true or false")
    return TRUTH_VALUES.get(text.text, False)


def _is_empty(value: Value) -> bool:
    if isinstance(value, Text):
        return not value.text
    return isinstance(value, Table) and not value.entries


def _wrongly_reserved(pools: NodePools, topology: CPUTopology | None) -> Iterator[Problem]:
    reserved = pools.cpu_manager.reserved
    if reserved is None:
        return
    default = _default_cpus(pools, topology)
    if isinstance(reserved, CPUSet) and (strange := _strange(reserved, default, pools)):
        others = "" if default is None else f", which are {default}"
        what = f"CPUs {strange} are not among the default pool's CPUs{others}"
        yield _problem(what, "reserve other CPUs, or add these to the default pool")
        return
    count = reserved if isinstance(reserved, int) else len(reserved)
    if default is not None and count >= len(default):
        yield _problem(
            f"{count} of the {len(default)} CPUs of the default pool are reserved, so no container"
            " can own a CPU",
            "reserve fewer CPUs, or add CPUs to the default pool",
        )
    elif isinstance(reserved, CPUSet) and topology and reserved.isdisjoint(topology.online):
        yield _problem(
            f"the reserved CPUs {reserved} are offline",
            "switch one of them on, or reserve other CPUs",
            Severity.WARNING,
        )


def _strange(reserved: CPUSet, default: CPUSet | None, pools: NodePools) -> CPUSet:
    """Return the reserved CPUs that are not the default pool's, as far as this is known."""
    if default is not None:
        return reserved - default
    return reserved & CPUSet.union(pool.cpus for pool in pools)


def _default_cpus(pools: NodePools, topology: CPUTopology | None) -> CPUSet | None:
    """Return the default pool's CPUs; None where they follow from a machine, and there is none."""
    if topology is not None:
        return pools.default_cpus(topology)
    configured = pools.of_kind(PoolKind.DEFAULT)
    return configured[0].cpus if configured else None


def _problem(what: str, remedy: str, severity: Severity = Severity.ERROR) -> Problem:
    # Without CPUs: the manager bars the CPUs of a problem that appears on a changed machine.
    return Problem(what, remedy, severity, path=f"{CPU_MANAGER}.{RESERVED}")
