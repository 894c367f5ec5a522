"""When the object is written, and when it is not."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import RemoteProtocolError
from cpupool.core.node_topology import Amounts, KubeletAmounts
from cpupool.wire.node_topology import GROUP, V1ALPHA1, V1ALPHA2
from tests.unit.agent.topology_reporter.reporting import (
    NODE,
    NODE_PATH,
    PATH,
    PLURAL,
    Reporting,
    reporting,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver import FakeAPIServer


@pytest.fixture
def node(api: FakeAPIServer) -> Iterator[Reporting]:
    """Run a node whose topology has been published once."""
    with reporting(api) as found:
        found.pass_time(5.0)
        assert found.tries == 1
        yield found


def test_the_object_is_applied_by_the_agent_and_belongs_to_the_node(node: Reporting) -> None:
    (owner,) = node.object["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-a-uid"}
    (entry,) = node.object["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("cpupool", "Apply")
    (zone, _) = node.object["zones"]
    (pool,) = (each for each in zone["resources"] if each["name"] == "nokia.k8s.io/exclusive_a")
    assert (pool["capacity"], pool["available"]) == ("4", "4")


def test_nothing_is_written_in_ten_minutes_without_a_change(node: Reporting) -> None:
    looks = node.books.looks
    node.pass_time(600.0)
    assert node.tries == 1
    # Events come at any rate; the kubelet is asked every 5 s at most.
    assert node.books.looks - looks == 120


def test_a_burst_of_pods_is_one_write_in_five_seconds(node: Reporting) -> None:
    before = node.fingerprint
    node.now_s += 60.0
    for count in range(50):
        node.run_pods(*(f"pod-{index}" for index in range(count + 1)))
        node.pass_time(0.5, every_s=0.5)
    node.pass_time(5.0)
    assert node.fingerprint != before
    assert node.tries == 1 + 6
    node.pass_time(60.0)
    assert node.tries == 1 + 6


def test_an_hour_with_200_events_of_pods_is_fewer_writes(node: Reporting) -> None:
    moments = Counter(random.Random(18).choices(range(3600), k=200))
    for second in range(3600):
        for number in range(moments[second]):
            node.run_pods(f"pod-{second}-{number}")
        node.pass_time(1.0)
    assert 150 < node.tries <= 200


def test_a_change_of_the_kubelets_books_alone_is_published(node: Reporting) -> None:
    node.books.kept = KubeletAmounts({"example.com/nic": {0: Amounts(2, 2, 1)}})
    node.pass_time(5.0)
    zones = [
        {each["name"]: each["available"] for each in zone["resources"]}
        for zone in node.object["zones"]
    ]
    assert [zone["example.com/nic"] for zone in zones] == ["1", "0"]


def test_an_object_that_is_deleted_is_written_again(node: Reporting) -> None:
    node.api.forget(PATH)
    node.pass_time(5.0)
    assert node.api.has(PATH)
    assert node.tries == 2


def test_the_deletion_is_noticed_after_a_watch_that_is_too_old(node: Reporting) -> None:
    eventually(lambda: node.api.watching(PLURAL), "a watch")
    node.api.gone()
    node.api.forget(PATH)
    node.pass_time(5.0)
    assert node.api.has(PATH)


def test_the_object_follows_a_node_that_is_made_again(node: Reporting) -> None:
    node.api.forget(NODE_PATH)
    eventually(lambda: node.cluster.node() is None, "the Node is gone")
    node.api.forget(PATH)
    node.now_s += 60.0
    node.role.step()
    assert not node.api.has(PATH)

    node.api.keep(NODE_PATH, {"metadata": {}})
    uid = node.api.kept(NODE_PATH)["metadata"]["uid"]
    assert uid != "node-a-uid"
    node.pass_time(5.0)
    assert node.owners() == [uid]


def test_an_object_of_an_earlier_node_gets_the_new_owner(node: Reporting) -> None:
    node.api.forget(NODE_PATH)
    node.api.keep(NODE_PATH, {"metadata": {}})
    node.pass_time(5.0)
    assert node.owners() == [node.api.kept(NODE_PATH)["metadata"]["uid"]]


def test_a_cluster_with_v1alpha1_alone_has_an_object_without_attributes(
    api: FakeAPIServer,
) -> None:
    api.crds = {GROUP: [V1ALPHA1]}
    with reporting(api) as node:
        eventually(lambda: node.sink.observed() == (), "the agent sees that there is none")
        eventually(node.cluster.node, "the Node")
        node.role.step()
        path = PATH.replace(V1ALPHA2, V1ALPHA1)
        body = api.kept(path)
        assert body["apiVersion"] == f"{GROUP}/{V1ALPHA1}"
        assert "attributes" not in body
        assert body["topologyPolicies"] == []
        eventually(node.sink.observed, "the agent sees the object")
        node.now_s += 60.0
        node.role.step()
        assert node.tries == 1


def test_nothing_is_published_while_the_owners_of_cpus_are_not_known(api: FakeAPIServer) -> None:
    with reporting(api, ready=False) as node:
        node.pass_time(60.0)
        assert node.tries == 0
        node.ready = True
        node.pass_time(5.0)
        assert node.tries == 1


def test_a_kubelet_without_an_answer_is_one_line_and_asked_later_and_later(
    node: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    node.books.error = RemoteProtocolError("the kubelet is away")
    node.run_pods("web")
    looks = node.books.looks
    node.pass_time(600.0)
    assert node.books.looks - looks == 13
    assert caplog.text.count("the kubelet is away") == 1
    assert node.tries == 1
    node.books.error = None
    node.pass_time(60.0)
    assert node.tries == 2
