"""The CPU Manager's proposal: its table of pods, and the affinity that it shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cpupool.core.cpuset import CPUSet
from tests.machines import Machine
from tests.scenarios.seeds.examples import node, placed, text

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = Machine(cores=4, threads=2)
"""CPU 0 and 4 are a core."""
ROW = re.compile(r"^\| Pod \[(\w+)\]:?(.*) \| (.*) \|$", re.MULTILINE)
CONTAINER = re.compile(r"&emsp;(\w):<br />&emsp;&emsp;cpu: ([\d.]+)")
RESOURCES = {
    "Guaranteed": {"limits": {"memory": "1Gi"}},
    "Burstable": {"requests": {"cpu": "2"}},
    "BestEffort": {},
}


def pod(qos: str, containers: list[tuple[str, str]]) -> dict[str, Any]:
    """Make the pod of a row: its class, and the cpu of each container."""
    listed = []
    for name, cpu in containers or [("A", "")]:
        resources = {part: {**amounts} for part, amounts in RESOURCES[qos].items()}
        if cpu:
            resources["limits"]["cpu"] = cpu
        listed.append({"name": name, "resources": resources})
    return {"kind": "Pod", "metadata": {"name": "pod"}, "spec": {"containers": listed}}


def test_each_pod_of_the_table_has_its_cpus(folder: Path) -> None:
    rows = ROW.findall(text("cpu_manager/pods.md"))
    assert len(rows) == 6
    with node(folder, MACHINE, "cpu_manager/pools.yaml") as live:
        for qos, containers, expected in rows:
            started = live.run_pod(pod(qos, CONTAINER.findall(containers)))
            found = [f"{name[-1]}: {cpus}" for name, cpus in placed(live).items() if name[3:]]
            assert ", ".join(found) == expected, containers
            live.end(started)


def test_a_container_finds_the_affinity_that_the_proposal_shows(folder: Path) -> None:
    shown = dict(re.findall(r"(\w+):\s+(\S+)", text("cpu_manager/affinity.txt")))
    cpus = shown["Cpus_allowed_list"]
    assert sum(1 << cpu for cpu in CPUSet.parse(cpus)) == int(shown["Cpus_allowed"], 16)
    with node(folder, MACHINE, "cpu_manager/pools.yaml") as live:
        live.run_pod(pod("Guaranteed", [("A", "6")]))
        assert placed(live)["pod/A"] == cpus
        (main,) = (each for each in live.node.processes() if each.container)
        assert main.instance.environment["EXCLUSIVE_CPUS"] == cpus
