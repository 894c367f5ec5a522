from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpupool.core.assignments import Grant
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.learner import Learner, Sources
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.assignments import PodDevices
    from cpupool.core.workloads import Pod

POOLS = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "1"))
NOTHING = "the kubelet does not answer"


def granted(*ids: str) -> PodDevices:
    return {"main": {Names().resource("exclusive_a"): Grant(frozenset(ids))}}


@dataclass
class Outside:
    """Pods and a kubelet; what is None fails."""

    listed: tuple[Pod, ...] = ()
    live: Mapping[tuple[str, str], PodDevices] | None = field(default_factory=dict)
    saved: Mapping[str, PodDevices] | None = field(default_factory=dict)
    static_cpus: CPUSet | None = field(default_factory=CPUSet)
    asked: list[str] = field(default_factory=list)

    def pods(self) -> tuple[Pod, ...]:
        return self.listed

    def by_pod_name(self) -> Mapping[tuple[str, str], PodDevices]:
        self.asked.append("podresources")
        if self.live is None:
            raise RemoteProtocolError(NOTHING)
        return self.live

    def by_pod_uid(self) -> Mapping[str, PodDevices]:
        self.asked.append("checkpoint")
        if self.saved is None:
            raise RemoteProtocolError(NOTHING)
        return self.saved

    def allocatable_cpus(self) -> CPUSet:
        self.asked.append("cpu manager")
        if self.static_cpus is None:
            raise RemoteProtocolError(NOTHING)
        return self.static_cpus


def learning(outside: Outside) -> tuple[Manager, Learner]:
    manager = Manager(Names())
    manager.reconfigure(POOLS, MACHINES["laptop_4c8t"].topology())
    learner = Learner(manager, Sources(), pods=outside, devices=outside, checkpoint=outside)
    return manager, learner


OWNER = builders.pod("owner", builders.container(exclusive_a=1))


def test_without_pools_the_devices_that_pods_hold_are_asked_for_first() -> None:
    outside = Outside((OWNER,), saved=None, live=None)
    manager, learner = learning(outside)
    manager.reconfigure(NodePools(), MACHINES["laptop_4c8t"].topology())
    learner.learn(set(), 100.0)
    assert learner.waiting_for(100.0) == "the kubelet's word on its devices"

    outside.saved = {OWNER.uid: granted("4")}
    learner.learn(set(), 101.0)
    assert [pool.name for pool in manager.advertised()] == ["exclusive_a"]


def test_a_pod_is_known_until_its_cgroup_is_gone_whether_or_not_it_is_listed() -> None:
    sharer = builders.pod("sharer", builders.container(shared_a=1))
    outside = Outside((OWNER, sharer), saved={OWNER.uid: granted("4")})
    manager, learner = learning(outside)
    everybody = {OWNER.uid, sharer.uid}
    learner.learn(everybody, 100.0)

    outside.listed = ()
    learner.learn(everybody, 101.0)
    assert manager.state()[0].pods == (OWNER, sharer)
    learner.learn({sharer.uid}, 102.0)
    assert manager.state()[0].pods == (sharer,)
    learner.learn(set(), 103.0)
    assert manager.state()[0].pods == ()


def test_with_nothing_to_ask_nothing_is_due() -> None:
    outside = Outside()
    _, learner = learning(outside)
    learner.learn(set(), 100.0)
    outside.asked.clear()
    learner.learn(set(), 101.0)
    assert learner.due_s == math.inf
    assert outside.asked == []


def test_the_checkpoint_is_asked_first_and_podresources_for_what_it_lacks() -> None:
    outside = Outside((OWNER,), live={("default", "owner"): granted("4")})
    manager, learner = learning(outside)
    learner.learn(set(), 100.0)
    assert manager.state()[1].owned == {OWNER.uid: {"exclusive_a": CPUSet.of(4)}}

    outside.saved = {OWNER.uid: granted("2")}
    manager, learner = learning(outside)
    outside.asked.clear()
    learner.learn(set(), 100.0)
    assert manager.state()[1].owned == {OWNER.uid: {"exclusive_a": CPUSet.of(2)}}
    assert "podresources" not in outside.asked


def test_missing_devices_are_asked_for_again_when_due_and_at_once_of_another_kubelet() -> None:
    outside = Outside((OWNER,))
    _, learner = learning(outside)
    for now_s, due_s in ((100.0, 100.1), (100.05, 100.1), (100.2, 100.4)):
        learner.learn(set(), now_s)
        assert learner.due_s == due_s
    assert outside.asked.count("podresources") == 2

    learner.kubelet_changed()
    learner.learn(set(), 100.3)
    assert outside.asked.count("podresources") == 3


def test_the_cpu_manager_is_asked_about_until_it_is_harmless_and_again_of_another_kubelet() -> None:
    outside = Outside(static_cpus=None)
    _, learner = learning(outside)
    learner.learn(set(), 100.0)
    assert learner.due_s == 100.1
    outside.static_cpus = CPUSet.of(2)
    learner.learn(set(), 100.1)
    assert "gives out CPUs 2" in learner.conflict
    assert learner.due_s == 100.1 + 0.2
    outside.static_cpus = CPUSet()
    learner.learn(set(), 101.0)
    assert (learner.conflict, learner.due_s) == ("", math.inf)
    learner.learn(set(), 102.0)
    assert outside.asked.count("cpu manager") == 3

    learner.kubelet_changed()
    learner.learn(set(), 103.0)
    assert outside.asked.count("cpu manager") == 4


def test_only_devices_of_pods_that_run_and_that_nobody_lists_are_recalled() -> None:
    ended = builders.pod("ended", builders.container(exclusive_a=1), finished=True)
    outside = Outside(
        (ended,),
        saved={
            ended.uid: granted("2"),
            "late-uid": granted("4"),
            "gone-uid": granted("6"),
            "other-uid": {"main": {"example.com/gpu": Grant(frozenset({"0"}))}},
        },
    )
    manager, learner = learning(outside)
    learner.learn({"late-uid", "other-uid", ended.uid}, 100.0)
    assert manager.state()[0].held_ids() == {"exclusive_a": {"4"}}


def test_what_a_broken_checkpoint_knows_is_recalled_when_it_is_mended() -> None:
    outside = Outside(saved=None)
    manager, learner = learning(outside)
    learner.learn({"late-uid"}, 100.0)
    outside.saved = {"late-uid": granted("4")}
    learner.learn({"late-uid"}, 101.0)
    assert manager.state()[1].promised == {"exclusive_a": CPUSet.of(4)}


def test_a_finished_pod_holds_nothing_though_the_checkpoint_still_names_it() -> None:
    ended = builders.pod("ended", builders.container(exclusive_a=1), finished=True)
    fresh = builders.pod("fresh", builders.container(exclusive_a=1))
    outside = Outside((ended, fresh), saved={ended.uid: granted("2"), fresh.uid: granted("4")})
    manager, learner = learning(outside)
    learner.learn({ended.uid, fresh.uid}, 100.0)
    assert manager.state()[0].held_ids() == {"exclusive_a": {"4"}}
