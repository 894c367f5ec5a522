"""A policy's settings, hints and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cpupool.config import poolconfig
from cpupool.core.cpu_manager import Scope
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, SMTAlignmentError
from cpupool.core.names import POLICY_CPUS, Names
from cpupool.manager.manager import Manager
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.static.policy import StaticPolicy
from tests.conformance.kubelet_tables.machines import pod_level, pod_of
from tests.conformance.oracle.cpu_hints import listed
from tests.conformance.oracle.static_policy import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.kubelet_tables.machines import Machines, Row


def configured(row: Row, machines: Machines) -> Mapping[str, Any]:
    """Start an agent with the settings of a row, as a pool file."""
    manager = Manager()
    try:
        file = poolconfig.parse("pools.yaml", json.dumps({"cpuManager": row["settings"]}), Names())
        if "machine" in row:
            manager.reconfigure(file.pools, machines[row["machine"]].topology)
    except ConfigError:
        return {"refused": True}
    snapshot = manager.snapshot()
    return {
        "refused": False,
        "policy": file.pools.cpu_manager.policy,
        "options": list(file.pools.cpu_manager.options.written()),
        "allocatable": str(snapshot.facts.policy.available(snapshot.resolution.view)),
    }


def hinted(row: Row, machines: Machines) -> Mapping[str, Any]:
    """Offer NUMA nodes for the only container of a pod, and for the pod as a whole."""
    switched = options(dict.fromkeys(row.get("options", ()), "true"))
    policy = StaticPolicy.of(machines[row["machine"]].layout, switched, CPUSet())
    scopes = {"hints": Scope.CONTAINER, "hints_of_pod": Scope.POD}
    return {
        answer: _offered(row, replace(policy, pod_level=scope if pod_level(row) else None))
        for answer, scope in scopes.items()
    }


def _offered(row: Row, policy: StaticPolicy) -> list[Any]:
    pod = pod_of(row)
    requests = policy.requests(pod)
    if not requests:
        return []
    (count,) = requests.values()
    has = CPUSet.parse_or_empty(row.get("has", ""))
    free = CPUSet.parse_or_empty(row.get("available", ""))
    return listed(policy.hints(ChoiceRequest(POLICY_CPUS, count, free, has=has, pod=pod)))


def worded(row: Row, _machines: Machines) -> Mapping[str, Any]:
    """Word a refusal as the kubelet does."""
    return {"text": SMTAlignmentError(**row["refused"]).as_kubelet}
