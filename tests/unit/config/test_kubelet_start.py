"""Settings with which a kubelet does not start, each with the setting that mends it."""

from __future__ import annotations

import pytest

from cpupool.config import kubelet_config
from cpupool.config.kubelet_settings import KubeletNeeds
from cpupool.core.pools import NodePools
from tests.machines import Machine

NINE = Machine(sockets=3, nodes=3, cores=1).topology()
TWO = Machine(sockets=2, cores=4).topology()
STRICT = "topologyManagerPolicy: single-numa-node, "
MAX = "topologyManagerPolicyOptions.max-allowable-numa-nodes"
STATIC = "cpuManagerPolicy: static, reservedSystemCPUs: 0, "


def refused(settings: str, machine: str = "two") -> list[str]:
    text = f"{{kind: KubeletConfiguration, {settings}}}"
    needs = KubeletNeeds.of(NodePools.of(), NINE if machine == "nine" else TWO)
    config = kubelet_config.parse("a", text)
    found = kubelet_config.check(config, needs)
    return [f"{one.path}: {one.what}; {one.remedy}" for one in found if "not start" in one.what]


def option(value: str, name: str = "max-allowable-numa-nodes") -> str:
    return f"{STRICT}topologyManagerPolicyOptions: {{{name}: '{value}'}}"


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_more_than_eight_numa_nodes_need_an_option(policy: str) -> None:
    (said,) = refused(f"topologyManagerPolicy: {policy}", "nine")
    assert said == (
        f"{MAX}: the kubelet does not start with a Topology Manager's policy on 9 NUMA nodes and"
        f' without the option max-allowable-numa-nodes; set {MAX} to "9", or topologyManagerPolicy'
        " to none"
    )
    assert refused(f"topologyManagerPolicy: {policy}") == []


@pytest.mark.parametrize(
    ("settings", "machine"),
    [
        ("", "nine"),
        ("topologyManagerPolicy: none", "nine"),
        (option("9"), "nine"),
        (option("16"), "nine"),
        (option("+09"), "nine"),
        (option("8"), "two"),
        (option("true", "prefer-closest-numa-nodes"), "two"),
        (
            "featureGates: {TopologyManagerPolicyAlphaOptions: true}, "
            + option("most-allocated", "numa-allocation-strategy"),
            "two",
        ),
        # Under none the kubelet does not read the options.
        ("topologyManagerPolicyOptions: {max-allowable-numa-nodes: x}", "nine"),
        (f"featureGates: {{TopologyManagerPolicyBetaOptions: true}}, {option('9')}", "nine"),
        (
            STATIC + "cpuManagerPolicyOptions: {full-pcpus-only: 'true', align-by-socket: '1'}",
            "two",
        ),
        ("cpuManagerPolicy: static, systemReserved: {cpu: 500m}", "two"),
        (
            (
                "memoryManagerPolicy: Static, kubeReserved: {memory: 412Mi}, reservedMemory:"
                " [{numaNode: 0, limits: {memory: 256Mi}}, {numaNode: 1, limits: {memory: 256Mi}}]"
            ),
            "two",
        ),
        # The threshold depends on the machine's memory.
        ("memoryManagerPolicy: Static, evictionHard: {memory.available: 5%}", "two"),
        ("reservedSystemCPUs: 0", "two"),
        ("systemReservedCgroup: /system", "two"),
    ],
)
def test_with_these_it_starts(settings: str, machine: str) -> None:
    assert refused(settings, machine) == []


@pytest.mark.parametrize(
    ("settings", "machine", "path", "said"),
    [
        (option("8"), "nine", MAX, 'with 8 on a machine of 9 NUMA nodes; set it to "9"'),
        (option("7"), "two", MAX, "with '7', which is no number from 8 on; set it to \"8\""),
        (option("many"), "nine", MAX, "with 'many', which is no number from 8 on; set it to \"9\""),
        (option("9.5"), "nine", MAX, "with '9.5', which is no number"),
        (option(""), "nine", MAX, "with '', which is no number"),
        (
            f"featureGates: {{TopologyManagerPolicyOptions: false}}, {option('9')}",
            "nine",
            "topologyManagerPolicyOptions",
            "without the feature gate TopologyManagerPolicyOptions; remove featureGates.Topology",
        ),
        (
            f"featureGates: {{TopologyManagerPolicyBetaOptions: false}}, {option('9')}",
            "nine",
            MAX,
            "without the feature gate TopologyManagerPolicyBetaOptions",
        ),
        (
            option("true", "prefer-closest-numa-node"),
            "two",
            "topologyManagerPolicyOptions.prefer-closest-numa-node",
            "which is not known; did you mean prefer-closest-numa-nodes?",
        ),
        (
            option("yes", "prefer-closest-numa-nodes"),
            "two",
            "topologyManagerPolicyOptions.prefer-closest-numa-nodes",
            "with 'yes', which is no truth value",
        ),
        (
            option("most-allocated", "numa-allocation-strategy"),
            "two",
            "topologyManagerPolicyOptions.numa-allocation-strategy",
            "without the feature gate TopologyManagerPolicyAlphaOptions",
        ),
        (
            "topologyManagerPolicy: single-numa",
            "two",
            "topologyManagerPolicy",
            "with 'single-numa'; did you mean single-numa-node?",
        ),
        ("topologyManagerScope: pods", "two", "topologyManagerScope", "did you mean pod?"),
        ("memoryManagerPolicy: static", "two", "memoryManagerPolicy", "did you mean Static?"),
        (
            "cpuManagerPolicy: static",
            "two",
            "reservedSystemCPUs",
            "with the static CPU manager and no reserved cpu; set reservedSystemCPUs",
        ),
        (
            STATIC + "cpuManagerPolicyOptions: {full-pcpu-only: 'true'}",
            "two",
            "cpuManagerPolicyOptions.full-pcpu-only",
            "which is not known; did you mean full-pcpus-only?",
        ),
        (
            STATIC + "cpuManagerPolicyOptions: {full-pcpus-only: 'on'}",
            "two",
            "cpuManagerPolicyOptions.full-pcpus-only",
            "with 'on', which is no truth value",
        ),
        (
            STATIC + STRICT + "cpuManagerPolicyOptions: {align-by-socket: 'true'}",
            "two",
            "cpuManagerPolicyOptions",
            "because topologyPolicy demands a single NUMA node, not a socket",
        ),
        (
            "memoryManagerPolicy: Static, kubeReserved: {memory: 1Gi}",
            "two",
            "reservedMemory",
            (
                "with memoryManagerPolicy Static and 0 bytes of memory here, where systemReserved,"
                " kubeReserved and evictionHard keep 1178599424; list 1178599424 bytes of memory"
            ),
        ),
        (
            "reservedSystemCPUs: 0, kubeReservedCgroup: /kube",
            "two",
            "reservedSystemCPUs",
            "with reservedSystemCPUs and kubeReservedCgroup; remove one of the two",
        ),
    ],
)
def test_with_these_it_does_not_start(settings: str, machine: str, path: str, said: str) -> None:
    (found,) = refused(settings, machine)
    assert found.startswith(f"{path}: the kubelet does not start ")
    assert said in found
