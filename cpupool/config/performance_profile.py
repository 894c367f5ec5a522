"""OpenShift's PerformanceProfile: from its CPU lists to the pools of a node, or to what is wrong.

Sources: openshift/enhancements, node-tuning/mixed-cpu-node-plugin.md (both switches, what may not
overlap, reservedSystemCPUs); openshift/cluster-node-tuning-operator,
pkg/apis/performanceprofile/v2/performanceprofile_types.go and performanceprofile_validation.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, Final

from cpupool.config import document, pool_rules
from cpupool.config.document import Origin, Table
from cpupool.config.pool_rules import MIXED_CPUS, MIXED_POOL
from cpupool.config.reader import Reader
from cpupool.core import pools
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
_READ: Final = frozenset(
    [_CPU, *(f"{_CPU}.{name}" for name in _LIST_OF.values()), _HINTS, _MIXED_CPUS, _NODE_SELECTOR]
)
_TRUTH_VALUES: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE", ""), False),
}
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class PerformanceProfile:
    """What cpupool reads of a profile; no CPU is in two of its lists.

    Attributes:
        name: its name.
        reserved: the CPUs of the system, and of containers that request none.
        isolated: the CPUs that have one owner each, SMT siblings included.
        shared: the CPUs that containers share in addition to isolated ones; there may be none.
        mixed_cpus: the switch of the workload hints.
        node_selector: the labels of the nodes that it is for; without any, every node.
        unread: the fields of its spec that say nothing of pools.
        locations: path of a value → where it stands; "" → where the profile begins.
    """

    name: str
    reserved: CPUSet
    isolated: CPUSet
    shared: CPUSet
    mixed_cpus: bool
    node_selector: Mapping[str, str]
    unread: tuple[str, ...]
    locations: Mapping[str, Location]

    @property
    def mixed(self) -> MixedCPUs | None:
        """Whether OpenShift's resource is offered; both switches must be on."""
        return MixedCPUs(_SHARED) if self.mixed_cpus and self.shared else None

    @property
    def reserved_system_cpus(self) -> CPUSet:
        """The CPUs that the kubelet keeps from pods, as the Node Tuning Operator lists them."""
        return self.reserved | self.shared if self.mixed else self.reserved

    def beside_default(self, topology: CPUTopology | None) -> CPUSet:
        """Return the CPUs to reserve instead if cpupool gives out the isolated ones.

        Pods then request no cpu for them, and what the scheduler counts is the default pool's: as
        `KubeletNeeds.reserved_cpus` of the pools.
        """
        listed = self.isolated | self.shared
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
        name: what to call the file.
        text: what it holds.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    reader = _Reader([])
    root = reader.part(document.read(text, Origin(name), reader.problems))
    reader.check_type(root)
    spec = reader.part(root.get("spec"))
    cpu = reader.part(spec.get("cpu"))
    hints = reader.part(spec.get("workloadHints"))
    lists = reader.read_lists(cpu)
    fields = chain.from_iterable(table.entries.values() for table in (spec, cpu, hints))
    profile = PerformanceProfile(
        name=reader.read_name(reader.part(root.get("metadata")).get("name")),
        reserved=lists["reserved"],
        isolated=lists["isolated"],
        shared=lists["shared"],
        mixed_cpus=reader.truth(hints.get("mixedCpus")),
        node_selector=dict(reader.read_labels(reader.part(spec.get("nodeSelector")))),
        unread=tuple(value.path for value in fields if value.path not in _READ),
        locations=document.locations(root),
    )
    refuse_errors(sorted(reader.problems, key=lambda problem: problem.location or Location(name)))
    return profile


def check(profile: PerformanceProfile, topology: CPUTopology | None) -> tuple[Problem, ...]:
    """Find the rules that its pools break, and the remaining steps for the admin.

    Args:
        profile: the profile.
        topology: the machine; without one the pools are judged by themselves.
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
    if left := topology.online - listed:
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
    """Reads what a profile holds, and notes what is wrong with it."""

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
        if not _SUBDOMAIN.fullmatch(name):
            what = f"{name[:63]!r} is no name of an object"
            self.refuse(value, what, "use small letters, digits, - and .")
        return name

    def read_lists(self, cpu: Table) -> dict[str, CPUSet]:
        """Read the CPU lists, and refuse what is in two of them."""
        lists = {
            name: self._cpus(cpu.get(name), needed=name != _LIST_OF[_SHARED])
            for name in _LIST_OF.values()
        }
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
            if not _is_label(key, text):
                self.refuse(value, "no node has such a label", "write domain/name: value")
            yield key, text

    def _cpus(self, value: Value, *, needed: bool) -> CPUSet:
        cpus = self.cpus(value)
        if cpus is None:
            return CPUSet()
        if needed and not cpus:
            self.refuse(value, "there are no CPUs here", "list some, as in 2-7,12")
        return cpus


def _is_label(key: str, value: str) -> bool:
    domain, slash, name = key.rpartition("/")
    known_domain = not slash or _SUBDOMAIN.fullmatch(domain)
    return bool(known_domain and pools.is_name(name) and (not value or pools.is_name(value)))
