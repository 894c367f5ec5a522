"""The recorded lives of nodes under the kubelet's static policy, asked through the manager.

The manager serves whole pods, without the NUMA nodes that the recording hands in at random. So each
recorded step is one more container of a pod that has the others already, and only steps without
such nodes are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cpupool.core import quantity
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Grants, PodOwner
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools
from cpupool.core.topology import NO_CPUS
from cpupool.core.workloads import ContainerKind
from cpupool.manager import choosing
from cpupool.manager.choosing import Admission
from cpupool.manager.facts import NodeFacts
from cpupool.policies.static import StaticPolicy
from tests import builders
from tests.conformance.oracle.static_policy import options
from tests.conformance.oracle.verdicts import read_cases, read_machines
from tests.conformance.test_oracle import DATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import Container
    from tests.conformance.oracle.verdicts import Case

FOLDER = DATA / "kubelet_oracle"
EMPTY = (89, 97, 106, 122, 140, 175, 192, 255, 268, 299, 100021, 100099)
"""The lives in which the kubelet's shared CPUs run out: all with strict-cpu-reservation. They run
out in life 100097, too, after the kubelet has given a CPU twice."""
OVERWRITTEN = {27, 100082}
"""The lives with a step in which the kubelet overwrites the nodes that it has found best (quirk 2
in the recordings' README)."""
COMPARED = 1_612
"""The steps in which the manager's answer is compared with the kubelet's."""


class Compared(NamedTuple):
    """One step: the manager's answer beside the kubelet's."""

    life: int
    manager: str
    kubelet: str
    empties: bool


@pytest.fixture(scope="module")
def steps() -> list[Compared]:
    machines = read_machines(FOLDER)
    found: list[Compared] = []
    for _, case in read_cases(FOLDER / "static_policy.jsonl.gz"):
        if "new_error" not in case:
            policy = StaticPolicy.of(
                machines[case["topo"]],
                options(case["options"]),
                CPUSet.parse(case["reserved_arg"]) or case["num_reserved"],
            )
            found += lived(case, policy)
    return found


def lived(case: Case, policy: StaticPolicy) -> Iterator[Compared]:
    """Live a life, as long as grants can hold what the kubelet has written down."""
    grants = Grants()
    containers: dict[str, list[Container]] = {}
    for step in case["steps"]:
        pod, name = step["pod"], step["container"]
        if step["op"] == "remove":
            left = dict(grants.parts(pod, POLICY_CPUS))
            left.pop(name, None)
            grants = grants.without({PodOwner(pod)}).adding(
                builders.chosen(pod, other, cpus) for other, cpus in left.items()
            )
            containers[pod] = [one for one in containers.get(pod, ()) if one.name != name]
            continue
        if "unsafe" in step or step.get("error", "").startswith("PANIC"):
            # The kubelet gives a CPU twice, or crashes; grants cannot hold what follows.
            return
        milli = int(quantity.parse(step["cpu"]) * 1000)
        kind = ContainerKind.INIT if step.get("init") else ContainerKind.APP
        new = builders.container(name, kind, cpu=milli)
        known = [one for one in containers.get(pod, ()) if one.name != name]
        empties = "assigned" in step and not step["default_set"]
        if new.whole_cpus and (step["hint"] is None or empties):
            answer = admitted(policy, grants, pod, [*known, new])
            yield Compared(case["i"], answer, step.get("assigned", "refused"), empties)
        if "assigned" in step:
            grants = grants.adding([builders.chosen(pod, name, CPUSet.parse(step["assigned"]))])
            containers[pod] = [*known, new]


def admitted(policy: StaticPolicy, grants: Grants, name: str, containers: list[Container]) -> str:
    """Return the CPUs that the manager gives the last container of a pod, or `refused`."""
    cpus = policy.layout.cpus
    pod = replace(builders.pod(name, *containers), cgroup_uid=name)
    facts = NodeFacts(
        pools=NodePools.of(cpu_manager=CPUManager("static", policy.reserved)),
        topology=replace(NO_CPUS, online=cpus, present=cpus),
        policy=policy,
    )
    made = choosing.admit(facts, (pod,), Admission(grants))
    return str(made.grants.part(name, POLICY_CPUS, containers[-1].name)) or "refused"


def test_the_manager_answers_as_the_kubelet(steps: list[Compared]) -> None:
    compared = [step for step in steps if not step.empties]
    assert {step.life for step in compared if step.manager != step.kubelet} == OVERWRITTEN
    assert len(compared) == COMPARED


def test_the_manager_never_gives_the_last_shared_cpus(steps: list[Compared]) -> None:
    emptied = [step for step in steps if step.empties]
    assert {step.manager for step in emptied} == {"refused"}
    assert tuple(dict.fromkeys(step.life for step in emptied)) == EMPTY
