from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.names import Names
from cpupool.core.pools import NodePools
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.manager import offers
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import ModelRuntime, reported
from tests.unit.manager.learner.outside import OWNER, Outside, alive, granted, here, learning

if TYPE_CHECKING:
    from cpupool.core.cgroups import FoundContainer
    from cpupool.core.devices import PodDevices
    from cpupool.manager.learner import Learner
    from cpupool.manager.manager import Manager

BARE = builders.pod("bare", builders.container(running=False, exclusive_a=1))


def test_without_pools_the_devices_that_pods_hold_are_asked_for_first() -> None:
    outside = Outside((OWNER,), saved=None, live=None)
    manager, learner = learning(outside)
    manager.reconfigure(NodePools(), MACHINES["laptop_4c8t"].topology())
    learner.learn((), 100.0)
    assert learner.waiting_for(100.0) == "the kubelet's records of its devices"

    outside.saved = {OWNER.uid: granted("4")}
    learner.learn((), 101.0)
    assert [pool.name for pool in manager.advertised()] == ["exclusive_a"]


def test_a_pod_is_known_until_its_cgroup_is_gone_whether_or_not_it_is_listed() -> None:
    sharer = builders.pod("sharer", builders.container(shared_a=1))
    outside = Outside((OWNER, sharer), saved={OWNER.uid: granted("4")})
    manager, learner = learning(outside)
    everybody = alive(OWNER.uid, sharer.uid)
    learner.learn(everybody, 100.0)

    outside.listed = ()
    learner.learn(everybody, 101.0)
    assert manager.snapshot().facts.pods == (OWNER, sharer)
    learner.learn(alive(sharer.uid), 102.0)
    assert manager.snapshot().facts.pods == (sharer,)
    learner.learn((), 103.0)
    assert manager.snapshot().facts.pods == ()


class TestOfTwoPodsWithOneCPU:
    """The kubelet gives a pod's devices away when its containers have ended."""

    LATER = builders.pod("later", builders.container(exclusive_a=1))
    BOTH = alive(OWNER.uid, LATER.uid)

    def contested(self) -> tuple[Manager, Learner]:
        """Return an agent that knows both, the owner since before."""
        outside = Outside((OWNER,), saved={OWNER.uid: granted("4")})
        manager, learner = learning(outside)
        learner.learn(alive(OWNER.uid), 100.0)
        outside.listed = (OWNER, self.LATER)
        outside.saved = {OWNER.uid: granted("4"), self.LATER.uid: granted("4")}
        learner.learn(self.BOTH, 101.0)
        assert self.owners(manager) == [OWNER.uid]
        return manager, learner

    def owners(self, manager: Manager) -> list[str]:
        return list(builders.owned(manager))

    def test_the_one_without_a_cgroup_yields(self) -> None:
        manager, learner = self.contested()
        learner.learn(alive(self.LATER.uid), 102.0)
        assert builders.owned(manager) == {self.LATER.uid: {"exclusive_a": CPUSet.of(4)}}

    def test_it_does_not_take_the_cpu_back(self) -> None:
        manager, learner = self.contested()
        learner.learn(alive(self.LATER.uid), 102.0)
        learner.learn(self.BOTH, 103.0)
        assert self.owners(manager) == [self.LATER.uid]

    def test_without_either_ones_cgroup_the_earlier_owner_stays(self) -> None:
        manager, learner = self.contested()
        learner.learn((), 102.0)
        assert self.owners(manager) == [OWNER.uid]

    def test_one_that_the_runtime_creates_is_there(self) -> None:
        manager, learner = self.contested()
        learner.learn((), 102.0)
        names = (self.LATER.uid, self.LATER.namespace, self.LATER.name, "main")
        manager.observe_containers([RuntimeContainer(ContainerID("new"), *names)])
        assert self.owners(manager) == [self.LATER.uid]


def test_with_nothing_to_ask_nothing_is_due() -> None:
    outside = Outside()
    _, learner = learning(outside)
    learner.learn((), 100.0)
    outside.asked.clear()
    learner.learn((), 101.0)
    assert learner.due_s == math.inf
    assert outside.asked == []


def test_the_checkpoint_is_asked_first_and_podresources_for_what_it_lacks() -> None:
    outside = Outside((OWNER,), live={("default", "owner"): granted("4")})
    manager, learner = learning(outside)
    learner.learn((), 100.0)
    assert builders.owned(manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(4)}}

    outside.saved = {OWNER.uid: granted("2")}
    manager, learner = learning(outside)
    outside.asked.clear()
    learner.learn((), 100.0)
    assert builders.owned(manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(2)}}
    assert "podresources" not in outside.asked


def test_missing_devices_are_asked_for_again_when_due_and_at_once_of_another_kubelet() -> None:
    outside = Outside((OWNER,))
    _, learner = learning(outside)
    for now_s, due_s in ((100.0, 100.1), (100.05, 100.1), (100.2, 100.4)):
        learner.learn((), now_s)
        assert learner.due_s == due_s
    assert outside.asked.count("podresources") == 2

    learner.kubelet_changed()
    learner.learn((), 100.3)
    assert outside.asked.count("podresources") == 3


