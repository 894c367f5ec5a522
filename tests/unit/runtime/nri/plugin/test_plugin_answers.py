"""Containers whose resources plugins answer for: who waits, who is held, and what they get."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cpupool.api import nri_pb2
from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from tests.nri_agents import Agent, cpu_of, of
from tests.nri_runtime import FakeRuntime, Plugin, Refused
from tests.unit.manager.plugged import MACHINE, container, cpus, pod, pools, ref
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import ContainerRef, Pod

NIC = "example.com/nic"
OWN = pod("own", level="dedicated_cores")
WEB = pod("web")
WITH_NIC = pod("net", container(more={NIC: 1.0}))


def govern(
    agent: Agent,
    *pods: Pod,
    given: Mapping[ContainerRef, Mapping[str, RecordedAnswer]] | None = None,
    policy: str = "qrm",
    adopted: bool = True,
) -> None:
    """Put the policy in force, with plugins for CPUs and for NICs."""
    agent.manager.reconfigure(pools(policy), MACHINE.topology())
    if adopted:
        agent.manager.adopt(())
    answer(agent, given or {})
    agent.manager.observe(pods=pods)


def answer(agent: Agent, given: Mapping[ContainerRef, Mapping[str, RecordedAnswer]]) -> None:
    agent.manager.observe(plugins=PluginFacts(frozenset({"cpu", NIC}), given))
    agent.plugin.facts_changed()


def test_a_container_waits_for_its_answer(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    govern(agent, OWN)
    answered = plugin.creating(of(OWN))
    eventually(lambda: "c1" in agent.manager.snapshot().facts.sighted, "the container waits")
    assert not answered.done()
    answer(agent, {ref("own"): {"cpu": cpus("2-3", exclusive=True)}})
    assert cpu_of(answered.result(DEADLINE_S)).cpus == "2-3"
    assert not agent.events.pods


@pytest.mark.parametrize(
    ("exclusive", "annotations"), [(True, {"nokia.k8s.io/cpus-answered": "2-3"}), (False, {})]
)
def test_the_next_agent_recognises_cpus_that_are_the_containers_own(
    agent: Agent, plugin: Plugin, *, exclusive: bool, annotations: dict[str, str]
) -> None:
    govern(agent, OWN, given={ref("own"): {"cpu": cpus("2-3", exclusive=exclusive)}})
    assert plugin.create(of(OWN)).adjust.annotations == annotations


def test_an_owner_learns_its_cpus_at_its_start(agent: Agent, plugin: Plugin) -> None:
    both = {ref("own"): cpus("2-3", exclusive=True), ref("web"): cpus("1-4")}
    govern(agent, OWN, WEB, given={name: {"cpu": each} for name, each in both.items()})
    asks = {"EXCLUSIVE_CPUS": "its author's"}
    env = plugin.create(of(OWN, environment=asks)).adjust.env
    assert {each.key: each.value for each in env} == {"EXCLUSIVE_CPUS": "2-3"}
    assert not plugin.create(of(WEB, "c2")).adjust.env


def test_before_it_is_known_who_owns_cpus_no_running_container_is_moved(
    agent: Agent, runtime: FakeRuntime
) -> None:
    govern(agent, OWN, WEB, adopted=False)
    running = nri_pb2.CONTAINER_RUNNING
    there = [of(OWN, "c1", cpus="2-3", state=running), of(WEB, "c2", cpus="5", state=running)]
    with agent.running():
        plugin = runtime.accept()
        plugin.configure()
        assert not plugin.synchronize(there)


def test_before_the_pools_are_known_a_recorded_answer_moves_no_running_container(
    agent: Agent, runtime: FakeRuntime
) -> None:
    agent.manager = Manager()
    agent.manager.update_topology(MACHINE.topology())
    agent.manager.observe(pods=(OWN, WEB))
    agent.plugin = agent.made()
    answer(agent, {ref("own"): {"cpu": cpus("2-3", exclusive=True)}})
    running = nri_pb2.CONTAINER_RUNNING
    web = of(WEB, "c1", cpus="5", state=running)
    with agent.running():
        plugin = runtime.accept()
        plugin.configure()
        assert not plugin.synchronize([web])
        assert not plugin.update(web, "5").update
        # A new one stays off the CPUs of the owner.
        new = pod("new", container(more={"example.com/gpu": 1.0}))
        agent.manager.observe(pods=(OWN, WEB, new))
        assert cpu_of(plugin.create(of(new, "c2"))).cpus == "0-1,4-15"


def test_without_it_the_container_is_held(agent: Agent, plugin: Plugin) -> None:
    govern(agent, OWN)
    with pytest.raises(Refused, match="own/main is held: the plugin for cpu has not answered"):
        plugin.create(of(OWN))


@pytest.mark.parametrize("policy", ["qrm", "none"])
def test_an_agent_that_has_just_started_lets_no_such_container_pass(
    agent: Agent, plugin: Plugin, policy: str
) -> None:
    """Before it knows the pools, and what an earlier agent chose, it refuses no pod."""
    answer(agent, {})
    agent.manager.observe(pods=(WITH_NIC,))
    with pytest.raises(Refused, match="the agent has just started"):
        plugin.create(of(WITH_NIC))
    govern(agent, WITH_NIC, policy=policy, adopted=False)
    with pytest.raises(Refused, match="the agent has just started"):
        plugin.create(of(WITH_NIC))
    agent.manager.adopt(())
    with pytest.raises(Refused, match=f"the plugin for {NIC} has not answered"):
        plugin.create(of(WITH_NIC))


def test_each_start_waits_until_it_is_prepared(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    govern(agent, OWN)

    def prepare(*instances: str, why: str = "") -> None:
        given = {ref("own"): {"cpu": cpus("2-3", exclusive=True)}}
        done = {ref("own"): frozenset(map(ContainerID, instances))}
        refusals = {ref("own"): why} if why else {}
        facts = PluginFacts(frozenset({"cpu"}), given, refusals, prepared=done)
        agent.manager.observe(plugins=facts)
        agent.plugin.facts_changed()

    prepare()
    for instance in ("c1", "c2"):
        answered = plugin.creating(of(OWN, instance))
        seen = partial(lambda id_: id_ in agent.manager.snapshot().facts.sighted, instance)
        eventually(seen, "the container waits")
        assert not answered.done()
        prepare(instance)
        assert cpu_of(answered.result(DEADLINE_S)).cpus == "2-3"

    agent.patient = False
    with pytest.raises(Refused, match="its plugin has not prepared this start yet"):
        plugin.create(of(OWN, "c3"))
    prepare("c1", why="the plugin for cpu has refused (no)")
    with pytest.raises(Refused, match="is held: the plugin for cpu has refused"):
        plugin.create(of(OWN, "c4"))


def test_a_new_container_stays_off_the_cpus_that_an_owner_has_not_left(
    agent: Agent, plugin: Plugin
) -> None:
    govern(agent, OWN, WEB, given={ref("own"): {"cpu": cpus("2-3", exclusive=True)}})
    plugin.create(of(OWN))
    plugin.start(of(OWN))
    answer(agent, {ref("own"): {"cpu": cpus("4-5", exclusive=True)}})
    assert cpu_of(plugin.create(of(WEB, "c2"))).cpus == "0-1,6-7"


def test_a_refused_container_is_held_at_once(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    govern(agent, OWN)
    facts = PluginFacts(frozenset({"cpu"}), {}, {ref("own"): "the plugin for cpu has refused (no)"})
    agent.manager.observe(plugins=facts)
    with pytest.raises(Refused, match="the plugin for cpu has refused") as refused:
        plugin.create(of(OWN))
    assert "read the plugin's log" in str(refused.value)
    assert "cpuManager.onMisfit: share" in str(refused.value)
    ((name, reason, _),) = agent.events.pods
    assert (name, reason) == ("own", "UnexpectedAdmissionError")


def test_no_setting_starts_a_pod_whose_annotation_is_unclear(agent: Agent, plugin: Plugin) -> None:
    unclear = replace(OWN, description=replace(OWN.description, unclear="it is no JSON"))
    govern(agent, unclear)
    with pytest.raises(Refused, match="own/main is held: it is no JSON") as refused:
        plugin.create(of(unclear))
    assert str(refused.value).endswith("correct the annotation, and create the pod again")


def test_a_container_of_shared_cores_waits_for_nothing(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    govern(agent, WEB)
    assert cpu_of(plugin.create(of(WEB))).cpus == "0-7"


def test_a_pod_that_is_not_listed_may_request_a_plugins_resource(
    agent: Agent, plugin: Plugin
) -> None:
    govern(agent)
    with pytest.raises(Refused, match="which may request a plugin's resource"):
        plugin.create(of(WEB))
    # Without the API server a static pod is never listed.
    told = of(WEB, "c2")
    static = replace(told.pod, annotations={"kubernetes.io/config.source": "file"})
    assert cpu_of(plugin.create(replace(told, pod=static))).cpus == "0-7"


def test_variables_and_annotations_come_at_the_creation(agent: Agent, plugin: Plugin) -> None:
    texts = AnswerPart(env={"ADDR": "::1", "OLD": "1"}, annotations={"kubernetes.io/netns": "/ns1"})
    govern(agent, WITH_NIC, given={ref("net"): {NIC: RecordedAnswer(1.0, {NIC: texts})}})
    adjusted = plugin.create(of(WITH_NIC, environment={"OLD": "1"})).adjust
    assert {each.key: each.value for each in adjusted.env} == {"ADDR": "::1"}
    assert dict(adjusted.annotations) == {"kubernetes.io/netns": "/ns1"}
    assert adjusted.linux.resources.cpu.cpus == "0-7"


def test_a_container_is_created_with_the_memory_of_its_answer(agent: Agent, plugin: Plugin) -> None:
    memory = RecordedAnswer(1.0, {"memory": AnswerPart("CpusetMems", "0")})
    both = {"cpu": cpus("2-3", exclusive=True), "memory": memory}
    govern(agent, OWN, given={ref("own"): both})
    cpu = cpu_of(plugin.create(of(OWN)))
    assert (cpu.cpus, cpu.mems) == ("2-3", "0")


def with_properties(**values: str) -> dict[str, RecordedAnswer]:
    answers = {name: AnswerPart(name, value) for name, value in values.items()}
    return {"memory": RecordedAnswer(1.0, answers)}


def test_a_container_is_created_with_the_properties_of_its_answer(
    agent: Agent, plugin: Plugin
) -> None:
    values = {
        "CpuShares": "512",
        "CpuQuota": "25000",
        "CpuPeriod": "50000",
        "MemoryLimitInBytes": "1073741824",
        "MemorySwapLimitInBytes": "-1",
        "OomScoreAdj": "0",
        "Unified": "io.weight=50",
    }
    govern(agent, WEB, given={ref("web"): with_properties(**values)})
    linux = plugin.create(of(WEB)).adjust.linux
    cpu, memory = linux.resources.cpu, linux.resources.memory
    assert (cpu.cpus, cpu.shares.value) == ("0-7", 512)
    assert (cpu.quota.value, cpu.period.value) == (25_000, 50_000)
    assert (memory.limit.value, memory.swap.value) == (1 << 30, -1)
    assert linux.HasField("oom_score_adj")
    assert dict(linux.resources.unified) == {"io.weight": "50"}


@pytest.mark.parametrize(("had", "swap"), [(812, (1 << 30) + 300), (0, None)])
def test_another_limit_of_memory_keeps_the_kubelets_swap(
    agent: Agent, plugin: Plugin, had: int, swap: int | None
) -> None:
    given = with_properties(MemoryLimitInBytes="1073741824")
    govern(agent, WEB, given={ref("web"): given})
    memory = plugin.create(of(WEB, memory_bytes=512, swap_bytes=had)).adjust.linux.resources.memory
    assert memory.limit.value == 1 << 30
    assert (memory.swap.value if memory.HasField("swap") else None) == swap


def test_properties_come_where_the_owners_are_not_known_yet(agent: Agent, plugin: Plugin) -> None:
    given = {ref("net"): {NIC: RecordedAnswer(1.0, {NIC: AnswerPart("CpuShares", "512")})}}
    govern(agent, WITH_NIC, given=given, policy="static")
    agent.ready = False
    cpu = cpu_of(plugin.create(of(WITH_NIC)))
    assert (cpu.cpus, cpu.shares.value) == ("", 512)


def test_cpupools_quota_wins_over_an_answers(agent: Agent, plugin: Plugin) -> None:
    # A record may have an answer that the rules of today refuse.
    lifted = pod("pool", container(pool=True))
    govern(agent, lifted, given={ref("pool"): with_properties(CpuQuota="25000", CpuShares="512")})
    made = agent.allocated(of(lifted, devices={"exclusive_a": "8"}))
    cpu = cpu_of(plugin.create(made))
    assert (cpu.cpus, cpu.shares.value, cpu.HasField("quota")) == ("8", 512, False)


def test_an_update_by_another_program_repeats_the_properties(agent: Agent, plugin: Plugin) -> None:
    govern(agent, WEB, given={ref("web"): with_properties(CpuShares="512", CpuQuota="25000")})
    plugin.create(of(WEB))
    (update,) = plugin.update(of(WEB), "0-9", 100_000).update
    cpu = update.linux.resources.cpu
    assert (cpu.cpus, cpu.shares.value, cpu.quota.value) == ("0-7", 512, 25_000)


def test_also_where_the_agent_does_not_know_the_owners_yet(agent: Agent, plugin: Plugin) -> None:
    given = {ref("net"): {NIC: RecordedAnswer(1.0, {NIC: AnswerPart(env={"ADDR": "::1"})})}}
    govern(agent, WITH_NIC, given=given, policy="static")
    agent.ready = False
    adjusted = plugin.create(of(WITH_NIC)).adjust
    assert {each.key: each.value for each in adjusted.env} == {"ADDR": "::1"}
    assert adjusted.linux.resources.cpu.cpus == ""
