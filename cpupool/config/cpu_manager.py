"""The CPU manager of a pool file: its keys, and the rules for the CPUs that it reserves.

The option names, their values and their conflicts are those of the kubelet's
`cpuManagerPolicyOptions` (pkg/kubelet/cm/cpumanager/policy_options.go), and as in the kubelet the
policy `none` takes no options, and the policy `static` needs reserved CPUs (policy_static.go).
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from cpupool.config.document import Listing, Table, Text
from cpupool.config.reader import WHOLE_NUMBER, entries
from cpupool.core import default_pool, quantity, withheld
from cpupool.core.cpu_manager import (
    COMPACTION,
    CPU_MANAGER,
    CPUS,
    ELIGIBLE,
    ENABLE,
    MAX_NOTICE,
    MIN_PERCENT,
    MINIMUM_AGE,
    MOST_AGE_S,
    MOST_MOVES,
    MOST_NOTICE_S,
    MOVES_PER_HOUR,
    NAMESPACES,
    NONE,
    ON_MISFIT,
    OPTIONS,
    POD_LEVEL,
    POLICY,
    RESERVED,
    SUPPRESSION,
    SYSTEM_CPUS,
    SYSTEM_PODS,
    THRESHOLD_PERCENT,
    TOPOLOGY_POLICY,
    TOPOLOGY_SCOPE,
    TRUTH_VALUES,
    USUAL_AGE_S,
    USUAL_MOVES,
    USUAL_NOTICE_S,
    Compaction,
    CPUManager,
    Eligible,
    Misfit,
    Scope,
    StaticOptions,
    Suppression,
    SystemPods,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, Problem, QuantityError, Severity
from cpupool.core.names import DNS_LABEL
from cpupool.core.pools import PoolKind
from cpupool.core.suggestions import hint, nearest
from cpupool.policies.built_in import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cpupool.config.document import Value
    from cpupool.config.reader import Reader
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.policies.base import CPUManagerPolicy

_KEYS: Final = (
    POLICY,
    RESERVED,
    OPTIONS,
    TOPOLOGY_POLICY,
    TOPOLOGY_SCOPE,
    ON_MISFIT,
    SUPPRESSION,
    MAX_NOTICE,
    ELIGIBLE,
    SYSTEM_PODS,
    POD_LEVEL,
    COMPACTION,
)
_TOPOLOGY_POLICIES: Final = {policy.value: policy for policy in TopologyPolicy}
_SCOPES: Final = {scope.value: scope for scope in Scope}
_MISFITS: Final = {misfit.value: misfit for misfit in Misfit}
_ELIGIBLE: Final = {eligible.value: eligible for eligible in Eligible}
_SYSTEM_PODS: Final = (NAMESPACES, CPUS)
_COMPACTION: Final = (MOVES_PER_HOUR, MINIMUM_AGE)
_SUPPRESSION: Final = (ENABLE, THRESHOLD_PERCENT, MIN_PERCENT)
_PERCENT: Final = {str(percent): percent for percent in range(101)}
_CPU: Final = "cpu"
_MANY: Final = 10**9
_INSTEAD_OF_ZERO: Final = (
    f'write {RESERVED}: 0-0 for CPU 0, which the kubelet\'s reservedSystemCPUs spells "0", or how'
    " many CPUs, 1 or more"
)
_RESERVED_FORM: Final = "write how many CPUs, as 2, or a CPU list, as 0-1,32-33; 2-2 is CPU 2 alone"


class Unusable(NamedTuple):
    """The reason why a policy that is not built in cannot be used here, and the remedy."""

    what: str
    remedy: str


FindPolicy: TypeAlias = "Callable[[str], type[CPUManagerPolicy] | Unusable]"
"""Returns the policy of this name that a package provides."""


def only_built_in(name: str) -> Unusable:
    """Return that no package provides a policy."""
    return Unusable(f"unknown value {name[:63]!r}", hint(name, BUILT_IN))


def read(
    reader: Reader, value: Value, find_policy: FindPolicy
) -> tuple[CPUManager, Problem | None]:
    """Read how containers get the default pool's CPUs; under `none` for a null.

    Args:
        reader: notes what is wrong.
        value: the table `cpuManager`.
        find_policy: finds a policy that is not built in.

    Returns:
        The CPU manager, and why its policy cannot be used here. Whether the rest suits a policy
        that is not known cannot be judged.
    """
    table = reader.table(value, _KEYS)
    if table is None:
        return CPUManager(), None
    written = table.get(POLICY)
    text = reader.text(written)
    policy = text.text if text and text.text else NONE
    found = BUILT_IN.get(policy) or find_policy(policy)
    manager = CPUManager(
        policy,
        _reserved(reader, table.get(RESERVED)),
        _options(reader, table.get(OPTIONS)),
        reader.choice(table.get(TOPOLOGY_POLICY), _TOPOLOGY_POLICIES, TopologyPolicy.NONE),
        reader.choice(table.get(ON_MISFIT), _MISFITS, Misfit.HOLD),
        suppression=_suppression(reader, table.get(SUPPRESSION)),
        topology_scope=reader.choice(table.get(TOPOLOGY_SCOPE), _SCOPES, Scope.CONTAINER),
        max_notice_s=_whole(reader, table.get(MAX_NOTICE), MOST_NOTICE_S, USUAL_NOTICE_S),
        eligible=reader.choice(table.get(ELIGIBLE), _ELIGIBLE, Eligible.POD),
        system_pods=_system_pods(reader, table.get(SYSTEM_PODS)),
        pod_level=_switch(reader, table.get(POD_LEVEL)),
        compaction=_compaction(reader, table.get(COMPACTION)),
        installed=None if policy in BUILT_IN or isinstance(found, Unusable) else found,
    )
    if isinstance(found, Unusable):
        place = (written.path, written.location)
        return manager, Problem(found.what, found.remedy, path=place[0], location=place[1])
    _refuse_strange_settings(reader, policy, found, table)
    if not manager.chooses:
        return CPUManager(declared=not _is_empty(written)), None
    _refuse_strange_options(reader, policy, found, table.get(OPTIONS))
    if manager.topology_policy not in found.topology_policies:
        what = f"the policy {policy} has one set of NUMA nodes for all resources"
        other = next(
            name
            for name, each in BUILT_IN.items()
            if manager.topology_policy in each.topology_policies
        )
        reader.refuse(table.get(TOPOLOGY_POLICY), what, f"write another, or policy: {other}")
    if manager.compaction and (spreading := manager.options.spreading):
        what = f"moves bring CPUs closer together, and {spreading} lays them apart"
        remedy = f"remove {COMPACTION}, or turn {spreading} off"
        reader.refuse(table.get(COMPACTION), what, remedy)
    if manager.topology_scope is Scope.POD:
        _refuse_scope(reader, manager, found, table.get(TOPOLOGY_SCOPE))
    unknown = table.entries.keys() - set(_KEYS)
    misspelt = RESERVED in {nearest(key, _KEYS) for key in unknown}
    if found.needs_reserved and _is_empty(table.get(RESERVED)) and not misspelt:
        reader.refuse(
            table.get(RESERVED),
            f"the policy {policy} needs a reserved CPU, so that the containers without CPUs of"
            " their own always have one",
            _RESERVED_FORM,
        )
    return manager, None


def validate(pools: NodePools, topology: CPUTopology | None) -> Iterator[Problem]:
    """Find everything wrong with the CPU manager's settings, on a machine or without one."""
    manager = pools.cpu_manager
    if manager.chooses:
        yield from manager.options.contradictions(manager.topology_policy)
        yield from _wrongly_reserved(pools, topology)
        yield from _wrong_for_system_pods(pools, topology)
    if manager.compaction and manager.on_misfit is Misfit.FAIL:
        yield _problem(
            f"with {ON_MISFIT}: {Misfit.FAIL.value} no pod waits, so nobody moves to make room",
            f"write {ON_MISFIT}: {Misfit.HOLD.value}, or remove {COMPACTION}",
            Severity.WARNING,
            path=f"{CPU_MANAGER}.{COMPACTION}",
        )


