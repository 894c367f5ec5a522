"""Containers of pods that the API server has not listed yet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import Eligible, Scope, SystemPods
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import QoSClass
from cpupool.runtime.nri.holding import MissingFacts
from tests import builders
from tests.nri_agents import Agent, cpu_of, of
from tests.nri_runtime import FakeRuntime, Plugin, Refused
from tests.unit.runtime.nri.static import govern, web
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.nri_pods import Container

WEB = web("web", 2)
PARENT = "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podweb_uid.slice"


def guaranteed(identifier: str = "c1", **fields: object) -> Container:
    """Make a container as the kubelet describes one of two CPUs to the runtime."""
    container = of(WEB, identifier, shares=2048, oom_score_adj=-997)
    pod = replace(container.pod, cgroup_parent=PARENT)
    return replace(container, pod=pod, **fields)  # type: ignore[arg-type]


def test_a_container_that_looks_eligible_waits_for_its_spec(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    govern(agent)
    answer = plugin.creating(guaranteed())
    eventually(lambda: "c1" in agent.manager.snapshot().facts.sighted, "the container waits")
    assert not answer.done()
    agent.manager.observe(pods=[WEB])
    agent.plugin.facts_changed()
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "2-3"
    assert not agent.events.pods


def test_without_it_the_container_is_held(agent: Agent, plugin: Plugin) -> None:
    govern(agent)
    with pytest.raises(Refused, match="web/main is held: the API server has not listed its pod"):
        plugin.create(guaranteed())


@pytest.mark.parametrize("quota_us", [200_000, None], ids=["equal", "a kubelet without quotas"])
def test_a_container_that_may_be_eligible_alone_is_held(
    agent: Agent, plugin: Plugin, quota_us: int | None
) -> None:
    burstable = replace(_in("/kubepods/burstable/podweb-uid"), oom_score_adj=900, quota_us=quota_us)
    govern(agent)
    assert cpu_of(plugin.create(burstable)).cpus == "0-7"
    govern(agent, eligible=Eligible.CONTAINER)
    with pytest.raises(Refused, match="the API server has not listed its pod"):
        plugin.create(burstable)
    # Only the API server lists a pod that is not static.
    assert cpu_of(plugin.create(_from("file"))).cpus == "0-7"
    assert cpu_of(plugin.create(replace(burstable, quota_us=300_000))).cpus == "0-7"


def test_a_system_pod_owns_nothing_and_does_not_wait(agent: Agent, plugin: Plugin) -> None:
    govern(agent, system_pods=SystemPods(("kube-system",), CPUSet.of(6, 7)))
    container = guaranteed()
    container = replace(container, pod=replace(container.pod, namespace="kube-system"))
    assert cpu_of(plugin.create(container)).cpus == "6-7"


def test_shared_cpus_of_openshift_are_beside_cpus_of_its_own(agent: Agent, plugin: Plugin) -> None:
    govern(agent)
    with pytest.raises(Refused, match="the API server has not listed its pod"):
        plugin.create(guaranteed(devices={"enable-shared-cpus": "0"}))


def test_a_container_of_a_pool_does_not_wait_for_its_spec(agent: Agent, plugin: Plugin) -> None:
    govern(agent)
    plugin.create(guaranteed(devices={"exclusive_a": "4,5"}))


def test_or_released(folder: Path, runtime: FakeRuntime) -> None:
    agent = Agent(folder / "nri.sock", MissingFacts.RELEASE)
    govern(agent)
    with agent.running():
        assert cpu_of(runtime.welcome().create(guaranteed())).cpus == "0-7"


def _in(parent: str) -> Container:
    container = guaranteed()
    return replace(container, pod=replace(container.pod, cgroup_parent=parent))


def _from(source: str) -> Container:
    container = guaranteed()
    annotations = {"kubernetes.io/config.source": source}
    return replace(container, pod=replace(container.pod, annotations=annotations))


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"own_labels": {"koordinator.sh/qosClass": "LSR"}}, id="its class"),
        pytest.param(
            {"annotations": {"scheduling.koordinator.sh/resource-status": "{}"}},
            id="a scheduler's answer",
        ),
    ],
)
def test_koordinators_words_say_that_a_container_may_ask_for_cpus(
    agent: Agent, plugin: Plugin, said: dict[str, dict[str, str]]
) -> None:
    govern(agent)
    container = guaranteed(shares=2000)
    container = replace(container, pod=replace(container.pod, **said))  # type: ignore[arg-type]
    with pytest.raises(Refused, match="the API server has not listed its pod"):
        plugin.create(container)


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(guaranteed(shares=2000), id="part of a CPU"),
        pytest.param(guaranteed(shares=2), id="no CPU"),
        pytest.param(guaranteed(oom_score_adj=998), id="another class by its score"),
        pytest.param(_in("/kubepods/burstable/podweb-uid"), id="another class by its cgroup"),
        pytest.param(_in(""), id="a runtime that does not tell"),
        pytest.param(_from("file"), id="a static pod"),
    ],
)
def test_no_other_container_waits(agent: Agent, plugin: Plugin, container: Container) -> None:
    agent.patient = True
    govern(agent)
    assert cpu_of(plugin.create(container)).cpus == "0-7"


def test_nor_does_any_under_another_policy(agent: Agent, plugin: Plugin) -> None:
    agent.patient = True
    assert cpu_of(plugin.create(guaranteed())).cpus == "0"


def test_a_pod_from_the_api_server_waits(agent: Agent, plugin: Plugin) -> None:
    govern(agent)
    with pytest.raises(Refused, match="is held"):
        plugin.create(_from("api"))


LEVEL = replace(
    builders.pod("web", builders.container(running=False)),
    qos=QoSClass.GUARANTEED,
    level_milli=2000,
    level_cpus=2,
)


@pytest.mark.parametrize("pod", [WEB, LEVEL], ids=["its own", "its pod's"])
def test_before_the_agent_has_seen_what_runs_nothing_is_given(
    agent: Agent, plugin: Plugin, pod: Pod
) -> None:
    """The spec alone says that the container asks for CPUs of its own, as for a static pod."""
    agent.patient = True
    govern(agent, adopted=False, pod_level=pod is LEVEL, topology_scope=Scope.POD)
    agent.manager.observe(pods=[pod])
    answer = plugin.creating(of(pod, "c1"))
    eventually(lambda: "c1" in agent.manager.snapshot().facts.sighted, "the container waits")
    assert not answer.done()
    agent.manager.adopt(())
    agent.plugin.facts_changed()
    assert cpu_of(answer.result(DEADLINE_S)).cpus == "2-3"


@pytest.mark.parametrize("scope", Scope)
def test_any_container_of_a_guaranteed_pod_may_belong_to_a_bubble(
    agent: Agent, plugin: Plugin, scope: Scope
) -> None:
    asks_nothing = guaranteed(shares=2)
    govern(agent, pod_level=True, topology_scope=scope)
    if scope is Scope.CONTAINER:
        assert cpu_of(plugin.create(asks_nothing)).cpus == "0-7"
        return
    with pytest.raises(Refused, match="the API server has not listed its pod"):
        plugin.create(asks_nothing)
    # Only the API server lists a pod that is not static, and another class has no bubble.
    assert cpu_of(plugin.create(replace(_from("file"), shares=2))).cpus == "0-7"
    burstable = replace(_in("/kubepods/burstable/podweb-uid"), shares=2)
    assert cpu_of(plugin.create(burstable)).cpus == "0-7"
