"""A policy's settings, hints and refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cpupool.config import poolconfig
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, SMTAlignmentError
from cpupool.core.names import POLICY_CPUS, Names
from cpupool.manager.manager import Manager
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.static.policy import StaticPolicy
from tests.conformance.kubelet_tables.machines import pod_of
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
    """Offer NUMA nodes for the only container of a pod: the same for the container and the pod."""
    switched = options(dict.fromkeys(row.get("options", ()), "true"))
    policy = StaticPolicy.of(machines[row["machine"]].layout, switched, CPUSet())
    requests = policy.requests(pod_of(row))
    if not requests:
        return {"hints": [], "hints_of_pod": []}
    (count,) = requests.values()
    has = CPUSet.parse_or_empty(row.get("has", ""))
    offer = policy.hints(
        ChoiceRequest(POLICY_CPUS, count, CPUSet.parse_or_empty(row.get("available", "")), has=has)
    )
    return {"hints": listed(offer), "hints_of_pod": listed(offer)}


def worded(row: Row, _machines: Machines) -> Mapping[str, Any]:
    """Word a refusal as the kubelet does."""
    return {"text": SMTAlignmentError(**row["refused"]).as_kubelet}
