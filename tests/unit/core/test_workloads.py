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


def test_a_name_in_a_sandboxs_labels_is_its_authors_and_does_not_count() -> None:
    labels = {**LABELS, "io.kubernetes.container.name": "main"}
    assert RuntimeContainer.sandbox("abc", labels) == RuntimeContainer(
        ContainerID("abc"), "uid", "default", "web"
    )


@pytest.mark.parametrize("lacking", LABELS)
def test_what_lacks_a_label_of_the_kubelets_is_none_of_its(lacking: str) -> None:
    labels = {name: value for name, value in LABELS.items() if name != lacking}
    assert RuntimeContainer.labelled("abc", labels) is None
