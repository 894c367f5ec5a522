from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.koordinator_annotator import CPUAnnotator
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import Orchestration, QoS
from cpupool.core.pools import NodePools, Pool
from cpupool.kube.client import APIError
from cpupool.manager.manager import Manager
from cpupool.telemetry.health import Health
from tests import builders
from tests.loops import running
from tests.machines import MACHINES
from tests.waiting import eventually

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["arm_no_smt"].topology()
POOLS = NodePools.of(
    Pool.named("default", "0-7"), cpu_manager=CPUManager("koordinator", CPUSet.of(0))
)
STATUS = "scheduling.koordinator.sh/resource-status"
LSR = Orchestration(QoS.LSR, prod=True)


@dataclass
class Annotations:
    """An API server that takes what a test lets it take.

    Attributes:
        written: (pod, CPUs) in order.
        refusals: what it answers next.
    """

    written: list[tuple[str, str]] = field(default_factory=list)
    refusals: list[APIError] = field(default_factory=list)
    asked: int = 0
    interrupted: bool = False

    def annotate(self, pod: Pod, key: str, value: str) -> None:
        self.asked += 1
        if self.refusals:
            raise self.refusals.pop(0)
        assert key == STATUS
        status = json.loads(value)
        assert status.pop("chosenBy") == "cpupool"
        self.written.append((pod.name, status.pop("cpuset")))
        assert not status

    def interrupt(self) -> None:
        self.interrupted = True


def refusal(status: int) -> APIError:
    return APIError("patch", "pods/status", "No", "no", status=status)


def pod(name: str, told: Orchestration = LSR, cpu: int = 2, **fields: str) -> Pod:
    container = replace(builders.container(cpu=1000 * cpu), request_milli=1000 * cpu)
    made = replace(builders.pod(name, container), orchestration=told)
    return replace(made, **fields)  # type: ignore[arg-type]


class Node:
    """A node whose agent chooses from seven CPUs, and its CPU annotator."""

    def __init__(self, *pods: Pod, pools: NodePools = POOLS) -> None:
        self.now_s = 100.0
        self.manager, self.annotations = Manager(), Annotations()
        self.manager.reconfigure(pools, MACHINE)
        self.manager.observe(pods=pods)
        self.manager.adopt(())
        self.role = CPUAnnotator(
            self.manager, self.annotations, health=Health(), now_s=lambda: self.now_s
        )

    def written(self) -> list[tuple[str, str]]:
        """Step through two minutes; return what is written."""
        end_s = self.now_s + 120.0
        while self.now_s < end_s:
            self.now_s += self.role.step()
        return self.annotations.written

    def own(self) -> dict[str, str]:
        """Return the pods' own CPUs."""
        chosen = self.manager.snapshot().resolution.grants.chosen
        return {uid.removesuffix("-uid"): str(grant.cpus) for uid, grant in chosen.items()}


def test_each_choice_of_the_agent_is_written_once() -> None:
    node = Node(pod("first", created="1"), pod("second", replace(LSR, qos=QoS.LSE), created="2"))
    assert node.written() == [*node.own().items()] == [("first", "1-2"), ("second", "3-4")]
    assert len(node.written()) == 2


def test_a_pod_with_parts_for_its_containers_has_all_of_them_in_one_annotation() -> None:
    node = Node(pod("lsr", replace(LSR, split=True), cpu=3))
    assert node.written() == [("lsr", "1-3")]


@pytest.mark.parametrize(
    "told",
    [
        replace(LSR, cpus=CPUSet.of(5, 6), scheduled=True),
        replace(LSR, nodes=frozenset({0}), scheduled=True),
    ],
)
def test_what_a_scheduler_has_written_stays(told: Orchestration) -> None:
    node = Node(pod("lsr", told))
    assert node.own().keys() == {"lsr"}
    assert node.written() == []
    assert node.annotations.asked == 0


