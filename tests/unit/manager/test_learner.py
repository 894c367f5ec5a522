from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import NATIVE_CPU, AllocatedDevices
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import ENABLE_SHARED_CPUS, Names
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.manager import offers
from cpupool.manager.learner import NRI, Learner
from cpupool.manager.manager import Manager
from cpupool.manager.ports import POD_ITSELF, FoundContainer
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import ModelRuntime, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.devices import PodDevices
    from cpupool.core.workloads import Pod

POOLS = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "1"))
NOTHING = "the kubelet does not answer"


def granted(*ids: str) -> PodDevices:
    return {"main": {Names().resource("exclusive_a"): AllocatedDevices(frozenset(ids))}}


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


def alive(*pods: str) -> tuple[FoundContainer, ...]:
    """Give the sandbox of each of these pods as it is found."""
    return tuple(FoundContainer(pod, f"{pod}-sandbox", f"kubepods/pod{pod}/x", "") for pod in pods)


def here(pod: str, *ids: str) -> tuple[FoundContainer, ...]:
    """Give containers of a pod as they are found."""
    return tuple(FoundContainer(pod, one, f"kubepods/pod{pod}/{one}", "") for one in ids)


def learning(
    outside: Outside,
    runtime: ModelRuntime | None = None,
    pools: NodePools = POOLS,
    nri: Callable[[], bool] = lambda: False,
) -> tuple[Manager, Learner]:
    manager = Manager(Names())
    manager.reconfigure(pools, MACHINES["laptop_4c8t"].topology())
    learner = Learner(
        manager,
        pods=outside,
        devices=outside,
        checkpoint=outside,
        containers=runtime or ModelRuntime(),
        nri=nri,
    )
    return manager, learner


OWNER = builders.pod("owner", builders.container(exclusive_a=1))


def test_without_pools_the_devices_that_pods_hold_are_asked_for_first() -> None:
    outside = Outside((OWNER,), saved=None, live=None)
    manager, learner = learning(outside)
    manager.reconfigure(NodePools(), MACHINES["laptop_4c8t"].topology())
    learner.learn((), 100.0)
    assert learner.waiting_for(100.0) == "the kubelet's word on its devices"

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
        manager.sight([RuntimeContainer(ContainerID("new"), *names)])
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


def test_the_cpu_manager_is_asked_about_until_it_is_harmless_and_again_of_another_kubelet() -> None:
    outside = Outside(static_cpus=None)
    _, learner = learning(outside)
    learner.learn((), 100.0)
    assert learner.due_s == 100.1
    outside.static_cpus = CPUSet.of(2)
    learner.learn((), 100.1)
    assert "gives out CPUs 2" in learner.conflict
    assert learner.due_s == 100.1 + 0.2
    outside.static_cpus = CPUSet()
    learner.learn((), 101.0)
    assert (learner.conflict, learner.due_s) == ("", math.inf)
    learner.learn((), 102.0)
    assert outside.asked.count("cpu manager") == 3

    learner.kubelet_changed()
    learner.learn((), 103.0)
    assert outside.asked.count("cpu manager") == 4


def test_only_devices_of_pods_that_run_and_that_nobody_lists_are_recalled() -> None:
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


def test_a_container_that_nobody_has_told_of_is_recognised_at_once() -> None:
    outside = Outside((OWNER,), saved={OWNER.uid: granted("4")})
    runtime = ModelRuntime(
        here=True, containers=(told(OWNER.uid, identifier="new"), told(OWNER.uid, ""))
    )
    manager, learner = learning(outside, runtime)
    learner.learn(here(OWNER.uid, "main-id", "new", "sandbox-id"), 100.0)

    assert runtime.asked == [{"new", "sandbox-id"}], "the pod itself tells of main-id"
    assert (
        str(manager.snapshot().resolution.assignment((OWNER.uid, ContainerID("new"))).cpus) == "4"
    )
    assert learner.due_s == math.inf


def test_of_a_pods_own_directory_the_runtime_is_not_asked() -> None:
    runtime = ModelRuntime(here=True)
    _, learner = learning(Outside(), runtime)
    learner.learn(here("late-uid", POD_ITSELF), 100.0)
    assert (runtime.asked, learner.due_s) == ([], math.inf)


