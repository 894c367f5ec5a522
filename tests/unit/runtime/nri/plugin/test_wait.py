"""The plugin comes to the runtime when no pod ends any more, or when it has waited long enough."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.api import nri_pb2
from cpupool.core.cgroups import FoundContainer
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.wait_before_connecting import WaitRules
from tests.nri_agents import OWNER, PLAIN, Agent, of
from tests.nri_runtime import FakeRuntime
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.workloads import Pod

FOR_EVER_S = 1e6
_RUNNING = nri_pb2.CONTAINER_RUNNING


@pytest.fixture
def agent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    # Nothing is found by looking again.
    monkeypatch.setattr("cpupool.runtime.nri.plugin._LOOK_S", FOR_EVER_S)
    made = Agent(folder / "nri.sock", waits=WaitRules(FOR_EVER_S))
    slow(made)
    return made


def slow(agent: Agent) -> Pod:
    """Let the API server list a pod that ends, and whose container is there."""
    (main,) = PLAIN.containers
    pod = replace(
        PLAIN,
        containers=(replace(main, id=ContainerID("slow-id")),),
        ending=True,
        ends_s=time.time() + FOR_EVER_S,
    )
    agent.manager.observe(pods=[pod, OWNER])
    agent.found = (FoundContainer(pod.cgroup_uid, "slow-id", "slow/c", "0"),)
    return pod


def end(agent: Agent) -> None:
    """Let the container of the slow pod end; the sweep after that tells the plugin."""
    agent.found = ()
    agent.plugin.facts_changed()


def awaited(agent: Agent) -> None:
    eventually(lambda: agent.wait.waits, "it waits")
    assert agent.wait.waits.startswith("waits for default/plain until ")
    assert agent.metric('cpupool_nri_waits_until_timestamp_seconds{pod="default/plain"}')
    assert not agent.runtime.connected()


def test_it_comes_when_the_pod_has_ended(agent: Agent, runtime: FakeRuntime) -> None:
    agent.required = True
    agent.plugin = agent.made()
    with agent.running():
        awaited(agent)
        eventually(lambda: "it waits for default/plain" in str(agent.health.ready()), "a reason")
        assert not runtime.reached()
        end(agent)
        runtime.welcome()
        eventually(lambda: agent.health.ready().ok, "the node is ready")
        assert agent.wait.waits == ""
        assert not agent.metric("cpupool_nri_waits_until_timestamp_seconds{")


def test_it_comes_by_the_bound_although_the_pod_is_still_there(
    agent: Agent, runtime: FakeRuntime
) -> None:
    agent.waits, agent.clock = WaitRules(30.0), (clock := Clock())
    agent.plugin = agent.made()
    with agent.running():
        awaited(agent)
        clock.now_s += 30.0
        agent.plugin.facts_changed()
        runtime.welcome()


def test_a_runtime_that_has_restarted_is_met_at_once_and_the_same_one_is_not(
    agent: Agent, runtime: FakeRuntime, folder: Path
) -> None:
    agent.found = ()
    with agent.running():
        first = runtime.welcome([of(PLAIN, cpus="0", state=_RUNNING)])
        eventually(agent.runtime.connected, "the plugin is connected")
        slow(agent)
        # The runtime drops a plugin that has not answered in time: it may be stopping containers.
        first.hang_up()
        awaited(agent)
        (folder / "nri.sock").unlink()
        with FakeRuntime(folder / "nri.sock") as next_one:
            agent.plugin.wake()
            next_one.welcome()
            eventually(agent.runtime.connected, "the plugin is connected again")
            assert agent.wait.waits == ""


class Clock:
    """A clock that is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
