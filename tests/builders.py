"""Pods and facts for tests, in as few words as a test should need."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.grants import Grant, Grants, PodOwner, PromiseOwner, Source
from cpupool.core.names import ENABLE_SHARED_CPUS, POLICY_CPUS
from cpupool.core.topology import NO_CPUS
from cpupool.core.workloads import (
    Container,
    ContainerID,
    ContainerKind,
    ContainerRef,
    Pod,
    PodUID,
    QoSClass,
)
from cpupool.loops.telemetry import Telemetry
from cpupool.manager import status_json
from cpupool.policies.view import NodeView
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests.events import Heard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.events import EventSink
    from cpupool.core.requests import Resource
    from cpupool.manager.manager import Manager


def telemetry(
    *,
    events: EventSink | None = None,
    metrics: Metrics | None = None,
    health: Health | None = None,
) -> Telemetry:
    """Make what a role reports with; what is not given is of this role alone."""
    return Telemetry(events or Heard(), metrics or Metrics(), health or Health())


def resource(name: str) -> Resource:
    """Make the reference to a pool's resource, OpenShift's, or the kubelet's own CPUs."""
    return status_json.resource(name)


def asking(amounts: Mapping[str, int]) -> dict[Resource, int]:
    """Make what a container requests: pool → amount."""
    return {resource(name): amount for name, amount in amounts.items()}


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
        asking(requests),
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
    pod: Pod, container: str = "main", /, *, announced: str = "", **ids: str
) -> dict[ContainerRef, dict[Resource, AllocatedDevices]]:
    """Say which devices the kubelet gave to a container: pool → ids separated by commas."""
    by_pool = {
        resource(pool): AllocatedDevices(frozenset(listed.split(",")), CPUSet.parse(announced))
        for pool, listed in ids.items()
    }
    return {ContainerRef(pod.cgroup_uid, container): by_pool}


def chosen(pod: str, container: str, cpus: CPUSet) -> Grant:
    """Make the grant of CPUs that a CPU manager policy has chosen for a container."""
    parts = {container: cpus}
    return Grant(PodOwner(pod), POLICY_CPUS, Source.POLICY, parts, whole_cores=False)


def view(machine: CPUSet, grants: Grants, cpus: CPUSet | None = None) -> NodeView:
    """Make what a policy sees of a machine without pools; of other CPUs than all, where given."""
    topology = replace(NO_CPUS, online=machine, present=machine)
    own = machine if cpus is None else cpus
    return NodeView(topology, cpus=own, grants=grants, barred=grants.cpus)


def owned(manager: Manager) -> dict[str, dict[str, CPUSet]]:
    """Return what pods own: the id in a pod's cgroup → pool → CPUs."""
    found: dict[str, dict[str, CPUSet]] = {}
    for uid, grant in manager.snapshot().resolution.grants.of_pods:
        found.setdefault(uid, {})[grant.resource] = grant.cpus
    return found


def promised(manager: Manager) -> dict[str, CPUSet]:
    """Return the CPUs of answers that no pod has turned up with: pool → CPUs."""
    grants = manager.snapshot().resolution.grants
    return {one.resource: one.cpus for one in grants if isinstance(one.owner, PromiseOwner)}