def test_what_the_runtime_does_not_know_is_asked_for_ever_more_seldom() -> None:
    runtime = ModelRuntime(here=True, containers=(told("late-uid"),))
    _, learner = learning(Outside(), runtime)
    found = here("late-uid", "main-id", "other")
    for now_s, due_s in ((100.0, 100.1), (100.05, 100.1), (100.2, 100.4)):
        learner.learn(found, now_s)
        assert learner.due_s == due_s
    assert runtime.asked == [{"main-id", "other"}, {"other"}]

    learner.learn((*found, *here("late-uid", "third")), 100.3)
    assert runtime.asked[2:] == [{"other", "third"}], "of something new it is asked at once"
    learner.learn(found, 100.31)
    assert runtime.asked[3:] == [{"other"}]
    learner.learn(here("late-uid", "main-id"), 100.32)
    assert (len(runtime.asked), learner.due_s) == (4, math.inf)


def test_a_runtime_that_does_not_answer_is_asked_again() -> None:
    runtime = ModelRuntime(here=True, silent=True, containers=(told(OWNER.uid),))
    manager, learner = learning(Outside(), runtime)
    learner.learn(here(OWNER.uid, "main-id"), 100.0)
    assert learner.due_s == 100.1
    runtime.silent = False
    learner.learn(here(OWNER.uid, "main-id"), 100.1)
    assert set(manager.snapshot().facts.sighted) == {"main-id"}


def test_a_runtime_that_is_not_there_is_not_asked() -> None:
    runtime = ModelRuntime(containers=(told("late-uid"),))
    manager, learner = learning(Outside(), runtime)
    learner.learn(here("late-uid", "main-id"), 100.0)
    assert (runtime.asked, learner.due_s) == ([], math.inf)
    runtime.here = True
    learner.learn(here("late-uid", "main-id"), 100.01)
    assert set(manager.snapshot().facts.sighted) == {"main-id"}


def test_what_has_gone_is_forgotten_and_what_has_no_cgroup_yet_is_not() -> None:
    runtime = ModelRuntime(here=True, containers=(told("late-uid"), told("late-uid", "")))
    manager, learner = learning(Outside(), runtime)
    learner.learn(here("late-uid", "main-id", "sandbox-id"), 100.0)
    manager.sight([told("late-uid", identifier="created")])

    learner.learn(here("late-uid", "sandbox-id"), 101.0)
    assert set(manager.snapshot().facts.sighted) == {"created", "sandbox-id"}
    learner.learn((), 102.0)
    assert set(manager.snapshot().facts.sighted) == {"created"}


def test_the_kubelet_is_asked_what_a_sighted_container_does_not_tell() -> None:
    bare = builders.pod("bare", builders.container(running=False, exclusive_a=1))
    outside = Outside((bare,), live={("default", "bare"): granted("4")})
    runtime = ModelRuntime(here=True, containers=(told(bare.uid),))
    manager, learner = learning(outside, runtime)
    learner.learn(here(bare.uid, "main-id"), 100.0)
    assert builders.owned(manager) == {bare.uid: {"exclusive_a": CPUSet.of(4)}}


def test_what_an_annotation_says_counts_until_the_kubelet_has_confirmed_it() -> None:
    bare = builders.pod("bare", builders.container(running=False, exclusive_a=1))
    outside = Outside((bare,), saved=None, live=None)
    runtime = ModelRuntime(here=True, containers=(told(bare.uid, exclusive_a="2"),))
    manager, learner = learning(outside, runtime)
    manager.allocate("exclusive_a", ["2"])
    learner.learn(here(bare.uid, "main-id"), 100.0)
    assert builders.owned(manager) == {bare.uid: {"exclusive_a": CPUSet.of(2)}}
    assert manager.snapshot().resolution.missing == ()
    assert learner.due_s == 100.1, "the kubelet is asked again"

    outside.saved = {bare.uid: granted("2")}
    learner.learn(here(bare.uid, "main-id"), 100.1)
    assert builders.owned(manager) == {bare.uid: {"exclusive_a": CPUSet.of(2)}}
    assert manager.snapshot().facts.promises == ()
    assert learner.due_s > 100.1 + 1.0, "nothing is left to ask but the CPU manager"


