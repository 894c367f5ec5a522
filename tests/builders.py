"""Pods and facts for tests, in as few words as a test should need."""

from __future__ import annotations

from cpupool.core.assignments import Grant
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import (
    Container,
    ContainerID,
    ContainerKind,
    ContainerRef,
    Pod,
    PodUID,
    QoSClass,
)


def container(
    name: str = "main",
    kind: ContainerKind = ContainerKind.APP,
    *,
    running: bool = True,
    **requests: int,
) -> Container:
    """Make a container that runs under the id `<name>-id` and requests the pools given by name."""
    return Container(name, kind, requests, ContainerID(f"{name}-id") if running else None)


def pod(name: str, *containers: Container, finished: bool = False, cgroup_uid: str = "") -> Pod:
    """Make a pod whose UID is `<name>-uid`; one container without requests if none is given."""
    return Pod(
        uid=PodUID(f"{name}-uid"),
        namespace="default",
        name=name,
        qos=QoSClass.BURSTABLE,
        containers=containers or (container(),),
        cgroup_uid=cgroup_uid,
        finished=finished,
    )


def given(
    pod: Pod, container: str = "main", /, *, told: str = "", **ids: str
) -> dict[ContainerRef, dict[str, Grant]]:
    """Say which devices the kubelet gave to a container: pool → ids separated by commas."""
    by_pool = {
        pool: Grant(frozenset(listed.split(",")), CPUSet.parse(told))
        for pool, listed in ids.items()
    }
    return {ContainerRef(pod.uid, container): by_pool}
