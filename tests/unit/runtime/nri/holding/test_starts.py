"""The look at the cgroups before a container with CPUs of its own runs its first instruction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import FoundContainer
from cpupool.core.errors import HostFileError
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.holding import MissingFacts
from tests import builders
from tests.nri_agents import Agent, cpu_of, of
from tests.nri_runtime import FakeRuntime, Plugin, Refused
from tests.unit.runtime.nri.static import found, govern, web
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from cpupool.api import nri_pb2
    from cpupool.core.workloads import Pod

OWNER = web("owner", 2)
OTHER = builders.pod("other", builders.container(running=False))
BREACHES = "cpupool_exclusive_start_breaches_total"
STAYS = found(OTHER, "other", "0-7")
LEFT = found(OTHER, "other", "0-1,4-7")


def run(agent: Agent, plugin: Plugin, owner: Pod = OWNER) -> None:
    """Start a container that shares, and create one with CPUs 2-3 of its own."""
    govern(agent)
    agent.manager.observe(pods=[owner, OTHER])
    assert cpu_of(plugin.create(of(OTHER, "other"))).cpus == "0-7"
    plugin.start(of(OTHER, "other"))
    agent.found = (STAYS,)
    container = of(owner)
    container = replace(container, pod=replace(container.pod, uid=owner.cgroup_uid))
    answer = plugin.create(container)
    assert cpu_of(answer).cpus == "2-3"
    assert [(one.container_id, one.ignore_failure) for one in answer.update] == [
        ("other", owner.essential or agent.missing_facts is MissingFacts.RELEASE)
    ]


def waits(agent: Agent, plugin: Plugin) -> Future[nri_pb2.Empty]:
    """Let the runtime ask for a start that has to wait."""
    agent.patient = True
    answer = plugin.starting(of(OWNER))
    eventually(lambda: agent.runtime.delays, "the start waits")
    assert not answer.done()
    return answer


def test_a_container_starts_once_the_others_have_left(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    agent.found = (found(OWNER, "c1", "2-3"), LEFT)
    plugin.starting(of(OWNER)).result(DEADLINE_S)
    assert agent.metric('outcome="unchanged",request="start"} 1.0')
    assert agent.metric(f"{BREACHES} 0.0")


def test_it_waits_for_a_sweep_that_moves_them(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    while agent.looked.acquire(blocking=False):
        pass
    answer = waits(agent, plugin)
    assert agent.looked.acquire(timeout=DEADLINE_S), "a sweep is asked for"
    agent.found = (LEFT,)
    agent.plugin.facts_changed()
    answer.result(DEADLINE_S)
    assert not agent.runtime.delays
    assert not agent.events.pods


def test_a_container_that_they_do_not_leave_is_not_started(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    with pytest.raises(
        Refused,
        match=r"owner/main is not started: other containers still run on its CPUs 2-3:"
        r" default/other/main; the kubelet tries again\. If it stays so, look at the agent's log",
    ):
        plugin.starting(of(OWNER)).result(DEADLINE_S)
    ((pod, reason, message),) = agent.events.pods
    assert (pod, reason) == ("owner", "CPUOccupied")
    assert "owner/main is not started" in message
    assert agent.metric('outcome="held",request="start"} 1.0')
    plugin.stop(of(OWNER))
    assert agent.metric(f"{BREACHES} 0.0")
    assert not agent.runtime.delays


def test_a_runtime_that_starts_it_nevertheless_is_counted(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    with pytest.raises(Refused):
        plugin.starting(of(OWNER)).result(DEADLINE_S)
    plugin.start(of(OWNER))
    assert agent.metric(f"{BREACHES} 1.0")
    assert [reason for _, reason, _ in agent.events.pods] == ["CPUOccupied"] * 2
    assert "owner/main has started: other containers" in agent.events.pods[-1][2]


def test_what_the_node_may_need_starts_and_is_counted(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin, replace(OWNER, node_critical=True))
    plugin.starting(of(OWNER)).result(DEADLINE_S)
    assert agent.metric('outcome="shared",request="start"} 1.0')
    assert agent.metric(f"{BREACHES} 1.0")


def test_so_does_every_container_where_the_admin_prefers_that(
    folder: Path, runtime: FakeRuntime
) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    with agent.running():
        plugin = runtime.welcome()
        run(agent, plugin)
        plugin.starting(of(OWNER)).result(DEADLINE_S)
    assert agent.metric(f"{BREACHES} 1.0")


def test_a_start_that_ends_while_it_waits_leaves_nothing(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    answer = waits(agent, plugin)
    plugin.stop(of(OWNER))
    with pytest.raises(Refused, match="c1 has ended"):
        answer.result(DEADLINE_S)
    assert not agent.runtime.delays


def test_while_a_start_waits_only_cpupool_can_write(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    assert agent.runtime.starting(ContainerID("c1"))
    waits(agent, plugin)
    assert not agent.runtime.starting(ContainerID("c1")), "the sweep looks at it, too"
    plugin.hang_up()
    eventually(lambda: not agent.runtime.delays, "nothing waits without a runtime")


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(found(OWNER, "sandbox", "0-7"), id="its own pod's sandbox"),
        pytest.param(found(builders.pod("unknown"), "x", "3"), id="an unknown pod's"),
    ],
)
def test_every_container_counts(agent: Agent, plugin: Plugin, there: FoundContainer) -> None:
    run(agent, plugin)
    agent.found = (LEFT, there)
    with pytest.raises(Refused, match="other containers still run on its CPUs"):
        plugin.starting(of(OWNER)).result(DEADLINE_S)


def test_a_tree_that_cannot_be_read_starts_nothing(agent: Agent, plugin: Plugin) -> None:
    run(agent, plugin)
    agent.found = _Unreadable()
    with pytest.raises(Refused, match=r"owner/main is not started: .*cpuset.cpus"):
        plugin.starting(of(OWNER)).result(DEADLINE_S)


class _Unreadable(tuple[FoundContainer, ...]):
    __slots__ = ()

    def __iter__(self) -> Iterator[FoundContainer]:
        raise HostFileError("cpuset.cpus", "it is a folder", "look")


def test_a_container_that_owns_nothing_costs_no_look(agent: Agent, plugin: Plugin) -> None:
    govern(agent)
    agent.manager.observe(pods=[OTHER])
    plugin.create(of(OTHER, "other"))
    agent.found = _Unreadable()
    plugin.starting(of(OTHER, "other")).result(DEADLINE_S)


def test_unless_its_cpus_have_changed_since_it_was_created(agent: Agent, plugin: Plugin) -> None:
    govern(agent)
    agent.manager.observe(pods=[OWNER, OTHER])
    plugin.create(of(OTHER, "other"))
    plugin.create(of(OWNER))
    # Its cgroup was made before: it does not hold up the owner, whose program has not started.
    agent.found = (STAYS,)
    plugin.starting(of(OWNER)).result(DEADLINE_S)
    plugin.start(of(OWNER))
    with pytest.raises(
        Refused, match="other/main is not started: its cgroup still has CPUs 2-3 of another pod"
    ):
        plugin.starting(of(OTHER, "other")).result(DEADLINE_S)
    plugin.stop(of(OTHER, "other"))


def test_an_old_runtime_asks_in_another_way(folder: Path) -> None:
    agent = Agent(folder / "nri.sock")
    with FakeRuntime(folder / "nri.sock", dedicated=False) as runtime, agent.running():
        plugin = runtime.welcome()
        run(agent, plugin)
        with pytest.raises(Refused, match="owner/main is not started"):
            plugin.starting(of(OWNER)).result(DEADLINE_S)


def test_an_owners_creation_asks_for_a_sweep_that_moves_what_only_cpupool_writes(
    agent: Agent, plugin: Plugin
) -> None:
    govern(agent)
    agent.manager.observe(pods=[OWNER, OTHER])
    plugin.create(of(OTHER, "other"))
    _drain(agent.looked.acquire)
    plugin.create(of(OWNER))
    assert agent.looked.acquire(timeout=DEADLINE_S)


def _drain(acquire: Callable[..., bool]) -> None:
    while acquire(blocking=False):
        pass