def test_an_annotation_without_an_answer_of_allocate_counts_once_the_kubelet_says_the_same() -> (
    None
):
    outside = Outside((), saved={"late-uid": granted("2")})
    runtime = ModelRuntime(here=True, containers=(told("late-uid", exclusive_a="2"),))
    manager, learner = learning(outside, runtime)
    manager.sight(runtime.containers)
    assert builders.owned(manager) == {}

    learner.learn(here("late-uid", "main-id"), 100.0)
    assert builders.owned(manager) == {"late-uid": {"exclusive_a": CPUSet.of(2)}}
    assert manager.snapshot().resolution.unconfirmed == ()


def test_a_sandbox_that_is_left_of_an_earlier_pod_does_not_make_its_name_ambiguous() -> None:
    successor = builders.pod("web", builders.container(exclusive_a=1))
    outside = Outside((successor,), live={("default", "web"): granted("4")})
    manager, learner = learning(outside)
    manager.sight([RuntimeContainer(ContainerID("old"), "web-0-uid", "default", "web")])

    learner.learn(alive("web-0-uid"), 100.0)
    assert manager.snapshot().resolution.missing, "both are there"
    learner.learn((), 101.0)
    assert manager.snapshot().resolution.missing == ()


def test_without_a_runtime_the_kubelets_two_records_name_a_static_pod() -> None:
    mirror = builders.pod("static", builders.container(exclusive_a=1), cgroup_uid="hash")
    forged = builders.pod("forged", builders.container(), cgroup_uid="hash")
    outside = Outside((forged, mirror), saved={"hash": granted("4")}, live=None)
    manager, learner = learning(outside)
    learner.learn(here("hash", "main-id"), 100.0)
    assert builders.owned(manager) == {}
    assert learner.due_s == 100.1, "the kubelet is asked again"

    outside.live = {("default", "static"): granted("4")}
    learner.learn(here("hash", "main-id"), 100.1)
    assert builders.owned(manager) == {"hash": {"exclusive_a": CPUSet.of(4)}}

    asked = outside.asked.count("podresources")
    learner.learn(here("hash", "main-id"), 200.0)
    assert outside.asked.count("podresources") == asked, "once"


def test_a_forged_mirror_that_is_deleted_is_not_ending() -> None:
    mirror = builders.pod("static", builders.container(exclusive_a=1), cgroup_uid="hash")
    forged = builders.pod("forged", builders.container(), cgroup_uid="hash")
    outside = Outside((mirror, forged), saved={"hash": granted("4")})
    outside.live = {("default", "static"): granted("4")}
    manager, learner = learning(outside)
    learner.learn(alive("hash"), 100.0)
    outside.listed = ()
    learner.learn(alive("hash"), 101.0)
    assert manager.snapshot().facts.pods == (mirror,)


def with_sibling(pod: str) -> dict[str, PodDevices]:
    """Give a checkpoint that tells of CPU 4 and its sibling."""
    grant = AllocatedDevices(frozenset({"4"}), CPUSet.of(4, 5))
    return {pod: {"main": {Names().resource("exclusive_a"): grant}}}


def test_what_containers_were_told_is_recalled_once() -> None:
    outside = Outside((OWNER,), saved=with_sibling(OWNER.uid))
    manager, learner = learning(outside)
    manager.observe(pods=(OWNER,))
    manager.sight([told(OWNER.uid, exclusive_a="4")])
    learner.learn(here(OWNER.uid, "main-id"), 100.0)
    assert builders.owned(manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(4, 5)}}

    learner.learn(here(OWNER.uid, "main-id"), 101.0)
    assert outside.asked.count("checkpoint") == 1


@pytest.mark.parametrize("sighted_first", [False, True])
def test_what_a_pod_that_nobody_lists_yet_was_told_is_recalled(*, sighted_first: bool) -> None:
    runtime = ModelRuntime(here=True, containers=(told("late-uid", exclusive_a="4"),))
    manager, learner = learning(Outside(saved=with_sibling("late-uid")), runtime)
    if sighted_first:
        manager.sight(runtime.containers)
    learner.learn(here("late-uid", "main-id"), 100.0)
    assert builders.owned(manager) == {"late-uid": {"exclusive_a": CPUSet.of(4, 5)}}
    assert manager.snapshot().facts.promises == ()


MIXED = NodePools.of(Pool.named("shared_m", "6-7"), mixed=MixedCPUs("shared_m"))
STATIC = CPUSet.parse("1-5")


