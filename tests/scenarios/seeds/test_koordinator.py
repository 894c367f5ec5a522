"""Koordinator's proposal of CPU orchestration: its pod, its node, and the node's object.

Pods of the class LSR stand for those that the proposal lets own CPUs.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cpupool import cli
from cpupool.wire.node_topology import GROUP, PLURAL, V1ALPHA1
from tests.machines import Machine
from tests.scenarios.seeds.examples import node, placed, pod, text
from tests.scenarios.test_agent_process import NODE, living
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.commands.demo.live import LiveNode
    from cpupool.kube.views import Body

MACHINE = Machine(sockets=2, cores=4, threads=2)
"""NUMA node 0 has CPUs 0-3 and 8-11; 0 and 8 are a core, and reserved."""
SPREADS = {"scheduling.koordinator.sh/resource-spec": '{"preferredCPUBindPolicy": "SpreadByPCPUs"}'}
OBJECT = text("koordinator/node-resource-topology.yaml")
VALUE = re.compile(r"^\S+/(\S+): \|-\n", re.MULTILINE)
"""What is before the JSON of an annotation."""


def lsr(name: str, cpu: int, annotations: dict[str, str] | None = None) -> Body:
    labels = {"koordinator.sh/qosClass": "LSR"}
    metadata = {"name": name, "labels": labels, "annotations": annotations or {}}
    resources = {"limits": {"cpu": str(cpu), "memory": "1Gi"}}
    containers = [{"name": "main", "resources": resources}]
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def test_the_pod_has_the_cpus_of_its_status_and_a_spread_pod_one_of_each_core(
    folder: Path,
) -> None:
    with node(folder, Machine(cores=8, threads=2), "koordinator/pools.yaml") as live:
        assigned = live.run_pod(pod("koordinator/pod-indented.yaml"))
        assert placed(live) == {"test-pod/main": "0-3"}
        live.end(assigned)
        # The node of the proposal's text: 8 cores with 16 CPUs.
        live.run_pod(lsr("spread", 8, SPREADS))
        assert placed(live) == {"spread/main": "0-7"}


def test_the_labels_of_the_node_say_how_cpus_are_chosen(folder: Path) -> None:
    labels = yaml.safe_load(text("koordinator/node-indented.yaml"))["metadata"]["labels"]
    with node(folder, MACHINE, "koordinator/node-pools.yaml", labels) as live:
        live.run_pod(lsr("first", 2))
        live.run_pod(lsr("second", 2, SPREADS))
        # BestEffort: it is more than a NUMA node has.
        wide = live.run_pod(lsr("wide", 10))
        assert placed(live) == {
            "first/main": "1,9",
            "second/main": "2,10",
            "wide/main": "3-7,11-15",
        }
        live.end(wide)
        # FullPCPUsOnly.
        odd = live.run_pod(lsr("odd", 3))
        assert "SMT Alignment Error" in live.node.held()[odd.uid]


def words(*, of_nodes: bool) -> list[list[str]]:
    """Return the words of the proposal and what they lead to: key, word, sizes of pods, CPUs."""
    rows = [row.strip("| ").split(" | ") for row in text("koordinator/words.md").splitlines()[2:]]
    return [row for row in rows if ("/" in row[0]) == of_nodes]


def given(live: LiveNode, sizes: str, preferences: dict[str, str] | None = None) -> str:
    """Run pods of some sizes until each has CPUs or is held; return the CPUs as the table does."""
    names = [str(number) for number in range(len(sizes.split(", ")))]
    started = [
        live.run_pod(lsr(name, int(size), preferences))
        for name, size in zip(names, sizes.split(", "), strict=True)
    ]
    found = placed(live)
    for each in started:
        live.end(each)
    return " and ".join(found.get(f"{name}/main", "held") for name in names)


@pytest.mark.parametrize(("label", "word", "sizes", "cpus"), words(of_nodes=True))
def test_each_word_of_a_node_counts(
    folder: Path, label: str, word: str, sizes: str, cpus: str
) -> None:
    with node(folder, MACHINE, "koordinator/node-pools.yaml", {label: word}) as live:
        assert given(live, sizes) == cpus


def test_each_word_of_a_pod_counts(folder: Path) -> None:
    most = {"node.koordinator.sh/numa-allocate-strategy": "MostAllocated"}
    with node(folder, MACHINE, "koordinator/node-pools.yaml", most) as live:
        for key, word, sizes, cpus in words(of_nodes=False):
            spec = json.dumps({"preferredCPUBindPolicy": "SpreadByPCPUs", key: word})
            preferences = {"scheduling.koordinator.sh/resource-spec": spec}
            assert given(live, sizes, preferences) == cpus, word


def shown() -> dict[str, Any]:
    """Return the annotations of the example, by the last part of their names."""
    reader = json.JSONDecoder()
    return {each[1]: reader.raw_decode(OBJECT, each.end())[0] for each in VALUE.finditer(OBJECT)}


def published(folder: Path, machine: Machine, pools: str, owner: Body, cpus: str) -> dict[str, Any]:
    """Return what an agent publishes of a node when this pod owns these CPUs."""
    path = f"/apis/{GROUP}/{V1ALPHA1}/{PLURAL}/{NODE}"
    with living(folder, machine.write(folder), {}) as world:
        world.api.crds = {GROUP: [V1ALPHA1]}
        world.mount.show(node=pools)
        name = owner["metadata"]["name"]
        # An agent that finds the pod with its CPUs need not write the object twice.
        with world.agent_here():
            world.node.run_pod(owner)
            world.await_cpus(**{name: cpus})

        def shows_it() -> bool:
            return world.api.has(path) and name in json.dumps(world.api.kept(path))

        with world.agent("--node-topology", "koordinator"):
            eventually(shows_it, "the object shows the pod")
            kept: dict[str, Any] = world.api.kept(path)
    return kept


def annotated(body: Body) -> dict[str, str]:
    return {key.rpartition("/")[2]: value for key, value in body["metadata"]["annotations"].items()}


def test_an_agent_publishes_the_object(folder: Path) -> None:
    body = lsr("static-guaranteed-pod", 5)
    body["metadata"]["labels"] = {}
    pools = text("koordinator/node-resource-topology-pools.yaml")
    found = published(folder, Machine(cores=9), pools, body, "4-8")
    assert (found["apiVersion"], found["kind"]) == tuple(
        re.findall(r"^(?:apiVersion|kind): (.+)$", OBJECT, re.MULTILINE)
    )
    assert found["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "Koordinator"}
    assert f"topologyPolicies: {json.dumps(found['topologyPolicies'])}" in OBJECT
    told = {key: json.loads(value) for key, value in annotated(found).items()}
    example = shown()
    policy = {**example["cpu-manager-policy"], "reservedCPUs": "0-3"}
    assert told["cpu-manager-policy"] == policy
    assert told["cpu-shared-pools"] == example["cpu-shared-pools"]
    # The proposal's own type has `cpuset` for `cpu`, and no text for `managedByKubelet`.
    (alloc,) = example["pod-cpu-allocs"]
    right = {**alloc, "cpuset": alloc["cpu"], "managedByKubelet": True}
    (ours,) = told["pod-cpu-allocs"]
    assert {**ours, "cpu": alloc["cpu"], "uid": alloc["uid"]} == right
    (zone,) = found["zones"]
    (cpu,) = (each for each in zone["resources"] if each["name"] == "cpu")
    assert (zone["name"], zone["type"]) == ("node-0", "Node")
    # koord-scheduler itself subtracts reserved and owned CPUs from what is allocatable.
    assert cpu == {"name": "cpu", "capacity": "9", "allocatable": "9", "available": "0"}


def test_the_machine_of_the_object_is_shown_as_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Machine(sockets=2).write(folder)
    options = ("--nrt", "koordinator", "--json", "--node-name", "node1")
    assert cli.main(["topology", "--topology", str(folder), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["metadata"]["name"] == "node1"
    assert json.loads(annotated(told)["cpu-topology"]) == shown()["cpu-topology"]
    assert [zone["name"] for zone in told["zones"]] == ["node-0", "node-1"]
