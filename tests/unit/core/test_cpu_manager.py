from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpu_manager import (
    Compaction,
    CPUManager,
    Eligible,
    Misfit,
    StaticOptions,
    Suppression,
    SystemPods,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import Container, Pod, PodUID, QoSClass
from tests import builders

SYSTEM = SystemPods(("kube-system", "monitoring"), CPUSet.of(2, 3))
STATIC = CPUManager("static", 2, StaticOptions(full_pcpus_only=True))


def test_options_that_are_on_have_the_kubelets_names() -> None:
    both = StaticOptions(full_pcpus_only=True, align_by_socket=True)
    assert both.written() == {"full-pcpus-only": "true", "align-by-socket": "true"}
    assert StaticOptions().written() == {}


def test_a_policy_is_named_with_its_options() -> None:
    assert STATIC.named == "static, full-pcpus-only"
    assert CPUManager().named == "none"


def test_options_contradict_each_other_and_the_topology_policy() -> None:
    wrong = StaticOptions(
        full_pcpus_only=True, distribute_cpus_across_cores=True, align_by_socket=True
    )
    found = [problem.path for problem in wrong.contradictions(TopologyPolicy.SINGLE_NUMA_NODE)]
    assert found == [
        "cpuManager.options.distribute-cpus-across-cores",
        "cpuManager.options.align-by-socket",
    ]
    assert list(STATIC.options.contradictions(TopologyPolicy.SINGLE_NUMA_NODE)) == []


def test_an_edit_is_described_by_the_settings_that_differ() -> None:
    later = CPUManager(
        "koordinator",
        CPUSet.of(0, 1),
        on_misfit=Misfit.SHARE,
        suppression=Suppression(50, 10),
        max_notice_s=5,
        eligible=Eligible.CONTAINER,
        system_pods=SYSTEM,
        compaction=Compaction(2, 30),
    )
    assert list(STATIC.changes(later)) == [
        "cpuManager.policy from static to koordinator",
        "cpuManager.reserved from 2 CPUs to CPUs 0-1",
        "cpuManager.options from full-pcpus-only to none",
        "cpuManager.onMisfit from hold to share",
        "cpuManager.resourceUsedThresholdWithBE from off to 50 %, at least 10 %",
        "cpuManager.maxNoticeSeconds from 10 to 5",
        "cpuManager.eligible from pod to container",
        "cpuManager.systemPods from off to CPUs 2-3 for kube-system, monitoring",
        "cpuManager.compaction from off to 2 moves an hour, of CPUs 30 s old",
    ]
    assert list(later.changes(later)) == []


@pytest.mark.parametrize(
    ("container", "counts"),
    [
        pytest.param(Container("a", whole_cpus=2, equal_cpus=2), (2, 2), id="of a Guaranteed pod"),
        pytest.param(Container("a", equal_cpus=2), (0, 2), id="of a Burstable pod"),
        pytest.param(Container("a", request_milli=2000), (0, 0), id="with another limit"),
    ],
)
def test_a_container_is_eligible_by_its_pod_or_alone(
    container: Container, counts: tuple[int, int]
) -> None:
    assert (Eligible.POD.cpus(container), Eligible.CONTAINER.cpus(container)) == counts


@pytest.mark.parametrize(
    ("pod", "system"),
    [
        pytest.param(builders.pod("web"), False, id="of another namespace"),
        pytest.param(replace(builders.pod("dns"), namespace="kube-system"), True, id="system"),
        pytest.param(
            replace(builders.pod("dns", cgroup_uid="f00d"), namespace="monitoring"),
            False,
            id="static",
        ),
        pytest.param(
            replace(
                builders.pod("dns", builders.container(), builders.container("b", exclusive_a=1)),
                namespace="kube-system",
            ),
            False,
            id="with a pool",
        ),
        pytest.param(
            Pod(PodUID("dc6a-11"), "kube-system", "dns", None, ()), True, id="not listed yet"
        ),
        pytest.param(
            Pod(PodUID("dc6a11"), "kube-system", "etcd", None, ()), False, id="static, not listed"
        ),
        pytest.param(
            Pod(PodUID("dc6a11"), "kube-system", "dns", QoSClass.BURSTABLE, ()),
            True,
            id="with an id of hexadecimal digits",
        ),
    ],
)
def test_system_pods_are_those_of_the_namespaces_without_pools_and_static_pods(
    pod: Pod, *, system: bool
) -> None:
    assert pod.is_one_of(SYSTEM) is system
    assert not pod.is_one_of(SystemPods())
