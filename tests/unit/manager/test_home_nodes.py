"""Pods with ConstrainedBurst, which share the CPUs of one NUMA node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Placement
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import BindPolicy, NodeRules, QoS, Reservation
from cpupool.core.pools import NodePools
from cpupool.core.workloads import ContainerID, QoSClass
from cpupool.manager.manager import Manager
from tests.unit.manager.choosing.nodes import on
from tests.unit.manager.choosing.test_koordinator import (
    DEFAULT,
    LINES,
    MACHINE,
    POOLS,
    cpus_of,
    node,
    pod,
)

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

ON_0, ON_1 = "0-3,16-19", "8-11,24-27"


def burst(
    name: str = "burst", limit_milli: int | None = 6000, qos: QoS | None = QoS.LS, **told: object
) -> Pod:
    made = pod(
        *(name, qos, 500),
        kube=QoSClass.BURSTABLE,
        **{"bind": BindPolicy.CONSTRAINED_BURST, **told},  # type: ignore[arg-type]
    )
    return replace(made, limit_milli=limit_milli)


def reason(manager: Manager, has: Pod) -> str:
    key = (has.cgroup_uid, ContainerID(f"{has.name}-main-id"))
    assignment = manager.snapshot().assignment(key)
    assert assignment.placement is Placement.DEFAULT
    return assignment.reason


class TestNode:
    @pytest.mark.parametrize("qos", [QoS.LS, None])
    def test_it_has_as_many_shared_cpus_as_the_limit(self, qos: QoS | None) -> None:
        has = burst(qos=qos)
        manager = node(has)
        assert (cpus_of(manager, has), reason(manager, has)) == (ON_0, "")

        manager = node(pod("lsr", cpus="1-3"), pod("lse", QoS.LSE, 3000, "1-3"), has)
        assert (cpus_of(manager, has), reason(manager, has)) == (ON_1, "")

    def test_pods_lie_on_different_nodes_then_where_most_is_shared(self) -> None:
        first, second, third = (burst(name) for name in ("a", "b", "c"))
        manager = node(first, second)
        manager.observe(pods=(first, second, pod("lse", QoS.LSE, cpus="1,17"), third))

        assert [cpus_of(manager, each) for each in (first, second, third)] == [
            *("0,2-3,16,18-19", ON_1, ON_1),
        ]

    def test_a_pod_that_owns_cpus_by_its_class_shares_with_this_policy(self) -> None:
        has = burst(qos=QoS.LSR)

        assert cpus_of(node(has), has) == ON_0

    @pytest.mark.parametrize(
        ("has", "cpus"),
        [
            pytest.param(burst(nodes=frozenset({1})), ON_1, id="the scheduler has named one"),
            pytest.param(burst(qos=QoS.BE), DEFAULT, id="best effort"),
            pytest.param(burst(bind=BindPolicy.FULL_PCPUS), DEFAULT, id="another policy"),
        ],
    )
    def test_others_have_none(self, has: Pod, cpus: str) -> None:
        manager = node(has)

        assert (cpus_of(manager, has), reason(manager, has)) == (cpus, "")


class TestTooFew:
    def test_a_pod_moves_to_a_node_that_suffices_and_stays_there(self) -> None:
        has, lse = burst(), pod("lse", QoS.LSE, 3000, "1-3")
        manager = node(has)
        assert cpus_of(manager, has) == ON_0

        manager.observe(pods=(has, lse))
        assert cpus_of(manager, has) == ON_1
        manager.observe(pods=(has,), idle=frozenset({"lse-uid"}))
        assert cpus_of(manager, has) == ON_1

    def test_where_none_suffices_it_has_all_shared_cpus_and_the_reason(self) -> None:
        has = burst(limit_milli=7001)
        lse = pod("lse", QoS.LSE, 2000, "1,8")
        manager = node(has, lse)

        assert cpus_of(manager, has) == "0,2-3,9-11,16-19,24-27"
        assert "no NUMA node has 8 shared CPUs, as many as the pod's limit" in reason(manager, has)
        manager.observe(pods=(has,), idle=frozenset({"lse-uid"}))
        assert (cpus_of(manager, has), reason(manager, has)) == (ON_0, "")

    @pytest.mark.parametrize("limit_milli", [None, 0])
    def test_without_a_limit_no_node_suffices(self, limit_milli: int | None) -> None:
        has = burst(limit_milli=limit_milli)
        manager = node(has)

        assert cpus_of(manager, has) == DEFAULT
        assert "needs a cpu limit" in reason(manager, has)

    def test_a_node_whose_shared_cpus_are_all_withheld_leaves_the_others(self) -> None:
        has = burst(limit_milli=1000)
        manager = node(has)
        manager.observe(rules=NodeRules(Reservation(CPUSet.parse(ON_0))))

        assert cpus_of(manager, has) == ON_1


class TestRestart:
    def restarted(self, has: Pod, cpus: str) -> Manager:
        manager = Manager()
        manager.reconfigure(POOLS, MACHINE.topology())
        manager.observe(pods=(has,))
        manager.adopt([on(has, cpus)])
        return manager

    def test_a_pod_stays_on_its_node(self) -> None:
        has = burst()

        assert cpus_of(self.restarted(has, ON_1), has) == ON_1
        assert cpus_of(self.restarted(has, "9-10"), has) == ON_1

    @pytest.mark.parametrize("cpus", [DEFAULT, "", "0-", "40"])
    def test_cpus_that_name_no_node_count_for_nothing(self, cpus: str) -> None:
        has = burst()

        assert cpus_of(self.restarted(has, cpus), has) == ON_0

    def test_another_policy_has_no_such_nodes(self) -> None:
        has = burst()
        manager = node(has)

        static = NodePools.of(*LINES, cpu_manager=CPUManager("static", reserved=CPUSet.of(0)))
        manager.reconfigure(static, MACHINE.topology())

        assert cpus_of(manager, has) == DEFAULT
