from __future__ import annotations

import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import RemoteProtocolError
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from cpupool.runtime.nri.connection import Launch
from cpupool.runtime.nri.holding import MissingFacts
from tests import builders
from tests.nri_agents import EARLIER, MACHINE, OWNER, OWNER_SANDBOX, PLAIN, POOLS, Agent, cpu_of, of
from tests.nri_pods import Container
from tests.nri_pods import Pod as NRIPod
from tests.nri_runtime import FakeRuntime, Plugin, Refused
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.api import nri_pb2
    from cpupool.core.workloads import Pod


def test_an_answer_waits_for_the_kubelets_word(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER))
    eventually(lambda: agent.manager.snapshot().resolution.containers, "the container is known")
    assert agent.looked.acquire(timeout=DEADLINE_S)
    assert not answer.done()
    agent.give(OWNER, exclusive_a="4")
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "4"


def test_a_container_whose_devices_nothing_names_is_held(agent: Agent, plugin: Plugin) -> None:
    agent.manager.observe(pods=[OWNER])
    with pytest.raises(Refused, match=r"owner/main is held: .*exclusive_a.* tries again"):
        plugin.create(of(OWNER))
    assert agent.metric('outcome="held",request="create"} 1.0')
    assert [reason for _, reason, _ in agent.events.pods] == ["CPUContainerHeld"]


def test_the_runtime_waits_once_for_a_container_and_a_second_in_ten_for_all(folder: Path) -> None:
    now_s = 100.0
    agent = Agent(folder / "nri.sock", clock=lambda: now_s)
    others = [
        builders.pod(name, builders.container(running=False, exclusive_a=1)) for name in ("b", "c")
    ]
    agent.manager.observe(pods=[OWNER, *others])
    with FakeRuntime(folder / "nri.sock") as runtime, agent.running():
        plugin = runtime.welcome()
        eventually(agent.runtime.connected, "the plugin is connected")
        answer = waiting(agent, plugin, of(OWNER))
        now_s += 1.0
        agent.plugin.wake()
        with pytest.raises(Refused):
            answer.result(DEADLINE_S)
        for unlucky in (of(OWNER, "again"), of(others[0], "other")):
            with pytest.raises(Refused):
                plugin.create(unlucky)

        now_s += 10.0
        answer = waiting(agent, plugin, of(others[0], "other again"))
        agent.give(others[0], exclusive_a="4")
        assert cpu_of(answer.result(DEADLINE_S)).cpus == "4"
        with pytest.raises(Refused):
            plugin.create(of(OWNER, "once more"))
        waiting(agent, plugin, of(others[1], "third"))


def waiting(
    agent: Agent, plugin: Plugin, container: Container
) -> Future[nri_pb2.CreateContainerResponse]:
    """Let the runtime create a container, and return once it waits for that."""
    # Its answer comes after everything that was said before.
    plugin.run_sandbox(container.pod)
    while agent.looked.acquire(blocking=False):
        pass
    answer = plugin.creating(container)
    assert agent.looked.acquire(timeout=DEADLINE_S), "a container that waits asks for a sweep"
    assert not answer.done()
    return answer


def test_a_container_that_is_held_is_not_there(agent: Agent, plugin: Plugin) -> None:
    agent.manager.observe(pods=[OWNER])
    with pytest.raises(Refused):
        plugin.create(of(OWNER))
    eventually(
        lambda: agent.manager.snapshot().facts.sighted.keys() == {OWNER_SANDBOX},
        "only the sandbox is",
    )


def test_a_creation_that_ends_while_it_waits_leaves_nothing(folder: Path) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    with FakeRuntime(folder / "nri.sock") as runtime, agent.running():
        plugin = runtime.welcome()
        answer = plugin.creating(of(OWNER))
        plugin.stop(of(OWNER))
        with pytest.raises(Refused, match="c1 has ended"):
            answer.result(DEADLINE_S)
        assert agent.runtime.cpu_list(ContainerID("c1")) is None
        assert agent.manager.snapshot().facts.sighted.keys() == {OWNER_SANDBOX}


def test_a_container_that_waits_stays_known_whatever_the_runtime_names_again(
    agent: Agent, plugin: Plugin
) -> None:
    agent.patient = True
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER))
    plugin.synchronize()
    agent.give(OWNER, exclusive_a="4")
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "4"


def test_or_released_into_the_default_pool(folder: Path, runtime: FakeRuntime) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    agent.manager.observe(pods=[OWNER])
    with agent.running():
        assert cpu_of(runtime.welcome().create(of(OWNER))).cpus == "0"


