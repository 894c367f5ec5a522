"""What plugins are asked next for a container."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer, ServedAs
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.next_questions import Plan, plan
from cpupool.qrm.question_table import HintsAnswer
from tests.unit.manager.plugged import container, cpus, manager, pod, pools, ref

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod
    from cpupool.manager.manager import Manager

NIC = "example.com/nic"
ALIGNED, PLAIN = PluginOptions(aligned=True), PluginOptions()
POD = pod("a", container(cpu=2.0, more={NIC: 1.0}))
RUNNING = replace(POD, running=True)
BOTH = {"cpu": ALIGNED, NIC: ALIGNED}


def good(*nodes: int) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred=True)


def node(
    policy: TopologyPolicy = TopologyPolicy.RESTRICTED,
    given: Mapping[str, RecordedAnswer] | None = None,
    of: Pod = POD,
) -> Manager:
    made = manager(
        of,
        served=("cpu", NIC),
        configured=pools(topology=policy),
        given={ref("a"): given} if given else {},
    )
    made.observe(device_nodes={"a-uid": {}})
    return made


def planned(
    on: Manager,
    plugins: Mapping[str, PluginOptions] = BOTH,
    heard: Mapping[str, HintsAnswer] | None = None,
    of: Pod = POD,
) -> Plan:
    said = {ref("a"): heard or {}}
    return plan(on.snapshot(), of, of.containers[0], plugins, heard=said, unlisted=())


def allocated(of: Plan) -> dict[str, TopologyHint | None]:
    return {question.resource: hint for question, hint in of.allocate}


def test_hints_are_asked_for_first_and_then_merged() -> None:
    asked = planned(node())
    assert [question.resource for question in asked.hints] == ["cpu", NIC]
    assert not asked.allocate

    heard = {"cpu": HintsAnswer((good(0), good(1))), NIC: HintsAnswer((good(1),))}
    assert allocated(planned(node(), heard=heard)) == {"cpu": good(1), NIC: good(1)}


def test_only_aligned_plugins_are_asked_for_hints() -> None:
    asked = planned(node(), {"cpu": ALIGNED, NIC: PLAIN})
    assert [question.resource for question in asked.hints] == ["cpu"]


def test_without_a_topology_policy_nobody_is() -> None:
    assert allocated(planned(node(TopologyPolicy.NONE))) == {"cpu": None, NIC: None}


def test_nothing_is_asked_while_a_plugin_is_away() -> None:
    assert planned(node(), {"cpu": ALIGNED}) == Plan()


def runs(*, answering: tuple[str, ...] = ("cpu", NIC), expected: bool = False) -> Manager:
    made = node(of=RUNNING)
    plugins = replace(
        made.snapshot().facts.plugins, answering=frozenset(answering), expected=expected
    )
    made.observe(plugins=plugins)
    return made


def test_a_pod_that_runs_waits_for_no_plugin_that_is_away() -> None:
    asked = planned(runs(), {NIC: ALIGNED}, of=RUNNING)
    assert [question.resource for question in asked.hints] == [NIC]
    heard = {NIC: HintsAnswer((good(1),))}
    assert allocated(planned(runs(), {NIC: ALIGNED}, heard, RUNNING)) == {NIC: good(1)}


def test_it_waits_for_one_that_is_about_to_register_or_to_list() -> None:
    about = {NIC: ALIGNED}
    assert planned(runs(expected=True), about, of=RUNNING) == Plan()
    now = runs().snapshot()
    assert plan(now, RUNNING, RUNNING.containers[0], about, heard={}, unlisted={"cpu"}) == Plan()


def test_a_silent_plugin_is_asked_for_a_pod_that_runs_without_hints_of_its_own() -> None:
    on = runs(answering=(NIC,))
    assert [question.resource for question in planned(on, of=RUNNING).hints] == [NIC]
    heard = {NIC: HintsAnswer((good(1),))}
    assert allocated(planned(on, heard=heard, of=RUNNING)) == {"cpu": good(1), NIC: good(1)}


def test_nothing_is_asked_for_what_is_answered() -> None:
    given = {"cpu": cpus("1"), NIC: RecordedAnswer(1.0)}
    assert planned(node(given=given)) == Plan()


def test_an_answer_that_breaks_a_rule_is_not_asked_for_again() -> None:
    given = {"cpu": cpus("1", refused="it is bad"), NIC: RecordedAnswer(1.0)}
    assert planned(node(TopologyPolicy.NONE, given)) == Plan()


@pytest.mark.parametrize("amount", [math.nan, math.inf])
def test_nor_is_one_whose_quantity_is_no_amount(amount: float) -> None:
    answer = AnswerPart("CpusetCpus", "1", amount, scalar=True)
    given = {
        "cpu": RecordedAnswer(2.0, {"cpu": answer}, refused="it is bad"),
        NIC: RecordedAnswer(1.0),
    }
    assert planned(node(TopologyPolicy.NONE, given)) == Plan()


def test_a_request_that_has_grown_is_asked_for_again() -> None:
    given = {"cpu": RecordedAnswer(1.0), NIC: RecordedAnswer(1.0)}
    assert allocated(planned(node(TopologyPolicy.NONE, given))) == {"cpu": None}


def test_an_answer_keeps_its_nodes() -> None:
    on_node_1 = RecordedAnswer(1.0, {NIC: AnswerPart(hints=(good(1),))})
    heard = {"cpu": HintsAnswer((good(0), good(1)))}
    assert allocated(planned(node(given={NIC: on_node_1}), heard=heard)) == {"cpu": good(1)}


def test_nodes_that_no_plugin_shares_are_refused_with_their_words() -> None:
    heard = {
        "cpu": HintsAnswer((good(0),)),
        NIC: HintsAnswer((), "the plugin for nic has refused (no NIC)"),
    }
    refused = planned(node(), heard=heard).refused
    assert refused == (
        "no NUMA nodes serve all its resources (topologyPolicy restricted); the plugin for nic has"
        " refused (no NIC)"
    )
    best = planned(node(TopologyPolicy.BEST_EFFORT), heard=heard)
    assert allocated(best).keys() == {"cpu", NIC}


def test_numeric_has_nodes_for_each_resource() -> None:
    heard = {"cpu": HintsAnswer((good(0),)), NIC: HintsAnswer((good(0, 1),))}
    on = node(TopologyPolicy.NUMERIC)
    assert allocated(planned(on, heard=heard)) == {"cpu": good(0), NIC: good(0, 1)}
    assert planned(on, heard={**heard, NIC: HintsAnswer(())}).refused


@pytest.mark.parametrize("policy", [TopologyPolicy.RESTRICTED, TopologyPolicy.NUMERIC])
def test_devices_have_a_say_once_they_are_known(policy: TopologyPolicy) -> None:
    of = pod("a", container(cpu=2.0, more={"example.com/gpu": 1.0}))
    on = manager(of, configured=pools(topology=policy))
    only = {"cpu": ALIGNED}
    assert planned(on, only, of=of) == Plan()

    on.observe(device_nodes={"a-uid": {"main": frozenset({frozenset({frozenset({1})})})}})
    heard = {"cpu": HintsAnswer((good(0), good(1)))}
    assert allocated(planned(on, only, heard, of)) == {"cpu": good(1)}
    assert planned(on, only, {"cpu": HintsAnswer((good(0),))}, of).refused


def test_a_question_has_the_quantity() -> None:
    (question, _), _ = planned(node(TopologyPolicy.NONE)).allocate
    assert (question.container, question.quantity) == (ref("a"), 2.0)
    more = replace(POD, containers=(replace(POD.containers[0], quantities={"cpu": 3.0}),))
    ((question, _),) = planned(node(TopologyPolicy.NONE, of=more), of=more).allocate
    assert question.quantity == 3.0


@pytest.mark.parametrize("policy", [TopologyPolicy.NONE, TopologyPolicy.RESTRICTED])
def test_a_resource_that_is_requested_by_two_names_is_refused(policy: TopologyPolicy) -> None:
    of = pod("a", container(cpu=2.0, more={"example.com/milli": 1000.0}))
    names = {"example.com/milli": ServedAs("cpu", 1000)}
    on = manager(of, configured=pools(topology=policy), names=names)
    plugins = {"cpu": ALIGNED}
    assert planned(on, plugins, of=of) == Plan(
        refused="requests cpu and example.com/milli, which are the plugin's cpu"
    )
    # Without a plugin that serves it nothing contradicts.
    assert planned(manager(of, served=(), names=names), plugins, of=of) == Plan()
