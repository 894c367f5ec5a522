"""A plugin that registers after a pod has started: what it and the others are asked."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.cpu_manager import TopologyPolicy
from tests.resource_plugins import PluginDouble, Refusal
from tests.unit.manager.plugged import container, pod, pools, ref
from tests.unit.qrm.test_resource_manager import FULL, Node, answer, asked, first_node
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import Container, Pod

MUTE = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED)


class Fails(Enum):
    """What has become of the plugin for CPUs when the one for memory registers."""

    DEAD = "its socket is there, and nobody listens"
    MUTE = "it answers nothing in time"
    GONE = "its socket has gone"


@pytest.fixture(autouse=True)
def _restricted(node: Node) -> None:
    node.stop()
    node.start(pools(topology=TopologyPolicy.RESTRICTED))


def requesting(name: str = "main") -> Container:
    return container(name, running=True, cpu=2.0, memory=1.0)


def runs(*containers: Container) -> Pod:
    return pod("a", *(containers or (requesting(),)), running=True)


def for_cpu(node: Node) -> PluginDouble:
    plugin = PluginDouble(node.folder / "cpu.sock", with_topology_alignment=True)
    plugin.answers("GetTopologyHints", first_node("cpu"))
    plugin.answers("Allocate", answer("1-2"))
    return plugin


def for_memory(node: Node) -> PluginDouble:
    """Start a plugin for which any NUMA node is right."""
    plugin = node.plugin("memory", "memory", with_topology_alignment=True)
    plugin.answers("GetTopologyHints", api.ResourceHintsResponse())
    plugin.answers("Allocate", answer("", "memory"))
    return plugin


def has_memory(node: Node, name: str = "main") -> bool:
    answers = node.manager.snapshot().facts.plugins.answers
    return "memory" in answers.get(ref("a", name), {})


def nodes(plugin: PluginDouble) -> list[list[int]]:
    """Return the NUMA nodes with which a plugin was asked to allocate."""
    requests = map(api.ResourceRequest.FromString, plugin.asked["Allocate"])
    return [list(each.hint.nodes) for each in requests]


@contextmanager
def failing(node: Node, fails: Fails) -> Iterator[None]:
    """Let a plugin for CPUs register, and fail."""
    plugin = for_cpu(node)
    with plugin:
        node.until(lambda: plugin.asked["NotifyRegistrationStatus"])
        if fails is Fails.MUTE:
            plugin.answers("GetTopologyHints", MUTE)
            plugin.answers("Allocate", MUTE)
            yield
            return
        # The server removes its socket when it ends.
        aside = plugin.socket.rename(node.folder / ".aside")
    if fails is Fails.DEAD:
        aside.rename(plugin.socket)
    yield


def test_it_is_asked_about_a_pod_that_runs(node: Node) -> None:
    with for_cpu(node):
        node.run(runs())
        node.until(lambda: node.cpus() == "1-2")
        memory = for_memory(node)
        node.until(lambda: has_memory(node))
        assert nodes(memory) == [[0]]


def test_an_answer_without_a_preference_leaves_it_every_node(node: Node) -> None:
    with for_cpu(node) as plugin:
        plugin.answers("GetTopologyHints", api.ResourceHintsResponse())
        node.run(runs())
        node.until(lambda: node.cpus() == "1-2")
        memory = for_memory(node)
        memory.answers("GetTopologyHints", first_node("memory"))
        node.until(lambda: has_memory(node))
        assert (nodes(plugin), nodes(memory)) == ([[0, 1]], [[0]])


@pytest.mark.parametrize("fails", Fails)
def test_it_is_asked_although_the_plugin_for_cpus_fails(node: Node, fails: Fails) -> None:
    with failing(node, fails):
        node.run(runs())
        if fails is not Fails.GONE:
            node.until(node.refusal)
            # The answers to what was asked at one time are there together.
            node.now_s += 1.5
        memory = for_memory(node)
        node.until(lambda: has_memory(node))
        assert (asked(memory), node.cpus()) == (["a"], "nothing")
    with for_cpu(node) as returned:
        node.now_s += 100.0
        node.until(lambda: node.cpus() == "1-2")
        assert nodes(returned) == [[0]]
    assert asked(memory) == ["a"]


def test_it_is_asked_about_each_container(node: Node) -> None:
    with failing(node, Fails.MUTE):
        node.run(runs(requesting("one"), requesting("two")))
        memory = for_memory(node)

        def later() -> bool:
            node.now_s += 1.0
            return has_memory(node, "one") and has_memory(node, "two")

        node.until(later)
        assert asked(memory) == ["a", "a"]


def test_a_refusal_leaves_what_runs_as_it_is_and_is_said_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with for_cpu(node):
        node.run(runs())
        node.until(lambda: node.cpus() == "1-2")
        memory = for_memory(node)
        memory.answers("Allocate", FULL)
        for tries in (1, 2, 3):
            node.now_s += 100.0
            node.until(partial(lambda tries: len(memory.asked["Allocate"]) == tries, tries))
            node.until(node.refusal)
    assert node.cpus() == "1-2"
    assert node.refusal() == "the plugin for memory has refused (asked to allocate: no CPU is left)"
    said = [each.message for each in caplog.records if "request refused" in each.message]
    assert len(said) == 1, said


def test_a_mute_one_costs_others_nothing(node: Node) -> None:
    goes_on = threading.Event()
    with for_cpu(node):
        node.run(runs())
        node.until(lambda: node.cpus() == "1-2")
        memory = for_memory(node)
        memory.replies["Allocate"] = lambda _request: (goes_on.wait(DEADLINE_S), b"")[1]
        try:
            node.until(lambda: memory.asked["Allocate"])
            node.run(*node.pods, pod("b", container(running=True), running=True))
            node.until(lambda: node.cpus("b") == "1-2")
            assert (node.cpus(), node.refusal()) == ("1-2", "")
        finally:
            goes_on.set()


def test_what_one_plugin_refuses_is_not_said_again_after_an_answer_of_the_other(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with failing(node, Fails.MUTE):
        node.run(runs())
        node.until(node.refusal)
        node.now_s += 1.5
        for_memory(node)
        node.until(lambda: has_memory(node))
        for _ in range(3):
            node.now_s += 100.0
            node.until(node.refusal)
    said = [each.message for each in caplog.records if "request refused" in each.message]
    # Once for the hints, and once for what the container gets.
    assert len(said) == 2, said


def test_a_container_that_is_refused_holds_up_no_other_that_runs(node: Node) -> None:
    with for_cpu(node) as plugin:
        plugin.answers("Allocate", FULL)
        node.run(runs(container("one", running=True), container("two", running=True)))
        node.until(lambda: len(plugin.asked["Allocate"]) == 2)
        requests = map(api.ResourceRequest.FromString, plugin.asked["Allocate"])
        assert [each.container_name for each in requests] == ["one", "two"]
