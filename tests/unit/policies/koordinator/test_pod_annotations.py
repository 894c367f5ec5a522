"""Koordinator's labels and annotations, as users, schedulers and forgers write them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import BindPolicy, Orchestration, QoS
from cpupool.core.pool_policy import ExclusivePolicy
from cpupool.policies.koordinator import pod_annotations

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
    found = pod_annotations.of_pod(labels, written, priority)
    assert found is not None
    return found


def test_an_ordinary_pod_has_nothing_of_koordinators() -> None:
    assert pod_annotations.of_pod({"app": "web"}, {"note": "1"}, 0) is None


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
        found = _pod({STATUS: pod_annotations.resource_status(CPUSet.parse("2-3,8"))})

        assert str(found.published) == "2-3,8"
        assert not found.cpus
        assert not found.scheduled
        assert not _pod({STATUS: pod_annotations.resource_status(CPUSet.of(2))}, {}).owns

    def test_koord_scheduler_reads_its_cpus(self) -> None:
        written = json.loads(pod_annotations.resource_status(CPUSet.of(2, 3)))

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


VALID: Mapping[str, object] = {
    STATUS: {"cpuset": "8,40", "numaNodeResources": [{"node": 1, "resources": {"cpu": 2}}]},
    SPEC: {"requiredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"},
    TOPOLOGY: {"numaTopologyPolicy": "Restricted"},
    "example.com/split": "true",
}
BROKEN: Mapping[str, list[object]] = {
    STATUS: ["{", {"cpuset": "8-"}, {"cpuset": "0", "numaNodeResources": {"node": 1}}],
    SPEC: ["[]", {"preferredCPUBindPolicy": "FullPCPUsOnly"}, {"requiredCPUBindPolicy": 1}],
    TOPOLOGY: ["x", {"numaTopologyPolicy": "one"}, {"singleNUMANodeExclusive": "yes"}],
    "example.com/split": ["yes", "True", ""],
}


@pytest.mark.parametrize("qos", ["LSR", "LSE", "LS", "BE", "SYSTEM"])
@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in BROKEN.items() for value in values]
)
def test_a_fault_in_one_annotation_takes_nothing_from_another(
    key: str, value: object, qos: str
) -> None:
    def read(annotations: Mapping[str, object]) -> Orchestration:
        written = {
            name: each if isinstance(each, str) else json.dumps(each)
            for name, each in annotations.items()
        }
        found = pod_annotations.of_pod(
            {"koordinator.sh/qosClass": qos}, written, None, split="example.com/split"
        )
        assert found is not None
        return found

    broken = read({**VALID, key: value})
    (said,) = filter(None, (broken.fault, *broken.ignored))

    assert key in said
    assert bool(broken.fault) is (key == STATUS)
    rest = {name: each for name, each in VALID.items() if name != key}
    assert replace(broken, fault="", ignored=()) == read(rest)


@pytest.mark.parametrize(("qos", "blocks"), [("LSE", True), ("LSR", True), ("LS", False)])
def test_a_damaged_wish_says_nothing_about_the_cpus_of_an_owner_without_an_assignment(
    qos: str, blocks: bool
) -> None:
    found = _pod({SPEC: "["}, {"koordinator.sh/qosClass": qos})

    assert (bool(found.fault), bool(found.ignored)) == (blocks, not blocks)


@pytest.mark.parametrize(
    ("spec", "owns"),
    [
        ({"preferredCPUBindPolicy": "None"}, False),
        ({"requiredCPUBindPolicy": "None"}, False),
        ({"requiredCPUBindPolicy": "None", "preferredCPUBindPolicy": "FullPCPUs"}, False),
        ({"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUBindPolicy": "None"}, True),
        ({"requiredCPUBindPolicy": "", "preferredCPUBindPolicy": "Default"}, True),
    ],
)
def test_the_policy_none_binds_nothing(spec: Mapping[str, str], owns: bool) -> None:
    assert _pod({SPEC: spec}).owns is owns
    assert _pod({SPEC: spec, STATUS: {"cpuset": "4-5"}}).owns


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"koordinator.sh/qosClass": "LSX"}, "qosClass is 'LSX'; write one of LSE, LSR, LS"),
        ({**LSR, "koordinator.sh/priority-class": "prod"}, "is 'prod'; write one of koord-prod"),
    ],
)
def test_a_word_that_koordinator_does_not_know_is_told(
    labels: Mapping[str, str], said: str
) -> None:
    (ignored,) = _pod({}, labels).ignored
    assert said in ignored
    assert not _pod({}, labels).owns
