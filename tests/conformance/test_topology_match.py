"""A scheduler that reads the published zones sends no pod to a node that refuses it.

The filter of NodeResourceTopologyMatch (`tests/topology_match.py`) over 50 nodes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cpupool.core.workloads import QoSClass
from cpupool.host.sysfs import open_topology
from tests import testdata
from tests.topology_match import unfit
from tests.topology_match_experiment import Kind, run
from tests.topology_nodes import pod_body

if TYPE_CHECKING:
    from typing import Any

    from tests.topology_match_experiment import Result

POOL = "nokia.k8s.io/exclusive_a"
HAS = ("cpu", "memory", "ephemeral-storage", POOL, "vendor.example/nic")


@pytest.fixture(scope="module")
def results() -> dict[Kind, Result]:
    recorded = sorted((testdata.folder() / "topologies").glob("*.tar.gz"))
    return run([open_topology(str(machine)) for machine in recorded])


@pytest.mark.parametrize("kind", Kind)
def test_no_node_refuses_a_pod_that_the_filter_lets_pass(
    results: dict[Kind, Result], kind: Kind
) -> None:
    result = results[kind]

    assert result.surprises == []
    assert result.offered > 200


@pytest.mark.parametrize("kind", [Kind.CONTAINERS, Kind.PODS, Kind.STATIC])
def test_the_filter_keeps_off_what_the_node_refuses_and_hardly_more(
    results: dict[Kind, Result], kind: Kind
) -> None:
    result = results[kind]

    assert result.refused > 30
    # The plugin reads no NUMA node above 63, and some machines have CPUs without a node.
    assert result.in_vain.total() < result.offered / 50


def test_the_filter_does_nothing_where_no_topology_manager_refuses(
    results: dict[Kind, Result],
) -> None:
    assert results[Kind.NONE].kept_off == results[Kind.NONE].refused == 0


def topology(
    *zones: dict[str, str], policy: str = "single-numa-node", scope: str = "container"
) -> dict[str, Any]:
    return {
        "topologyPolicies": ["None"],
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": scope},
        ],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [{"name": name, "available": amount} for name, amount in has.items()],
            }
            for number, has in enumerate(zones)
        ],
    }


FULL = {"cpu": "4", "memory": "8Gi"}
TWO = topology(FULL | {POOL: "2"}, FULL | {POOL: "3"})
TWO_OF_POD = topology(FULL | {POOL: "2"}, FULL | {POOL: "3"}, scope="pod")
THREE, TWO_EACH = {"exclusive_a": "3"}, {"exclusive_a": "2"}
GUARANTEED, BURSTABLE = QoSClass.GUARANTEED, QoSClass.BURSTABLE


@pytest.mark.parametrize(
    ("pod", "qos", "node", "lacking"),
    [
        pytest.param(pod_body("p", THREE), BURSTABLE, TWO, "", id="one zone suffices"),
        pytest.param(pod_body("p", {"exclusive_a": "4"}), BURSTABLE, TWO, POOL, id="none does"),
        pytest.param(pod_body("p", TWO_EACH, TWO_EACH), BURSTABLE, TWO, "", id="one zone for each"),
        pytest.param(pod_body("p", THREE, THREE), BURSTABLE, TWO, POOL, id="the first has taken"),
        pytest.param(pod_body("p", TWO_EACH, TWO_EACH), BURSTABLE, TWO_OF_POD, POOL, id="as one"),
        pytest.param(
            pod_body("p", THREE, init=THREE), BURSTABLE, TWO, "", id="init containers take nothing"
        ),
        pytest.param(
            pod_body("p", TWO_EACH, init=THREE), BURSTABLE, TWO_OF_POD, "", id="the larger counts"
        ),
        pytest.param(pod_body("p", {"cpu": "5"}), GUARANTEED, TWO, "cpu", id="Guaranteed cpu"),
        pytest.param(pod_body("p", {"cpu": "5"}), BURSTABLE, TWO, "", id="Burstable cpu"),
        pytest.param(
            pod_body("p", {"cpu": "1"}), BURSTABLE, topology({}), "cpu", id="unlisted native cpu"
        ),
        pytest.param(
            pod_body("p", THREE), BURSTABLE, topology(FULL), "", id="a device without NUMA nodes"
        ),
        pytest.param(
            pod_body("p", {"shared_b": "1"}),
            BURSTABLE,
            TWO,
            "nokia.k8s.io/shared_b",
            id="a resource that the node has not",
        ),
        pytest.param(pod_body("p", {}), QoSClass.BEST_EFFORT, TWO, "", id="best effort"),
        pytest.param(
            pod_body("p", {"exclusive_a": "9"}),
            BURSTABLE,
            topology(FULL, policy="restricted"),
            "",
            id="another policy",
        ),
        pytest.param(pod_body("p", {"exclusive_a": "9"}), BURSTABLE, None, "", id="no object"),
    ],
)
def test_the_stand_in_follows_the_rules_of_the_plugin(
    pod: dict[str, Any], qos: QoSClass, node: dict[str, Any] | None, lacking: str
) -> None:
    assert unfit(pod, qos, node, HAS) == lacking


def test_the_former_words_count_where_there_are_no_attributes() -> None:
    former = {**TWO, "attributes": [], "topologyPolicies": ["SingleNUMANodePodLevel"]}
    found = Counter(
        unfit(pod_body("p", TWO_EACH, TWO_EACH), BURSTABLE, node, HAS)
        for node in (former, {**former, "topologyPolicies": ["SingleNUMANode"]})
    )
    assert found == {POOL: 1, "": 1}
