from __future__ import annotations

from cpupool.core.cpu_manager import (
    CPUManager,
    Misfit,
    StaticOptions,
    Suppression,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet

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
    )
    assert list(STATIC.changes(later)) == [
        "cpuManager.policy from static to koordinator",
        "cpuManager.reserved from 2 CPUs to CPUs 0-1",
        "cpuManager.options from full-pcpus-only to none",
        "cpuManager.onMisfit from hold to share",
        "cpuManager.resourceUsedThresholdWithBE from off to 50 %, at least 10 %",
        "cpuManager.maxNoticeSeconds from 10 to 5",
    ]
    assert list(later.changes(later)) == []
