"""Koordinator's labels and annotations of a Node, as an admin writes them."""

from __future__ import annotations

import json

import pytest

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import BindPolicy, NodeRules, Reservation
from cpupool.core.pool_policy import NUMAPolicy
from cpupool.policies.koordinator import node_rules
from cpupool.policies.koordinator.annotation_json import AnnotationError


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

        found = node_rules.of_node(labels, annotations)

        assert (found.bind, found.full_cores_only) == (BindPolicy.FULL_PCPUS, True)
        assert found.strategy is NUMAPolicy.DISTRIBUTED
        assert found.topology is TopologyPolicy.SINGLE_NUMA_NODE
        assert found.withheld == CPUSet.parse("0-1")
        assert found.faults == ()

    def test_the_proposals_words_count_too(self) -> None:
        found = node_rules.of_node(
            {
                "node.koordinator.sh/cpu-bind-policy": "PCPUOnly",
                "node.koordinator.sh/numa-topology-alignment-policy": "Restricted",
            },
            {},
        )

        assert found.full_cores_only
        assert found.topology is TopologyPolicy.RESTRICTED

    def test_a_node_without_them_has_no_rules(self) -> None:
        assert node_rules.of_node({"zone": "a"}, {}) == NodeRules()

    @pytest.mark.parametrize(("architecture", "arm"), [("arm64", True), ("amd64", False)])
    def test_the_kubelets_label_tells_an_arm_machine(self, architecture: str, arm: bool) -> None:
        found = node_rules.of_node({"kubernetes.io/arch": architecture}, {})

        assert found == NodeRules(arm=arm)

    def test_a_node_does_not_bind_by_constrained_burst(self) -> None:
        found = node_rules.of_node({"node.koordinator.sh/cpu-bind-policy": "ConstrainedBurst"}, {})

        assert found.bind is None
        assert "write one of FullPCPUsOnly" in " ".join(found.faults)

    def test_what_koordinator_does_not_know_is_named_and_counts_as_none(self) -> None:
        found = node_rules.of_node(
            {"node.koordinator.sh/numa-allocate-strategy": "Most"},
            {"node.koordinator.sh/reservation": "{"},
        )

        assert found == NodeRules(faults=found.faults)
        assert "write one of MostAllocated" in " ".join(found.faults)
        assert "node.koordinator.sh/reservation" in " ".join(found.faults)


class TestReservation:
    @pytest.mark.parametrize("text", [None, "", "null", "{}"])
    def test_none_reserves_nothing(self, text: str | None) -> None:
        assert node_rules.reservation(text) == Reservation()

    @pytest.mark.parametrize(
        ("text", "cpus", "count"),
        [
            ('{"reservedCPUs": "0-1,4"}', "0-1,4", 0),
            ('{"resources": {"cpu": "1500m"}}', "", 2),
            ('{"resources": {"cpu": 3}}', "", 3),
            ('{"resources": {"cpu": "1e400"}}', "", 10**400),
            ('{"resources": {"memory": "1Gi"}}', "", 0),
            ('{"reservedCPUs": "2", "resources": {"cpu": "5"}}', "2", 0),
        ],
    )
    def test_a_list_of_cpus_counts_before_an_amount(self, text: str, cpus: str, count: int) -> None:
        found = node_rules.reservation(text)

        assert (str(found.cpus), found.count) == (cpus, count)
        assert found.written == json.loads(text)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{", "is '{'; write a JSON object"),
            ("[1]", "is '[1]'; write a JSON object"),
            ("[" * 100_000, "write a JSON object"),
            ('{"weight": NaN}', "write a JSON object"),
            ('{"weight": -Infinity}', "write a JSON object"),
            ('{"weight": [1e400]}', "write a JSON object"),
            ('{"reservedCPUs": "0-"}', "has in reservedCPUs"),
            ('{"reservedCPUs": [0]}', "has in reservedCPUs"),
            ('{"resources": {"cpu": "two"}}', "has in resources.cpu"),
            ('{"resources": {"cpu": [2]}}', "has in resources.cpu"),
        ],
    )
    def test_what_koordinator_does_not_write_is_an_error(self, text: str, problem: str) -> None:
        with pytest.raises(AnnotationError) as caught:
            node_rules.reservation(text)

        assert problem in str(caught.value)
        assert "node.koordinator.sh/reservation" in str(caught.value)
        assert len(str(caught.value)) < 400


class TestSystemCPUs:
    @pytest.mark.parametrize(
        ("text", "withheld"),
        [
            ('{"cpuset": "0-3"}', "0-3"),
            ('{"cpuset": "0-3", "cpusetExclusive": true}', "0-3"),
            ('{"cpuset": "0-3", "cpusetExclusive": false}', ""),
            (None, ""),
        ],
    )
    def test_they_are_withheld_unless_they_are_shared(
        self, text: str | None, withheld: str
    ) -> None:
        assert str(node_rules.system_cpus(text).withheld) == withheld
