"""Koordinator's classes beside the kubelet's static CPU manager, asked through the Manager."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import NATIVE_CPU, AllocatedDevices
from cpupool.core.grants import WHOLE_POD
from cpupool.core.names import KUBELET_CPUS
from cpupool.core.orchestration import QoS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind, Pod
from cpupool.manager import kubelet_records
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES
from tests.unit.manager.choosing.test_koordinator import BE, LS, PLAIN, WHOLE, cpus_of, own, pod

ALL = "0-7"
KUBELETS = CPUSet.parse("1-7")
POOLS = NodePools.of(cpu_manager=CPUManager("koordinator", reserved=CPUSet.of(0)))


def node(*pods: Pod, static: CPUSet = KUBELETS) -> Manager:
    made = Manager()
    made.reconfigure(POOLS, MACHINES["laptop_4c8t"].topology())
    made.observe(static_cpus=static)
    made.observe(pods=pods)
    made.adopt(())
    return made


def give(manager: Manager, **cpus: str) -> None:
    """Let podresources name the CPUs that the kubelet gave to each pod's container."""
    live = {
        ("default", name): {
            f"{name}-main": {
                NATIVE_CPU: AllocatedDevices(frozenset(listed.split(",")), CPUSet.parse(listed))
            }
        }
        for name, listed in cpus.items()
    }
    pods = manager.snapshot().facts.pods or ()
    manager.accept(kubelet_records.of_containers(pods, manager.names, live, {}))


def placed(manager: Manager, pod: Pod, container: str = "") -> CPUAssignment:
    identifier = ContainerID(f"{container or f'{pod.name}-main'}-id")
    return manager.snapshot().assignment((pod.cgroup_uid, identifier))


def test_the_kubelets_own_cpus_are_in_no_shared_set() -> None:
    manager = node(WHOLE, LS, BE, PLAIN)
    give(manager, whole="2,3")

    assert (placed(manager, WHOLE).placement, cpus_of(manager, WHOLE)) == (Placement.POOLS, "2-3")
    for sharer in (LS, BE, PLAIN):
        assert cpus_of(manager, sharer) == "0-1,4-7"


