"""For which requests plugins are asked, who is held without an answer, and whose CPUs they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.assignments import MemoryNodes, Placement
from cpupool.core.cpu_manager import Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer, ServedAs
from cpupool.core.pools import NodePools
from cpupool.core.properties import NO_PROPERTIES, Properties
from cpupool.core.workloads import UNDESCRIBED, ContainerID, ContainerKind, PodDescription, QoSClass
from cpupool.enforce import notices
from cpupool.manager import by_plugins
from cpupool.manager.manager import Manager
from cpupool.policies.qrm import katalyst
from tests import builders
from tests.unit.manager.plugged import (
    MACHINE,
    container,
    cpus,
    manager,
    pod,
    pools,
    ref,
    starts,
)

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

NIC = "example.com/nic"
BEST_EFFORT = TopologyPolicy.BEST_EFFORT


def asked(node: Manager, of: Pod, index: int = 0) -> dict[str, float]:
    facts, resolution = node.snapshot()
    return dict(by_plugins.plugin_requests(facts, resolution.grants, of, of.containers[index]))


def lacking(node: Manager, of: Pod) -> set[str]:
    facts, resolution = node.snapshot()
    return set(by_plugins.lacking(facts, resolution.grants, of, of.containers[0]))


def held(node: Manager, of: Pod) -> tuple[bool, str] | None:
    """Return whether a pod is held, and why; None if nothing is wrong with it."""
    refusal = node.snapshot().resolution.view.refused.get(of.cgroup_uid)
    return (refusal.holds, refusal.error.as_kubelet) if refusal else None


@pytest.mark.parametrize(
    ("of", "resources"),
    [
        (pod("a", container(cpu=2.0, memory=1.0)), {"cpu": 2.0}),
        (pod("a", container(memory=1.0)), {}),
        (pod("a", container(pool=True, cpu=2.0, more={NIC: 1.0})), {NIC: 1.0}),
        (pod("a", container("debug", ContainerKind.EPHEMERAL)), {}),
        (pod("a", finished=True), {}),
        (pod("a", daemon=True), {}),
        (pod("a", daemon=True, level="system_cores"), {"cpu": 2.0}),
        (replace(pod("a"), description=UNDESCRIBED), {}),
    ],
)
def test_plugins_are_asked_for_the_resources_that_they_serve(
    of: Pod, resources: dict[str, float]
) -> None:
    assert asked(manager(of, served=("cpu", NIC)), of) == resources


MILLI = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
NAMES = {MILLI: ServedAs("cpu", 1000), "example.com/net": ServedAs(NIC)}


def test_a_resource_is_asked_for_under_the_name_and_in_the_unit_of_its_plugin() -> None:
    of = pod("a", container(more={MILLI: 2500.0, "example.com/net": 3.0}))
    node = manager(of, served=("cpu", NIC), names=NAMES)
    assert asked(node, of) == {"cpu": 2.5, NIC: 3.0}
    assert asked(manager(of, served=(MILLI,), names=NAMES), of) == {}
    static = manager(of, served=("cpu", NIC), names=NAMES, configured=pools("static"))
    assert asked(static, of) == {NIC: 3.0}
    # No device plugin serves it, so nothing of the kubelet is awaited.
    node = manager(of, served=("cpu", NIC), names=NAMES, configured=pools(topology=BEST_EFFORT))
    assert not by_plugins.awaits_devices(node.snapshot().facts, of)
    node = manager(of, served=("cpu",), names=NAMES, configured=pools(topology=BEST_EFFORT))
    assert by_plugins.awaits_devices(node.snapshot().facts, of)


def test_without_the_policy_no_plugin_is_asked_for_cpus() -> None:
    of = pod("a", container(cpu=2.0, more={NIC: 1.0}))
    node = manager(of, served=("cpu", NIC), configured=pools("static"))
    assert asked(node, of) == {NIC: 1.0}
    assert asked(manager(of, served=()), of) == {}


def test_a_pod_keeps_what_an_earlier_policy_gave_it() -> None:
    of = replace(pod("a"), containers=(builders.container(cpu=2000),))
    node = manager(of, configured=pools("static"))
    assert "a-uid" in node.snapshot().resolution.view.chosen
    node.reconfigure(pools(), node.snapshot().facts.topology)
    quantified = replace(of, containers=(replace(of.containers[0], quantities={"cpu": 2.0}),))
    node.observe(pods=[quantified])
    assert asked(node, quantified) == {}


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        (None, True),
        (cpus("1-2"), False),
        (cpus("1-2", refused="it is bad"), True),
        (RecordedAnswer(2.0), False),
        (RecordedAnswer(1.5), True),
        (RecordedAnswer(1.5, {"cpu": AnswerPart(quantity=1.2, scalar=True)}), False),
        (RecordedAnswer(1.5, {"cpu": AnswerPart(quantity=1.9)}), True),
    ],
)
def test_an_answer_must_count_and_be_enough(given: RecordedAnswer | None, *, lacks: bool) -> None:
    of = pod("a")
    node = manager(of, given={ref("a"): {"cpu": given}} if given else {})
    assert bool(lacking(node, of)) is lacks


@pytest.mark.parametrize(
    ("of", "holds"),
    [
        (pod("a", level="dedicated_cores"), True),
        (pod("a", level="reclaimed_cores"), True),
        (pod("a"), None),
        (pod("a", container(more={NIC: 1.0})), True),
        (pod("a", container(running=True), level="dedicated_cores"), None),
        (pod("a", level="dedicated_cores", node_critical=True), None),
        (pod("a", level="dedicated_cores", annotations={katalyst.SKIP_ADMIT: "true"}), None),
    ],
)
def test_who_must_have_an_answer_waits_for_it(of: Pod, holds: bool | None) -> None:
    node = manager(of, served=("cpu", NIC))
    starts(node, of)
    found = held(node, of)
    assert (found and found[0]) is holds
    if found:
        assert "has not answered for container main yet" in found[1]


ROLE = {katalyst.PROPOSED_ROLE: "ETL"}
SHARED = {katalyst.QOS_LEVEL: "shared_cores"}


@pytest.mark.parametrize(
    ("annotations", "holds"),
    [
        (ROLE, True),
        ({katalyst.PROPOSED_TYPE: "offline"}, True),
        ({**ROLE, **SHARED}, None),
        (SHARED, None),
        ({**ROLE, katalyst.SKIP_ADMIT: "true"}, None),
    ],
)
def test_a_pod_with_a_role_and_no_class_waits_until_a_plugin_is_there(
    annotations: dict[str, str], holds: bool | None
) -> None:
    of = pod("a", annotations=annotations)
    node = manager(of, served=())
    node.observe(plugins=PluginFacts(enabled=True))
    starts(node, of)
    found = held(node, of)
    assert (found and found[0]) is holds


@pytest.mark.parametrize("annotations", [ROLE, {katalyst.PROPOSED_TYPE: "offline"}])
def test_a_refused_pod_with_a_role_and_no_class_is_held(annotations: dict[str, str]) -> None:
    of = pod("a", annotations=annotations)
    node = manager(of, refusals={ref("a"): "no"})
    starts(node, of)
    assert held(node, of) == (True, "container main: no")


BOTH = frozenset({"cpu", "memory"})


@pytest.mark.parametrize(
    ("facts", "holds"),
    [
        (PluginFacts(BOTH, answering=BOTH), True),
        (PluginFacts(BOTH, expected=True), True),
        (PluginFacts(BOTH), None),
        # Nothing is asked before each plugin is there, and a refusal is for the whole container.
        (PluginFacts(BOTH, answering=frozenset({"cpu"})), None),
        (
            PluginFacts(
                BOTH, {ref("a"): {"memory": RecordedAnswer(1.0)}}, answering=BOTH - {"memory"}
            ),
            True,
        ),
        (PluginFacts(BOTH, refusals={ref("a"): "no"}, answering=BOTH), False),
    ],
)
@pytest.mark.parametrize("annotations", [{}, SHARED])
def test_a_pod_that_may_share_waits_for_plugins_that_answer(
    annotations: dict[str, str], facts: PluginFacts, *, holds: bool | None
) -> None:
    of = pod("a", container(cpu=2.0, memory=1.0), annotations=annotations)
    node = manager(of)
    node.observe(plugins=facts)
    starts(node, of)
    found = held(node, of)
    assert (found and found[0]) is holds


@pytest.mark.parametrize(
    "of",
    [
        pod("a", node_critical=True),
        pod("a", annotations=ROLE, node_critical=True),
        pod("a", daemon=True),
        pod("a", container(running=True), annotations=ROLE),
        pod("a", container(memory=1.0), annotations=ROLE),
    ],
)
def test_a_pod_that_the_node_needs_or_no_plugin_serves_never_waits(of: Pod) -> None:
    node = manager(of)
    node.observe(plugins=PluginFacts(frozenset({"cpu"}), answering=frozenset({"cpu"})))
    starts(node, of)
    assert held(node, of) is None


def test_a_pod_that_does_not_start_yet_is_not_refused() -> None:
    of = pod("a", level="dedicated_cores")
    assert held(manager(of), of) is None


@pytest.mark.parametrize(
    ("of", "unclear"),
    [
        (pod("a"), True),
        (pod("a", container(memory=1.0)), False),
        (pod("a", daemon=True), False),
        (builders.pod("a", container()), False),
    ],
)
def test_before_the_agent_knows_its_node_it_is_unclear_who_may_start(
    of: Pod, *, unclear: bool
) -> None:
    def found() -> bool:
        return by_plugins.unclear(node.snapshot().facts, of, "main")

    node = Manager()
    node.observe(pods=(of,), plugins=PluginFacts(frozenset({"cpu"})))
    assert found() is unclear
    node.reconfigure(pools(), MACHINE.topology())
    assert found() is unclear
    node.adopt(())
    assert not found()


def test_a_plugin_that_the_configuration_names_is_awaited() -> None:
    """The agent has just started, and no plugin has registered."""
    own, web = pod("own", level="dedicated_cores"), pod("web")
    nic = pod("nic", container(more={"example.com/net": 1.0}))
    enabled = PluginFacts(names={"example.com/net": ServedAs(NIC)}, enabled=True)
    node = manager(own, web, nic, served=())
    starts(node, own, web, nic)
    assert [held(node, of) for of in (own, web, nic)] == [None] * 3

    node.observe(plugins=enabled)
    for of, resource in ((own, "cpu"), (nic, NIC)):
        why = f"the plugin for {resource} has not answered for container main yet"
        assert held(node, of) == (True, why)
    # It may share meanwhile.
    assert held(node, web) is None

    node.reconfigure(pools("static"), node.snapshot().facts.topology)
    assert held(node, own) is None
    assert held(node, nic) is not None


def test_before_the_policy_is_known_it_may_be_the_plugins() -> None:
    node = Manager()
    node.observe(plugins=PluginFacts(enabled=True))
    assert by_plugins.unclear(node.snapshot().facts, pod("a"), "main")
    assert not by_plugins.unclear(node.snapshot().facts, pod("a", container(x=1.0)), "main")
    node.reconfigure(pools("static"), MACHINE.topology())
    assert not by_plugins.unclear(node.snapshot().facts, pod("a"), "main")


def test_a_node_without_pools_knows_all() -> None:
    node = Manager()
    node.observe(plugins=PluginFacts(frozenset({"cpu"})))
    node.reconfigure(NodePools.of(), MACHINE.topology())
    assert not by_plugins.unclear(node.snapshot().facts, pod("a"), "main")


def test_of_two_containers_the_first_without_an_answer_is_named() -> None:
    of = pod("a", container("one"), container("two"), level="dedicated_cores")
    node = manager(of, given={ref("a", "one"): {"cpu": cpus("1")}})
    starts(node, of)
    found = held(node, of)
    assert found
    assert "container two" in found[1]


def test_a_refusal_has_the_plugins_words() -> None:
    of = pod("a", level="dedicated_cores")
    node = manager(of, refusals={ref("a"): "the plugin for cpu has refused (full)"})
    starts(node, of)
    assert held(node, of) == (True, "container main: the plugin for cpu has refused (full)")


def test_an_answer_that_breaks_a_rule_is_named() -> None:
    of = pod("a", level="dedicated_cores")
    node = manager(of, given={ref("a"): {"cpu": cpus("1", refused="the answer is bad")}})
    starts(node, of)
    assert held(node, of) == (True, "container main: the answer is bad")


@pytest.mark.parametrize(
    ("fields", "holds"),
    [({}, True), ({"node_critical": True}, False), ({"finished": True}, None)],
)
def test_a_pod_whose_annotation_is_unclear_is_held_with_the_reason(
    fields: dict[str, Any], holds: bool | None
) -> None:
    told = PodDescription(unclear="it is no JSON")
    of = replace(pod("a"), description=told, **fields)
    node = manager(of)
    starts(node, of)
    assert held(node, of) == (None if holds is None else (holds, "it is no JSON"))


def test_a_pod_that_runs_with_an_unclear_annotation_is_told() -> None:
    described = PodDescription(unclear="qos_level is 'gold'")
    of = replace(pod("a", container(running=True)), description=described)
    node = manager(of)
    starts(node, of)
    ((_, notice),) = notices.about_placement(node.snapshot().resolution)
    assert (notice.event, notice.why) == ("UnexpectedAdmissionError", "qos_level is 'gold'")
    assert notice.lasts_s > 0


def test_a_pod_that_runs_although_its_plugin_has_refused_is_told() -> None:
    of = pod("a", container(running=True))
    node = manager(of, refusals={ref("a"): "the plugin for cpu has refused (full)"})
    starts(node, of)
    ((_, notice),) = notices.about_placement(node.snapshot().resolution)
    assert (notice.event, notice.container) == ("UnexpectedAdmissionError", "main")
    assert notice.why == "the plugin for cpu has refused (full)"
    # Its plugin may be about to answer.
    assert notice.lasts_s > 0


def test_of_a_daemon_sets_pod_the_annotation_does_not_matter() -> None:
    of = replace(pod("a"), description=PodDescription(left_out=True, unclear="it is no JSON"))
    node = manager(of)
    starts(node, of)
    assert held(node, of) is None


@pytest.mark.parametrize("of", [pod("a"), pod("a", level="dedicated_cores", node_critical=True)])
def test_a_refused_pod_that_may_share_shares_and_it_is_said(of: Pod) -> None:
    node = manager(of, refusals={ref("a"): "no"})
    starts(node, of)
    assert held(node, of) == (False, "container main: no")


def test_the_pool_file_can_let_refused_pods_share() -> None:
    of = pod("a", level="dedicated_cores")
    node = manager(of, refusals={ref("a"): "no"}, configured=pools(misfit=Misfit.SHARE))
    starts(node, of)
    assert held(node, of) == (False, "container main: no")
    node.observe(plugins=PluginFacts(frozenset({"cpu"})))
    found = held(node, of)
    assert found
    assert found[0]


def test_a_plugin_of_another_resource_holds_under_every_policy() -> None:
    of = pod("a", container(more={NIC: 1.0}))
    node = manager(of, served=(NIC,), configured=pools("none"))
    starts(node, of)
    found = held(node, of)
    assert found
    assert found[0]


def test_a_pod_with_devices_waits_for_their_numa_nodes() -> None:
    configured = pools(topology=TopologyPolicy.RESTRICTED)
    of = pod("a", container(cpu=2.0, more={"example.com/gpu": 1.0}), level="dedicated_cores")
    node = manager(of, configured=configured)
    starts(node, of)
    assert held(node, of) == (True, "the kubelet has not named the devices of the pod")
    node.observe(device_nodes={"a-uid": {}})
    found = held(node, of)
    assert found
    assert "has not answered" in found[1]
    of_pool = pod("b", container(pool=True))
    assert by_plugins.awaits_devices(node.snapshot().facts, of_pool)
    assert not by_plugins.awaits_devices(node.snapshot().facts, pod("c"))


def test_an_exclusive_answer_owns_its_cpus_until_no_container_is_left() -> None:
    of, other = pod("a", level="dedicated_cores"), pod("b")
    given = {ref("a"): {"cpu": cpus("2-3", exclusive=True)}, ref("b"): {"cpu": cpus("1-4")}}
    node = manager(of, other, given=given)

    def owned() -> str:
        return str(CPUSet.union(each.cpus for each in node.snapshot().resolution.grants))

    assert owned() == "2-3"
    node.observe(pods=[other])
    assert owned() == "2-3"
    node.observe(idle=frozenset({"a-uid"}))
    assert owned() == ""


def test_an_answer_that_changes_moves_its_owner() -> None:
    of = pod("a", level="dedicated_cores")
    node = manager(of, given={ref("a"): {"cpu": cpus("2-3", exclusive=True)}})
    changed = {ref("a"): {"cpu": cpus("3-5", exclusive=True)}}
    node.observe(plugins=PluginFacts(frozenset({"cpu"}), changed))
    assert builders.owned(node) == {"a-uid": {"policy/cpu": CPUSet.parse("3-5")}}
    node.observe(plugins=PluginFacts(frozenset({"cpu"}), {ref("a"): {"cpu": cpus("3-5")}}))
    assert builders.owned(node) == {}


def test_of_two_answers_with_one_cpu_the_earlier_owner_keeps_it() -> None:
    one, two = pod("one"), pod("two")
    given = {ref("two"): {"cpu": cpus("2-3", exclusive=True)}}
    node = manager(one, two, given=given)
    both = {ref("one"): {"cpu": cpus("3-4", exclusive=True)}, **given}
    node.observe(plugins=PluginFacts(frozenset({"cpu"}), both))
    owned = builders.owned(node)
    assert owned["two-uid"] == {"policy/cpu": CPUSet.parse("2-3")}
    assert owned["one-uid"] == {"policy/cpu": CPUSet.parse("4")}


def test_the_loser_of_two_recorded_answers_is_held_and_confined_and_it_is_said() -> None:
    level = "dedicated_cores"
    old = pod("old", container(running=True), level=level)
    starting, running = pod("new", level=level), pod("new", container(running=True), level=level)
    given = {
        ref("new"): {"cpu": cpus("3-4", exclusive=True)},
        ref("old"): {"cpu": cpus("2-3", exclusive=True)},
    }
    node = manager(replace(starting, created="2"), replace(old, created="1"), given=given)
    starts(node, starting)
    assert held(node, starting) == (
        True,
        "container main: its plugin has named CPUs 3, which another pod owns",
    )

    node.observe(pods=[replace(running, created="2"), replace(old, created="1")])
    found = held(node, running)
    assert found
    assert not found[0]
    ((key, notice),) = notices.about_placement(node.snapshot().resolution)
    assert node.snapshot().assignment(key[0]).placement is Placement.CONFINED
    assert (notice.event, notice.why) == (
        "CPUContested",
        "its plugin gives it CPUs 3 exclusively, but pod default/old owns them",
    )
    assert "create this pod or that one again" in notice.remedy

    # The owner has ended, and the grant follows.
    node.observe(
        pods=[running], idle=frozenset({"old-uid"}), plugins=PluginFacts(frozenset({"cpu"}), given)
    )
    assert builders.owned(node)["new-uid"] == {"policy/cpu": CPUSet.parse("3-4")}
    assert held(node, running) is None


def test_a_container_takes_its_memory_from_the_nodes_of_its_answer() -> None:
    of = pod("a", container(running=True), level="dedicated_cores")
    memory = RecordedAnswer(1.0, {"memory": AnswerPart("CpusetMems", "0")})
    node = manager(of, given={ref("a"): {"memory": memory}})

    def nodes() -> MemoryNodes | None:
        return node.snapshot().assignment(("a-uid", ContainerID("main-id"))).memory

    assert nodes() == MemoryNodes(CPUSet.of(0))
    both = {ref("a"): {"memory": memory, "cpu": cpus("2", exclusive=True)}}
    node.observe(plugins=PluginFacts(frozenset({"cpu"}), both))
    assert nodes() == MemoryNodes(CPUSet.of(0))
    for says, migrates in ((True, True), (None, False)):
        node.observe(pods=[replace(of, memory_migrates=says)])
        assert nodes() == MemoryNodes(CPUSet.of(0), migrates=migrates)
    bad = replace(memory, refused="it is bad")
    node.observe(plugins=PluginFacts(frozenset({"cpu"}), {ref("a"): {"memory": bad}}))
    assert nodes() is None


@pytest.mark.parametrize("level", ["", "dedicated_cores"])
def test_a_container_follows_the_properties_of_its_answers(level: str) -> None:
    of = pod("a", container(running=True), level=level)
    node = manager(of)

    def now(**values: str) -> Properties:
        """Return what a container must have, with these answers."""
        answers = {name: AnswerPart(name, value) for name, value in values.items()}
        own = cpus("2", exclusive=bool(level))
        given = {ref("a"): {"memory": RecordedAnswer(1.0, answers), "cpu": own}}
        node.observe(plugins=PluginFacts(frozenset({"cpu"}), given))
        return node.snapshot().assignment(("a-uid", ContainerID("main-id"))).properties

    assert now() == NO_PROPERTIES
    assert now(CpuShares="512") == Properties(512)
    assert now(CpuShares="2", OomScoreAdj="5") == Properties(2, oom_score_adj=5)
    # The record of another agent may have a value that this one refuses.
    assert now(CpuShares="1") == NO_PROPERTIES


def test_a_container_with_cpus_of_the_policy_follows_them_too() -> None:
    main = builders.container("main", cpu=2000)
    of = replace(builders.pod("a", main), qos=QoSClass.GUARANTEED)
    node = manager(of, configured=pools("static"))

    def now(shares: str) -> tuple[Placement, Properties]:
        given = {ref("a"): {NIC: RecordedAnswer(1.0, {NIC: AnswerPart("CpuShares", shares)})}}
        node.observe(plugins=PluginFacts(frozenset({NIC}), given))
        assignment = node.snapshot().assignment(("a-uid", ContainerID("main-id")))
        return assignment.placement, assignment.properties

    assert now("512") == (Placement.POLICY, Properties(512))
    assert now("2") == (Placement.POLICY, Properties(2))


def test_the_texts_of_answers_that_count_are_joined() -> None:
    one = RecordedAnswer(1.0, {"cpu": AnswerPart(env={"A": "cpu"}, annotations={"n": "1"})})
    nic = RecordedAnswer(1.0, {"nic": AnswerPart(env={"A": "nic", "B": "nic"})})
    bad = RecordedAnswer(1.0, {"x": AnswerPart(env={"C": "x"})}, refused="it is bad")
    facts = PluginFacts(answers={ref("a"): {"nic": nic, "cpu": one, "x": bad}})
    assert facts.texts(ref("a")) == ({"A": "cpu", "B": "nic"}, {"n": "1"})
    assert facts.texts(ref("b")) == ({}, {})


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        pytest.param(2.0, "", id="the same"),
        pytest.param(
            0.5,
            "it requests cpu 0.5 since a resize, and keeps CPUs 2-3 until the pod ends",
            id="fewer",
        ),
        pytest.param(
            4.0,
            "it requests cpu 4 since a resize, and keeps CPUs 2-3 until its plugin gives it more",
            id="more",
        ),
    ],
)
def test_an_owner_keeps_its_cpus_when_it_is_resized_and_that_is_said(
    amount: float, said: str
) -> None:
    before = pod("web", container(running=True), level="dedicated_cores")
    node = manager(before, given={ref("web"): {"cpu": cpus("2-3", exclusive=True)}})
    after = pod("web", container(running=True, cpu=amount), level="dedicated_cores")
    node.observe(pods=[after])

    placed = node.snapshot().assignment(("web-uid", ContainerID("main-id")))
    assert (str(placed.cpus), placed.reason) == ("2-3", said)
    found = dict(notices.about_placement(node.snapshot().resolution))
    assert {reason for _, reason in found} == ({"CPUResizeIgnored"} if said else set())
