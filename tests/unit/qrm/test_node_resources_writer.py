from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cpupool.core.names import Names
from cpupool.core.workloads import Node, NodeAmount
from cpupool.kube.client import APIError
from cpupool.manager.report import NodeResource
from cpupool.qrm.node_resources import PluginAmounts
from cpupool.qrm.node_resources_writer import NodeResources
from cpupool.telemetry.health import Health
from tests.loops import running
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

NIC, GPU = "example.com/nic", "example.com/gpu"
FORBIDDEN = APIError("patch", "nodes/status", "Forbidden", "no", status=403)


@dataclass
class Cluster:
    """An API server with one Node, which the agent's watch shows at once.

    Attributes:
        node: the Node; None while it is not known.
        offers: what plugins say.
        written: what the agent has applied, with the Node's UID, in order.
        refusals: what the API server answers next.
        asked: how many requests there were.
        hides: whether the watch does not show writes.
        reported: what the agent has reported last.
    """

    node: Node | None = field(default_factory=lambda: Node("1-2-3", {}))
    offers: PluginAmounts = field(
        default_factory=lambda: PluginAmounts({NIC: {NIC: 7.0}}, complete=True)
    )
    written: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    refusals: list[APIError] = field(default_factory=list)
    asked: int = 0
    hides: bool = False
    interrupted: bool = False
    now_s: float = 100.0
    reported: tuple[NodeResource, ...] = ()

    def __post_init__(self) -> None:
        self.role = NodeResources(
            self,
            lambda: self.offers,
            node=lambda: self.node,
            names=Names(),
            report=self._take,
            health=Health(),
            now_s=lambda: self.now_s,
        )

    def _take(self, reported: tuple[NodeResource, ...]) -> None:
        self.reported = reported

    def apply(self, node_uid: str, amounts: Mapping[str, int]) -> None:
        self.asked += 1
        if self.refusals:
            raise self.refusals.pop(0)
        self.written.append((node_uid, dict(amounts)))
        if not self.hides:
            self.shows({name: NodeAmount(n, n, ours=True) for name, n in amounts.items()})

    def interrupt(self) -> None:
        self.interrupted = True

    def shows(self, resources: Mapping[str, NodeAmount], uid: str = "1-2-3") -> None:
        self.node = Node(uid, {}, resources=resources)

    def pass_s(self, seconds: float) -> int:
        """Step through this time; return how many requests there were."""
        before, end_s = self.asked, self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += self.role.step()
        return self.asked - before


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_what_plugins_offer_is_written_once(cluster: Cluster) -> None:
    assert cluster.pass_s(600) == 1
    assert cluster.written == [("1-2-3", {NIC: 7})]
    assert cluster.reported == (NodeResource(NIC, 7),)


def test_another_offer_is_written_at_once(cluster: Cluster) -> None:
    cluster.role.step()
    cluster.offers = PluginAmounts({NIC: {NIC: 6.0, GPU: 1.0}}, complete=True)
    cluster.role.step()
    cluster.offers = PluginAmounts({}, complete=True)
    cluster.role.step()
    assert [amounts for _, amounts in cluster.written] == [{NIC: 7}, {NIC: 6, GPU: 1}, {}]
    assert cluster.reported == ()


def test_nothing_is_written_where_plugins_offer_nothing(cluster: Cluster) -> None:
    cluster.offers = PluginAmounts({}, complete=True)
    cluster.shows({GPU: NodeAmount(2, 2)})
    assert cluster.pass_s(600) == 0


def test_a_node_that_is_not_known_is_waited_for(cluster: Cluster) -> None:
    cluster.node = None
    assert cluster.pass_s(600) == 0
    cluster.shows({})
    assert cluster.pass_s(1) == 1


def test_a_node_that_was_created_again_is_written_at_once(cluster: Cluster) -> None:
    cluster.role.step()
    cluster.shows({}, "4-5-6")
    cluster.role.step()
    assert [uid for uid, _ in cluster.written] == ["1-2-3", "4-5-6"]


def test_what_the_kubelet_zeroes_again_and_again_is_written_ever_more_rarely(
    cluster: Cluster,
) -> None:
    assert cluster.pass_s(1) == 1
    cluster.hides = True
    cluster.shows({NIC: NodeAmount(0, 0)})
    assert cluster.pass_s(120) == 6
    assert cluster.pass_s(600) == 10


def test_a_missing_right_is_logged_once_with_the_overlay(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refusals = [FORBIDDEN] * 3
    cluster.role.step()
    (line,) = [each for each in caplog.messages if "resources not written" in each]
    assert "daemonsets/node-resources" in line
    (reported,) = cluster.reported
    assert "403 Forbidden" in reported.why
    assert "daemonsets/node-resources" in reported.remedy

    cluster.pass_s(20)

    assert cluster.written == [("1-2-3", {NIC: 7})]
    assert len([each for each in caplog.messages if "resources not written" in each]) == 1
    cluster.role.step()
    assert cluster.reported == (NodeResource(NIC, 7),)


def test_a_refusal_is_tried_again_when_the_server_says(cluster: Cluster) -> None:
    busy = APIError("patch", "nodes/status", "Busy", "no", status=429, retry_after_s=30.0)
    cluster.refusals = [busy]
    assert cluster.role.step() == 30.0
    cluster.now_s += 29.0
    assert cluster.role.step() == 1.0
    assert cluster.asked == 1
    (reported,) = cluster.reported
    assert reported.remedy.startswith("check that the API server answers")
    assert cluster.pass_s(2) == 1


def test_an_offer_that_is_refused_is_logged_once_and_reported(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.offers = PluginAmounts({"cpu": {"cpu": 2.0}, NIC: {NIC: 7.0}}, complete=True)
    cluster.pass_s(300)
    (line,) = [each for each in caplog.messages if "resource of the node not written" in each]
    assert "cpu" in line
    written, refused = cluster.reported
    assert written == NodeResource(NIC, 7)
    assert (refused.resource, refused.amount) == ("cpu", 0)
    assert "no name of an extended resource" in refused.why


def test_an_earlier_agents_resource_stays_until_plugins_have_had_time(cluster: Cluster) -> None:
    cluster.shows({NIC: NodeAmount(7, 7, ours=True)})
    cluster.offers = PluginAmounts({})
    assert cluster.pass_s(600) == 0
    cluster.offers = PluginAmounts({}, complete=True)
    cluster.role.step()
    assert cluster.written == [("1-2-3", {})]


def test_it_runs_until_it_is_stopped(cluster: Cluster) -> None:
    with running(cluster.role.run, wake=cluster.role.wake):
        eventually(lambda: cluster.written, "a write")
        cluster.offers = PluginAmounts({NIC: {NIC: 8.0}}, complete=True)
        cluster.role.look()
        eventually(lambda: len(cluster.written) == 2, "another write")
    assert cluster.interrupted
