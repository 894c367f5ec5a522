"""Why a container does not run on the CPUs of the pools that it requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Grant, Grants, PodOwner, Source
from cpupool.core.pools import NodePools, Pool
from cpupool.core.requests import CPURequest
from cpupool.core.withheld import Withheld
from cpupool.core.workloads import ContainerRef
from cpupool.policies.base import ContainerToPlace
from cpupool.policies.pools.policy import PoolsPolicy
from cpupool.policies.view import NodeView
from tests import builders
from tests.machines import MACHINES

MACHINE = MACHINES["arm_no_smt"]
POOLS = NodePools.of(
    Pool.named("default", "0-1"), Pool.named("exclusive_a", "2-5"), Pool.named("shared_b", "6-7")
)


def placed(offline: str = "", withheld: tuple[Withheld, ...] = (), **devices: str) -> CPUAssignment:
    """Place a container that has these devices: pool → ids separated by commas."""
    amounts = {pool: len(ids.split(",")) for pool, ids in devices.items()}
    request = CPURequest(builders.asking(amounts))
    pod = builders.pod("web", replace(builders.container(), requests=request.amounts))
    known = builders.given(pod, **devices)[ContainerRef(pod.cgroup_uid, "main")]
    grants = Grants().adding(
        Grant(
            PodOwner(pod.cgroup_uid),
            resource,
            Source.DEVICES,
            {"main": CPUSet(int(cpu) for cpu in known[resource].ids if cpu.isdigit())},
            whole_cores=False,
        )
        for resource in request.amounts
        if resource.kind.exclusive
    )
    topology = replace(MACHINE.without(offline).topology(), withheld=withheld)
    view = NodeView(
        topology,
        POOLS,
        grants=grants,
        barred=grants.cpus,
        default=CPUAssignment(Placement.DEFAULT, default=CPUSet.parse("0-1")),
    )
    return PoolsPolicy().place(view, ContainerToPlace(pod, pod.containers[0], request, known))


def test_a_container_has_the_cpus_of_its_devices_and_of_its_shared_pools() -> None:
    assigned = placed(offline="3", exclusive_a="2,3", shared_b="0,1")

    assert assigned.placement is Placement.POOLS
    assert (str(assigned.exclusive), str(assigned.offline)) == ("2", "3")
    assert str(assigned.shared) == "6-7"


PARTITION = Withheld(CPUSet.parse("2-3"), "/dpdk.service", "isolated")
SHUT = Withheld(CPUSet.parse("6-7"), "/kubepods.slice")


@pytest.mark.parametrize(
    ("devices", "offline", "withheld", "cause", "reason"),
    [
        pytest.param(
            {"exclusive_a": "core-2"},
            "",
            (),
            Cause.NO_CPUS,
            "its devices of exclusive_a are not CPUs: another plugin has listed them",
            id="ids of another plugin",
        ),
        pytest.param(
            {"exclusive_a": "2,3"},
            "2-3",
            (),
            Cause.OFFLINE,
            "every CPU of its pools is offline",
            id="offline",
        ),
        pytest.param(
            {"exclusive_a": "2,4"},
            "2-4",
            (PARTITION,),
            Cause.OFFLINE,
            "its CPUs 2 are for cgroup /dpdk.service alone (cpuset.cpus.partition: isolated), and"
            " CPUs 4 are offline",
            id="in another's partition, and offline",
        ),
        pytest.param(
            {"shared_b": "0,1"},
            "6-7",
            (SHUT,),
            Cause.OFFLINE,
            "its CPUs 6-7 are not in cgroup /kubepods.slice, which has all pods (cpuset.cpus)",
            id="a shared pool that is kept from all pods",
        ),
        pytest.param(
            {"exclusive_a": "4"},
            "2-4",
            (PARTITION,),
            Cause.OFFLINE,
            "every CPU of its pools is offline",
            id="others have a partition",
        ),
    ],
)
def test_without_a_cpu_it_is_confined_to_the_default_pool_and_told_why(
    devices: dict[str, str],
    offline: str,
    withheld: tuple[Withheld, ...],
    cause: Cause,
    reason: str,
) -> None:
    assert placed(offline, withheld, **devices) == CPUAssignment(
        Placement.CONFINED, default=CPUSet.parse("0-1"), reason=reason, cause=cause
    )
