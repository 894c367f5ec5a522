from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.pod_failer import PodFailer
from cpupool.core.cpu_manager import CPUManager, Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.kube.client import APIError
from cpupool.manager.manager import Manager
from cpupool.telemetry.health import Health
from tests import builders
from tests.loops import running
from tests.machines import MACHINES
from tests.unit.manager import plugged
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.core.workloads import ContainerRef, Pod

MACHINE = MACHINES["arm_no_smt"].topology()
TOO_MANY = (
    "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request:"
    " requested=9, available=7, which is unexpected"
)


@dataclass
class Statuses:
    """An API server that takes what a test lets it take.

    Attributes:
        failed: (pod, reason, message) in order.
        refusals: what it answers next.
        shows: lets the watch show that a pod has failed.
    """

    failed: list[tuple[str, str, str]] = field(default_factory=list)
    refusals: list[APIError] = field(default_factory=list)
    asked: int = 0
    interrupted: bool = False
    shows: Callable[[Pod], None] = lambda _pod: None

    def fail(self, pod: Pod, reason: str, message: str) -> None:
        self.asked += 1
        if self.refusals:
            raise self.refusals.pop(0)
        self.failed.append((pod.name, reason, message))
        self.shows(pod)

    def interrupt(self) -> None:
        self.interrupted = True


def refusal(status: int) -> APIError:
    return APIError("patch", "pods/status", "No", "no", status=status)


def bound(name: str, cpus: int, created: str = "") -> Pod:
    pod = builders.pod(name, builders.container(cpu=1000 * cpus, running=False))
    return replace(pod, created=created)


def pools(misfit: Misfit, policy: TopologyPolicy = TopologyPolicy.NONE) -> NodePools:
    manager = CPUManager("static", CPUSet.of(0), topology_policy=policy, on_misfit=misfit)
    return NodePools.of(Pool.named("default", "0-7"), cpu_manager=manager)


FAIL = pools(Misfit.FAIL)


