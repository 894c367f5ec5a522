"""Pods and facts for tests, in as few words as a test should need."""

from __future__ import annotations

from cpupool.core.assignments import Grant
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import ENABLE_SHARED_CPUS
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
    shared_cpus: bool = False,
    cpu: int | None = None,
    **requests: int,
) -> Container:
    """Make a container that runs under the id `<name>-id` and requests the pools given by name.

    With `shared_cpus` it asks for OpenShift's resource, and with `cpu` for so many native
    milli-CPUs, its limit, too.
    """
    if shared_cpus:
        requests = {**requests, ENABLE_SHARED_CPUS: 1}
    return Container(
        name,
        kind,
        requests,
        ContainerID(f"{name}-id") if running else None,
        limit_milli=cpu,
        whole_cpus=0 if cpu is None or cpu % 1000 else cpu // 1000,
    )


def pod(
    name: str,
    *containers: Container,
    finished: bool = False,
    cgroup_uid: str = "",
    cpu: int | None = None,
) -> Pod:
    """Make a pod whose UID is `<name>-uid`; one container without requests if none is given.

    `cpu` is what the kubelet limits it to, in milli-CPUs.
    """
    return Pod(
        uid=PodUID(f"{name}-uid"),
        namespace="default",
        name=name,
        qos=QoSClass.BURSTABLE,
        containers=containers or (container(),),
        cgroup_uid=cgroup_uid,
        finished=finished,
        limit_milli=cpu,
    )


def given(
    pod: Pod, container: str = "main", /, *, told: str = "", **ids: str
) -> dict[ContainerRef, dict[str, Grant]]:
    """Say which devices the kubelet gave to a container: pool → ids separated by commas."""
    by_pool = {
        pool: Grant(frozenset(listed.split(",")), CPUSet.parse(told))
        for pool, listed in ids.items()
    }
    return {ContainerRef(pod.cgroup_uid, container): by_pool}
