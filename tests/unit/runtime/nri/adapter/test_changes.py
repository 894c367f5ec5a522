from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ContainerNotFound, RuntimeBusy, RuntimeRefused, RuntimeSilent
from cpupool.core.properties import Properties
from cpupool.core.workloads import ContainerID
from tests.nri_agents import OWNER, PLAIN, Agent, cpu_of, of
from tests.nri_runtime import FakeRuntime, Plugin
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_the_runtime_is_asked_to_move_a_container(agent: Agent, plugin: Plugin) -> None:
    plugin.create(of(PLAIN))
    agent.runtime.update(ContainerID("c1"), CPUSet.of(5))
    ((update,),) = plugin.updates
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("c1", "5")
    assert agent.runtime.cpu_list(ContainerID("c1")) == "5"


def test_a_runtime_that_does_not_move_a_container_is_reported(agent: Agent, plugin: Plugin) -> None:
    with pytest.raises(ContainerNotFound):
        agent.runtime.update(ContainerID("c1"), CPUSet.of(5))
    plugin.create(of(PLAIN))
    plugin.failing.add("c1")
    with pytest.raises(RuntimeRefused, match="CPUs 5: look at its log"):
        agent.runtime.update(ContainerID("c1"), CPUSet.of(5))
    assert agent.runtime.cpu_list(ContainerID("c1")) == "0"


def test_who_waits_for_the_runtime_lets_go_when_it_waits_itself(
    agent: Agent, plugin: Plugin
) -> None:
    plugin.create(of(PLAIN))
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    plugin.silent = True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(agent.runtime.update, ContainerID("c1"), CPUSet.of(5))
        eventually(lambda: plugin.updates, "the runtime is asked")
        answer = plugin.creating(of(OWNER, "held"))
        with pytest.raises(RuntimeBusy):
            asked.result(DEADLINE_S)
        agent.give(OWNER, exclusive_a="2")
        assert cpu_of(answer.result(DEADLINE_S)).cpus == "2"
    # What it answers later counts.
    plugin.answer_updates()
    eventually(lambda: agent.runtime.cpu_list(ContainerID("c1")) == "5", "it is moved")


def test_several_containers_are_moved_by_one_call(agent: Agent, plugin: Plugin) -> None:
    for name in ("c1", "c2", "c3"):
        plugin.create(of(PLAIN, name))
    plugin.failing.add("c2")
    agent.runtime.update_all({ContainerID(f"c{number}"): CPUSet.of(5) for number in (1, 2, 3, 4)})
    (updates,) = plugin.updates
    assert [one.container_id for one in updates] == ["c1", "c2", "c3"]
    held = [agent.runtime.cpu_list(ContainerID(f"c{number}")) for number in (1, 2, 3)]
    assert held == ["5", "0", "5"], "a failure concerns one container"
    agent.runtime.update_all({ContainerID("c4"): CPUSet.of(5)})
    assert len(plugin.updates) == 1


def test_a_runtime_that_does_not_answer_is_asked_nothing_more(folder: Path) -> None:
    now_s = 0.0
    agent = Agent(folder / "nri.sock", clock=lambda: now_s, update_s=0.05)
    with FakeRuntime(folder / "nri.sock") as runtime, agent.running():
        plugin = runtime.welcome()
        for name in ("c1", "c2"):
            plugin.create(of(PLAIN, name))
        plugin.silent = True
        with pytest.raises(RuntimeSilent, match="CPUs 5: it does not answer"):
            agent.runtime.update(ContainerID("c1"), CPUSet.of(5))
        with pytest.raises(RuntimeSilent):
            agent.runtime.update(ContainerID("c2"), CPUSet.of(5))
        with pytest.raises(RuntimeSilent):
            agent.runtime.update_all({ContainerID("c2"): CPUSet.of(5)})
        with pytest.raises(RuntimeSilent):
            agent.runtime.adjust(ContainerID("c2"), Properties(bandwidth=Bandwidth(400_000)))
        eventually(lambda: len(plugin.updates) == 1, "only one call has come")
        # It says other things meanwhile, and its answer may still come.
        assert cpu_of(plugin.create(of(PLAIN, "c3"))).cpus == "0"

        now_s = 6.0
        with pytest.raises(RuntimeSilent):
            agent.runtime.update(ContainerID("c2"), CPUSet.of(5))
        eventually(lambda: len(plugin.updates) == 2, "it is asked again after a while")

        while agent.looked.acquire(blocking=False):
            pass
        plugin.answer_updates()
        assert agent.looked.acquire(timeout=DEADLINE_S), "an answer is news"
        assert agent.runtime.cpu_list(ContainerID("c2")) == "5"
        plugin.silent = False
        eventually(lambda: moved(agent, "c1"), "it is asked as before")


def moved(agent: Agent, container: str) -> bool:
    with suppress(RuntimeSilent):
        agent.runtime.update(ContainerID(container), CPUSet.of(5))
        return True
    return False


def test_nothing_is_asked_of_a_runtime_that_waits_for_an_answer(
    agent: Agent, plugin: Plugin
) -> None:
    plugin.create(of(PLAIN))
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER, "held"))
    eventually(lambda: "held" in agent.manager.snapshot().facts.sighted, "the container waits")
    with pytest.raises(RuntimeRefused, match="it waits for an answer itself"):
        agent.runtime.update(ContainerID("c1"), CPUSet.of(5))
    agent.give(OWNER, exclusive_a="2")
    answer.result(DEADLINE_S)
    agent.runtime.update(ContainerID("c1"), CPUSet.of(5))


def test_a_quota_is_set_by_the_runtime_and_no_cpus_are(agent: Agent, plugin: Plugin) -> None:
    plugin.create(of(PLAIN))
    agent.runtime.adjust(ContainerID("c1"), Properties(bandwidth=Bandwidth(400_000)))
    ((update,),) = plugin.updates
    cpu = update.linux.resources.cpu
    assert (cpu.cpus, cpu.quota.value, cpu.period.value) == ("", 400_000, 100_000)
    assert not update.ignore_failure
    assert agent.runtime.cpu_list(ContainerID("c1")) == "0"

    with pytest.raises(ContainerNotFound):
        agent.runtime.adjust(ContainerID("c2"), Properties(bandwidth=Bandwidth()))
    plugin.failing.add("c1")
    with pytest.raises(RuntimeRefused, match="did not set the CPU quota max 100000"):
        agent.runtime.adjust(ContainerID("c1"), Properties(bandwidth=Bandwidth()))