def test_before_the_kubelet_has_named_them_the_container_waits() -> None:
    manager = node(WHOLE)

    assert placed(manager, WHOLE).cause is Cause.NO_DEVICES
    assert placed(manager, WHOLE).reason == "the kubelet has not named the CPUs that are its own"
    assert [ref.name for ref in manager.snapshot().resolution.missing] == ["whole-main"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("cpu", [1000, 1500, 4000])
def test_a_resize_that_the_kubelet_refuses_takes_no_cpu_of_it(cpu: int, *, restarted: bool) -> None:
    (main,) = WHOLE.containers
    whole = 0 if cpu % 1000 else cpu // 1000
    resized = replace(WHOLE, containers=(replace(main, whole_cpus=whole, request_milli=cpu),))
    manager = node(WHOLE, PLAIN)
    give(manager, whole="2,3")
    if restarted:
        manager = node(resized, PLAIN)
        give(manager, whole="2,3")
    else:
        manager.observe(pods=(resized, PLAIN))

    assert cpus_of(manager, resized) == "2-3"
    assert cpus_of(manager, PLAIN) == "0-1,4-7"


@pytest.mark.parametrize("qos", [QoS.LS, QoS.BE])
def test_a_pod_of_a_sharing_class_shares_the_cpus_that_the_kubelet_gave_it(qos: QoS) -> None:
    sharer = pod("sharer", qos, 2000)
    manager = node(sharer, BE)
    give(manager, sharer="2,3")

    assert cpus_of(manager, sharer) == cpus_of(manager, BE) == ALL
    assert not manager.snapshot().resolution.missing


@pytest.mark.parametrize("qos", [QoS.LSE, QoS.LSR])
def test_the_kubelets_set_counts_before_an_annotation(qos: QoS) -> None:
    assigned = pod("assigned", qos, 2000, "6-7")
    main = replace(assigned.containers[0], whole_cpus=2)
    assigned = replace(assigned, containers=(main,))
    manager = node(assigned, BE)
    give(manager, assigned="2,3")

    assert own(manager) == {}
    assert cpus_of(manager, assigned) == "2-3"
    assert cpus_of(manager, BE) == "0-1,4-7"


def _in_parts(name: str, cpus: str) -> Pod:
    """Make an LSR pod of two containers, to which the kubelet gives no CPUs of their own."""
    whole = pod(name, QoS.LSR, 1500, cpus)
    side = replace(builders.container(f"{name}-side"), request_milli=500)
    return replace(whole, containers=(*whole.containers, side))


def test_a_pod_whose_containers_request_parts_of_cpus_owns_its_annotations() -> None:
    parts = _in_parts("parts", "6-7")
    manager = node(parts, WHOLE, LS, BE)
    give(manager, whole="2,3")

    assert own(manager) == {"parts": "6-7"}
    assert (cpus_of(manager, LS), cpus_of(manager, BE)) == ("0-1,4-5", "0-1,4-7")


def test_of_two_claims_the_pod_that_runs_keeps_its_cpus() -> None:
    manager = node(_in_parts("parts", "6-7"))
    manager.observe(pods=(_in_parts("parts", "6-7"), WHOLE))
    give(manager, whole="5,6")

    assert own(manager) == {"parts": "6-7"}
    assert placed(manager, WHOLE).cause is Cause.CONTESTED
    assert "default/parts still has them" in placed(manager, WHOLE).reason

    manager.observe(pods=(WHOLE,), idle=frozenset({"parts-uid"}))
    assert cpus_of(manager, WHOLE) == "5-6"


@pytest.mark.parametrize("restarted", [False, True])
def test_the_kubelet_may_give_the_sibling_of_an_owners_cpu(*, restarted: bool) -> None:
    """None of both has whole cores; a restart changes nothing."""
    side = replace(builders.container("one-side"), request_milli=500)
    one = pod("one", QoS.LSR, 500, "6")
    one = replace(one, containers=(*one.containers, side))
    manager = node(one)
    manager.observe(pods=(one, WHOLE))
    give(manager, whole="5,7")
    if restarted:
        manager = Manager()
        manager.reconfigure(POOLS, MACHINES["laptop_4c8t"].topology())
        manager.observe(static_cpus=KUBELETS, pods=(one, WHOLE))
        give(manager, whole="5,7")
        manager.adopt((), State("koordinator", entries={"one-uid": {WHOLE_POD: CPUSet.of(6)}}))

    assert own(manager) == {"one": "6"}
    assert cpus_of(manager, WHOLE) == "5,7"


def test_a_starting_agent_believes_its_record_before_the_kubelet() -> None:
    parts = _in_parts("parts", "6-7")
    manager = Manager()
    manager.reconfigure(POOLS, MACHINES["laptop_4c8t"].topology())
    manager.observe(static_cpus=KUBELETS, pods=(WHOLE, parts))
    give(manager, whole="5,6")

    manager.adopt((), State("koordinator", entries={"parts-uid": {WHOLE_POD: CPUSet.of(6, 7)}}))

    assert own(manager) == {"parts": "6-7"}
    assert placed(manager, WHOLE).cause is Cause.CONTESTED


def test_an_init_container_shares_since_the_kubelet_does_not_report_it() -> None:
    init = builders.container("init", ContainerKind.INIT, cpu=2000)
    both = replace(WHOLE, containers=(init, *WHOLE.containers))
    manager = node(both)
    give(manager, whole="2,3")

    assert placed(manager, both, "init").placement is Placement.DEFAULT
    assert str(placed(manager, both, "init").cpus) == "0-1,4-7"
    assert cpus_of(manager, both) == "2-3"


def test_without_the_static_cpu_manager_the_record_counts_no_more() -> None:
    manager = node(WHOLE, LS)
    give(manager, whole="2,3")
    assert KUBELET_CPUS in {grant.resource for grant in manager.snapshot().resolution.grants}

    manager.observe(static_cpus=CPUSet())

    assert cpus_of(manager, WHOLE) == cpus_of(manager, LS) == ALL


def test_beside_pools_the_kubelets_record_does_not_count() -> None:
    manager = node(WHOLE)
    give(manager, whole="2,3")

    pools = NodePools.of(Pool.named("shared_a", "6-7"), cpu_manager=POOLS.cpu_manager)
    manager.reconfigure(pools, MACHINES["laptop_4c8t"].topology())

    assert cpus_of(manager, WHOLE) == "0-5"
