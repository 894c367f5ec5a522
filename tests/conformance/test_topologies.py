"""Every recorded machine reads as independent tools say (`topologies/README.md` of the data)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.topology import CPUTopology, describe
from cpupool.host.sysfs import open_topology
from tests import testdata

if TYPE_CHECKING:
    from pathlib import Path

MACHINES = (
    "alderlake-hybrid-20",
    "arm-phone-3clusters",
    "cpuless-nodes-11",
    "epyc-7451-2s48c",
    "gb10-arm-20",
    "ibm-x3950-96",
    "kunpeng-128",
    "lakefield-hybrid-5",
    "laptop-dell-e4310",
    "multidie-64",
    "opteron-16-cpu4-offline",
    "opteron-48-sparse",
    "power7-256",
    "power7-64",
    "power9-gpu-nodes",
    "riscv-sg2042-64",
    "s390-lpar",
    "sparc64-sparse",
    "vmware-opteron-16",
    "xeon-2s-32",
    "xeon-offline-cpu0-node0",
    "xeon-pmem-80",
    "xeon-x7550-4s64",
)


DESCRIBED = ("online", "cores", "sockets", "dies", "l3", "nodes", "distances", "cpus", "hybrid")


@pytest.fixture(scope="module")
def recorded() -> Path:
    return testdata.folder() / "topologies"


@pytest.fixture(scope="module")
def expected(recorded: Path) -> dict[str, dict[str, Any]]:
    machines: dict[str, dict[str, Any]] = json.loads((recorded / "expected.json").read_text())[
        "machines"
    ]
    return machines


def test_every_recorded_machine_is_listed_here(expected: dict[str, dict[str, Any]]) -> None:
    assert sorted(expected) == sorted(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_machine_reads_as_independent_tools_say(
    name: str, recorded: Path, expected: dict[str, dict[str, Any]]
) -> None:
    truth = expected[name]
    topology = open_topology(str(recorded / truth["file"]))

    described = json.loads(json.dumps(describe(topology)))

    assert described == {key: truth[key] for key in DESCRIBED}
    assert _counts(topology) == truth["counts"]
    for key in ("present", "isolated"):
        if truth[key] is not None:
            assert getattr(topology, key) == CPUSet.parse(truth[key])


def _counts(topology: CPUTopology) -> dict[str, int]:
    return {
        "online": len(topology.online),
        "cores": len(topology.cores),
        "sockets": len(topology.sockets),
        "dies": len(topology.dies),
        "l3": len(topology.l3),
        "nodes": len(topology.nodes),
        "nodes_with_cpus": sum(1 for cpus in topology.nodes.values() if cpus),
        "threads_per_core_max": max(len(core) for core in topology.cores),
    }
