"""Best-effort pods under load, by the policy koordinator, asked through the Manager."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import CPUManager, Suppression
from cpupool.core.cpu_time import CPUUse
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import NodeRules, QoS, Reservation
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from cpupool.manager.manager import Manager
from cpupool.policies.view import BEST_EFFORT
from tests import builders
from tests.machines import MACHINES
from tests.unit.manager.choosing.test_koordinator import BE, LS, cpus_of, pod

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()  # cores 0,16 to 7,23 and 8,24 to 15,31
OURS = "0-3,8-11,16-19,24-27"
LINES = (Pool.named("exclusive_a", "4-7"), Pool.named("default", OURS))
OFF = CPUManager("koordinator", reserved=CPUSet.parse("0,16"))
ON = replace(OFF, suppression=Suppression(50))
# 50 % of 16 CPUs are 8, and two are reserved for the system: six are left while no pod works.


def pools(manager: CPUManager = ON) -> NodePools:
    return NodePools.of(*LINES, cpu_manager=manager)


def node(*pods: Pod, manager: CPUManager = ON, rules: NodeRules | None = None) -> Manager:
    made = Manager()
    made.reconfigure(pools(manager), MACHINE)
    made.observe(pods=pods, rules=rules)
    made.adopt(())
    return made


def use(**milli: int) -> CPUUse:
    """Return the use of CPUs by these pods; CPU 4 is a pool's, and always busy."""
    by_pod = {f"{name}-uid": used for name, used in milli.items()}
    return CPUUse({4: 1000, 0: sum(by_pod.values())}, by_pod)


IDLE = use()


def test_best_effort_pods_alone_have_fewer_cpus_under_load() -> None:
    manager = node(LS, BE)
    assert cpus_of(manager, BE) == OURS

    assert manager.measure(use(ls=2000, be=3000))

    assert cpus_of(manager, LS) == OURS
    # Four are left: the reserved core first, then one of the NUMA node with more CPUs.
    assert cpus_of(manager, BE) == "0,8,16,24"


def test_the_assignment_says_which_load_took_the_cpus() -> None:
    manager = node(LS, BE)
    manager.measure(use(ls=2000, be=3000))

    reasons = {
        placed.pod.name: placed.assignment.reason
        for placed in manager.snapshot().resolution.containers.values()
    }

    assert reasons == {
        "ls": "",
        "be": "best-effort pods are suppressed to 4 of 16 CPUs: the other pods use 2.0 CPUs and"
        " the system 2.0 of 50 % of 16 CPUs, which leaves 4.0",
    }


def test_a_set_that_no_load_reduces_needs_no_reason() -> None:
    manager = node(LS, BE, manager=replace(OFF, suppression=Suppression(100)))
    manager.measure(IDLE)
    manager.observe(pods=(LS, BE, pod("lse", QoS.LSE, cpu=2000)))

    (reason,) = {
        placed.assignment.reason
        for placed in manager.snapshot().resolution.containers.values()
        if placed.pod is BE
    }
    assert "14 of 16" in reason
    manager.measure(IDLE)
    assert {
        placed.assignment.reason for placed in manager.snapshot().resolution.containers.values()
    } == {""}


def test_another_load_with_the_same_result_changes_nothing() -> None:
    manager = node(LS, BE)
    manager.measure(use(ls=2000))
    before = manager.snapshot()

    assert not manager.measure(use(ls=2000))
    assert not manager.measure(use(ls=2100))

    assert manager.snapshot().resolution is before.resolution


def test_the_set_grows_by_two_of_sixteen_cpus_in_a_round() -> None:
    manager = node(LS, BE)
    manager.measure(use(ls=9000))
    sizes = [len(CPUSet.parse(cpus_of(manager, BE)))]
    for _ in range(3):
        manager.measure(IDLE)
        sizes.append(len(CPUSet.parse(cpus_of(manager, BE))))

    assert sizes == [2, 4, 6, 6]