def taken(agent: Agent, plugin: Plugin) -> Container:
    """Start a container of an earlier pod on CPU 2, and let the kubelet give that to another."""
    agent.manager.observe(pods=[EARLIER, OWNER])
    agent.give(EARLIER, exclusive_a="2")
    container = of(EARLIER, "earlier")
    plugin.run_sandbox(container.pod)
    plugin.create(container)
    plugin.start(container)
    agent.give(OWNER, exclusive_a="2")
    return container


def test_a_container_waits_until_the_pod_that_has_its_cpu_is_gone(
    agent: Agent, plugin: Plugin
) -> None:
    agent.patient = True
    taken(agent, plugin)
    answer = plugin.creating(of(OWNER))
    eventually(lambda: "c1" in agent.manager.snapshot().facts.sighted, "the container waits")
    assert not answer.done()
    agent.manager.observe(pods=[replace(EARLIER, finished=True), OWNER])
    agent.plugin.facts_changed()
    created = answer.result(DEADLINE_S)
    assert cpu_of(created).cpus == "2"
    assert ("EXCLUSIVE_CPUS", "2") in {(one.key, one.value) for one in created.adjust.env}
    assert not agent.events.pods


def test_the_runtimes_word_on_a_pods_end_is_enough(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    earlier = taken(agent, plugin)
    # The API server has never listed it.
    agent.manager.observe(pods=[OWNER])
    answer = plugin.creating(of(OWNER))
    eventually(lambda: "c1" in agent.manager.snapshot().facts.sighted, "the container waits")
    plugin.stop(earlier)
    assert not answer.done()
    plugin.remove_sandbox(earlier.pod)
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "2"


def test_a_container_whose_cpu_another_pod_has_is_held(agent: Agent, plugin: Plugin) -> None:
    taken(agent, plugin)
    with pytest.raises(Refused, match=r"owner/main is held: .* pod default/earlier still has them"):
        plugin.create(of(OWNER))
    assert agent.runtime.cpu_list(ContainerID("c1")) is None
    ((pod, reason, message),) = agent.events.pods
    assert (pod, reason) == ("owner", "CPUContainerHeld")
    assert "CPUs 2 of exclusive_a" in message
    assert "pod default/earlier" in message
    assert "find out why that pod does not end" in message


def test_or_released_until_it_can_have_its_cpu(folder: Path, runtime: FakeRuntime) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    with agent.running():
        plugin = runtime.welcome()
        taken(agent, plugin)
        answer = plugin.create(of(OWNER))
    assert cpu_of(answer).cpus == "0"
    ((pod, reason, message),) = agent.events.pods
    assert (pod, reason) == ("owner", "CPUContainerReleased")
    assert "starts in the default pool" in message
    assert "pod default/earlier" in message


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(replace(OWNER, node_critical=True), id="of the class system-node-critical"),
        pytest.param(replace(OWNER, cgroup_uid="hash"), id="static"),
    ],
)
def test_what_the_node_may_need_is_never_held(agent: Agent, plugin: Plugin, pod: Pod) -> None:
    agent.manager.observe(pods=[pod])
    container = Container(NRIPod(pod.cgroup_uid, pod.name), "c1")
    assert cpu_of(plugin.create(container)).cpus == "0"
    assert [reason for _, reason, _ in agent.events.pods] == ["CPUContainerReleased"]


def test_until_the_pools_are_known_who_has_devices_of_one_waits(
    runtime: FakeRuntime, folder: Path
) -> None:
    ours, its = socket.socketpair()
    now_s = 100.0
    launch = Launch(ours.detach(), "cpupool", "07")
    agent = Agent(folder / "nri.sock", ready=False, launch=launch, clock=lambda: now_s)
    agent.manager = Manager()
    agent.plugin = agent.made()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(agent.plugin.run, threading.Event())
        plugin = runtime.adopt(its)
        plugin.configure()
        plugin.synchronize()
        owner = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}))
        answer = waiting(agent, plugin, owner)
        now_s += 1.0
        agent.plugin.wake()
        with pytest.raises(Refused, match="owner/main is held: this node's pools are not known"):
            answer.result(DEADLINE_S)
        assert not plugin.create(of(PLAIN, "p")).HasField("adjust")
        now_s += 10.0
        answer = waiting(agent, plugin, replace(owner, id="c2", name="other"))
        agent.manager.reconfigure(POOLS, MACHINE.topology())
        agent.plugin.facts_changed()
        assert cpu_of(answer.result(DEADLINE_S)).cpus == "2"
        plugin.hang_up()
        with pytest.raises(RemoteProtocolError):
            ended.result(DEADLINE_S)
