"""After any history of a node, the placements that stay are those that new ones would be.

The policies here read every field of their view, and no placement of theirs is out of date.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import NONE, STATIC, CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import NodeRules, Orchestration, QoS
from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer
from cpupool.core.pod_resources import CPU
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerRef, RuntimeContainer
from cpupool.manager import resolve, sightings
from cpupool.manager.choosing import Choices
from cpupool.manager.manager import Manager
from cpupool.policies.koordinator.policy import KOORDINATOR, KoordinatorPolicy
from cpupool.policies.none.policy import NonePolicy
from cpupool.policies.qrm.policy import QRM, QRMPolicy
from cpupool.policies.static.policy import StaticPolicy
from cpupool.policies.view import NodeView
from tests import builders
from tests.machines import MACHINES
from tests.searching import examples

if TYPE_CHECKING:
    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import ContainerToPlace, CPUManagerPolicy

MACHINE = MACHINES["arm_no_smt"]
LINES = (
    Pool.named("exclusive_a", "8-9"),
    Pool.named("shared_a", "10-11"),
    Pool.named("default", "0-7"),
)
FIELDS = [field.name for field in fields(NodeView)]
KINDS = (
    builders.container(cpu=1000),
    builders.container(cpu=2000),
    builders.container(),
    *(builders.container(exclusive_a=1, shared_a=1) for _ in range(3)),
)
"""What each pod requests; the kubelet gives the CPU of the last three to each of them."""
PODS = st.integers(0, len(KINDS) - 1)


BASES: dict[str, type[CPUManagerPolicy]] = {
    NONE: NonePolicy,
    STATIC: StaticPolicy,
    KOORDINATOR: KoordinatorPolicy,
    QRM: QRMPolicy,
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["comes", "ends", "starts", "given", "told", "offline", "edited", "kept"]),
        PODS,
    ),
    max_size=12,
)


def nosy(base: type[CPUManagerPolicy], read: str) -> type[CPUManagerPolicy]:
    """Make a policy that says in each reason what it has read in the view."""

    def place(self: CPUManagerPolicy, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        made = base.place(self, view, to_place)
        return replace(made, reason=f"{made.reason}; {read}: {getattr(view, read)}")

    return type("Nosy", (base,), {"place": place})


class Node:
    """A node with a pod of each kind, to which anything happens."""

    def __init__(self, policy: str, read: str) -> None:
        made = nosy(BASES[policy], read)
        self.policy, self.made = policy, made
        self.manager = Manager(moves_pinned=False)
        self.there = {number: self.pod(number) for number in range(len(KINDS))}
        self.offline = self.edits = self.answers = 0
        self.edited()
        self.manager.observe(pods=self.there.values())
        self.manager.adopt(())
        for number in range(3, len(KINDS)):
            self.happens("given", number)

    def edited(self) -> None:
        lines = LINES if self.edits % 2 == 0 else (Pool.named("shared_a", "9-11"), LINES[-1])
        reserved = None if self.policy == NONE else CPUSet.of(0)
        manager = CPUManager(self.policy, reserved, installed=self.made)
        self.manager.reconfigure(NodePools.of(*lines, cpu_manager=manager), self.topology())
        self.edits += 1

    def topology(self) -> CPUTopology:
        return MACHINE.without(("", "2", "8")[self.offline % 3]).topology()

    def pod(self, number: int) -> Pod:
        name = f"pod{number}"
        identifier = ContainerID(f"{name}-main")
        container = replace(KINDS[number], id=identifier, quantities={"cpu": 2.0, "memory": 1.0})
        made = builders.pod(name, container)
        if self.policy == KOORDINATOR and number < 2:
            return replace(made, orchestration=Orchestration(QoS.LSR, prod=True), level_milli=2000)
        return made

    def happens(self, event: str, number: int) -> None:
        pod, manager = self.there.get(number) or self.pod(number), self.manager
        ref = ContainerRef(pod.cgroup_uid, "main")
        facts = manager.snapshot().facts
        match event:
            case "comes":
                self.there[number] = self.pod(number)
                manager.observe(pods=self.there.values())
            case "ends":
                self.there.pop(number, None)
                manager.observe(pods=self.there.values(), idle=frozenset({pod.cgroup_uid}))
            case "starts":
                again = ContainerID(f"{pod.name}-{len(facts.sighted)}")
                found = RuntimeContainer(again, pod.cgroup_uid, "default", pod.name, "main")
                manager.observe_containers([found])
            case "given":
                manager.accept(builders.given(pod, exclusive_a="8", shared_a=f"{number}"))
            case "told":
                self.answers += 1
                nodes = AnswerPart("CpusetMems", f"{self.answers % 2}", 1.0)
                own = RecordedAnswer(
                    3.0, {CPU: AnswerPart("CpusetCpus", f"{1 + number}", 1.0)}, exclusive=True
                )
                shared = replace(own, exclusive=False)
                told = {
                    CPU: own if number < 2 else shared,
                    "memory": RecordedAnswer(1.0, {"memory": nodes}),
                }
                record = {**facts.plugins.answers, ref: told}
                manager.observe(plugins=PluginFacts(answers=record, enabled=self.answers % 3 > 0))
            case "offline":
                self.offline += 1
                manager.update_topology(self.topology())
            case "edited":
                self.edited()
            case "kept":
                rules = NodeRules(faults=(f"fault {number}",))
                manager.observe(rules=rules, static_cpus=CPUSet.of(*range(12, 12 + number)))

    def check(self) -> None:
        facts, resolution = self.manager.snapshot()
        decided = Choices.of(resolution.view)
        anew = resolve.resolve(facts, sightings.present(facts), decided)
        assert resolution.containers == anew.containers


@pytest.mark.parametrize("policy", BASES)
@given(read=st.sampled_from(FIELDS), steps=STEPS)
@examples(200)
def test_a_placement_that_stays_is_the_one_that_would_be_made(
    policy: str, read: str, steps: list[tuple[str, int]]
) -> None:
    node = Node(policy, read)
    for event, number in steps:
        node.happens(event, number)
        node.check()