def test_owners_and_withheld_cpus_are_never_taken() -> None:
    lse = pod("lse", QoS.LSE, cpus="1,17")
    lsr = pod("lsr", QoS.LSR, cpus="2,18")
    rules = NodeRules(Reservation(CPUSet.parse("3,19")))
    manager = node(LS, BE, lse, lsr, rules=rules)
    manager.measure(use(ls=2000))

    assert cpus_of(manager, BE) == "0,8,16,24"
    manager.measure(IDLE)
    # Five are left beside the reserved core, and one of ten is a lent one.
    assert cpus_of(manager, BE) == "0,8-9,16,24-25"


def test_an_owner_that_comes_under_load_gets_its_cpus() -> None:
    manager = node(LS, BE)
    manager.measure(use(ls=2000))
    assert cpus_of(manager, BE) == "0,8,16,24"

    lse = pod("lse", QoS.LSE, cpus="8,24")
    manager.observe(pods=(LS, BE, lse))

    assert cpus_of(manager, lse) == "8,24"
    assert cpus_of(manager, BE) == "0-1,16-17"


def test_a_best_effort_pod_of_the_class_ls_is_one_of_the_others() -> None:
    ls = pod("ls", QoS.LS, 0, kube=QoSClass.BEST_EFFORT)
    manager = node(ls, BE)

    manager.measure(use(ls=2000, be=9000))

    assert cpus_of(manager, ls) == OURS
    assert cpus_of(manager, BE) == "0,8,16,24"


@pytest.mark.parametrize("kube", [QoSClass.BEST_EFFORT, QoSClass.BURSTABLE])
def test_the_load_of_pools_does_not_count(kube: QoSClass) -> None:
    dpdk = replace(pod("dpdk", None, 0, kube=kube), orchestration=None)
    asking = replace(dpdk.containers[0], requests=builders.asking({"exclusive_a": 1}))
    manager = node(LS, BE, replace(dpdk, containers=(asking,)))

    # Of the 5000 on the policy's CPUs the pods use 2000, and so the system 3000.
    manager.measure(CPUUse({4: 9000, 0: 5000}, {"dpdk-uid": 9000, "ls-uid": 2000}))

    assert cpus_of(manager, BE) == "0,8,16"


def test_a_reservation_of_the_node_counts_for_the_system() -> None:
    rules = NodeRules(Reservation(count=5))
    manager = node(LS, BE, rules=rules)

    manager.measure(IDLE)

    assert len(manager.snapshot().resolution.view.extents[BEST_EFFORT]) == 3


def test_a_reservation_of_more_than_the_node_has_leaves_the_least() -> None:
    manager = node(LS, BE, rules=NodeRules(Reservation(count=10**999)))

    manager.measure(IDLE)

    assert len(manager.snapshot().resolution.view.extents[BEST_EFFORT]) == 2


def test_nothing_is_decided_before_pods_and_owners_are_known() -> None:
    manager = Manager()
    manager.reconfigure(pools(), MACHINE)
    assert not manager.measure(use(ls=9000))
    manager.observe(pods=(LS, BE))
    assert not manager.measure(use(ls=9000))
    manager.adopt(())
    assert manager.measure(use(ls=9000))


def test_an_edit_switches_it_off_and_on() -> None:
    manager = node(LS, BE)
    manager.measure(use(ls=9000))
    assert cpus_of(manager, BE) == "0,16"

    tighter = replace(ON, suppression=Suppression(40))
    manager.reconfigure(pools(tighter), MACHINE)
    assert cpus_of(manager, BE) == "0,16"

    for without in (OFF, CPUManager("static", reserved=CPUSet.of(0)), CPUManager()):
        manager.reconfigure(pools(without), MACHINE)
        assert cpus_of(manager, BE) == OURS
        assert not manager.measure(use(ls=9000))
        manager.reconfigure(pools(), MACHINE)
        assert cpus_of(manager, BE) == OURS
        assert manager.measure(use(ls=9000))
        assert cpus_of(manager, BE) == "0,16"
