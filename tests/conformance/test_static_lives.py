"""The recorded lives of nodes under the kubelet's static policy, asked through the manager.

The manager serves whole pods, without the NUMA nodes that the recording hands in at random. So each
recorded step is one more container of a pod that has the others already, and only steps without
such nodes are compared.

What follows an init container with CPUs of its own differs on purpose: the manager plans the pod as
a whole, so that it owns as many CPUs as it uses at one time. This promise is checked instead.
"""

from __future__ import annotations

from collections import defaultdict
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
from cpupool.manager.choosing import Choices
from cpupool.manager.facts import NodeFacts
from cpupool.policies.static.policy import StaticPolicy
from tests import builders
from tests.conformance.oracle.static_policy import options
from tests.conformance.oracle.verdicts import read_cases, read_machines
from tests.conformance.test_oracle import DATA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.workloads import Container
    from tests.conformance.oracle.verdicts import Case

FOLDER = DATA / "kubelet_oracle"
EMPTY = (97, 106, 122, 140, 175, 192, 255, 268, 299, 100021, 100099)
"""The lives in which the kubelet's shared CPUs run out: all with strict-cpu-reservation. They run
out in life 100097, too, after the kubelet has given a CPU twice."""
OVERWRITTEN = {27}
"""The lives with a step in which the kubelet overwrites the nodes that it has found best (quirk 2
in the recordings' README)."""
COMPARED = 1_444
"""The steps in which the manager's answer is compared with the kubelet's."""


class Compared(NamedTuple):
    """One step: the manager's answer beside the kubelet's."""

    life: int
    manager: str
    kubelet: str
    empties: bool


class Planned(NamedTuple):
    """A pod with whole CPUs for an init container.

    Attributes:
        life: its node.
        most: how many CPUs of its own it uses at one time.
        has: container → CPUs; empty for a refusal.
        bare: the same without its init containers.
        fits: whether so many are free, and the policy gives out single CPUs.
    """

    life: int
    most: int
    has: Mapping[str, CPUSet]
    bare: Mapping[str, CPUSet]
    fits: bool


@pytest.fixture(scope="module")
def lives() -> list[Compared | Planned]:
    machines = read_machines(FOLDER)
    found: list[Compared | Planned] = []
    for _, case in read_cases(FOLDER / "static_policy.jsonl.gz"):
        if "new_error" not in case:
            policy = StaticPolicy.of(
                machines[case["topo"]],
                options(case["options"]),
                CPUSet.parse(case["reserved_arg"]) or case["num_reserved"],
            )
            found += lived(case, policy)
    return found


@pytest.fixture(scope="module")
def steps(lives: list[Compared | Planned]) -> list[Compared]:
    return [found for found in lives if isinstance(found, Compared)]


def lived(case: Case, policy: StaticPolicy) -> Iterator[Compared | Planned]:
    """Live a life, as long as grants can hold what the kubelet has written down."""
    grants = Grants()
    containers: dict[str, list[Container]] = {}
    pods: dict[str, list[Container]] = defaultdict(list)
    for step in case["steps"]:
        if step["op"] == "allocate":
            pods[step["pod"]].append(container(step))
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
        new = container(step)
        if own_init(pods[pod]) and pod not in containers:
            yield planned(case["i"], policy, grants, pod, pods[pod])
        known = [one for one in containers.get(pod, ()) if one.name != name]
        empties = "assigned" in step and not step["default_set"]
        if new.whole_cpus and not own_init(known) and (step["hint"] is None or empties):
            answer = str(admitted(policy, grants, pod, [*known, new]).get(name, "refused"))
            yield Compared(case["i"], answer, step.get("assigned", "refused"), empties)
        if "assigned" in step:
            grants = grants.adding([builders.chosen(pod, name, CPUSet.parse(step["assigned"]))])
            containers[pod] = [*known, new]
        containers.setdefault(pod, known)


def own_init(containers: list[Container]) -> bool:
    """Return whether an init container has CPUs of its own."""
    return any(one.whole_cpus for one in containers if one.kind is ContainerKind.INIT)


def container(step: Case) -> Container:
    kind = ContainerKind.INIT if step.get("init") else ContainerKind.APP
    return builders.container(step["container"], kind, cpu=int(quantity.parse(step["cpu"]) * 1000))


def planned(
    life: int, policy: StaticPolicy, grants: Grants, name: str, containers: list[Container]
) -> Planned:
    """Let the manager plan a whole pod, and the pod without its init containers."""
    apps = [one for one in containers if one.kind is ContainerKind.APP]
    inits = [one.whole_cpus for one in containers if one.kind is ContainerKind.INIT]
    most = max(sum(one.whole_cpus for one in apps), *inits)
    free = policy.layout.cpus - policy.reserved - grants.cpus
    last = not policy.reserved or policy.options.strict_cpu_reservation
    fits = most + last <= len(free) and not policy.options.full_pcpus_only
    has, bare = (admitted(policy, grants, name, each) for each in (containers, apps))
    return Planned(life, most, has, bare, fits)


def admitted(
    policy: StaticPolicy, grants: Grants, name: str, containers: list[Container]
) -> Mapping[str, CPUSet]:
    """Return what the manager gives the containers of a pod: container → CPUs."""
    cpus = policy.layout.cpus
    pod = replace(builders.pod(name, *containers), cgroup_uid=name)
    facts = NodeFacts(
        pools=NodePools.of(cpu_manager=CPUManager("static", policy.reserved)),
        topology=replace(NO_CPUS, online=cpus, present=cpus),
        policy=policy,
    )
    made = choosing.choose(facts, (pod,), Choices(grants))
    return made.grants.parts(name, POLICY_CPUS)


def test_the_manager_answers_as_the_kubelet(steps: list[Compared]) -> None:
    compared = [step for step in steps if not step.empties]
    assert {step.life for step in compared if step.manager != step.kubelet} == OVERWRITTEN
    assert len(compared) == COMPARED


def test_the_manager_never_gives_the_last_shared_cpus(steps: list[Compared]) -> None:
    emptied = [step for step in steps if step.empties]
    assert {step.manager for step in emptied} == {"refused"}
    assert tuple(dict.fromkeys(step.life for step in emptied)) == EMPTY


def test_a_pod_owns_what_it_uses_at_one_time(lives: list[Compared | Planned]) -> None:
    planned = [found for found in lives if isinstance(found, Planned)]
    assert len(planned) > 200
    for pod in planned:
        assert pod.has or not pod.fits
        assert len(CPUSet.union(pod.has.values())) == (pod.most if pod.has else 0)
        # The app containers have what the kubelet gives them without init containers.
        assert not pod.has or pod.bare.items() <= pod.has.items()