def test_beside_a_static_cpu_manager_shared_cpus_are_added_where_nri_asks() -> None:
    connected = False
    _, learner = learning(Outside(static_cpus=STATIC), pools=MIXED, nri=lambda: connected)
    learner.learn((), 100.0)
    assert (learner.conflict, learner.waiting_for(100.0)) == ("", NRI)

    connected = True
    assert learner.waiting_for(100.0) == ""


@pytest.mark.parametrize(
    "pools",
    [
        pytest.param(NodePools(MIXED.pools), id="switched off"),
        pytest.param(
            NodePools.of(*MIXED, Pool.named("exclusive_a", "2"), mixed=MIXED.mixed),
            id="with an exclusive pool",
        ),
        pytest.param(
            NodePools.of(*MIXED, Pool.named("default", "0"), mixed=MIXED.mixed),
            id="with a default pool",
        ),
    ],
)
def test_a_static_cpu_manager_is_welcome_beside_nothing_else(pools: NodePools) -> None:
    _, learner = learning(Outside(static_cpus=STATIC), pools=pools, nri=lambda: True)
    learner.learn((), 100.0)
    assert "which gives out CPUs 1-5: set cpuManagerPolicy to none" in learner.conflict
    assert "mixedCPUs and shared pools alone" in learner.conflict
    assert learner.waiting_for(100.0) == learner.conflict


def test_shared_cpus_that_the_kubelet_gives_out_too_are_refused() -> None:
    _, learner = learning(Outside(static_cpus=CPUSet.parse("1-6")), pools=MIXED, nri=lambda: True)
    learner.learn((), 100.0)
    assert "keep CPUs 6 of the shared pools" in learner.waiting_for(100.0)
    assert "add them to its reservedSystemCPUs" in learner.waiting_for(100.0)


def test_a_static_cpu_manager_is_not_welcome_while_pods_have_cpus_of_pools_that_are_gone() -> None:
    outside = Outside((OWNER,), saved={OWNER.uid: granted("4")})
    manager, learner = learning(outside, nri=lambda: True)
    learner.learn(alive(OWNER.uid), 100.0)
    manager.reconfigure(MIXED, MACHINES["laptop_4c8t"].topology())
    outside.static_cpus = STATIC
    learner.kubelet_changed()
    learner.learn(alive(OWNER.uid), 101.0)
    assert "the end of pods that have CPUs 4 of exclusive pools" in learner.waiting_for(101.0)

    outside.listed = ()
    learner.learn((), 102.0)
    assert learner.waiting_for(102.0) == ""


def test_the_kubelets_own_cpus_are_asked_for_where_shared_ones_are_added() -> None:
    mixed = builders.pod("mixed", builders.container(cpu=2000, shared_cpus=True))
    plain = builders.pod("plain", builders.container(cpu=1000))
    given = {Names().resource(ENABLE_SHARED_CPUS): AllocatedDevices(frozenset({"0"}))}
    native = {
        name: {NATIVE_CPU: AllocatedDevices(cpus, CPUSet.parse(",".join(cpus)))}
        for name, cpus in (("mixed", frozenset({"4", "5"})), ("plain", frozenset({"2"})))
    }
    outside = Outside(
        (mixed, plain),
        static_cpus=STATIC,
        saved={mixed.uid: {"main": given}},
        live={("default", name): {"main": grants} for name, grants in native.items()},
    )
    manager, learner = learning(outside, pools=MIXED, nri=lambda: True)
    learner.learn((), 100.0)
    _, resolution = manager.snapshot()
    assert resolution.missing == ()
    key = (mixed.uid, ContainerID("main-id"))
    placed = resolution.assignment(key)
    assert (str(placed.exclusive), str(placed.shared)) == ("4-5", "6-7")
    assert "podresources" in outside.asked
    assert set(offers.held_ids(manager.snapshot().facts)) == {"enable-shared-cpus", "kubelet/cpu"}

    learner.learn((), 100.01)
    # Another kubelet, without the old one's state, gives out its CPUs anew.
    outside.live = {
        ("default", "mixed"): {
            "main": {NATIVE_CPU: AllocatedDevices(frozenset({"2", "3"}), CPUSet.of(2, 3))}
        }
    }
    assert str(manager.snapshot().resolution.assignment(key).exclusive) == "4-5"
    learner.kubelet_changed()
    learner.learn((), 101.0)
    assert str(manager.snapshot().resolution.assignment(key).exclusive) == "2-3"
    assert learner.due_s == 101.1, "the new kubelet may not know all at once"
