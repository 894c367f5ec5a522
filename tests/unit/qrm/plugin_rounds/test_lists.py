"""What containers have now, as their plugins list it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.unit.manager.plugged import pod, pools, ref
from tests.unit.qrm.test_resource_manager import (
    DEDICATED,
    FULL,
    Node,
    answer,
    asked,
    listing,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tests.resource_plugins import PluginDouble


def test_a_reconciled_plugin_says_what_containers_have_now(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("Allocate", answer("1-2", envs={"A": "1"}))
    plugin.answers("GetResourcesAllocation", listing())
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    plugin.answers("GetResourcesAllocation", listing(a="3-4", b="5", ended="6"))
    node.now_s += 3.0
    node.until(lambda: node.cpus() == "3-4")
    assert node.manager.snapshot().facts.plugins.texts(ref("a"))[0] == {"A": "1"}
    for bad in (FULL, b"\xff", listing(a=""), listing(a="8-9")):
        plugin.answers("GetResourcesAllocation", bad)
        # The second question comes after the answer to the first.
        for _ in range(2):
            plugin.asked["GetResourcesAllocation"].clear()
            node.now_s += 3.0
            node.until(lambda: plugin.asked["GetResourcesAllocation"])
        assert node.cpus() == "3-4"


def test_a_plugin_that_has_forgotten_a_container_is_asked_again(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("Allocate", answer("1-2"))
    plugin.answers("GetResourcesAllocation", listing())
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    plugin.answers("GetResourcesAllocation", listing(a="1-2"))
    node.now_s += 3.0
    node.until(lambda: len(plugin.asked["GetResourcesAllocation"]) > 1)
    plugin.answers("Allocate", answer("4-5"))
    plugin.answers("GetResourcesAllocation", listing())
    node.now_s += 3.0
    node.until(lambda: node.cpus() == "4-5")
    assert asked(plugin) == ["a", "a"]


def test_what_a_plugin_lists_of_its_own_accord_counts(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("Allocate", FULL)
    plugin.answers("GetResourcesAllocation", listing(a="1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")


def test_a_plugin_that_lists_does_so_before_it_allocates(node: Node) -> None:
    """The agent before was killed between an answer and its record."""
    node.run(pod("a", level=DEDICATED), pod("b"))
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", listing(a="1-2"))
    plugin.answers("Allocate", answer("3"))
    node.until(lambda: (node.cpus("a"), node.cpus("b")) == ("1-2", "3"))
    assert asked(plugin) == ["b"]


def test_a_list_counts_although_the_pools_are_known_late(node: Node) -> None:
    """Until then no pod requests `cpu` of a plugin."""
    node.stop()
    node.start(knows_pools=False)
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", listing(a="1-2"))
    plugin.answers("Allocate", answer("3"))
    node.run(pod("a"))
    node.until(lambda: "cpu" in node.manager.snapshot().facts.plugins.served)
    node.role.step()
    idle: list[object] = []
    node.role._registry.plugins["cpu"].ask(lambda asked: asked.resource, idle.append)
    node.until(lambda: idle, "the plugin has answered all questions")
    node.configure(pools())
    node.until(lambda: node.cpus() == "1-2")
    assert asked(plugin) == []


def test_a_plugin_that_cannot_list_allocates(node: Node) -> None:
    node.run(pod("a"))
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", FULL)
    plugin.answers("Allocate", answer("3"))
    node.until(lambda: node.cpus() == "3")


def lists(node: Node, plugin: PluginDouble, listed: Message) -> None:
    """Let the plugin list something, and the role hear it."""
    plugin.answers("GetResourcesAllocation", listed)
    # The second question comes after the answer to the first.
    for _ in range(2):
        plugin.asked["GetResourcesAllocation"].clear()
        node.now_s += 3.0
        node.until(lambda: plugin.asked["GetResourcesAllocation"])


def test_a_bad_answer_for_a_container_that_runs_has_an_event(node: Node) -> None:
    plugin = node.plugin(need_reconcile=True)
    plugin.answers("GetResourcesAllocation", listing(a="1-2", waits="8-9"))
    node.run(replace(pod("a"), running=True), pod("waits"))
    node.until(lambda: node.cpus() == "1-2")
    for _ in range(3):
        lists(node, plugin, listing(a="8-9", waits="8-9"))
    why = "container main: the answer for cpu names CPUs 8-9, which are not the policy's"
    said = f"{why}; it keeps what it has: correct the plugin"
    assert node.events.pods == [("a", "PluginAnswerRefused", said)]
    lists(node, plugin, listing(a=""))
    assert [reason for _, reason, _ in node.events.pods] == ["PluginAnswerRefused"] * 2
    assert node.cpus() == "1-2"
