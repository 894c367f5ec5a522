"""Pods, and the CPUs that follow for their containers."""

from __future__ import annotations

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import Pod, PodUID, QoSClass


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
