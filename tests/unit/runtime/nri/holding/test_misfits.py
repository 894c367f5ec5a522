"""Pods that the CPU manager policy refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import Misfit
from cpupool.core.workloads import ContainerID
from cpupool.enforce import notices
from tests import builders
from tests.nri_agents import Agent, cpu_of, of
from tests.nri_runtime import Plugin, Refused
from tests.unit.runtime.nri.static import govern, web
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

LARGE = web("large", 6, "2026-01-01T00:00:00Z")
NEXT = web("next", 3, "2026-01-02T00:00:00Z")
LATE = web("late", 1, "2026-01-03T00:00:00Z")


def run(agent: Agent, plugin: Plugin) -> None:
    """Start a pod that leaves only CPU 1 free."""
    govern(agent)
    agent.manager.observe(pods=[LARGE, NEXT, LATE])
    plugin.run_sandbox(of(LARGE).pod)
    assert cpu_of(plugin.create(of(LARGE, "large"))).cpus == "2-7"
    plugin.start(of(LARGE, "large"))


def test_a_pod_that_does_not_fit_is_held_at_once_with_the_kubelets_words(
    agent: Agent, plugin: Plugin
) -> None:
    agent.patient = True
    run(agent, plugin)
    with pytest.raises(
        Refused,
        match=r"next/main is held: Allocate failed due to not enough cpus available to satisfy"
        r" request: requested=3, available=1, .*; the kubelet tries again\. If it stays so, request"
        r" another number of CPUs",
    ):
        plugin.create(of(NEXT))
    ((pod, reason, message),) = agent.events.pods
    assert (pod, reason) == ("next", "UnexpectedAdmissionError")
    assert "next/main is held: Allocate failed" in message
    assert agent.metric('outcome="held",request="create"} 1.0')
    assert agent.runtime.cpu_list(ContainerID("c1")) is None


def test_so_is_every_container_of_it(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    both = replace(NEXT, containers=(*NEXT.containers, builders.container("log", running=False)))
    agent.manager.observe(pods=[LARGE, both])
    with pytest.raises(Refused, match="next/log is held: Allocate failed"):
        plugin.create(of(both, "log", name="log"))


def test_a_held_pod_stays_in_line_and_starts_with_the_next_try(
    agent: Agent, plugin: Plugin
) -> None:
    run(agent, plugin)
    whole = web("next", 7, NEXT.created)
    agent.manager.observe(pods=[replace(LARGE, ending=True), whole, LATE])
    with pytest.raises(Refused):
        plugin.create(of(whole, "first"))
    eventually(
        lambda: "first" not in agent.manager.snapshot().facts.sighted, "the try is forgotten"
    )
    # The younger pod fits, but the older pod waits for its CPU, too.
    with pytest.raises(Refused, match="kept for the older pod default/next"):
        plugin.create(of(LATE, "late"))
    plugin.stop(of(LARGE, "large"))
    plugin.remove_sandbox(of(LARGE).pod)
    agent.manager.observe(pods=[whole, LATE], idle=frozenset({LARGE.cgroup_uid}))
    assert cpu_of(plugin.create(of(whole, "second"))).cpus == "1-7"


def test_a_held_container_asks_for_a_sweep_that_finds_what_is_free(
    agent: Agent, plugin: Plugin
) -> None:
    run(agent, plugin)
    plugin.run_sandbox(of(NEXT).pod)
    while agent.looked.acquire(blocking=False):
        pass
    with pytest.raises(Refused):
        plugin.create(of(NEXT))
    assert agent.looked.acquire(timeout=DEADLINE_S)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(replace(NEXT, node_critical=True), id="system-node-critical"),
        pytest.param(replace(NEXT, cgroup_uid="hash"), id="static"),
    ],
)
def test_what_the_node_may_need_shares(agent: Agent, plugin: Plugin, pod: Pod) -> None:
    run(agent, plugin)
    agent.manager.observe(pods=[LARGE, pod])
    container = of(pod)
    container = replace(container, pod=replace(container.pod, uid=pod.cgroup_uid))
    assert cpu_of(plugin.create(container)).cpus == "0-1"


def test_so_does_every_pod_where_the_pool_file_says_so(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    govern(agent, Misfit.SHARE)
    assert cpu_of(plugin.create(of(NEXT))).cpus == "0-1"
    assert not agent.events.pods, "the sweep tells it"
    ((_, notice),) = notices.about_placement(agent.manager.snapshot().resolution)
    assert (notice.event, notice.pod.name, notice.lasts_s) == (
        "UnexpectedAdmissionError",
        "next",
        0.0,
    )
    assert "requested=3, available=1" in notice.why
    assert "request another number of CPUs" in notice.remedy


def test_a_pod_that_the_runtime_does_not_hold_has_the_notice_after_a_moment(
    agent: Agent, plugin: Plugin
) -> None:
    run(agent, plugin)
    # As through CRI or cgroups: the runtime does not ask before the container starts.
    instance = replace(NEXT.containers[0], id=ContainerID("next"))
    agent.manager.observe(pods=[LARGE, replace(NEXT, containers=(instance,))])
    ((_, notice),) = notices.about_placement(agent.manager.snapshot().resolution)
    assert (notice.event, notice.phrase) == (
        "UnexpectedAdmissionError",
        "container confined to the default pool",
    )
    assert notice.lasts_s > 0


def test_a_pod_of_which_a_container_runs_is_not_held(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    both = replace(NEXT, containers=(*NEXT.containers, builders.container("log", running=False)))
    # The API server has not listed it when its first container starts.
    agent.manager.observe(pods=[LARGE])
    plugin.create(of(both, "log", name="log"))
    plugin.start(of(both, "log", name="log"))
    agent.manager.observe(pods=[LARGE, both])
    assert cpu_of(plugin.create(of(both))).cpus == "0-1"
