"""Koordinator's labels and annotations, as users, schedulers and forgers write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.koordinator import BindPolicy, NodeRules, Orchestration, QoS
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.wire import orchestration

if TYPE_CHECKING:
    from collections.abc import Mapping

SPEC = "scheduling.koordinator.sh/resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
TOPOLOGY = "scheduling.koordinator.sh/numa-topology-spec"
LSR = {"koordinator.sh/qosClass": "LSR"}


def _pod(
    annotations: Mapping[str, object] | None = None,
    labels: Mapping[str, str] = LSR,
    priority: int | None = None,
) -> Orchestration:
    written = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (annotations or {}).items()
    }
    found = orchestration.of_pod(labels, written, priority)
    assert found is not None
    return found


def test_an_ordinary_pod_has_nothing_of_koordinators() -> None:
    assert orchestration.of_pod({"app": "web"}, {"note": "1"}, 0) is None


class TestClass:
    @pytest.mark.parametrize(
        ("labels", "priority", "owns"),
        [
            (LSR, None, True),
            ({"koordinator.sh/qosClass": "LSE"}, None, True),
            ({"koordinator.sh/qosClass": "LS"}, None, False),
            ({"koordinator.sh/qosClass": "lse"}, None, False),
            (LSR, 9500, True),
            (LSR, 5500, False),
            (LSR, 100, True),
            ({**LSR, "koordinator.sh/priority-class": "koord-prod"}, 5500, True),
            ({**LSR, "koordinator.sh/priority-class": "koord-batch"}, 9500, False),
        ],
    )
    def test_lse_and_lsr_of_the_class_prod_own_cpus(
        self, labels: Mapping[str, str], priority: int | None, owns: bool
    ) -> None:
        assert _pod(labels=labels, priority=priority).owns is owns

    def test_constrained_burst_owns_none(self) -> None:
        assert not _pod({SPEC: {"preferredCPUBindPolicy": "ConstrainedBurst"}}).owns


class TestOwnChoice:
    def test_it_is_what_the_agent_wrote_and_no_assignment(self) -> None:
        found = _pod({STATUS: orchestration.resource_status(CPUSet.parse("2-3,8"))})

        assert str(found.published) == "2-3,8"
        assert not found.cpus
        assert not found.scheduled
        assert not _pod({STATUS: orchestration.resource_status(CPUSet.of(2))}, {}).owns

    def test_koord_scheduler_reads_its_cpus(self) -> None:
        written = json.loads(orchestration.resource_status(CPUSet.of(2, 3)))

        assert written == {"cpuset": "2-3", "chosenBy": "cpupool"}

    @pytest.mark.parametrize(
        "status",
        [{"cpuset": "2-3"}, {"cpuset": "2-3", "chosenBy": "me"}, {"numaNodeResources": []}],
    )
    def test_any_other_is_a_schedulers(self, status: object) -> None:
        found = _pod({STATUS: status})

        assert found.scheduled
        assert not found.published

    def test_without_the_annotation_there_is_neither(self) -> None:
        assert not _pod().scheduled
        assert not _pod().published


class TestSpec:
    def test_a_required_policy_counts_before_a_preferred_one(self) -> None:
        found = _pod(
            {
                SPEC: {
                    "requiredCPUBindPolicy": "FullPCPUs",
                    "preferredCPUBindPolicy": "SpreadByPCPUs",
                    "preferredCPUExclusivePolicy": "PCPULevel",
                }
            }
        )

        assert (found.bind, found.required) == (BindPolicy.FULL_PCPUS, True)
        assert found.exclusive is ExclusivePolicy.PHYSICAL_CORE

    @pytest.mark.parametrize("text", ["Default", "", "None"])
    def test_the_default_is_the_nodes_way(self, text: str) -> None:
        found = _pod({SPEC: {"preferredCPUBindPolicy": text}})

        assert (found.bind, found.required, found.fault) == (None, False, "")

    def test_the_pods_own_topology_policy(self) -> None:
        assert _pod({TOPOLOGY: {"numaTopologyPolicy": "SingleNUMANode"}}).topology is (
            TopologyPolicy.SINGLE_NUMA_NODE
        )
        assert _pod({TOPOLOGY: {"singleNUMANodeExclusive": "Preferred"}}).topology is None


class TestStatus:
    def test_cpus_and_numa_nodes_are_read(self) -> None:
        entries = [{"node": 1, "resources": {"cpu": "2"}}, {"node": 0}]

        found = _pod({STATUS: {"cpuset": "4-7,12", "numaNodeResources": entries}})

        assert (found.cpus, found.nodes) == (CPUSet.parse("4-7,12"), frozenset({0, 1}))

    @pytest.mark.parametrize(
        ("resources", "nodes"),
        [
            ({"cpu": "0"}, set()),
            ({"memory": "1Gi"}, set()),
            ({"cpu": 1}, {2}),
            ({"kubernetes.io/batch-cpu": 500}, {2}),
        ],
    )
    def test_a_numa_node_counts_with_an_amount_of_cpu(
        self, resources: Mapping[str, object], nodes: set[int]
    ) -> None:
        found = _pod({STATUS: {"numaNodeResources": [{"node": 2, "resources": resources}]}})

        assert found.nodes == nodes

    def test_the_proposals_shared_pools_count_too(self) -> None:
        assert _pod({STATUS: {"cpuSharedPools": [{"socket": 0, "node": 1}]}}).nodes == {1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (STATUS, "{"),
        (STATUS, "[" * 50_000),
        (STATUS, [1]),
        (STATUS, {"cpuset": "0-"}),
        (STATUS, {"cpuset": [0, 1]}),
        (STATUS, {"cpuset": 4}),
        (STATUS, {"cpuset": False}),
        (STATUS, {"cpuset": "0-99999999"}),
        (STATUS, {"numaNodeResources": {"node": 1}}),
        (STATUS, {"numaNodeResources": [1]}),
        (STATUS, {"numaNodeResources": [{"node": -1, "resources": {"cpu": 1}}]}),
        (STATUS, {"numaNodeResources": [{"node": True, "resources": {"cpu": 1}}]}),
        (STATUS, {"numaNodeResources": [{"node": 0, "resources": [1]}]}),
        (STATUS, {"numaNodeResources": [{"node": 0, "resources": {"cpu": "two"}}]}),
        (SPEC, {"preferredCPUBindPolicy": "FullCPUs"}),
        (SPEC, {"preferredCPUBindPolicy": {"a": 1}}),
        (SPEC, {"preferredCPUExclusivePolicy": "Core"}),
        (TOPOLOGY, {"numaTopologyPolicy": "single-numa-node"}),
        (TOPOLOGY, "SingleNUMANode"),
    ],
)
def test_what_koordinator_does_not_write_is_a_fault_and_gives_nothing(
    key: str, value: object
) -> None:
    found = _pod({key: value})

    assert key in found.fault
    assert len(found.fault) < 300
    assert (found.cpus, found.nodes, found.bind) == (CPUSet(), frozenset(), None)
    assert found.qos is QoS.LSR


class TestNode:
    def test_labels_and_annotations_are_read(self) -> None:
        labels = {
            "node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly",
            "node.koordinator.sh/numa-allocate-strategy": "DistributeEvenly",
            "node.koordinator.sh/numa-topology-policy": "SingleNUMANode",
        }
        annotations = {
            "node.koordinator.sh/reservation": '{"reservedCPUs": "0"}',
            "node.koordinator.sh/system-qos-resource": '{"cpuset": "1"}',
        }

        found = orchestration.of_node(labels, annotations)

        assert (found.bind, found.full_cores_only) == (BindPolicy.FULL_PCPUS, True)
        assert found.strategy is NUMAPolicy.DISTRIBUTED
        assert found.topology is TopologyPolicy.SINGLE_NUMA_NODE
        assert found.withheld == CPUSet.parse("0-1")
        assert found.faults == ()

    def test_the_proposals_words_count_too(self) -> None:
        found = orchestration.of_node(
            {
                "node.koordinator.sh/cpu-bind-policy": "PCPUOnly",
                "node.koordinator.sh/numa-topology-alignment-policy": "Restricted",
            },
            {},
        )

        assert found.full_cores_only
        assert found.topology is TopologyPolicy.RESTRICTED

    def test_a_node_without_them_has_no_rules(self) -> None:
        assert orchestration.of_node({"zone": "a"}, {}) == NodeRules()

    @pytest.mark.parametrize(("architecture", "arm"), [("arm64", True), ("amd64", False)])
    def test_the_kubelets_label_tells_an_arm_machine(self, architecture: str, arm: bool) -> None:
        found = orchestration.of_node({"kubernetes.io/arch": architecture}, {})

        assert found == NodeRules(arm=arm)

    def test_a_node_does_not_bind_by_constrained_burst(self) -> None:
        found = orchestration.of_node(
            {"node.koordinator.sh/cpu-bind-policy": "ConstrainedBurst"}, {}
        )

        assert found.bind is None
        assert "write one of FullPCPUsOnly" in " ".join(found.faults)

    def test_what_koordinator_does_not_know_is_named_and_counts_as_none(self) -> None:
        found = orchestration.of_node(
            {"node.koordinator.sh/numa-allocate-strategy": "Most"},
            {"node.koordinator.sh/reservation": "{"},
        )

        assert found == NodeRules(faults=found.faults)
        assert "write one of MostAllocated" in " ".join(found.faults)
        assert "node.koordinator.sh/reservation" in " ".join(found.faults)
