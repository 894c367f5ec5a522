from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from cpupool.core.assignments import MemoryNodes
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from tests import builders
from tests.nri_agents import MACHINE, OWNER, PLAIN, Agent, cpu_of, of
from tests.nri_pods import Container
from tests.nri_pods import Pod as NRIPod
from tests.nri_runtime import Refused
from tests.unit.runtime.nri.static import govern, web
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nri_runtime import FakeRuntime, Plugin


def test_a_container_is_created_on_the_cpus_that_its_annotations_name(
    agent: Agent, plugin: Plugin
) -> None:
    answer = plugin.create(agent.allocated(of(OWNER, devices={"exclusive_a": "2"})))
    assert cpu_of(answer).cpus == "2"
    assert {one.key: one.value for one in answer.adjust.env} == {
        "EXCLUSIVE_CPUS": "2",
        "CPUPOOL_CPUS_EXCLUSIVE_A": "2",
    }
    assert builders.owned(agent.manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(2)}}
    assert agent.metric('outcome="pools",request="create"} 1.0')


def test_what_a_pods_author_annotates_gives_no_cpu(agent: Agent, plugin: Plugin) -> None:
    owner = agent.allocated(of(OWNER, devices={"exclusive_a": "2"}))
    forged = {"nokia.k8s.io/allocated.exclusive_a": "2"}
    forger = NRIPod(PLAIN.uid, PLAIN.name, annotations=forged)
    answer = plugin.create(Container(forger, "c2"))
    assert cpu_of(answer).cpus == "0"
    assert not answer.adjust.env

    assert cpu_of(plugin.create(owner)).cpus == "2"
    agent.manager.observe(pods=[PLAIN])
    assert builders.owned(agent.manager) == {OWNER.uid: {"exclusive_a": CPUSet.of(2)}}


def test_a_container_without_pools_is_created_on_the_default_pool(
    agent: Agent, plugin: Plugin
) -> None:
    answer = plugin.create(of(PLAIN))
    assert cpu_of(answer).cpus == "0"
    assert not cpu_of(answer).HasField("quota")
    assert not answer.adjust.env


def test_variables_of_a_kind_are_joined_and_only_those_that_are_wrong_are_set(
    agent: Agent, plugin: Plugin
) -> None:
    told = {"EXCLUSIVE_CPUS": "2", "CPUPOOL_CPUS_EXCLUSIVE_A": "2", "CPUPOOL_CPUS_EXCLUSIVE_B": "6"}
    owner = of(OWNER, devices={"exclusive_a": "2", "exclusive_b": "6"}, environment=told)
    answer = plugin.create(agent.allocated(owner))
    assert cpu_of(answer).cpus == "2,6"
    assert [(one.key, one.value) for one in answer.adjust.env] == [("EXCLUSIVE_CPUS", "2,6")]


@pytest.mark.parametrize(
    ("devices", "before_us", "quota_us"),
    [
        ({"shared_a": "0-499"}, None, 50_000),
        ({"shared_a": "0-499"}, 80_000, 50_000),
        ({"shared_a": "0-499"}, 20_000, None),
        ({"exclusive_a": "2"}, 100_000, -1),
        ({"exclusive_a": "2"}, None, None),
        ({"exclusive_a": "2", "shared_a": "0-499"}, 100_000, -1),
    ],
)
def test_the_quota_follows_the_pools(
    agent: Agent,
    plugin: Plugin,
    devices: dict[str, str],
    before_us: int | None,
    quota_us: int | None,
) -> None:
    container = agent.allocated(of(OWNER, devices=devices, quota_us=before_us))
    cpu = cpu_of(plugin.create(container))
    assert (cpu.quota.value if cpu.HasField("quota") else None) == quota_us


def test_what_is_not_the_kubelets_is_left_alone(agent: Agent, plugin: Plugin) -> None:
    answer = plugin.create(Container(NRIPod("u", labelled=False), "c1"))
    assert not answer.HasField("adjust")
    assert agent.runtime.cpu_list(ContainerID("c1")) is None


def test_others_leave_the_cpus_of_a_container_before_it_starts(
    agent: Agent, plugin: Plugin
) -> None:
    plugin.create(of(PLAIN, "p"))
    plugin.start(of(PLAIN, "p"))
    edited = NodePools.of(Pool.named("exclusive_c", "0"), Pool.named("default", "2-3"))
    agent.manager.reconfigure(edited, MACHINE.topology())
    answer = plugin.create(agent.allocated(of(OWNER, devices={"exclusive_c": "0"})))
    assert [(one.container_id, one.linux.resources.cpu.cpus) for one in answer.update] == [
        ("p", "2-3")
    ]
    assert agent.runtime.cpu_list(ContainerID("p")) == "2-3"


def test_a_container_is_judged_once_the_runtime_has_brought_it_onto_its_cpus(
    agent: Agent, plugin: Plugin
) -> None:
    container = of(PLAIN)
    plugin.create(container)
    assert agent.runtime.starting(ContainerID("c1"))
    plugin.start(container)
    assert not agent.runtime.starting(ContainerID("c1"))
    assert agent.runtime.cpu_list(ContainerID("c1")) == "0"


