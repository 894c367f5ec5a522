"""What the role does where others write the object, and where the API server refuses or hangs."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.loops import running
from tests.unit.agent.topology_reporter.reporting import (
    PATH,
    PLURAL,
    SERVED,
    Reporting,
    reporting,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver import FakeAPIServer

NFD = "nfd-topology-updater"
KOORDLET = "koordlet"
FOREIGN = [{"name": "node-0", "type": "Node"}]
WRITES = "cpupool_node_topology_writes_total"


@pytest.fixture
def node(api: FakeAPIServer) -> Iterator[Reporting]:
    """Run a node whose topology has been published once."""
    with reporting(api) as found:
        found.pass_time(5.0)
        eventually(lambda: api.watching(PLURAL), "a watch of the object")
        yield found


def written(node: Reporting, outcome: str) -> int:
    (count,) = (
        line.rpartition(" ")[2]
        for line in node.metrics.render()[1].decode().splitlines()
        if line.startswith(f'{WRITES}{{outcome="{outcome}"}}')
    )
    return int(float(count))


class TestAnotherManager:
    def test_keeps_its_zones_and_the_agent_writes_the_other_fields(
        self, node: Reporting, caplog: pytest.LogCaptureFixture
    ) -> None:
        node.api.change_as(NFD, PATH, {"zones": FOREIGN})
        node.pass_time(600.0)
        assert node.object["zones"] == FOREIGN
        # One write gives up the zones: none was needed, the other manager has taken them.
        assert node.tries == 1

        node.run_pods("web")
        before = node.fingerprint
        node.pass_time(5.0)
        assert node.fingerprint != before
        assert node.object["zones"] == FOREIGN

        eventually(lambda: node.api.events, "an Event")
        (event,) = node.api.events
        assert event["reason"] == "NodeTopologyShared"
        assert f"zones by {NFD}" in event["message"]
        assert caplog.text.count(f"zones by {NFD}") == 1

    def test_that_goes_with_its_object_leaves_all_fields_to_the_agent(
        self, node: Reporting, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        node.api.change_as(NFD, PATH, {"zones": FOREIGN})
        node.pass_time(60.0)
        node.api.forget(PATH)
        node.pass_time(5.0)
        assert [zone["name"] for zone in node.object["zones"]] == ["node-0", "node-1"]
        assert "node's topology is cpupool's alone" in caplog.text

    def test_that_was_there_first_keeps_what_it_has(self, api: FakeAPIServer) -> None:
        api.keep(PATH, {"metadata": {}})
        api.change_as(NFD, PATH, {"zones": FOREIGN, "attributes": []})
        with reporting(api) as node:
            node.pass_time(60.0)
            assert (node.object["zones"], node.object["attributes"]) == (FOREIGN, [])
            assert node.object["topologyPolicies"] == []
            assert node.owners() == ["node-a-uid"]
            assert node.tries == 1

    def test_that_prunes_a_field_is_not_fought_with(self, node: Reporting) -> None:
        """A writer of v1alpha1 removes the attributes, whose manager it does not become."""
        times_s = []
        for _ in range(600):
            if "attributes" in node.object:
                node.api.change_as(KOORDLET, PATH, {"attributes": None})
            if node.writes_within(1.0):
                times_s.append(node.now_s)
        pauses_s = [after - before for before, after in pairwise(times_s)]
        assert pauses_s[:5] == [10.0, 20.0, 40.0, 60.0, 60.0]
        assert len(times_s) == written(node, "again") == 12

    def test_that_prunes_does_not_delay_what_is_new(self, node: Reporting) -> None:
        for _ in range(5):
            node.api.change_as(KOORDLET, PATH, {"attributes": None})
            node.pass_time(60.0)
        node.api.change_as(KOORDLET, PATH, {"attributes": None})
        node.run_pods("web")
        tries = node.tries
        node.pass_time(5.0)
        assert node.tries == tries + 1
        assert node.fingerprint

    def test_that_has_pruned_once_leaves_the_object_right_within_seconds(
        self, node: Reporting
    ) -> None:
        node.api.change_as(KOORDLET, PATH, {"attributes": None})
        node.pass_time(5.0)
        assert node.fingerprint
        assert node.tries == 2


class TestARefusal:
    @pytest.mark.parametrize(
        ("status", "reason"), [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")]
    )
    def test_is_tried_again_later_and_later_and_logged_once(
        self, node: Reporting, status: int, reason: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        node.run_pods("web")
        node.api.refuse(status, reason, times=3)
        times_s = [node.now_s for _ in range(120) if node.writes_within(1.0)]
        assert [after - before for before, after in pairwise(times_s)] == [5.0, 10.0, 20.0]
        assert caplog.text.count("node's topology not published") == 1
        assert str(status) in caplog.text
        assert written(node, "refused") == 3

    def test_with_a_time_is_not_tried_again_before_it(self, node: Reporting) -> None:
        node.run_pods("web")
        node.api.refuse(429, "TooManyRequests", headers={"Retry-After": "120"})
        node.pass_time(120.0)
        assert node.tries == 2
        node.pass_time(5.0)
        assert node.tries == 3

    @pytest.mark.parametrize("verb", ["patch", "create"])
    def test_for_want_of_a_right_is_one_line_with_the_overlay(
        self, api: FakeAPIServer, verb: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        api.forbidden = {(verb, PLURAL)}
        with reporting(api) as node:
            node.pass_time(600.0)
            assert node.tries == 13
            (line,) = (each.message for each in caplog.records if each.levelname == "WARNING")
            assert "component daemonsets/topology-reporter" in line
            api.forbidden = set()
            node.pass_time(60.0)
            assert api.has(PATH)

    def test_of_another_managers_new_field_leaves_it_alone(self, node: Reporting) -> None:
        """The agent has not seen yet that the other manager has come."""
        eventually(lambda: node.api.watching(PLURAL), "a watch")
        node.run_pods("web")
        node.now_s += 60.0
        with node.unseen():
            node.api.change_as(NFD, PATH, {"zones": FOREIGN, "attributes": []})
            assert node.role.step() == 5.0
            assert written(node, "refused") == 1
        node.pass_time(60.0)
        assert (node.object["zones"], node.object["attributes"]) == (FOREIGN, [])
        assert node.tries == 2


def test_a_crd_that_is_missing_is_one_line_and_counts_once_it_is_there(
    api: FakeAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    api.crds = {}
    with reporting(api) as node:
        eventually(lambda: "kubectl create -k daemonsets/topology-crd" in caplog.text, "a line")
        eventually(node.cluster.node, "the Node")
        for _ in range(60):
            node.now_s += 10.0
            assert node.role.step() == 60.0
        assert node.tries == 0
        assert caplog.text.count("not published") == 1
        api.crds = dict(SERVED)
        node.pass_time(5.0)
        assert api.has(PATH)


def test_a_crd_that_is_deleted_ends_the_writes_until_it_is_back(
    node: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.forget(PATH)
    node.api.crds = {}
    node.api.end_watches()
    eventually(lambda: node.sink.observed() is None, "the agent knows no object")
    node.run_pods("web")
    for _ in range(60):
        node.now_s += 10.0
        node.role.step()
    assert node.tries == 1
    assert caplog.text.count("kubectl create -k daemonsets/topology-crd") == 1


def test_an_api_server_that_hangs_delays_this_role_alone(node: Reporting) -> None:
    node.run_pods("web")
    node.now_s += 60.0
    node.api.slow(PLURAL)

    def wake() -> None:
        node.role.wake()
        node.sink.wake()

    with running(node.role.run, wake=wake):
        eventually(lambda: node.tries == 2, "a write that hangs")
        node.api.set_pods(
            [
                {
                    "metadata": {"name": "db", "uid": "db-uid"},
                    "spec": {"containers": [{"name": "main"}]},
                }
            ]
        )
        eventually(lambda: [pod.name for pod in node.cluster.pods() or ()] == ["db"], "the pods")
        node.cluster.events.node("Odd", "one")
        eventually(lambda: node.api.events, "an Event")
