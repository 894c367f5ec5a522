"""Which CPUs a pod has that comes back, and one that shares where all CPUs are withheld."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpu_manager import StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import POLICY_CPUS
from cpupool.core.orchestration import NodeRules, Orchestration, QoS, Reservation
from cpupool.core.workloads import Pod, QoSClass
from cpupool.policies.base import ChoiceRequest, ContainerToPlace
from cpupool.policies.koordinator.policy import KoordinatorPolicy
from cpupool.policies.layout import Layout
from cpupool.policies.view import NodeView
from tests import builders
from tests.machines import MACHINES

TOPOLOGY = MACHINES["laptop_4c8t"].topology()
POLICY = KoordinatorPolicy.of(Layout.of_topology(TOPOLOGY), StaticOptions(), CPUSet())


def pod(told: Orchestration, milli: int = 2000) -> Pod:
    main = replace(builders.container(), request_milli=milli)
    return replace(builders.pod("web", main), orchestration=told)


def test_a_pod_that_comes_back_keeps_its_cpus() -> None:
    has = CPUSet.parse("3,7")
    owner = pod(Orchestration(QoS.LSR, prod=True, cpus=CPUSet.of(1)))
    request = ChoiceRequest(POLICY_CPUS, 2, TOPOLOGY.online, has=has, pod=owner)

    choice = POLICY.choose(NodeView(TOPOLOGY, cpus=TOPOLOGY.online), request)

    assert (choice.cpus, choice.steps) == (has, ())


@pytest.mark.parametrize("qos", [QoSClass.BURSTABLE, QoSClass.BEST_EFFORT])
def test_where_all_cpus_are_withheld_a_pod_that_shares_has_the_default_pools(
    qos: QoSClass,
) -> None:
    default = CPUAssignment(Placement.DEFAULT, default=TOPOLOGY.online)
    rules = NodeRules(Reservation(TOPOLOGY.online))
    view = NodeView(TOPOLOGY, cpus=TOPOLOGY.online, default=default, rules=rules)
    view = replace(view, extents=POLICY.extents(view))
    sharing = replace(pod(Orchestration(), 500), qos=qos)

    assert POLICY.place(view, ContainerToPlace(sharing, sharing.containers[0])) == default
