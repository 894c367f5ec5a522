"""OpenShift's PerformanceProfile: makes a node's pools of its CPU lists, or finds what is wrong.

Sources: openshift/enhancements, node-tuning/mixed-cpu-node-plugin.md (both switches, what may not
overlap, reservedSystemCPUs); openshift/cluster-node-tuning-operator,
pkg/apis/performanceprofile/v2/performanceprofile_types.go and performanceprofile_validation.go, and
components/kubeletconfig/kubeletconfig.go below pkg/performanceprofile (reservedSystemCPUs).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, Final

from cpupool.config import document, pool_rules
from cpupool.config.document import Origin, Table
from cpupool.config.pool_rules import MIXED_CPUS, MIXED_POOL
from cpupool.config.reader import SUBDOMAIN, Reader, is_label
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    ConfigError,
    Location,
    Problem,
    Severity,
    refuse_errors,
)
from cpupool.core.names import ENABLE_SHARED_CPUS, OPENSHIFT_DOMAIN
from cpupool.core.pools import MixedCPUs, NodePools, Pool, PoolKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.config.document import Value
    from cpupool.core.topology import CPUTopology

_KIND: Final = "PerformanceProfile"
_GROUP: Final = "performance.openshift.io"
_API_VERSIONS: Final = tuple(f"{_GROUP}/{version}" for version in ("v2", "v1", "v1alpha1"))
_UNNAMED: Final = "performance-profile"
_CPU: Final = "spec.cpu"
_HINTS: Final = "spec.workloadHints"
_MIXED_CPUS: Final = f"{_HINTS}.mixedCpus"
_NODE_SELECTOR: Final = "spec.nodeSelector"
_EXCLUSIVE: Final = "exclusive_isolated"
_SHARED: Final = "shared_mixed"
_DEFAULT: Final = "default"
_LIST_OF: Final = {_DEFAULT: "reserved", _EXCLUSIVE: "isolated", _SHARED: "shared"}
"""Pool → the list that it is made of."""
_OVS_DPDK: Final = "ovsDpdk"
_OFFLINED: Final = "offlined"
_LISTS: Final = (*_LIST_OF.values(), _OVS_DPDK, _OFFLINED)
_NEEDED: Final = (_LIST_OF[_DEFAULT], _LIST_OF[_EXCLUSIVE])
_NUMA: Final = "spec.numa"
TOPOLOGY_POLICY: Final = f"{_NUMA}.topologyPolicy"
_READ: Final = frozenset(
    [
        *(_CPU, *(f"{_CPU}.{name}" for name in _LISTS), _HINTS, _MIXED_CPUS),
        *(_NODE_SELECTOR, _NUMA, TOPOLOGY_POLICY),
    ]
)
_POLICIES: Final = {policy.value: policy.value for policy in TopologyPolicy if policy.of_kubelet}
SNIPPET: Final = "kubeletconfig.experimental"
"""The annotation with settings of the kubelet, as JSON."""
DRA: Final = "performance.openshift.io/dra-resource-management"
"""The annotation that hands CPUs to a driver of Dynamic Resource Allocation."""
_TRUTH_VALUES: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE", ""), False),
}


@dataclass(frozen=True, slots=True)
class PerformanceProfile:
    """The parts of a profile that cpupool reads; no CPU is in two of its lists.

    Attributes:
        name: its name.
        reserved: the CPUs of the system, and of containers that request none.
        isolated: the CPUs that have one owner each, SMT siblings included.
        shared: the CPUs that containers share in addition to isolated ones; there may be none.
        mixed_cpus: the switch of the workload hints.
        node_selector: the labels of the nodes that it is for; without any, every node.
        unread: the fields of its spec that say nothing of pools.
        locations: path of a value → where it stands; "" → where the profile begins.
        ovs_dpdk: the CPUs of Open vSwitch, on which no container runs.
        offlined: the CPUs that the machine switches off.
        topology_policy: the policy of the kubelet's Topology Manager; empty where none is named.
        snippet: the kubelet's settings in an annotation, as JSON; empty without it.
        dra: whether a driver of Dynamic Resource Allocation gives out CPUs.
    """

    name: str
    reserved: CPUSet
    isolated: CPUSet
    shared: CPUSet
    mixed_cpus: bool
    node_selector: Mapping[str, str]
    unread: tuple[str, ...]
    locations: Mapping[str, Location]
    ovs_dpdk: CPUSet = field(default_factory=CPUSet)
    offlined: CPUSet = field(default_factory=CPUSet)
    topology_policy: str = ""
    snippet: str = ""
    dra: bool = False

    @property
    def mixed(self) -> MixedCPUs | None:
        """OpenShift's resource; None unless its switch is on and the profile has shared CPUs."""
        return MixedCPUs(_SHARED) if self.mixed_cpus and self.shared else None

    @property
    def reserved_system_cpus(self) -> CPUSet:
        """The CPUs that the kubelet keeps from pods, as the Node Tuning Operator lists them."""
        kept = self.reserved | self.ovs_dpdk
        return kept | self.shared if self.mixed else kept

    def beside_default(self, topology: CPUTopology | None) -> CPUSet:
        """Return the CPUs to reserve instead if cpupool gives out the isolated ones.

        Pods then request no cpu for the isolated CPUs, so the scheduler's cpu must be that of the
        default pool: the result equals `KubeletNeeds.reserved_cpus` of the pools.
        """
        listed = self.isolated | self.shared | self.ovs_dpdk
        return topology.online - self.reserved if topology else listed

    def pools(self, topology: CPUTopology | None) -> NodePools:
        """Make the pools; on a known machine the exclusive one lists one CPU of each core."""
        lists = {
            _DEFAULT: self.reserved,
            _EXCLUSIVE: self.isolated - _further_threads(self.isolated, topology),
            _SHARED: self.shared,
        }
        return NodePools.of(
            *(Pool(name, PoolKind.of_name(name), cpus) for name, cpus in lists.items() if cpus),
            mixed=self.mixed,
        )

    def locate(self, path: str) -> Location:
        """Return the place of a path, or of its nearest parent that is written."""
        while path not in self.locations:
            path = path.rpartition(".")[0]
        return self.locations[path]


