"""What koordlet does with CPU sets: where the policy follows it, and where only by a switch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import pytest

from cpupool.core.assignments import Cause, Placement
from cpupool.core.orchestration import QoS
from cpupool.core.workloads import ContainerID, QoSClass
from cpupool.manager.manager import Manager
from cpupool.policies.koordinator.policy import KoordinatorPolicy, Koordlet
from tests.unit.manager.choosing.test_koordinator import (
    BE,
    DEFAULT,
    LS,
    MACHINE,
    PLAIN,
    POOLS,
    cpus_of,
    node,
    own,
    pod,
)

if TYPE_CHECKING:
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod

LENT, WITHOUT = "2,18", "0-1,3,8-11,16-17,19,24-27"
ON_NODE_1 = "8-11,24-27"


class TestAnyClass:
    @pytest.mark.parametrize("qos", [QoS.LS, QoS.SYSTEM, None])
    def test_a_pod_owns_what_a_scheduler_has_assigned_and_lends_it(self, qos: QoS | None) -> None:
        bound = pod("bound", qos, cpus=LENT, prod=False)
        manager = node(bound, LS, BE)

        assert own(manager) == {"bound": LENT}
        assert (cpus_of(manager, bound), cpus_of(manager, LS)) == (LENT, WITHOUT)
        assert cpus_of(manager, BE) == DEFAULT

    def test_the_set_is_checked_as_an_lsr_pods_is(self) -> None:
        bound = pod("bound", QoS.LS, cpus="2-3,18")
        manager = node(bound)

        placed = manager.snapshot().assignment((bound.cgroup_uid, ContainerID("bound-main-id")))
        assert placed.cause is Cause.MISFIT
        assert own(manager) == {}

    def test_a_pod_without_such_a_request_shares(self) -> None:
        bound = pod("bound", QoS.BE, 0, cpus=LENT, kube=QoSClass.BEST_EFFORT)

        assert own(node(bound)) == {}


class TestNUMANodes:
    def test_nodes_without_shared_cpus_are_no_limit(self) -> None:
        lsr = pod("lsr", QoS.LSR, cpus=LENT)
        strange = frozenset({7})
        ls = pod("ls", QoS.LS, 500, nodes=strange)
        idle = pod("idle", QoS.LS, 0, kube=QoSClass.BEST_EFFORT, nodes=strange)
        manager = node(lsr, ls, idle)

        assert (cpus_of(manager, ls), cpus_of(manager, idle)) == (WITHOUT, DEFAULT)

    def test_an_ls_pod_shares_with_ls_pods_whatever_its_requests(self) -> None:
        idle = pod("idle", QoS.LS, 0, kube=QoSClass.BEST_EFFORT)
        manager = node(pod("lsr", QoS.LSR, cpus=LENT), idle)

        assert cpus_of(manager, idle) == WITHOUT


def _like(like: Koordlet, *pods: Pod) -> Manager:
    class Like(KoordinatorPolicy):
        @classmethod
        def of_pools(cls, pools: NodePools, machine: CPUTopology) -> Self:
            return replace(super().of_pools(pools, machine), like=like)

    manager = Manager()
    policy = replace(POOLS.cpu_manager, installed=Like)
    manager.reconfigure(replace(POOLS, cpu_manager=policy), MACHINE.topology())
    manager.observe(pods=pods)
    manager.adopt(())
    return manager


class TestLikeKoordlet:
    def test_best_effort_pods_keep_to_their_numa_nodes(self) -> None:
        near = pod("near", QoS.BE, 0, kube=QoSClass.BEST_EFFORT, nodes=frozenset({1}))
        lsr = pod("lsr", QoS.LSR, cpus="9,25")

        assert cpus_of(node(lsr, near), near) == DEFAULT
        assert cpus_of(_like(Koordlet(), lsr, near), near) == DEFAULT
        assert cpus_of(_like(Koordlet(be_cpu_manager=True), lsr, near), near) == ON_NODE_1

    def test_a_pod_without_a_class_is_left_to_the_static_kubelet(self) -> None:
        lsr = pod("lsr", QoS.LSR, cpus=LENT)
        manager = _like(Koordlet(kubelet_static=True), lsr, LS, BE, PLAIN)

        placed = manager.snapshot().assignment((PLAIN.cgroup_uid, ContainerID("plain-main-id")))
        assert (placed.placement, str(placed.cpus)) == (Placement.KUBELET, "")
        assert (cpus_of(manager, LS), cpus_of(manager, BE)) == (WITHOUT, DEFAULT)
        assert cpus_of(_like(Koordlet(), lsr, PLAIN), PLAIN) == WITHOUT
