"""CPUs of the policy `static` lie near what plugins of the QoS Resource Manager give."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import CPUManager, Scope, TopologyHint, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import POLICY_CPUS
from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerKind
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.next_questions import Plan, plan
from cpupool.qrm.question_table import HintsAnswer
from tests import builders
from tests.unit.manager.choosing.nodes import owned
from tests.unit.manager.plugged import manager, pod, ref, starts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Container, Pod
    from cpupool.manager.manager import Manager

NIC = "example.com/nic"
ALIGNED = {NIC: PluginOptions(aligned=True)}
RESTRICTED = TopologyPolicy.RESTRICTED


def good(*nodes: int) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred=True)


def on(*nodes: int) -> Mapping[str, RecordedAnswer]:
    """Make the answer of a plugin that was asked for some NUMA nodes."""
    return {NIC: RecordedAnswer(1.0, {NIC: AnswerPart(env={"NIC": "eth0"})}, hint=good(*nodes))}


def has(name: str = "main", cpu: int = 2, *, nic: bool = True, init: bool = False) -> Container:
    kind = ContainerKind.INIT if init else ContainerKind.APP
    made = builders.container(name, kind, running=False, cpu=cpu * 1000)
    return replace(made, quantities={"cpu": float(cpu), **({NIC: 1.0} if nic else {})})


def node(
    *pods: Pod,
    policy: TopologyPolicy = RESTRICTED,
    given: Mapping[str, Mapping[str, RecordedAnswer]] | None = None,
    scope: Scope = Scope.CONTAINER,
) -> Manager:
    """Make a node whose CPUs 0-7 and 8-15 lie on two NUMA nodes; CPU 0 is reserved."""
    own = CPUManager("static", CPUSet.of(0), topology_policy=policy, topology_scope=scope)
    made = manager(
        served=(NIC,),
        configured=NodePools.of(Pool.named("default", "0-15"), cpu_manager=own),
        given={ref(name): answers for name, answers in (given or {}).items()},
    )
    starts(made, *pods)
    made.observe(device_nodes={each.cgroup_uid: {} for each in pods})
    made.observe(pods=pods)
    return made


def why(of: Pod, at: Manager) -> str:
    refusal = at.snapshot().resolution.view.refused[of.cgroup_uid]
    assert refusal.holds
    return refusal.error.as_kubelet


def planned(at: Manager, of: Pod, *nodes: TopologyHint, container: int = 0) -> Plan:
    heard = {ref(of.name, each.name): {NIC: HintsAnswer(nodes)} for each in of.containers}
    return plan(at.snapshot(), of, of.containers[container], ALIGNED, heard=heard, unlisted=())


def hint(of: Plan) -> TopologyHint | None:
    ((_, found),) = of.allocate
    return found


def test_cpus_wait_for_the_plugin_and_lie_near_its_answer() -> None:
    of, other = pod("a", has()), pod("b", has(nic=False))
    at = node(of, other)
    assert owned(at) == {"b-uid": "1-2"}
    assert "has not answered for container main yet" in why(of, at)

    at.observe(plugins=PluginFacts(frozenset({NIC}), {ref("a"): on(1)}))
    assert owned(at) == {"b-uid": "1-2", "a-uid": "8-9"}


def test_what_the_plugin_says_of_its_answer_counts_before_what_it_was_asked() -> None:
    given = {NIC: RecordedAnswer(1.0, {NIC: AnswerPart(hints=(good(1),))}, hint=good(0))}
    assert owned(node(pod("a", has()), given={"a": given})) == {"a-uid": "8-9"}


@pytest.mark.parametrize(
    "given", [{NIC: RecordedAnswer(1.0)}, {NIC: RecordedAnswer(1.0, {NIC: AnswerPart(hints=())})}]
)
def test_an_answer_without_nodes_leaves_all(given: Mapping[str, RecordedAnswer]) -> None:
    assert owned(node(pod("a", has()), given={"a": given})) == {"a-uid": "1-2"}


def test_without_a_topology_policy_no_cpus_wait() -> None:
    assert owned(node(pod("a", has()), policy=TopologyPolicy.NONE)) == {"a-uid": "1-2"}


def test_a_pod_without_cpus_near_its_answer_is_held() -> None:
    of = pod("b", has())
    large = pod("a", has(cpu=7, nic=False))
    at = node(large, of, given={"b": on(0)})
    assert owned(at) == {"a-uid": "1-7"}
    assert why(of, at) == "Resources cannot be allocated with Topology locality"
    assert owned(node(large, of, policy=TopologyPolicy.BEST_EFFORT, given={"b": on(0)})) == {
        "a-uid": "1-7",
        "b-uid": "8-9",
    }


@pytest.mark.parametrize("policy", [RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE])
def test_the_plugin_is_asked_for_nodes_with_cpus(policy: TopologyPolicy) -> None:
    of = pod("b", has())
    at = node(pod("a", has(cpu=6, nic=False)), of, policy=policy)
    assert hint(planned(at, of, good(0), good(1))) == good(1)
    refused = planned(at, of, good(0))
    assert refused == Plan(
        refused=f"no NUMA nodes serve all its resources (topologyPolicy {policy.value})"
    )


def test_cpus_that_a_container_has_already_count() -> None:
    of, other = pod("a", has(nic=False)), pod("b", has(cpu=5, nic=False))
    at = node(of, other)
    assert owned(at) == {"a-uid": "1-2", "b-uid": "3-7"}
    grown = pod("a", has())
    at.observe(pods=[grown, other])
    assert hint(planned(at, grown, good(0), good(1))) == good(0)


def test_of_a_pod_each_container_counts_with_those_before() -> None:
    of = pod("a", has("init", 6, nic=False, init=True), has("one", 6, nic=False), has("two", 6))
    at = node(of)
    assert hint(planned(at, of, good(0), good(1), container=2)) == good(1)


def test_a_pod_whose_first_container_does_not_fit_is_refused() -> None:
    of = pod("a", has("one", 16, nic=False), has("two"))
    assert planned(node(of), of, good(0), container=1).refused == (
        "Resources cannot be allocated with Topology locality"
    )


def test_the_kubelet_names_the_devices_first() -> None:
    of = pod("a", has())
    at = manager(of, served=(NIC,), configured=node().snapshot().facts.pools)
    starts(at, of)
    assert why(of, at) == "the kubelet has not named the devices of the pod"
    assert planned(at, of, good(0)) == Plan()


def of_nodes(at: Manager, of: Pod, container: str) -> set[int]:
    """Return the NUMA nodes of a container's own CPUs."""
    cpus = at.snapshot().resolution.grants.part(of.cgroup_uid, POLICY_CPUS, container)
    return {cpu // 8 for cpu in cpus}


@pytest.mark.parametrize(
    ("scope", "nodes"), [(Scope.CONTAINER, [{0}, {1}]), (Scope.POD, [{1}, {1}])]
)
def test_a_whole_pod_lies_on_one_node(scope: Scope, nodes: list[set[int]]) -> None:
    of = pod("a", has("one", 4, nic=False), has("two", 4, nic=False))
    at = node(pod("first", has(cpu=2, nic=False)), of, scope=scope)
    assert [of_nodes(at, of, name) for name in ("one", "two")] == nodes


@pytest.mark.parametrize(
    ("policy", "fits"), [(RESTRICTED, False), (TopologyPolicy.BEST_EFFORT, True)]
)
def test_a_pod_that_no_node_holds_as_a_whole(policy: TopologyPolicy, *, fits: bool) -> None:
    of = pod("late", has("one", 3, nic=False), has("two", 3, nic=False))
    others = (pod("first", has(cpu=2, nic=False)), pod("full", has(cpu=7, nic=False)))
    at = node(*others, of, policy=policy, scope=Scope.POD)
    assert ("late-uid" in owned(at)) is fits


def test_an_init_container_counts_by_the_most_that_runs_at_once() -> None:
    of = pod("a", has("init", 7, nic=False, init=True), has("one", 7, nic=False))
    assert owned(node(of, scope=Scope.POD)) == {"a-uid": "1-7"}


def test_what_one_container_has_of_a_plugin_moves_the_whole_pod() -> None:
    of = pod("a", has("one"), has("two", nic=False))
    at = node(of, scope=Scope.POD)
    at.observe(plugins=PluginFacts(frozenset({NIC}), {ref("a", "one"): on(1)}))
    assert [of_nodes(at, of, name) for name in ("one", "two")] == [{1}, {1}]


def test_the_hints_of_all_containers_are_merged_at_one_time() -> None:
    of = pod("a", has("one"), has("two"))
    at = node(of, scope=Scope.POD)
    asked = plan(at.snapshot(), of, of.containers[0], ALIGNED, heard={}, unlisted=())
    assert [question.container.name for question in asked.hints] == ["one", "two"]

    heard = {
        ref("a", "one"): {NIC: HintsAnswer((good(0), good(1)))},
        ref("a", "two"): {NIC: HintsAnswer((good(1),))},
    }
    first = plan(at.snapshot(), of, of.containers[0], ALIGNED, heard=heard, unlisted=())
    ((question, nodes),) = first.allocate
    assert (question.container.name, nodes) == ("one", good(1))
    # The second container follows the answer of the first.
    at.observe(plugins=PluginFacts(frozenset({NIC}), {ref("a", "one"): on(1)}))
    both = {ref("a", "two"): {NIC: HintsAnswer((good(0), good(1)))}}
    second = plan(at.snapshot(), of, of.containers[1], ALIGNED, heard=both, unlisted=())
    assert hint(second) == good(1)


def test_the_plugin_is_asked_for_nodes_with_cpus_for_the_whole_pod() -> None:
    of = pod("a", has("one", 4), has("two", 4, nic=False))
    at = node(of, scope=Scope.POD)
    assert hint(planned(at, of, good(0), good(1))) == good(1)
    at = node(of)
    assert hint(planned(at, of, good(0), good(1))) == good(0)


def test_an_ended_init_container_is_not_aligned_with_the_others() -> None:
    of = pod("a", has("init", init=True), has("one"), running=True)
    at = node(of, scope=Scope.POD)
    at.observe(plugins=replace(at.snapshot().facts.plugins, answering=frozenset([NIC])))
    asked = plan(at.snapshot(), of, of.containers[1], ALIGNED, heard={}, unlisted=())
    assert [question.container.name for question in asked.hints] == ["one"]
