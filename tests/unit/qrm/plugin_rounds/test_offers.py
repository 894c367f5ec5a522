"""What plugins on real sockets say that the node has, and a clock that the test sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from cpupool.api.resourceplugin_pb2 import (
    AllocatableTopologyAwareResource,
    GetTopologyAwareAllocatableResourcesResponse,
)
from cpupool.qrm.node_resources import PluginAmounts
from cpupool.qrm.plugin_rounds import PluginRounds
from cpupool.qrm.question_table import GRACE_S, QuestionTable
from tests.resource_plugins import PluginDouble, Refusal
from tests.unit.qrm.test_resource_manager import NIC, Node

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.qrm.plugin_worker import PluginWorker

ASKED = "GetTopologyAwareAllocatableResources"
OTHER = "example.com/other"
FULL = Refusal(grpc.StatusCode.INTERNAL, "no NIC")


def offer(amount: float, name: str = NIC) -> GetTopologyAwareAllocatableResourcesResponse:
    resource = AllocatableTopologyAwareResource(
        is_node_resource=True, is_scalar_resource=True, aggregated_allocatable_quantity=amount
    )
    return GetTopologyAwareAllocatableResourcesResponse(allocatable_resources={name: resource})


class Offering(Node):
    """A node whose agent asks plugins what the node has.

    Attributes:
        news: how often the role has said that plugins offer something else.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.news = 0
        self.of_node = True
        self._offers = PluginAmounts({})

    def _note(self) -> None:
        super()._note()
        if self.offers != self._offers:
            self.news += 1
            self._offers = self.offers

    @property
    def offers(self) -> PluginAmounts:
        return self.role.offers() if self.role.offers else PluginAmounts({})

    def says(self, by_plugin: dict[str, dict[str, float]], *, complete: bool = False) -> None:
        self.until(lambda: self.offers == PluginAmounts(by_plugin, complete), str(by_plugin))

    def offering(
        self, amount: float, offered: str = NIC, resource: str = NIC, name: str = "nic"
    ) -> PluginDouble:
        """Start a plugin that offers this as soon as it is asked."""
        double = PluginDouble(self.folder / f"{name}.sock", resource)
        double.answers(ASKED, offer(amount, offered))
        return self._opened.enter_context(double)

    def asks_again(self, plugin: PluginDouble) -> None:
        count = len(plugin.asked[ASKED])
        self.now_s += 10.0
        self.until(lambda: len(plugin.asked[ASKED]) == count + 1)

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.role.step()


def test_no_plugin_is_asked_what_the_node_has_unless_the_settings_say_so(tmp_path: Path) -> None:
    with Offering(tmp_path) as quiet:
        quiet.of_node = False
        plugin = quiet.offering(4.0)
        quiet.start()
        quiet.run()
        quiet.until(lambda: NIC in quiet.manager.snapshot().facts.plugins.served)
        quiet.later(10.0)
        assert quiet.role.offers is None
        assert not plugin.asked[ASKED]


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with Offering(tmp_path) as made:
        made.start()
        made.run()
        yield made


def test_a_plugin_is_asked_every_ten_seconds(node: Offering) -> None:
    plugin = node.offering(7)
    node.says({NIC: {NIC: 7.0}})
    assert node.news == 1
    plugin.answers(ASKED, offer(9))
    assert node.role.step() <= 10.0
    assert len(plugin.asked[ASKED]) == 1
    node.later(10.0)
    node.says({NIC: {NIC: 9.0}})
    assert len(plugin.asked[ASKED]) == 2
    assert node.news == 2
    node.asks_again(plugin)
    node.says({NIC: {NIC: 9.0}})
    assert node.news == 2


def test_an_amount_that_differs_from_itself_is_news_once(node: Offering) -> None:
    plugin = node.offering(math.nan)
    node.until(lambda: node.news)
    for _ in range(3):
        node.asks_again(plugin)
    node.later(0.0)
    assert node.news == 1


class Silent:
    """A plugin that has not answered yet."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def ask(self, _call: object, done: object) -> None:
        self.asked.append(done)


def test_a_question_without_an_answer_is_not_asked_again() -> None:
    times, nobody = [0.0], cast("Any", None)
    rounds = PluginRounds(
        *(QuestionTable(lambda: times[-1]), nobody, nobody, nobody),
        offered=lambda: None,
        every_s=1.0,
    )
    silent = Silent()
    for _ in range(3):
        due_s = rounds.offer({NIC: cast("PluginWorker", silent)})
        assert due_s == times[-1] + 10.0
        times.append(due_s)
    assert len(silent.asked) == 1
    # It was lost, and another one has its place.
    rounds.registered(NIC)
    another = Silent()
    rounds.offer({NIC: cast("PluginWorker", another)})
    assert len(another.asked) == 1


def test_the_last_good_answer_stays_and_a_failure_is_logged_once(
    node: Offering, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = node.offering(7)
    node.says({NIC: {NIC: 7.0}})
    plugin.answers(ASKED, FULL)
    node.asks_again(plugin)
    node.asks_again(plugin)
    plugin.answers(ASKED, offer(8))
    node.later(10.0)
    node.says({NIC: {NIC: 8.0}})
    plugin.answers(ASKED, FULL)
    node.asks_again(plugin)
    node.offering(1, OTHER, "cpu", "cpu")
    node.says({NIC: {NIC: 8.0}, "cpu": {OTHER: 1.0}})
    said = [each for each in caplog.messages if "does not say what the node has" in each]
    assert len(said) == 2
    assert "no NIC" in said[0]


def test_a_plugin_that_is_gone_counts_for_five_minutes(node: Offering) -> None:
    plugin = node.offering(7)
    node.says({NIC: {NIC: 7.0}})
    plugin.socket.unlink()
    node.until(lambda: not node.role._registry.plugins)
    node.later(GRACE_S - 1)
    node.says({NIC: {NIC: 7.0}})
    node.later(1.0)
    node.says({}, complete=True)


def test_another_plugin_is_asked_at_once(node: Offering) -> None:
    plugin = node.offering(7)
    node.says({NIC: {NIC: 7.0}})
    plugin.socket.unlink()
    node.until(lambda: not node.role._registry.plugins)
    node.offering(3, name="another")
    node.says({NIC: {NIC: 3.0}})


def test_all_plugins_have_had_time_after_five_minutes(node: Offering) -> None:
    node.role.step()
    node.later(GRACE_S - 0.1)
    node.says({})
    node.later(0.1)
    node.says({}, complete=True)
