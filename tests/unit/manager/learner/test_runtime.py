from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import POD_ITSELF
from cpupool.core.cpu_manager import CPUManager, Eligible
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RuntimeAwaitsAnswer
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, RuntimeContainer
from tests import builders
from tests.runtimes import ModelRuntime, reported
from tests.unit.manager.learner.outside import OWNER, Outside, alive, granted, here, learning

if TYPE_CHECKING:
    from collections.abc import Collection


def test_a_container_that_no_source_has_reported_is_recognised_at_once() -> None:
    outside = Outside((OWNER,), saved={OWNER.uid: granted("4")})
    runtime = ModelRuntime(
        here=True, containers=(reported(OWNER.uid, identifier="new"), reported(OWNER.uid, ""))
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
    runtime = ModelRuntime(here=True, containers=(reported("late-uid"),))
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


def test_a_runtime_that_names_its_containers_by_nri_is_asked_a_moment_later() -> None:
    runtime = ModelRuntime(here=True, containers=(reported("late-uid", ""), reported("late-uid")))
    manager, learner = learning(Outside(), runtime, nri=lambda: True)
    learner.learn((), 100.0)
    learner.learn(here("late-uid", "sandbox-id"), 101.0)
    assert (runtime.asked, learner.due_s) == ([], 101.5)
    manager.observe_containers([reported("late-uid", "")])
    learner.learn(here("late-uid", "sandbox-id"), 101.05)
    assert (runtime.asked, learner.due_s) == ([], math.inf)

    learner.learn(here("late-uid", "sandbox-id", "main-id"), 102.0)
    learner.learn(here("late-uid", "sandbox-id", "main-id"), 102.5)
    assert runtime.asked == [{"main-id"}]
    assert set(manager.snapshot().facts.sighted) == {"sandbox-id", "main-id"}


def test_nothing_is_due_once_such_a_runtime_has_named_what_was_unknown() -> None:
    runtime = ModelRuntime(here=True)
    manager, learner = learning(Outside(), runtime, nri=lambda: True)
    learner.learn((), 100.0)
    learner.learn(here("late-uid", "sandbox-id"), 101.0)
    assert learner.due_s == 101.5
    manager.observe_containers([reported("late-uid", "")])
    assert learner.due_s == math.inf
    learner.learn(here("late-uid", "sandbox-id", "another"), 109.0)
    assert (runtime.asked, learner.due_s) == ([], 109.5)


def test_such_a_runtime_is_asked_twice_a_second_at_most_in_a_burst_of_pods() -> None:
    runtime = ModelRuntime(here=True)
    _, learner = learning(Outside(), runtime, nri=lambda: True)
    learner.learn((), 100.0)
    for number in range(10):
        learner.learn(here("late-uid", f"sandbox-{number}"), 101.0 + 0.125 * number)
    assert len(runtime.asked) == 2


def test_of_what_runs_when_the_agent_starts_the_runtime_is_asked_at_once() -> None:
    runtime = ModelRuntime(here=True, containers=(reported("late-uid"),))
    _, learner = learning(Outside(), runtime, nri=lambda: True)
    learner.learn(here("late-uid", "main-id"), 100.0)
    assert runtime.asked == [{"main-id"}]


def test_a_runtime_that_does_not_answer_is_asked_again() -> None:
    runtime = ModelRuntime(here=True, silent=True, containers=(reported(OWNER.uid),))
    manager, learner = learning(Outside(), runtime)
    learner.learn(here(OWNER.uid, "main-id"), 100.0)
    assert learner.due_s == 100.1
    runtime.silent = False
    learner.learn(here(OWNER.uid, "main-id"), 100.1)
    assert set(manager.snapshot().facts.sighted) == {"main-id"}


def test_a_runtime_that_is_not_there_is_not_asked() -> None:
    runtime = ModelRuntime(containers=(reported("late-uid"),))
    manager, learner = learning(Outside(), runtime)
    learner.learn(here("late-uid", "main-id"), 100.0)
    assert (runtime.asked, learner.due_s) == ([], math.inf)
    runtime.here = True
    learner.learn(here("late-uid", "main-id"), 100.01)
    assert set(manager.snapshot().facts.sighted) == {"main-id"}


def test_what_has_gone_is_forgotten_and_what_has_no_cgroup_yet_is_not() -> None:
    runtime = ModelRuntime(here=True, containers=(reported("late-uid"), reported("late-uid", "")))
    manager, learner = learning(Outside(), runtime)
    learner.learn(here("late-uid", "main-id", "sandbox-id"), 100.0)
    manager.observe_containers([reported("late-uid", identifier="created")])

    learner.learn(here("late-uid", "sandbox-id"), 101.0)
    assert set(manager.snapshot().facts.sighted) == {"created", "sandbox-id"}
    learner.learn((), 102.0)
    assert set(manager.snapshot().facts.sighted) == {"created"}


def test_the_kubelet_is_asked_what_a_sighted_container_does_not_tell() -> None:
    bare = builders.pod("bare", builders.container(running=False, exclusive_a=1))
    outside = Outside((bare,), live={("default", "bare"): granted("4")})
    runtime = ModelRuntime(here=True, containers=(reported(bare.uid),))
    manager, learner = learning(outside, runtime)
    learner.learn(here(bare.uid, "main-id"), 100.0)
    assert builders.owned(manager) == {bare.uid: {"exclusive_a": CPUSet.of(4)}}


def test_what_an_annotation_says_counts_until_the_kubelet_has_confirmed_it() -> None:
    bare = builders.pod("bare", builders.container(running=False, exclusive_a=1))
    outside = Outside((bare,), saved=None, live=None)
    runtime = ModelRuntime(here=True, containers=(reported(bare.uid, exclusive_a="2"),))
    manager, learner = learning(outside, runtime)
    manager.allocate("exclusive_a", ["2"])
    learner.learn(here(bare.uid, "main-id"), 100.0)
    assert builders.owned(manager) == {bare.uid: {"exclusive_a": CPUSet.of(2)}}
    assert manager.snapshot().resolution.missing == ()
    assert learner.due_s == 100.5, "the kubelet is asked again"

    outside.saved = {bare.uid: granted("2")}
    learner.learn(here(bare.uid, "main-id"), 100.5)
    assert builders.owned(manager) == {bare.uid: {"exclusive_a": CPUSet.of(2)}}
    assert manager.snapshot().facts.promises == ()
    assert learner.due_s > 100.5 + 1.0, "nothing is left to ask but the CPU manager"


def test_which_devices_of_a_shared_pool_a_container_has_is_asked_for_later() -> None:
    sharer = builders.pod("sharer", builders.container(running=False, shared_a=1))
    owner = builders.pod("bare", builders.container(running=False, exclusive_a=1))
    outside = Outside((sharer,))
    runtime = ModelRuntime(here=True, containers=(reported(sharer.uid, shared_a="0"),))
    pools = NodePools.of(
        Pool.named("exclusive_a", "2"), Pool.named("shared_a", "0"), Pool.named("default", "1")
    )
    manager, learner = learning(outside, runtime, pools)
    manager.allocate("shared_a", ["0"])
    learner.learn(here(sharer.uid, "main-id"), 100.0)
    assert len(manager.snapshot().resolution.unconfirmed) == 1
    assert learner.due_s == 110.0

    outside.listed = (sharer, owner)
    outside.asked.clear()
    learner.learn(here(sharer.uid, "main-id"), 101.0)
    assert (outside.asked, learner.due_s) == ([], 101.5), "an owner's are asked for soon"


def test_an_annotation_without_an_response_to_allocate_counts_once_the_kubelet_says_the_same() -> (
    None
):
    outside = Outside((), saved={"late-uid": granted("2")})
    runtime = ModelRuntime(here=True, containers=(reported("late-uid", exclusive_a="2"),))
    manager, learner = learning(outside, runtime)
    manager.observe_containers(runtime.containers)
    assert builders.owned(manager) == {}

    learner.learn(here("late-uid", "main-id"), 100.0)
    assert builders.owned(manager) == {"late-uid": {"exclusive_a": CPUSet.of(2)}}
    assert manager.snapshot().resolution.unconfirmed == ()


def test_a_sandbox_that_is_left_of_an_earlier_pod_does_not_make_its_name_ambiguous() -> None:
    successor = builders.pod("web", builders.container(exclusive_a=1))
    outside = Outside((successor,), live={("default", "web"): granted("4")})
    manager, learner = learning(outside)
    manager.observe_containers(
        [RuntimeContainer(ContainerID("old"), "web-0-uid", "default", "web")]
    )

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


@dataclass
class AwaitingRuntime(ModelRuntime):
    """A runtime that waits for an answer of the agent, as long as `awaits` is set."""

    awaits: bool = True

    def recognise(self, ids: Collection[str]) -> tuple[RuntimeContainer, ...]:
        if self.awaits:
            raise RuntimeAwaitsAnswer
        return super().recognise(ids)


def test_a_runtime_that_waits_for_the_agent_is_asked_later_and_that_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = AwaitingRuntime(here=True, containers=(reported(OWNER.uid),))
    manager, learner = learning(Outside(), runtime)
    learner.learn(here(OWNER.uid, "main-id"), 100.0)
    assert learner.due_s == 100.1
    assert "source cannot be read" not in caplog.text
    runtime.awaits = False
    learner.learn(here(OWNER.uid, "main-id"), 100.1)
    assert set(manager.snapshot().facts.sighted) == {"main-id"}


@pytest.mark.parametrize("nri", [True, False])
def test_the_choices_on_containers_are_asked_for_unless_the_runtime_names_them_by_nri(
    *, nri: bool
) -> None:
    whole = builders.pod("whole", builders.container(cpu=1000))
    chosen = replace(reported(whole.uid), chosen=CPUSet.parse("4"))
    runtime = ModelRuntime(here=True, containers=(chosen,))
    manager, learner = learning(Outside((whole,)), runtime, nri=lambda: nri)
    found = here(whole.uid, "main-id")
    learner.learn(found, 100.0)
    learner.recall_choices(found)
    assert ("main-id" in manager.snapshot().facts.sighted) is not nri


@pytest.mark.parametrize("eligible", Eligible)
def test_a_container_with_a_limit_may_have_been_eligible_whatever_it_requests_today(
    eligible: Eligible,
) -> None:
    resized = builders.pod("db", replace(builders.container(), limit_milli=3000))
    chosen = replace(reported(resized.uid), chosen=CPUSet.parse("4"))
    runtime = ModelRuntime(here=True, containers=(chosen,))
    policy = CPUManager("static", CPUSet.of(0), eligible=eligible)
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=policy)
    manager, learner = learning(Outside((resized,)), runtime, pools)
    found = here(resized.uid, "main-id")
    learner.learn(found, 100.0)
    learner.recall_choices(found)
    recalled = "main-id" in manager.snapshot().facts.sighted
    assert recalled is (eligible is Eligible.CONTAINER)