class Node:
    """A node of seven CPUs, and its pod failer."""

    def __init__(self, *pods: Pod, pools: NodePools = FAIL, after_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.manager, self.statuses = Manager(), Statuses()
        self.manager.reconfigure(pools, MACHINE)
        self.manager.adopt(())
        self.role = PodFailer(
            self.manager,
            self.statuses,
            after_s=after_s,
            health=Health(),
            now_s=lambda: self.now_s,
        )
        self.statuses.shows = self.show_failed
        self.start(*pods)

    def show_failed(self, failed: Pod) -> None:
        pods = self.manager.snapshot().facts.pods or ()
        self.manager.observe(
            pods=[replace(pod, finished=pod.finished or pod.uid == failed.uid) for pod in pods]
        )

    def start(self, *pods: Pod) -> None:
        """Make these the pods of the node; the runtime has the sandbox of each."""
        self.manager.observe(pods=pods)
        self.manager.observe_containers(
            RuntimeContainer(ContainerID(f"{pod.name}-box"), pod.cgroup_uid, "default", pod.name)
            for pod in pods
        )

    def failed(self) -> list[str]:
        """Step through a minute; return the pods that have failed."""
        end_s = self.now_s + 60.0
        while self.now_s < end_s:
            self.now_s += self.role.step()
        return [name for name, *_ in self.statuses.failed]


def test_a_pod_that_does_not_fit_fails_once_with_the_kubelets_words() -> None:
    node = Node(bound("large", 9), bound("small", 2))
    assert node.failed() == ["large"]
    assert node.statuses.failed == [("large", "UnexpectedAdmissionError", TOO_MANY)]
    assert node.failed() == ["large"]
    assert node.statuses.asked == 1


def test_a_failure_that_the_kubelet_writes_over_unseen_is_made_again() -> None:
    node = Node(bound("large", 9))
    node.statuses.shows = lambda _pod: None
    node.role.step()
    assert node.statuses.asked == 1
    node.now_s += 9.0
    node.role.step()
    assert node.statuses.asked == 1
    node.statuses.shows = node.show_failed
    assert node.failed() == ["large"] * 2


@pytest.mark.parametrize("misfit", [Misfit.HOLD, Misfit.SHARE])
def test_no_pod_fails_where_the_pool_file_does_not_say_so(misfit: Misfit) -> None:
    assert Node(bound("large", 9), pools=pools(misfit)).failed() == []


def test_a_pod_is_held_before_it_fails() -> None:
    node = Node(bound("large", 9), after_s=30.0)
    assert node.role.step() == 30.0
    node.now_s += 29.0
    assert (node.role.step(), node.statuses.asked) == (1.0, 0)
    node.now_s += 1.0
    node.role.step()
    assert node.failed() == ["large"]


def test_a_pod_whose_cpus_came_free_meanwhile_does_not_fail() -> None:
    first, second = bound("first", 5, "1"), bound("second", 5, "2")
    node = Node(first, second, after_s=30.0)
    node.role.step()
    node.now_s += 30.0
    node.manager.forget_containers([ContainerID("first-box")])
    node.manager.observe(pods=[second], idle=frozenset({first.uid}))
    assert node.failed() == []


def test_the_time_of_a_pod_counts_from_its_last_misfit() -> None:
    first, second = bound("first", 5, "1"), bound("second", 5, "2")
    node = Node(first, second, after_s=30.0)
    node.role.step()
    wide = NodePools.of(Pool.named("default", "0-15"), cpu_manager=FAIL.cpu_manager)
    node.manager.reconfigure(wide, MACHINE)
    node.now_s += 29.0
    node.role.step()
    third = bound("third", 9, "3")
    node.start(first, second, third)
    assert node.role.step() == 30.0


class TestAPodDoesNotFail:
    def test_that_fits_once_another_has_ended(self) -> None:
        first, second = replace(bound("first", 5, "1"), ending=True), bound("second", 5, "2")
        assert Node(first, second).failed() == []

    def test_that_waits_behind_such_a_pod(self) -> None:
        first, second = replace(bound("first", 5, "1"), ending=True), bound("second", 5, "2")
        assert Node(first, second, bound("third", 2, "3")).failed() == []

    def test_whose_devices_the_kubelet_will_name(self) -> None:
        restricted = pools(Misfit.FAIL, TopologyPolicy.RESTRICTED)
        assert Node(bound("web", 2), pools=restricted).failed() == []

    def test_that_the_node_needs(self) -> None:
        critical = replace(bound("critical", 9), node_critical=True)
        static = replace(bound("static", 9), cgroup_uid="0123abcd")
        assert Node(critical, static).failed() == []

    def test_that_is_being_deleted(self) -> None:
        assert Node(replace(bound("large", 9), ending=True)).failed() == []

    def test_of_which_a_container_is_reported(self) -> None:
        node = Node()
        node.start(builders.pod("large", builders.container(cpu=9000)))
        assert node.failed() == []

    def test_of_which_the_runtime_has_a_container(self) -> None:
        large = bound("large", 9)
        node = Node(large)
        box = RuntimeContainer(ContainerID("main-id"), large.uid, "default", "large", "main")
        node.manager.observe_containers([box])
        assert node.failed() == []
        node.manager.forget_containers([box.id])
        assert node.failed() == ["large"]

    def test_that_only_the_runtime_knows(self) -> None:
        assert Node(replace(bound("large", 9), qos=None)).failed() == []


class TestWhenTheAPIServerRefuses:
    def test_the_agent_tries_again_later_and_later(self) -> None:
        node = Node(bound("large", 9))
        node.statuses.refusals = [refusal(500)] * 20
        node.failed()
        assert node.statuses.asked == 6
        node.statuses.refusals.clear()
        node.failed()
        node.failed()
        assert node.failed() == ["large"]

    @pytest.mark.parametrize("status", [404, 409, 422, 500, 0])
    def test_other_pods_do_not_wait(self, status: int) -> None:
        node = Node(bound("first", 9, "1"), bound("second", 9, "2"))
        node.statuses.refusals = [refusal(status)]
        node.role.step()
        node.role.step()
        assert [name for name, *_ in node.statuses.failed] == ["second"]

    def test_a_missing_right_is_one_line_with_the_remedy(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        node = Node(bound("first", 9, "1"), bound("second", 9, "2"))
        node.statuses.refusals = [refusal(403)] * 20
        assert node.failed() == []
        (line,) = (record.message for record in caplog.records if "held" in record.message)
        assert "the agent may not fail pods, they stay held" in line
        assert "apply the overlay daemonsets/fail-misfits" in line


def test_the_loop_looks_and_ends_when_it_is_asked_to() -> None:
    node = Node()
    with running(node.role.run, wake=node.role.wake):
        node.start(bound("large", 9))
        node.role.look()
        eventually(lambda: node.statuses.failed, "the pod failed")
    assert node.statuses.interrupted


@pytest.mark.parametrize(
    ("refusals", "failed"),
    [
        ({plugged.ref("web"): "full"}, [("web", "Pod was rejected: container main: full")]),
        # The plugin may still answer.
        ({}, []),
    ],
)
def test_a_pod_that_a_plugin_refuses_fails_with_the_plugins_words(
    refusals: dict[ContainerRef, str], failed: list[tuple[str, str]]
) -> None:
    web = plugged.pod("web", level="dedicated_cores")
    manager = plugged.manager(web, refusals=refusals, configured=plugged.pools(misfit=Misfit.FAIL))
    plugged.starts(manager, web)
    statuses = Statuses()
    PodFailer(manager, statuses, after_s=0.0, health=Health(), now_s=lambda: 100.0).step()
    assert [(name, words) for name, _, words in statuses.failed] == failed
