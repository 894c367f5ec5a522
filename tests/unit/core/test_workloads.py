"""Pods, and the CPUs that follow for their containers."""

from __future__ import annotations

import pytest

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID, Pod, PodUID, QoSClass, RuntimeContainer
from tests import builders

LABELS = {
    "io.kubernetes.pod.uid": "uid",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.pod.name": "web",
}


def pod(cgroup_uid: str = "") -> Pod:
    return Pod(PodUID("uid"), "default", "web", QoSClass.BURSTABLE, (), cgroup_uid)


def test_a_pods_cgroup_is_named_after_its_uid() -> None:
    assert pod().cgroup_uid == "uid"


def test_a_static_pods_cgroup_is_named_after_its_hash() -> None:
    assert pod("hash").cgroup_uid == "hash"


def test_a_container_runs_on_the_union_of_what_it_has() -> None:
    assigned = CPUAssignment(
        Placement.POOLS, exclusive=CPUSet.of(4), shared=CPUSet.of(1, 2), default=CPUSet.of(0)
    )
    assert str(assigned.cpus) == "0-2,4"
    assert CPUAssignment(Placement.DEFAULT).cpus == CPUSet()


def test_an_application_gets_its_cpus_by_pool_and_by_kind() -> None:
    assigned = CPUAssignment(
        Placement.POOLS,
        exclusive=CPUSet.of(4, 6),
        shared=CPUSet.of(0, 1),
        resources={
            builders.resource("exclusive-a"): CPUSet.of(4),
            builders.resource("exclusive-b"): CPUSet.of(6),
            builders.resource("shared"): CPUSet.of(0, 1),
            builders.resource("shared-off"): CPUSet(),
        },
    )
    assert assigned.environment == {
        "EXCLUSIVE_CPUS": "4,6",
        "SHARED_CPUS": "0-1",
        "CPUPOOL_CPUS_EXCLUSIVE_A": "4",
        "CPUPOOL_CPUS_EXCLUSIVE_B": "6",
        "CPUPOOL_CPUS_SHARED": "0-1",
    }


@pytest.mark.parametrize("placement", [Placement.DEFAULT, Placement.CONFINED])
def test_a_container_that_is_not_as_requested_gets_nothing(
    placement: Placement,
) -> None:
    came_with = {builders.resource("shared"): CPUSet.of(0)}
    assigned = CPUAssignment(placement, default=CPUSet.of(0), resources=came_with)
    assert assigned.environment == {}


def test_a_container_is_whose_the_kubelets_labels_say() -> None:
    devices = {builders.resource("exclusive-a"): frozenset({"2"})}
    labels = {**LABELS, "io.kubernetes.container.name": "main", "app": "web"}
    assert RuntimeContainer.labelled("abc", labels, devices) == RuntimeContainer(
        ContainerID("abc"), "uid", "default", "web", "main", devices
    )


def test_a_sandbox_has_no_container_name() -> None:
    assert RuntimeContainer.labelled("abc", LABELS) == RuntimeContainer(
        ContainerID("abc"), "uid", "default", "web"
    )


@pytest.mark.parametrize("lacking", LABELS)
def test_what_lacks_a_label_of_the_kubelets_is_none_of_its(lacking: str) -> None:
    labels = {name: value for name, value in LABELS.items() if name != lacking}
    assert RuntimeContainer.labelled("abc", labels) is None
