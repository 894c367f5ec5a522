"""The machines of the tables, and the facts that all judges read from a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.topology import CPUFacts, assemble
from cpupool.kube import views
from cpupool.policies.layout import Layout, Level, Place
from tests.conformance.oracle import verdicts

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod

_MEMORY = "1G"


@dataclass(frozen=True, slots=True)
class TableMachine:
    """A machine of the kubelet's tests.

    Attributes:
        layout: the places of its CPUs, under the kubelet's ids.
    """

    layout: Layout

    @property
    def topology(self) -> CPUTopology:
        """What an agent would read on the machine."""
        places, groups = self.layout.places, self.layout.groups
        facts = {
            cpu: CPUFacts(
                core=groups[Level.CORE][place.core],
                socket=groups[Level.SOCKET][place.socket],
                l3=_within(groups[Level.UNCORE][place.uncore], groups[Level.SOCKET][place.socket]),
            )
            for cpu, place in places.items()
        }
        return assemble(
            online=self.layout.cpus,
            present=self.layout.cpus,
            isolated=CPUSet(),
            facts=facts,
            nodes=groups[Level.NODE],
            distances={},
            hybrid={},
        )


Row = Mapping[str, Any]
Machines = Mapping[str, TableMachine]
Judge = Callable[[Row, Machines], Mapping[str, Any]]
"""Answers a row; the keys are those of the row's `kubelet`."""


def document(path: Path) -> Any:
    """Return what a YAML file of this repository says; every process of a run reads them all."""
    return yaml.load(path.read_text(), Loader=yaml.CSafeLoader)


def read_machines(folder: Path) -> Machines:
    """Read the machines of a folder, and those of the kubelet's recordings beside it."""
    recorded = verdicts.read_machines(folder.parent / "kubelet_oracle")
    own = document(folder / "machines.yaml")
    return {
        **{name: TableMachine(layout) for name, layout in recorded.items()},
        **{name: TableMachine(_layout(groups)) for name, groups in own.items()},
    }


def pod_of(row: Row, name: str = "pod") -> Pod:
    """Return the pod of a row, read from its manifest; its UID is its name."""
    asks = row.get("asks", ())
    inits = [ask for ask in asks if "kind" in ask]
    apps = [ask for ask in asks if "kind" not in ask]
    running = row.get("running", True)
    spec = {
        "initContainers": [_container(ask) for ask in inits],
        "containers": [_container(ask) for ask in apps],
        "resources": _resources(row.get("of_pod", {})),
    }
    status = {
        "initContainerStatuses": [_status(ask) for ask in inits if running],
        "containerStatuses": [_status(ask) for ask in apps if running],
    }
    metadata = {"name": name, "uid": name, "namespace": "default"}
    return views.pod({"metadata": metadata, "spec": spec, "status": status}, Names())


def pod_level(row: Row) -> bool:
    """Return whether the row switches the kubelet's gate for pod-level resources on."""
    return row.get("gate") in {"PodLevelResourceManagers", "PodLevelResourceManagers on"}


def cpus_of(facts: Mapping[str, str]) -> dict[str, CPUSet]:
    """Read container → CPUs."""
    return {name: CPUSet.parse_or_empty(text) for name, text in facts.items()}


def _within(group: CPUSet, socket: CPUSet) -> CPUSet | None:
    # The kubelet's tests call a cache that they leave out number 0, also on several sockets.
    return group if group <= socket else None


def _layout(groups: Mapping[str, list[str]]) -> Layout:
    ids: dict[str, dict[int, int]] = {
        level: {cpu: index for index, text in enumerate(listed) for cpu in CPUSet.parse(text)}
        for level, listed in groups.items()
    }
    caches = ids.get("uncore_caches", {})
    return Layout.of(
        {
            cpu: Place(core, ids["sockets"][cpu], ids["nodes"][cpu], caches.get(cpu, 0))
            for cpu, core in ids["cores"].items()
        }
    )


def _container(ask: Row) -> dict[str, Any]:
    found = {"name": ask["name"], "resources": _resources(ask)}
    return {**found, "restartPolicy": "Always"} if ask.get("kind") == "sidecar" else found


def _resources(ask: Row) -> dict[str, Any]:
    if "cpu" not in ask:
        return {}
    return {
        "requests": {"cpu": ask["cpu"], "memory": _MEMORY},
        "limits": {"cpu": ask.get("limit", ask["cpu"]), "memory": _MEMORY},
    }


def _status(ask: Row) -> dict[str, Any]:
    return {"name": ask["name"], "containerID": f"containerd://{ask['name']}-id"}
