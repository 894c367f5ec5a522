"""Which answers of plugins count: each rule alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core import default_pool
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Grant, Grants, PodOwner, Source
from cpupool.core.names import POLICY_CPUS, Names
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerRef
from cpupool.policies.none.policy import NonePolicy
from cpupool.policies.qrm.policy import QRM, QRMPolicy
from cpupool.policies.view import NodeView
from cpupool.qrm.bad_answers import Judge, Rule
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod

MACHINE = MACHINES["arm_no_smt"].without("7").topology()
POOLS = NodePools.of(
    Pool.named("default", "0-7"), cpu_manager=CPUManager(QRM, reserved=CPUSet.of(0))
)


def grant(pod: str, cpus: str, source: Source) -> Grant:
    return Grant(
        PodOwner(pod), POLICY_CPUS, source, {"main": CPUSet.parse(cpus)}, whole_cores=False
    )


GRANTS = Grants().adding([grant("old", "1", Source.POLICY), grant("mine", "2", Source.PLUGIN)])
VIEW = NodeView(MACHINE, POOLS, default_pool.declared(POOLS, MACHINE), GRANTS, GRANTS.cpus)
MINE = ContainerRef("mine", "main")
JUDGE = Judge(VIEW, QRMPolicy.of_pools(POOLS, MACHINE), Names())


def rule(
    answer: AnswerPart,
    *,
    exclusive: bool = False,
    elsewhere: str = "",
    in_pod: str = "",
    judge: Judge = JUDGE,
) -> Rule | None:
    """Return the rule that an answer for the pod `mine` breaks."""
    given = RecordedAnswer(1.0, {"cpu": answer}, exclusive=exclusive)
    broken = judge.first_broken(
        MINE, given, {}, elsewhere=CPUSet.parse(elsewhere), in_pod=CPUSet.parse(in_pod)
    )
    return broken.rule if broken else None


def named(cpus: str, **fields: Any) -> AnswerPart:
    return AnswerPart("CpusetCpus", cpus, 1.0, **fields)


@pytest.mark.parametrize(
    ("cpus", "broken"),
    [
        ("2-6", None),
        ("0,3", None),
        ("3-", Rule.LIST),
        ("x" * 5000, Rule.LIST),
        ("", Rule.EMPTY),
        ("3-8", Rule.OUTSIDE),
        ("99999999", Rule.LIST),
        ("3,7", Rule.OFFLINE),
        ("1,3", Rule.OWNED),
        ("x", Rule.LIST),
    ],
)
def test_a_set_is_the_policys_online_and_no_other_pods(cpus: str, broken: Rule | None) -> None:
    assert rule(named(cpus)) is broken


def test_the_cpus_of_another_answer_are_owned_as_well() -> None:
    assert rule(named("3"), elsewhere="3-4") is Rule.OWNED
    assert rule(named("3"), in_pod="3-4") is None
    # The grant is of the answer before this one, and another plugin pod may have left its CPUs.
    other = replace(VIEW, grants=Grants().adding([grant("other", "2", Source.PLUGIN)]))
    assert rule(named("2"), judge=replace(JUDGE, view=other)) is None


def test_an_exclusive_set_leaves_the_reserved_cpus() -> None:
    assert rule(named("2-6"), exclusive=True) is None
    assert rule(named("0,3"), exclusive=True) is Rule.RESERVED


def test_an_exclusive_set_leaves_an_online_cpu_to_the_others() -> None:
    without = MACHINES["arm_no_smt"].without("0").topology()
    judge = replace(JUDGE, view=replace(VIEW, topology=without))
    # CPU 0 is reserved, and offline.
    assert rule(named("2-6"), exclusive=True, judge=judge) is None
    assert rule(named("2-7"), exclusive=True, judge=judge) is Rule.RESERVED
    assert rule(named("2-6"), exclusive=True, elsewhere="7", judge=judge) is Rule.RESERVED
    assert rule(named("2-6"), exclusive=True, in_pod="7", judge=judge) is Rule.RESERVED
    assert rule(named("2-7"), judge=judge) is None


@pytest.mark.parametrize(
    ("name", "broken"),
    [("", None), ("HugepageLimits", Rule.PROPERTY), ("cpushares", Rule.PROPERTY)],
)
def test_what_no_container_has_is_refused_and_never_dropped(name: str, broken: Rule | None) -> None:
    assert rule(AnswerPart(name, "0")) is broken


@pytest.mark.parametrize(
    ("name", "value", "broken"),
    [
        ("CpuShares", "2", None),
        ("CpuShares", "0", Rule.VALUE),
        ("CpuShares", "many", Rule.VALUE),
        ("CpuQuota", "-1", None),
        ("MemoryLimitInBytes", "1073741824", None),
        ("OomScoreAdj", "-998", Rule.VALUE),
        ("Unified", "io.weight=200,memory.high=max", None),
        ("Unified", "memory.max=1073741824", Rule.VALUE),
        ("CpuPeriod", "50000", Rule.TOGETHER),
        ("MemorySwapLimitInBytes", "1073741824", Rule.TOGETHER),
    ],
)
def test_a_property_has_a_value_that_it_can_have(
    name: str, value: str, broken: Rule | None
) -> None:
    assert rule(AnswerPart(name, value)) is broken


@pytest.mark.parametrize(
    "answer",
    [
        AnswerPart("CpuShares", "2\udc80"),
        AnswerPart("Unified", "io.weight=200\0"),
        AnswerPart(env={"A": "\udc80"}),
        AnswerPart(annotations={"example.com/\udc80": "a"}),
    ],
)
def test_a_text_that_no_file_can_hold_is_refused(answer: AnswerPart) -> None:
    assert rule(answer) is Rule.TEXT


@pytest.mark.parametrize("node", [-1, 1024])
def test_a_node_that_no_machine_has_is_refused(node: int) -> None:
    assert rule(AnswerPart(quantity=1.0, by_node={node: 1})) is Rule.HINT


def test_version_1_has_no_files_of_version_2() -> None:
    judge = replace(JUDGE, v2=False)
    assert rule(AnswerPart("Unified", "io.weight=200"), judge=judge) is Rule.VERSION
    assert rule(AnswerPart("Unified", "io.weight=0"), judge=judge) is Rule.VALUE
    assert rule(AnswerPart("CpuShares", "2"), judge=judge) is None


def together(values: Mapping[str, str], judge: Judge = JUDGE) -> Rule | None:
    """Return the rule that the first property breaks beside answers for the others."""
    (first, *rest) = [
        RecordedAnswer(1.0, {name: AnswerPart(name, value)}) for name, value in values.items()
    ]
    none = CPUSet()
    others = {str(number): other for number, other in enumerate(rest)}
    broken = judge.first_broken(MINE, first, others, elsewhere=none, in_pod=none)
    return broken.rule if broken else None


def test_properties_of_several_answers_fit_together() -> None:
    assert together({"CpuPeriod": "50000", "CpuQuota": "25000"}) is None
    assert together({"CpuQuota": "25000"}) is None
    swap, limit = "MemorySwapLimitInBytes", "MemoryLimitInBytes"
    assert together({swap: "20000000", limit: "20000000"}) is None
    assert together({limit: "20000001", swap: "20000000"}) is Rule.TOGETHER
    assert together({limit: "-1", swap: "20000000"}) is Rule.TOGETHER
    assert together({limit: "-1", swap: "-1"}) is None
    # Another answer that is taken back leaves no swap without memory.
    assert together({"CpuShares": "2", swap: "20000000"}) is Rule.TOGETHER


def on_pod(pod: Pod, grants: Grants = GRANTS) -> Judge:
    return replace(JUDGE, view=replace(VIEW, pods=(builders.pod("other"), pod), grants=grants))


def test_a_container_has_not_more_cpu_time_than_its_pod() -> None:
    judge = on_pod(replace(builders.pod("mine"), cgroup_uid="mine", limit_milli=1500))
    assert together({"CpuQuota": "150000"}, judge) is None
    assert together({"CpuQuota": "150001"}, judge) is Rule.CPU_TIME
    assert together({"CpuQuota": "75001", "CpuPeriod": "50000"}, judge) is Rule.CPU_TIME
    assert together({"CpuQuota": "-1"}, judge) is None
    assert together({"CpuShares": "2"}, judge) is None


def test_cpupool_decides_the_cpu_time_of_containers_with_cpus_of_its_own_giving() -> None:
    plain = replace(builders.pod("mine"), cgroup_uid="mine")
    asking = builders.container("main", exclusive_a=1)
    of_pool = replace(plain, containers=(asking,))
    assert together({"CpuQuota": "150000"}, on_pod(of_pool)) is Rule.CPU_TIME
    assert together({"CpuShares": "2"}, on_pod(of_pool)) is None
    beside = replace(of_pool, containers=(replace(asking, name="side"),))
    assert together({"CpuQuota": "150000"}, on_pod(beside)) is None
    # A plugin that gives CPUs may limit their use; a policy's CPUs are never throttled.
    assert together({"CpuQuota": "150000"}, on_pod(plain)) is None
    chosen = Grants().adding([grant("mine", "2", Source.POLICY)])
    assert together({"CpuQuota": "150000"}, on_pod(plain, chosen)) is Rule.CPU_TIME


def test_only_under_the_policy_a_plugin_names_cpus() -> None:
    assert rule(named("3"), judge=replace(JUDGE, policy=NonePolicy())) is Rule.POLICY
    assert rule(AnswerPart("", "0-1"), judge=replace(JUDGE, policy=NonePolicy())) is None


@pytest.mark.parametrize(
    ("nodes", "broken"),
    [("0", None), ("0,9", Rule.OUTSIDE), ("", Rule.EMPTY), ("x", Rule.LIST)],
)
def test_memory_nodes_are_the_machines(nodes: str, broken: Rule | None) -> None:
    assert rule(AnswerPart("CpusetMems", nodes)) is broken
    static = replace(JUDGE, policy=NonePolicy())
    assert rule(AnswerPart("CpusetMems", nodes), judge=static) is broken


@pytest.mark.parametrize(
    ("quantity", "by_node", "broken"),
    [
        (0.0, {0: 0}, None),
        (2.5, {0: 2, 1: 2**53}, None),
        (-1.0, {}, Rule.QUANTITY),
        (-0.0, {}, Rule.QUANTITY),
        (math.nan, {}, Rule.QUANTITY),
        (math.inf, {}, Rule.QUANTITY),
        (1.0, {0: -1}, Rule.QUANTITY),
        (1.0, {0: 1, 1: 2**53 + 2}, Rule.QUANTITY),
    ],
)
def test_a_quantity_is_an_amount_on_each_node_too(
    quantity: float, by_node: dict[int, int], broken: Rule | None
) -> None:
    assert rule(AnswerPart(quantity=quantity, by_node=by_node)) is broken


@pytest.mark.parametrize(
    ("env", "legal"),
    [
        ({"AFFINITY_NIC_ADDR_IPV6": "fdbd::20", "a.b-c": ""}, True),
        ({"": "1"}, False),
        ({"A=B": "1"}, False),
        ({"A\n": "1"}, False),
        ({"A": "\0"}, False),
        ({"EXCLUSIVE_CPUS": "1"}, False),
        ({"CPUPOOL_CPUS_X": "1"}, False),
        ({"A": "x" * 40_000}, False),
    ],
)
def test_variables_are_such_that_a_process_can_have(env: dict[str, str], *, legal: bool) -> None:
    assert rule(AnswerPart(env=env)) is (None if legal else Rule.ENVIRONMENT)


@pytest.mark.parametrize(
    ("key", "value", "legal"),
    [
        ("kubernetes.io/host-netns-path", "/var/run/netns/ns1", True),
        ("note", "", True),
        ("nokia.k8s.io/cpus-exclusive", "true", True),
        ("nokia.k8s.io/cpus-chosen", "1", False),
        ("Upper.io/x", "", False),
        ("", "", False),
        ("note", "\0", False),
        ("note", "x" * 40_000, False),
    ],
)
def test_annotations_are_legal_and_not_cpupools(key: str, value: str, *, legal: bool) -> None:
    broken = rule(AnswerPart(annotations={key: value}))
    assert broken is (None if legal else Rule.ANNOTATIONS)


def test_one_answer_names_a_containers_cpus() -> None:
    def verdict(given: RecordedAnswer, **others: RecordedAnswer) -> Rule | None:
        none = CPUSet()
        broken = JUDGE.first_broken(MINE, given, others, elsewhere=none, in_pod=none)
        return broken.rule if broken else None

    cpus, plain = (
        RecordedAnswer(1.0, {"cpu": named("3")}),
        RecordedAnswer(1.0, {"nic": AnswerPart()}),
    )
    assert verdict(cpus, nic=plain) is None
    assert verdict(plain, cpu=cpus) is None
    assert verdict(cpus, best=cpus) is Rule.TWICE
    assert verdict(cpus, best=replace(cpus, refused="it is bad")) is None
    assert verdict(RecordedAnswer(1.0, {"cpu": named("3"), "more": named("4")})) is Rule.TWICE
    memory = RecordedAnswer(1.0, {"memory": AnswerPart("CpusetMems", "0")})
    assert verdict(memory, cpu=cpus) is None
    assert verdict(memory, other=memory) is Rule.TWICE


def test_the_words_name_the_resource_and_the_fact() -> None:
    given = RecordedAnswer(1.0, {"cpu": named("3-8")})
    broken = JUDGE.first_broken(MINE, given, {}, elsewhere=CPUSet(), in_pod=CPUSet())
    assert broken
    assert broken.why == "the answer for cpu names CPUs 8, which are not the policy's"