def test_what_has_ended_is_forgotten(agent: Agent, plugin: Plugin) -> None:
    for end in (plugin.stop, plugin.remove):
        container = of(PLAIN)
        plugin.run_sandbox(container.pod)
        plugin.create(container)
        end(container)
        plugin.remove_sandbox(container.pod)
        assert agent.runtime.cpu_list(ContainerID("c1")) is None
        assert not agent.manager.snapshot().facts.sighted


def test_many_at_once_are_decided_together(
    agent: Agent, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe_containers = Mock(wraps=agent.manager.observe_containers)
    monkeypatch.setattr(agent.manager, "observe_containers", observe_containers)
    pods = [builders.pod(f"p{number}") for number in range(100)]
    answers = plugin.create_many(of(pod, f"c{number}") for number, pod in enumerate(pods))
    assert {cpu_of(answer.result(DEADLINE_S)).cpus for answer in answers} == {"0"}
    assert observe_containers.call_count < 50


def test_a_container_with_cpus_of_the_policy_says_so(agent: Agent, plugin: Plugin) -> None:
    static = CPUManager("static", reserved=CPUSet.of(0))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=static)
    own = builders.pod("own", builders.container(running=False, cpu=2000))
    agent.manager.reconfigure(pools, MACHINE.topology())
    agent.manager.observe(pods=[own, PLAIN])
    agent.manager.adopt(())

    answer = plugin.create(of(own, "c1"))
    assert answer.adjust.annotations == {"nokia.k8s.io/cpus-chosen": cpu_of(answer).cpus}
    assert not plugin.create(of(PLAIN, "c2")).adjust.annotations

    # The annotation is for the container's whole life, offline CPUs included.
    whole = CPUSet.parse(cpu_of(answer).cpus)
    agent.manager.update_topology(MACHINE.without(str(whole.first)).topology())
    again = plugin.create(of(own, "c3"))
    assert cpu_of(again).cpus == str(whole - CPUSet.of(whole.first))
    assert again.adjust.annotations == {"nokia.k8s.io/cpus-chosen": str(whole)}


def test_a_choice_is_recorded_at_the_sandbox_before_the_runtime_waits_for_it(
    agent: Agent, plugin: Plugin
) -> None:
    govern(agent)
    owner = web("owner", 2)
    agent.manager.observe(pods=[owner])
    plugin.run_sandbox(of(owner).pod)
    eventually(lambda: agent.recorded[-1:] == [[owner.uid]], lambda: str(agent.recorded))


def test_a_container_is_created_with_its_memory_nodes(agent: Agent, plugin: Plugin) -> None:
    agent.memory = {PLAIN.name: MemoryNodes(CPUSet.of(1))}
    agent.manager.observe(pods=[PLAIN])
    cpu = cpu_of(plugin.create(of(PLAIN)))
    assert (cpu.cpus, cpu.mems) == ("0", "1")
    agent.memory = {}
    assert not cpu_of(plugin.create(of(PLAIN, "c2"))).mems


def test_a_container_whose_memory_nodes_have_no_memory_is_not_created(
    agent: Agent, plugin: Plugin
) -> None:
    agent.memory = dict.fromkeys((PLAIN.name, "critical"), MemoryNodes(CPUSet.of(1, 2)))
    critical = replace(builders.pod("critical", builders.container()), node_critical=True)
    agent.manager.observe(pods=[PLAIN, critical])
    with pytest.raises(Refused, match="no memory on NUMA node 2; this machine has memory on 0-1"):
        plugin.create(of(PLAIN))
    # What the node may need to work starts in any case.
    cpu = cpu_of(plugin.create(of(critical, "c2")))
    assert (cpu.cpus, cpu.mems) == ("0", "")


def test_an_answer_does_not_wait_for_the_sweep_that_it_asks_for(
    folder: Path, runtime: FakeRuntime
) -> None:
    sweep = _BusySweep()
    agent = Agent(folder / "nri.sock", looked=sweep)
    with agent.running():
        plugin = runtime.welcome()
        eventually(agent.runtime.connected, "the plugin is connected")
        with closing(sweep):
            sweep.begin()
            answer = plugin.create(agent.allocated(of(OWNER, devices={"exclusive_a": "2"})))
            eventually(lambda: sweep.asked, "the plugin asks for a sweep")
    assert cpu_of(answer).cpus == "2"


class _BusySweep(threading.Semaphore):
    """A sweep that keeps the plugin's thread for as long as it is open."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked = False
        self._closed = threading.Event()
        self._closed.set()

    def begin(self) -> None:
        self._closed.clear()

    def close(self) -> None:
        self._closed.set()

    def release(self, n: int = 1) -> None:
        super().release(n)
        self.asked |= not self._closed.is_set()
        self._closed.wait()