def _refuse_strange_settings(
    reader: Reader, policy: str, kind: type[CPUManagerPolicy], table: Table
) -> None:
    for key, entry in entries(table):
        if key in _KEYS and key not in {POLICY, *kind.settings} and not _is_empty(entry):
            what = f"the policy {policy} has no such setting"
            other = next(name for name, each in BUILT_IN.items() if key in each.settings)
            reader.refuse(entry, what, f"remove it, or write policy: {other}", entry.key)


def _refuse_scope(
    reader: Reader, manager: CPUManager, kind: type[CPUManagerPolicy], value: Value
) -> None:
    remedy = f"write {Scope.CONTAINER.value}"
    if manager.topology_scope not in kind.scopes:
        what = f"the policy {manager.policy} aligns what shares one set of CPUs"
        reader.refuse(value, what, remedy)
    elif not manager.topology_policy.of_kubelet:
        named = manager.topology_policy.value
        what = f"the topology policy {named} has nodes for each resource of a container"
        reader.refuse(value, what, f"{remedy}, or another {TOPOLOGY_POLICY}")


def _refuse_strange_options(
    reader: Reader, policy: str, kind: type[CPUManagerPolicy], value: Value
) -> None:
    # The keys that no policy knows are refused already.
    for name, entry in entries(value if isinstance(value, Table) else None):
        if name in StaticOptions.names() and name not in kind.kubelet_options:
            what = f"the policy {policy} has no such option"
            remedy = f"remove it: {policy} has {' and '.join(kind.kubelet_options) or 'none'}"
            reader.refuse(entry, what, remedy, entry.key)


