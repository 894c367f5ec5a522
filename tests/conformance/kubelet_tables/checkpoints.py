"""The file `cpu_manager_state`, read and written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.wire import cpu_manager_state
from cpupool.wire.cpu_manager_state import State
from tests.conformance.kubelet_tables.machines import cpus_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.kubelet_tables.machines import Machines, Row


def read(row: Row, _machines: Machines) -> Mapping[str, Any]:
    """Read the file of a row."""
    try:
        return _content(cpu_manager_state.parse(row["text"].encode()))
    except RemoteProtocolError:
        return {"refused": True}


def written(row: Row, _machines: Machines) -> Mapping[str, Any]:
    """Write a state, and read it again; then without its containers."""
    facts = row["state"]
    entries = {pod: cpus_of(parts) for pod, parts in facts["cpus"].items()}
    state = State("none", CPUSet.parse_or_empty(facts["shared"]), entries)
    text = cpu_manager_state.encode(state)
    empty = cpu_manager_state.encode(replace(state, entries={}))
    return {
        **_content(cpu_manager_state.parse(text)),
        "cpus_then": _content(cpu_manager_state.parse(empty))["cpus"],
        "checksum": json.loads(text)["checksum"],
    }


def _content(state: State) -> dict[str, Any]:
    return {
        "refused": False,
        "policy": state.policy,
        "shared": str(state.default_cpus),
        "cpus": {pod: _texts(parts) for pod, parts in state.entries.items()},
        "cpus_of_pods": _texts(state.pods),
        "cpus_by_id": _texts(state.by_id),
    }


def _texts(sets: Mapping[str, CPUSet]) -> dict[str, str]:
    return {name: str(cpus) for name, cpus in sets.items()}
