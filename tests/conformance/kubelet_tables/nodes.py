"""Whole pods on a node, asked through the Manager; NUMA nodes that are given, of the policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cpupool.core.cpu_manager import CPUManager, Scope
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import EmptyPodSharedPoolError, NotEnoughCPUs, SMTAlignmentError
from cpupool.core.grants import Grants
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools
from cpupool.manager.manager import Manager
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.static.policy import StaticPolicy
from cpupool.policies.view import DEFAULT
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.conformance.kubelet_tables.machines import cpus_of, pod_level, pod_of
from tests.conformance.oracle.static_policy import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpu_manager import StaticOptions
    from cpupool.core.errors import PlacementError
    from cpupool.core.workloads import Pod
    from tests.conformance.kubelet_tables.machines import Machines, Row, TableMachine

_POD = "pod"
_ELSEWHERE = "elsewhere"
"""The pod that owns the CPUs that a row's state has neither shared nor owned."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A node as a row describes it, before its pod starts.

    Attributes:
        manager: has adopted the owned CPUs.
        pods: the pods that own CPUs.
    """

    manager: Manager
    pods: Mapping[str, Pod]

    @classmethod
    def of(cls, row: Row, machine: TableMachine, record: State) -> _Node:
        """Start a node with the containers of a record."""
        configured = CPUManager("static", _reserved(row), _options(row))
        if pod_level(row):
            configured = replace(configured, pod_level=True, topology_scope=Scope.POD)
        manager = Manager()
        manager.reconfigure(NodePools.of(cpu_manager=configured), machine.topology)
        pods = {
            name: pod_of({"asks": _owning(row if name == _POD else {}, parts)}, name)
            for name, parts in record.entries.items()
        }
        manager.observe(pods=pods.values())
        manager.adopt((), record)
        return cls(manager, pods)

    @property
    def shared(self) -> str:
        """The CPUs of containers without CPUs of their own."""
        return str(self.manager.snapshot().resolution.view.extents[DEFAULT])

    def own(self, pod: str) -> dict[str, CPUSet]:
        """Return container → the CPUs of its own on which it is placed."""
        snapshot = self.manager.snapshot()
        found = snapshot.resolution.pods[pod]
        return {
            one.name: snapshot.assignment((pod, one.id)).exclusive if one.id else CPUSet()
            for one in found.containers
        }


def restored(row: Row, machines: Machines) -> Mapping[str, Any]:
    """Restore a node's state from a record."""
    owned = {pod: cpus_of(parts) for pod, parts in row["owned"].items()}
    record = State("static", CPUSet.parse_or_empty(row["shared"]), owned)
    node = _Node.of(row, machines[row["machine"]], record)
    return {"refused": False, "shared": node.shared}


def placed(row: Row, machines: Machines) -> Mapping[str, Any]:
    """Start the pod of a row."""
    machine = machines[row["machine"]]
    if "nodes" in row:
        return _near(row, machine)
    owned = _owned(row, machine)
    node = _Node.of(row, machine, State("static", entries=owned))
    beside = owned.get(_POD, {})
    asked = [ask for name, ask in _named(row).items() if name not in beside]
    pod = pod_of({**row, "asks": [*_owning(row, beside), *asked]}, _POD)
    others = [one for name, one in node.pods.items() if name not in {_POD, *row.get("leaves", ())}]
    node.manager.observe(pods=[*others, pod], idle=frozenset(row.get("leaves", ())))
    own = node.own(_POD)
    view = node.manager.snapshot().resolution.view
    refusal, grant = view.refused.get(_POD), view.chosen.get(_POD)
    asked_cpus = CPUSet.union(cpus for name, cpus in own.items() if name not in beside)
    if grant and grant.bubble:
        asked_cpus = grant.cpus
    answer = {
        "admitted": refusal is None,
        "refused": refusal and _facts(refusal.error),
        "cpus": {name: str(own[name]) for name in _named(row) or own},
        "count": len(asked_cpus),
        "uncore_caches": sorted({machine.layout.places[cpu].uncore for cpu in asked_cpus}),
        "shared": node.shared,
    }
    if "ends" in row:
        node.manager.observe(**_ended(pod, others, row["ends"]))
        answer["shared_then"] = node.shared
    return answer


def _ended(pod: Pod, others: list[Pod], ends: list[str]) -> dict[str, Any]:
    """Return what an agent observes once some containers of a pod have ended."""
    containers = tuple(replace(one, id=None) if one.name in ends else one for one in pod.containers)
    finished = not any(one.id for one in containers)
    ended = replace(pod, containers=containers, finished=finished)
    return {"pods": [*others, ended], "idle": frozenset({_POD} if finished else ())}


def _near(row: Row, machine: TableMachine) -> Mapping[str, Any]:
    """Choose CPUs near NUMA nodes that the Topology Manager has chosen."""
    policy = StaticPolicy.of(machine.layout, _options(row), _reserved(row))
    cpus = machine.layout.cpus
    view = builders.view(cpus, Grants(), CPUSet.parse(row.get("shared", str(cpus))))
    (ask,) = row["asks"]
    nodes = frozenset(row["nodes"])
    chosen = policy.choose(
        view, ChoiceRequest(POLICY_CPUS, int(ask["cpu"]), policy.available(view), nodes=nodes)
    )
    return {"cpus": {ask["name"]: str(chosen.cpus)}}


def _owned(row: Row, machine: TableMachine) -> dict[str, dict[str, CPUSet]]:
    """Return pod → container → CPUs; one more pod owns what the row neither shares nor reserves."""
    owned = {pod: cpus_of(parts) for pod, parts in row.get("owned", {}).items()}
    if "shared" not in row:
        return owned
    reserved = StaticPolicy.of(machine.layout, _options(row), _reserved(row)).reserved
    parts = [cpus for containers in owned.values() for cpus in containers.values()]
    known = CPUSet.union([CPUSet.parse_or_empty(row["shared"]), reserved, *parts])
    missing = machine.layout.cpus - known
    return {**owned, _ELSEWHERE: {"all": missing}} if missing else owned


def _owning(row: Row, owned: Mapping[str, CPUSet]) -> list[Row]:
    """Return the requests of containers that own CPUs, as in the row, or as many as they own."""
    asks = _named(row)
    return [asks.get(name, {"name": name, "cpu": str(len(cpus))}) for name, cpus in owned.items()]


def _named(row: Row) -> dict[str, Row]:
    """Return the containers that the row asks for, by their names."""
    return {ask["name"]: ask for ask in row.get("asks", ())}


def _options(row: Row) -> StaticOptions:
    return options(dict.fromkeys(row.get("options", ()), "true"))


def _reserved(row: Row) -> CPUSet | int:
    reserved = row.get("reserved", 0)
    return reserved if isinstance(reserved, int) else CPUSet.parse(reserved)


def _facts(error: PlacementError) -> dict[str, int]:
    """Return the numbers of a refusal."""
    match error:
        case NotEnoughCPUs():
            return {"requested": error.requested, "available": error.available}
        case SMTAlignmentError():
            facts = {"requested": error.requested, "cpus_per_core": error.cpus_per_core}
            return facts if error.available is None else {**facts, "available": error.available}
        case EmptyPodSharedPoolError():
            return {}
    raise error
