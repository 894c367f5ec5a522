"""The policy `qrm` in a pool file."""

from __future__ import annotations

import pytest

from cpupool.config.kubelet_settings import KubeletConfig
from cpupool.core.cpu_manager import CPUManager, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from tests.unit.config.poolconfig.files import parse, refused


def test_it_reserves_cpus_and_has_every_topology_policy() -> None:
    file = parse("""\
        cpuManager:
          policy: qrm
          reserved: "0-1"
          topologyPolicy: numeric
        """)
    assert file.pools.cpu_manager == CPUManager(
        "qrm", CPUSet.of(0, 1), topology_policy=TopologyPolicy.NUMERIC
    )


@pytest.mark.parametrize("policy", ["static", "qrm"])
def test_a_whole_pod_can_be_aligned_at_once(policy: str) -> None:
    file = parse(f"cpuManager: {{policy: {policy}, reserved: 1, topologyScope: pod}}\n")
    assert file.pools.cpu_manager == CPUManager(policy, 1, topology_scope=Scope.POD)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("policy: qrm", "cpuManager.reserved: the policy qrm needs a reserved CPU"),
        (
            "policy: qrm, reserved: 1, options: {full-pcpus-only: true}",
            "the policy qrm has no such option; remove it: qrm has none",
        ),
        (
            "policy: static, reserved: 1, topologyPolicy: numeric",
            "cpuManager.topologyPolicy: the policy static has one set of NUMA nodes for all",
        ),
        (
            "policy: qrm, reserved: 1, topologyPolicy: numeric, topologyScope: pod",
            "topologyScope: the topology policy numeric has nodes for each resource of a container",
        ),
        (
            "policy: koordinator, reserved: 1, topologyScope: pod",
            "topologyScope: the policy koordinator aligns what shares one set of CPUs; write",
        ),
        (
            "policy: static, reserved: 1, topologyScope: node",
            "unknown value 'node'; use container or pod",
        ),
        (
            "policy: qrm, reserved: 1, resourceUsedThresholdWithBE: {enable: true}",
            "the policy qrm has no such setting; remove it, or write policy: koordinator",
        ),
    ],
)
def test_what_it_does_not_have_is_refused(settings: str, problem: str) -> None:
    (found,) = refused(f"cpuManager: {{{settings}}}\n")
    assert problem in found


def test_the_kubelet_has_no_policy_numeric() -> None:
    assert KubeletConfig(topology_manager_policy="numeric").topology_manager is None
    assert KubeletConfig(topology_manager_policy="restricted").topology_manager is not None
