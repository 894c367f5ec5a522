"""What is said of CPUs that run, and that another cgroup keeps from containers."""

from __future__ import annotations

import pytest

from cpupool.core import withheld
from cpupool.core.cpuset import CPUSet
from cpupool.core.withheld import Withheld

PARTITION = Withheld(CPUSet.parse("2-3"), "/dpdk.service", "isolated")
ABOVE = Withheld(CPUSet.parse("6-7"), "/kubepods.slice")


@pytest.mark.parametrize(
    ("cpus", "why", "remedy"),
    [
        pytest.param("9", "CPUs 9 are offline", "bring them online", id="offline"),
        pytest.param(
            "3",
            "CPUs 3 are for cgroup /dpdk.service alone (cpuset.cpus.partition: isolated)",
            "write member into cpuset.cpus.partition of /dpdk.service (systemd: remove"
            " CPUSetPartition=)",
            id="in a partition",
        ),
        pytest.param(
            "5-7",
            "CPUs 6-7 are not in cgroup /kubepods.slice, which has all pods (cpuset.cpus), and"
            " CPUs 5 are offline",
            "add CPUs 6-7 to cpuset.cpus of /kubepods.slice (systemd: AllowedCPUs=), and bring"
            " CPUs 5 online",
            id="not in a cgroup above pods, and offline",
        ),
        pytest.param(
            "2,6",
            "CPUs 2 are for cgroup /dpdk.service alone (cpuset.cpus.partition: isolated), and CPUs"
            " 6 are not in cgroup /kubepods.slice, which has all pods (cpuset.cpus)",
            "write member into cpuset.cpus.partition of /dpdk.service (systemd: remove"
            " CPUSetPartition=), and add CPUs 6 to cpuset.cpus of /kubepods.slice (systemd:"
            " AllowedCPUs=)",
            id="two cgroups",
        ),
    ],
)
def test_each_cgroup_and_what_is_offline_is_named_with_its_remedy(
    cpus: str, why: str, remedy: str
) -> None:
    some = CPUSet.parse(cpus)

    assert withheld.why(some, [PARTITION, ABOVE]) == why
    assert withheld.remedy(some, [PARTITION, ABOVE]) == remedy


def test_all_cpus_of_all_cgroups_are_withheld() -> None:
    assert withheld.all_of([PARTITION, ABOVE]) == CPUSet.parse("2-3,6-7")
    assert withheld.all_of([]) == CPUSet()