def _reserved(reader: Reader, value: Value) -> CPUSet | int | None:
    if isinstance(value, Table) and (amount := reader.words(value).get(_CPU)):
        what = "this is a number of CPUs or a CPU list, and no map of amounts as in kubeReserved"
        reader.refuse(value, what, _whole_cpus(amount) or _RESERVED_FORM)
        return None
    text = reader.text(value)
    if text is None or not text.text:
        return None
    written = text.text.strip()
    if WHOLE_NUMBER.fullmatch(written):
        return int(written)
    if not written or written.isdecimal():
        what = f"{written[:63]!r} is not a number of CPUs from 1 to 999999999"
        zero = bool(written) and not written.strip("0")
        reader.refuse(value, what, _INSTEAD_OF_ZERO if zero else _RESERVED_FORM)
        return None
    try:
        return CPUSet.parse(written)
    except CPUSetParseError as error:
        # As the kubelet's --kube-reserved has it: cpu=1500m,memory=1Gi.
        named = dict(part.partition("=")[::2] for part in written.split(","))
        if remedy := _whole_cpus(named.get(_CPU, written)):
            what = f"{written[:63]!r} is an amount of cpu, and only whole CPUs can be kept"
            reader.refuse(value, what, remedy)
        else:
            reader.refuse(value, str(error), _RESERVED_FORM)
        return None


def _whole_cpus(amount: str) -> str:
    """Return what to write in place of an amount of cpu; empty for a text that is none.

    The kubelet's policy `static` rounds up, too (NewStaticPolicy in policy_static.go).
    """
    try:
        count = ceil(quantity.parse(amount.strip()))
    except QuantityError:
        return ""
    if count == 0:
        return _INSTEAD_OF_ZERO
    return f"write {RESERVED}: {count}, the next whole number" if 0 < count < _MANY else ""


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
    """Read how the policy suppresses best-effort pods; None where it does not."""
    table = reader.table(value, _SUPPRESSION)
    if table is None:
        return None
    enabled = _switch(reader, table.get(ENABLE))
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


def _system_pods(reader: Reader, value: Value) -> SystemPods:
    """Read which pods run on which CPUs where nobody else runs; no pods for a null."""
    table = reader.table(value, _SYSTEM_PODS)
    if table is None or not table.entries:
        return SystemPods()
    names = tuple(dict.fromkeys(_namespaces(reader, table.get(NAMESPACES))))
    cpus = reader.cpus(table.get(CPUS))
    if cpus is not None and not cpus:
        what = "system pods need a CPU"
        reader.refuse(table.get(CPUS), what, f"write CPUs of the default pool, or no {SYSTEM_PODS}")
    return SystemPods(names, cpus or CPUSet())


def _namespaces(reader: Reader, value: Value) -> Iterator[str]:
    if not isinstance(value, Listing) or not value.items:
        what = "this must be a list with a namespace"
        reader.refuse(value, what, "write the namespaces of the pods, as [kube-system]")
        return
    for each in value.items:
        text = reader.text(each)
        if text and DNS_LABEL.fullmatch(text.text):
            yield text.text
        elif text:
            what = f"{text.text[:63]!r} is not the name of a namespace"
            remedy = "use up to 63 lower-case letters, digits and -, and no - at the ends"
            reader.refuse(each, what, remedy)


def _compaction(reader: Reader, value: Value) -> Compaction | None:
    """Read how much the agent may move; None for no move."""
    table = reader.table(value, _COMPACTION)
    if table is None or not table.entries:
        return None
    moves = _whole(reader, table.get(MOVES_PER_HOUR), MOST_MOVES, USUAL_MOVES)
    age_s = _whole(reader, table.get(MINIMUM_AGE), MOST_AGE_S, USUAL_AGE_S)
    return Compaction(moves, age_s) if moves else None