def parse(name: str, text: str | bytes) -> PerformanceProfile:
    """Read a profile, as YAML or JSON.

    Args:
        name: the file's name in messages.
        text: its content.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    reader = _Reader([])
    root = reader.part(document.read(text, Origin(name), reader.problems))
    reader.check_type(root)
    spec = reader.part(root.get("spec"))
    cpu = reader.part(spec.get("cpu"))
    hints = reader.part(spec.get("workloadHints"))
    numa = reader.part(spec.get("numa"))
    metadata = reader.part(root.get("metadata"))
    annotations = reader.part(metadata.get("annotations"))
    lists = reader.read_lists(cpu)
    fields = chain.from_iterable(table.entries.values() for table in (spec, cpu, hints, numa))
    profile = PerformanceProfile(
        name=reader.read_name(metadata.get("name")),
        reserved=lists["reserved"],
        isolated=lists["isolated"],
        shared=lists["shared"],
        mixed_cpus=reader.truth(hints.get("mixedCpus")),
        node_selector=dict(reader.read_labels(reader.part(spec.get("nodeSelector")))),
        unread=tuple(value.path for value in fields if value.path not in _READ),
        locations=document.locations(root),
        ovs_dpdk=lists[_OVS_DPDK],
        offlined=lists[_OFFLINED],
        topology_policy=reader.choice(numa.get("topologyPolicy"), _POLICIES, ""),
        snippet=reader.word(annotations.get(SNIPPET)),
        dra=reader.word(annotations.get(DRA)) == "true",
    )
    refuse_errors(sorted(reader.problems, key=lambda problem: problem.location or Location(name)))
    return profile


def check(profile: PerformanceProfile, topology: CPUTopology | None) -> tuple[Problem, ...]:
    """Find the rules that its pools break, and the remaining steps for the admin.

    Args:
        profile: the profile.
        topology: the machine; without one the function judges the pools by themselves.
    """
    broken = (
        replace(problem, path=f"{_CPU}.{_LIST_OF[problem.pool or _DEFAULT]}")
        for problem in pool_rules.validate(profile.pools(topology), topology)
    )
    notes = (_switches(profile), _on_machine(profile, topology), _others(profile))
    return tuple(
        replace(problem, location=profile.locate(problem.path))
        for problem in chain(broken, chain.from_iterable(notes))
    )


def pool_file(profile: PerformanceProfile, topology: CPUTopology | None) -> str:
    """Write the pools as a pool file, for `poolconfig.parse`."""
    made = profile.pools(topology)
    lines = [f"# From the {_KIND} {profile.name}.", "pools:"]
    for pool in made:
        lines += [f"  {pool.name}:", f'    cpus: "{pool.cpus}"']
    if made.mixed:
        lines += [f"{MIXED_CPUS}:", f"  {MIXED_POOL}: {made.mixed.pool}"]
    if profile.node_selector:
        lines.append("nodeSelector:")
        lines += [f'  {key}: "{value}"' for key, value in profile.node_selector.items()]
    return "\n".join(lines) + "\n"


def _further_threads(cpus: CPUSet, topology: CPUTopology | None) -> CPUSet:
    """Return the CPUs whose core has a lower CPU of the set."""
    if topology is None:
        return CPUSet()
    return CPUSet(cpu for cpu in cpus if (topology.core_of(cpu) & cpus).first != cpu)


def _switches(profile: PerformanceProfile) -> Iterator[Problem]:
    if profile.mixed_cpus and not profile.shared:
        yield _note(
            _MIXED_CPUS,
            f"this is true, but {_CPU}.shared lists no CPUs: mixed CPUs stay off",
            "list some there, or remove this line",
        )
    elif profile.shared and not profile.mixed_cpus:
        yield _note(
            f"{_CPU}.shared",
            f"{_MIXED_CPUS} is not true: mixed CPUs stay off, and {_SHARED} is a pool like others",
            f"set it to true to offer {OPENSHIFT_DOMAIN}/{ENABLE_SHARED_CPUS}",
        )


def _on_machine(profile: PerformanceProfile, topology: CPUTopology | None) -> Iterator[Problem]:
    isolated = f"{_CPU}.isolated"
    if topology is None:
        yield _note(
            isolated,
            f"{_EXCLUSIVE} lists all CPUs {profile.isolated}, and a node refuses the pool if two of"
            " them are threads of one core",
            "name the machine with --topology if it has SMT",
        )
        return
    if further := _further_threads(profile.isolated, topology):
        yield _note(
            isolated,
            f"CPUs {further} are threads of cores that {_EXCLUSIVE} lists once, and stay idle",
            f"add hyperThreadingPolicy: multiThreaded to {_EXCLUSIVE} to give them out with their"
            " cores",
        )
    listed = CPUSet.union(pool.reach(topology) for pool in profile.pools(topology))
    elsewhere = profile.ovs_dpdk | profile.offlined
    if on := profile.offlined & topology.online:
        yield _note(
            f"{_CPU}.{_OFFLINED}",
            f"CPUs {on} are online on this machine, so reservedSystemCPUs has them; once they are"
            " off, the kubelet does not start with it",
            "switch them off, and then make the settings again",
        )
    if beside := topology.with_siblings(profile.ovs_dpdk) & (listed - profile.ovs_dpdk):
        yield _note(
            f"{_CPU}.{_OVS_DPDK}",
            f"CPUs {beside} of pools share cores with the CPUs here",
            "list the siblings of these CPUs here, too",
        )
    if left := topology.online - listed - elsewhere:
        yield _note(
            _CPU,
            f"CPUs {left} are in none of the lists, so no container runs there",
            "add them to one, unless they are to stay idle",
        )


def _others(profile: PerformanceProfile) -> Iterator[Problem]:
    if not profile.node_selector:
        yield _note(
            _NODE_SELECTOR,
            "there is none, so the pool file is for every node",
            "add one where other nodes have other pools",
        )
    if profile.unread:
        yield _note(
            "spec",
            f"this is not for cpupool: {', '.join(profile.unread)}",
            "leave it to the Node Tuning Operator, or set up the node accordingly",
        )


def _note(path: str, what: str, remedy: str) -> Problem:
    return Problem(what, remedy, Severity.WARNING, path=path)


class _Reader(Reader):
    """Reads the fields of a profile, and notes the problems in them."""

    __slots__ = ()

    def truth(self, value: Value) -> bool:
        """Take a value for true or false; false for a null."""
        text = self.word(value)
        if text not in _TRUTH_VALUES:
            self.refuse(value, f"{text[:63]!r} is neither true nor false", "write one of the two")
        return _TRUTH_VALUES.get(text, False)

    def check_type(self, root: Table) -> None:
        """Raise ConfigError for any other object of Kubernetes, because its fields differ."""
        kind, version = root.get("kind"), root.get("apiVersion")
        if self.word(kind) != _KIND:
            self.refuse(kind, f"this is no {_KIND}", "give a file with one, and nothing else")
        elif self.word(version) not in _API_VERSIONS:
            what = f"no {_KIND} of this version is known"
            self.refuse(version, what, f"use {' or '.join(_API_VERSIONS)}")
        else:
            return
        raise ConfigError(self.problems)

    def read_name(self, value: Value) -> str:
        """Read the name; the file names contain it."""
        name = self.word(value) or _UNNAMED
        if not SUBDOMAIN.fullmatch(name):
            what = f"{name[:63]!r} is no name of an object"
            self.refuse(value, what, "use small letters, digits, - and .")
        return name

    def read_lists(self, cpu: Table) -> dict[str, CPUSet]:
        """Read the CPU lists, and refuse CPUs that are in two of them."""
        lists = {name: self._cpus(cpu.get(name), needed=name in _NEEDED) for name in _LISTS}
        for first, other in combinations(lists, 2):
            if common := lists[first] & lists[other]:
                value = cpu.get(other)
                self.refuse(
                    value,
                    f"CPUs {common} are also in {_CPU}.{first} ({cpu.get(first).location})",
                    "a CPU is for one of the two: remove them from the other list",
                )
        return lists

    def read_labels(self, table: Table) -> Iterator[tuple[str, str]]:
        """Read the labels that a node must have."""
        for key, value in table.entries.items():
            text = self.word(value)
            if not is_label(key, text):
                self.refuse(value, "no node has such a label", "write domain/name: value")
            yield key, text

    def _cpus(self, value: Value, *, needed: bool) -> CPUSet:
        cpus = self.cpus(value)
        if cpus is None:
            return CPUSet()
        if needed and not cpus:
            self.refuse(value, "there are no CPUs here", "list some, as in 2-7,12")
        return cpus