@pytest.mark.parametrize(
    "other",
    [
        pod("ls", replace(LSR, qos=QoS.LS)),
        pod("broken", replace(LSR, fault="no JSON")),
        pod("large", cpu=8),
        pod("static", cgroup_uid="0123abcd"),
        replace(pod("plain"), orchestration=None),
    ],
    ids=lambda pod: pod.name,
)
def test_other_pods_are_not_written(other: Pod) -> None:
    assert Node(other).written() == []


def test_cpus_that_a_scheduler_assigned_are_no_choice_once_their_annotation_is_gone() -> None:
    assigned = Orchestration(QoS.LS, prod=True, cpus=CPUSet.of(5, 6), scheduled=True)
    node = Node(pod("ls", assigned))
    node.manager.observe(pods=[pod("ls", Orchestration(QoS.LS, prod=True))])
    assert node.own() == {"ls": "5-6"}
    assert node.written() == []


def test_no_other_policy_writes() -> None:
    static = replace(POOLS, cpu_manager=CPUManager("static", CPUSet.of(0)))
    node = Node(pod("lsr"), pools=static)
    assert node.own() == {"lsr": "1-2"}
    assert node.written() == []


def test_its_own_annotation_read_back_moves_no_pod_and_is_not_written_again() -> None:
    lsr = pod("lsr")
    node = Node(lsr)
    assert node.written() == [("lsr", "1-2")]

    # An earlier choice, from before the node started again, is no assignment either.
    for cpus in (CPUSet.of(1, 2), CPUSet.of(5, 6), CPUSet()):
        node.manager.observe(pods=[replace(lsr, orchestration=replace(LSR, published=cpus))])
        assert node.own() == {"lsr": "1-2"}
        assert node.written() == [("lsr", "1-2")]


def test_a_choice_that_the_pod_has_already_is_not_written() -> None:
    right = pod("right", replace(LSR, published=CPUSet.of(1, 2)), created="1")
    stale = pod("stale", replace(LSR, published=CPUSet.of(1, 2)), created="2")
    node = Node(right, stale)
    assert node.own() == {"right": "1-2", "stale": "3-4"}
    assert node.written() == [("stale", "3-4")]
    # Who removes the annotation has a reason.
    node.manager.observe(pods=[replace(right, orchestration=LSR), stale])
    assert node.written() == [("stale", "3-4")]


class TestWhenTheAPIServerRefuses:
    def test_the_agent_tries_again_later_and_later(self) -> None:
        node = Node(pod("lsr"))
        node.annotations.refusals = [refusal(500)] * 7
        assert node.written() == []
        assert node.annotations.asked == 7
        assert node.written() == [("lsr", "1-2")]

    @pytest.mark.parametrize("status", [404, 409, 422, 500, 0])
    def test_other_pods_do_not_wait(self, status: int) -> None:
        node = Node(pod("first", created="1"), pod("second", created="2"))
        node.annotations.refusals = [refusal(status)]
        node.role.step()
        node.role.step()
        assert node.annotations.written == [("second", "3-4")]

    def test_a_pod_that_has_ended_is_not_tried_again(self) -> None:
        node = Node(pod("lsr"))
        node.annotations.refusals = [refusal(404)] * 20
        node.role.step()
        node.manager.observe(pods=[], idle=frozenset({"lsr-uid"}))
        node.written()
        assert node.annotations.asked == 1

    def test_a_missing_right_is_one_line_with_the_remedy(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        node = Node(pod("first", created="1"), pod("second", created="2"))
        node.annotations.refusals = [refusal(403)] * 100
        assert node.written() == []
        (line,) = (each.message for each in caplog.records if "annotate" in each.message)
        assert "the agent may not annotate pods" in line
        assert "apply the component daemonsets/resource-status" in line


def test_the_loop_looks_and_ends_when_it_is_asked_to() -> None:
    node = Node()
    with running(node.role.run, wake=node.role.wake):
        node.manager.observe(pods=[pod("lsr")])
        node.role.look()
        eventually(lambda: node.annotations.written, "the pod is annotated")
    assert node.annotations.interrupted