def _whole(reader: Reader, value: Value, most: int, usual: int) -> int:
    """Read a whole number up to `most`; return the usual one where there is none."""
    text = reader.text(value)
    if text is None or not text.text:
        return usual
    number = int(text.text) if WHOLE_NUMBER.fullmatch(text.text) else 0
    if not (text.text == "0" or 0 < number <= most):
        what = f"{text.text[:63]!r} is not a whole number from 0 to {most}"
        reader.refuse(value, what, f"write one, as {usual}")
        return usual
    return number


def _switch(reader: Reader, value: Value) -> bool:
    """Read a truth value; false for a null."""
    text = reader.text(value)
    return text is not None and bool(text.text) and _truth(reader, text)


def _truth(reader: Reader, text: Text) -> bool:
    """Take a text for a truth value; false for a text that is none."""
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
    if default is None:
        return
    # A container cannot own an offline CPU, and only an online one serves those that share.
    online = default & topology.online if topology else default
    system = default & pools.cpu_manager.system_pods.cpus
    running = online - system
    there = reserved & running if isinstance(reserved, CPUSet) else CPUSet()
    count = reserved if isinstance(reserved, int) else len(there)
    if count >= len(running):
        which = "CPUs" if online == default else "online CPUs"
        beside = f" beside {SYSTEM_PODS}" if system else ""
        yield _problem(
            f"{count} of the {len(running)} {which} of the default pool{beside} are reserved, so no"
            " container can own a CPU",
            "reserve fewer CPUs, or add CPUs to the default pool",
        )
    elif (
        topology
        and isinstance(reserved, CPUSet)
        and reserved.isdisjoint(online)
        and reserved & topology.present
    ):
        yield _problem(
            f"the reserved {withheld.why(reserved, topology.withheld)}",
            f"{withheld.remedy(reserved, topology.withheld)}, or reserve other CPUs",
            Severity.WARNING,
        )


def _wrong_for_system_pods(pools: NodePools, topology: CPUTopology | None) -> Iterator[Problem]:
    manager = pools.cpu_manager
    cpus, reserved = manager.system_pods.cpus, manager.reserved
    default = _default_cpus(pools, topology)
    if strange := _strange(cpus, default, pools):
        others = "" if default is None else f", which are {default}"
        what = f"CPUs {strange} are not among the default pool's CPUs{others}"
        yield _problem(what, "name other CPUs, or add these to the default pool", path=SYSTEM_CPUS)
    elif isinstance(reserved, CPUSet) and (both := cpus & reserved):
        what = f"CPUs {both} are reserved, too, and nobody but system pods runs on theirs"
        yield _problem(what, f"name other CPUs, here or in {RESERVED}", path=SYSTEM_CPUS)
    elif topology and cpus & topology.present and cpus.isdisjoint(topology.online):
        yield _problem(
            f"the {withheld.why(cpus, topology.withheld)}: system pods share the default pool",
            f"{withheld.remedy(cpus, topology.withheld)}, or name other CPUs",
            Severity.WARNING,
            path=SYSTEM_CPUS,
        )


def _strange(reserved: CPUSet, default: CPUSet | None, pools: NodePools) -> CPUSet:
    """Return those of some CPUs that are not the default pool's, as far as this is known."""
    if default is not None:
        return reserved - default
    return reserved & CPUSet.union(pool.cpus for pool in pools if pool.kind is not PoolKind.DEFAULT)


def _default_cpus(pools: NodePools, topology: CPUTopology | None) -> CPUSet | None:
    """Return the default pool's CPUs.

    None where they follow from a machine, and there is none, or it has none of them: that is a
    problem of the pool.
    """
    configured = pools.of_kind(PoolKind.DEFAULT)
    if topology is not None:
        return default_pool.declared(pools, topology) or (None if configured else CPUSet())
    return configured[0].cpus if configured and configured[0].open_from is None else None


def _problem(
    what: str,
    remedy: str,
    severity: Severity = Severity.ERROR,
    *,
    path: str = f"{CPU_MANAGER}.{RESERVED}",
) -> Problem:
    # Without CPUs: the manager bars the CPUs of a problem that appears on a changed machine.
    return Problem(what, remedy, severity, path=path)