class TestOfAContainerWithCPUsTheKubeletIsAsked:
    """Its annotation names devices that Allocate gave; the kubelet's records confirm that."""

    def burst(self) -> tuple[Manager, Learner, Outside, tuple[FoundContainer, ...]]:
        """Return an agent that has seen two such containers, one after the other."""
        pods = [builders.pod(n, builders.container(running=False, exclusive_a=1)) for n in "ab"]
        outside = Outside()
        manager, learner = learning(outside)
        learner.learn((), 100.0)
        outside.asked.clear()
        found: tuple[FoundContainer, ...] = ()
        for now_s, pod, cpu in ((101.0, pods[0], "2"), (101.05, pods[1], "4")):
            manager.allocate("exclusive_a", [cpu])
            outside.listed = (*outside.listed, pod)
            manager.observe_containers([reported(pod.uid, identifier=pod.uid, exclusive_a=cpu)])
            found = (*found, *here(pod.uid, pod.uid))
            learner.learn(found, now_s)
        return manager, learner, outside, found

    def test_a_moment_later_once_for_a_burst(self) -> None:
        manager, learner, outside, found = self.burst()
        owned = {
            f"{name}-uid": {"exclusive_a": CPUSet.of(cpu)} for name, cpu in (("a", 2), ("b", 4))
        }
        assert (outside.asked, learner.due_s) == ([], 101.5)
        assert builders.owned(manager) == owned

        outside.saved = {"a-uid": granted("2"), "b-uid": granted("4")}
        learner.learn(found, 101.5)
        assert (outside.asked, learner.due_s) == (["checkpoint"], math.inf)
        assert builders.owned(manager) == owned
        assert manager.snapshot().resolution.unconfirmed == ()

    def test_with_the_first_that_needs_the_answer(self) -> None:
        _, learner, outside, found = self.burst()
        bare = builders.pod("bare", builders.container(exclusive_a=1))
        outside.listed = (*outside.listed, bare)
        learner.learn((*found, *here(bare.uid, "main-id")), 101.06)
        assert outside.asked == ["checkpoint", "podresources"]


def test_of_a_pod_whose_containers_are_not_created_the_kubelet_is_asked_a_moment_later() -> None:
    outside = Outside((OWNER,))
    _, learner = learning(outside)
    learner.learn((), 100.0)
    outside.saved = {OWNER.uid: granted("2")}
    for now_s in (100.5, 101.0):
        learner.learn((), now_s)
    outside.asked.clear()
    outside.listed = (OWNER, BARE)
    learner.learn(alive(BARE.uid), 101.0)
    assert (outside.asked, learner.due_s) == ([], 101.5)
    learner.learn(alive(BARE.uid), 101.5)
    assert outside.asked == ["checkpoint", "podresources"]


def test_the_first_question_is_asked_at_once_as_all_containers_wait_for_the_answer() -> None:
    outside = Outside()
    _, learner = learning(outside)
    learner.learn((), 100.0)
    outside.asked.clear()
    outside.listed = (BARE,)
    learner.learn(alive(BARE.uid), 101.0)
    assert outside.asked == ["checkpoint", "podresources"]
    assert learner.waiting_for(101.0) == ""


def test_only_devices_of_pods_that_run_and_that_nothing_lists_are_recalled() -> None:
    ended = builders.pod("ended", builders.container(exclusive_a=1), finished=True)
    outside = Outside(
        (ended,),
        saved={
            ended.uid: granted("2"),
            "late-uid": granted("4"),
            "gone-uid": granted("6"),
            "other-uid": {"main": {"example.com/gpu": AllocatedDevices(frozenset({"0"}))}},
        },
    )
    manager, learner = learning(outside)
    learner.learn(alive("late-uid", "other-uid", ended.uid), 100.0)
    assert offers.held_ids(manager.snapshot().facts) == {"exclusive_a": {"4"}}


def test_what_a_broken_checkpoint_knows_is_recalled_when_it_is_mended() -> None:
    outside = Outside(saved=None)
    manager, learner = learning(outside)
    learner.learn(alive("late-uid"), 100.0)
    outside.saved = {"late-uid": granted("4")}
    learner.learn(alive("late-uid"), 101.0)
    assert builders.promised(manager) == {"exclusive_a": CPUSet.of(4)}


def test_a_finished_pod_holds_nothing_though_the_checkpoint_still_names_it() -> None:
    ended = builders.pod("ended", builders.container(exclusive_a=1), finished=True)
    fresh = builders.pod("fresh", builders.container(exclusive_a=1))
    outside = Outside((ended, fresh), saved={ended.uid: granted("2"), fresh.uid: granted("4")})
    manager, learner = learning(outside)
    learner.learn(alive(ended.uid, fresh.uid), 100.0)
    assert offers.held_ids(manager.snapshot().facts) == {"exclusive_a": {"4"}}


def with_sibling(pod: str) -> dict[str, PodDevices]:
    """Give a checkpoint that tells of CPU 4 and its sibling."""
    grant = AllocatedDevices(frozenset({"4"}), CPUSet.of(4, 5))
    return {pod: {"main": {Names().resource("exclusive_a"): grant}}}


def test_what_containers_were_told_is_recalled_once() -> None:
    outside = Outside((OWNER,), saved=with_sibling(OWNER.uid))
    manager, learner = learning(outside)
    manager.observe(pods=(OWNER,))
    manager.observe_containers([reported(OWNER.uid, exclusive_a="4")])
    learner.learn(here(OWNER.uid, "main-id"), 100.0)
    assert builders.owned(manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(4, 5)}}

    learner.learn(here(OWNER.uid, "main-id"), 101.0)
    assert outside.asked.count("checkpoint") == 1


@pytest.mark.parametrize("sighted_first", [False, True])
def test_what_a_pod_that_nothing_lists_yet_was_told_is_recalled(*, sighted_first: bool) -> None:
    runtime = ModelRuntime(here=True, containers=(reported("late-uid", exclusive_a="4"),))
    manager, learner = learning(Outside(saved=with_sibling("late-uid")), runtime)
    if sighted_first:
        manager.observe_containers(runtime.containers)
    learner.learn(here("late-uid", "main-id"), 100.0)
    assert builders.owned(manager) == {"late-uid": {"exclusive_a": CPUSet.of(4, 5)}}
    assert manager.snapshot().facts.promises == ()
