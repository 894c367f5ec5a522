from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cpupool.core.workloads import ContainerID
from tests.runtimes import reported
from tests.unit.manager.plugged import container, pod, ref
from tests.unit.qrm.test_resource_manager import FULL, Node, answer
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.workloads import Pod
    from tests.resource_plugins import PluginDouble

DONE = b""


def prepared(node: Node, of: str = "a") -> set[str]:
    """Return the instances of a container that may start."""
    return set(node.manager.snapshot().facts.plugins.prepared.get(ref(of), ()))


def started(node: Node, instance: str) -> bool:
    return instance in prepared(node)


def calls(plugin: PluginDouble) -> int:
    return len(plugin.asked["PreStartContainer"])


def appears(node: Node, instance: str) -> None:
    """Let the runtime be about to create an instance of the container."""
    node.manager.observe_containers([reported("a-uid", identifier=instance)])


def ends(node: Node, instance: str) -> None:
    node.manager.forget_containers([ContainerID(instance)])


def removed(node: Node, plugin: PluginDouble) -> None:
    """Let the pod end, until the plugin is asked to forget it: it has all earlier calls then."""
    plugin.answers("RemovePod", DONE)
    node.run()
    node.manager.observe(idle=frozenset({"a-uid"}))
    node.until(lambda: plugin.asked["RemovePod"])


@contextmanager
def slow(plugin: PluginDouble) -> Iterator[None]:
    """Let the plugin prepare nothing before the end."""
    goes_on = threading.Event()

    def prepare(_request: bytes) -> bytes:
        goes_on.wait(DEADLINE_S)
        return DONE

    plugin.replies["PreStartContainer"] = prepare
    try:
        yield
    finally:
        goes_on.set()


def admitted(node: Node, asks: Pod | None = None) -> PluginDouble:
    """Let a plugin that prepares each start give a container CPUs."""
    plugin = node.plugin(pre_start_required=True)
    plugin.answers("Allocate", answer("1-2"))
    plugin.answers("PreStartContainer", DONE)
    node.run(asks or pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    return plugin


def test_the_first_start_is_prepared_ahead_and_each_later_one_when_it_comes(node: Node) -> None:
    plugin = admitted(node)
    assert (calls(plugin), prepared(node)) == (1, set())
    for number, instance in enumerate(("one", "two", "three"), start=1):
        appears(node, instance)
        node.until(partial(started, node, instance))
        assert calls(plugin) == number
        node.role.step()
        assert calls(plugin) == number
        ends(node, instance)


def test_an_instance_that_is_still_there_is_not_prepared_again(node: Node) -> None:
    plugin = admitted(node)
    appears(node, "one")
    node.until(lambda: prepared(node) == {"one"})
    appears(node, "two")
    node.until(lambda: prepared(node) == {"one", "two"})
    ends(node, "two")
    node.role.step()
    appears(node, "three")
    node.until(lambda: "three" in prepared(node))
    assert calls(plugin) == 3


def test_a_start_waits_while_the_plugin_refuses_to_prepare_it(node: Node) -> None:
    plugin = admitted(node)
    appears(node, "one")
    node.until(lambda: prepared(node) == {"one"})
    ends(node, "one")
    plugin.answers("PreStartContainer", FULL)
    appears(node, "two")
    node.until(node.refusal)
    assert "no CPU is left" in node.refusal()
    assert prepared(node) == {"one"}
    assert node.cpus() == "1-2"
    assert node.role.step() == 1.0
    plugin.answers("PreStartContainer", DONE)
    node.now_s += 1.5
    node.until(lambda: prepared(node) == {"two"})
    assert not node.refusal()


def test_the_preparation_of_a_try_that_was_given_up_serves_the_next(node: Node) -> None:
    plugin = admitted(node)
    appears(node, "one")
    node.until(lambda: prepared(node) == {"one"})
    ends(node, "one")
    with slow(plugin):
        appears(node, "two")
        node.until(lambda: calls(plugin) == 2)
        ends(node, "two")
        node.role.step()
        assert prepared(node) == {"one"}
    appears(node, "three")
    node.until(lambda: "three" in prepared(node))
    assert calls(plugin) == 2


def test_a_start_is_prepared_again_once_no_instance_has_it(node: Node) -> None:
    """The runtime may show an instance that it is refused for a moment only."""
    plugin = admitted(node)
    assert node.manager.snapshot().facts.plugins.ready == {ref("a")}
    appears(node, "one")
    node.until(lambda: prepared(node) == {"one"})
    assert not node.manager.snapshot().facts.plugins.ready
    ends(node, "one")
    node.until(lambda: node.manager.snapshot().facts.plugins.ready == {ref("a")})
    assert calls(plugin) == 2
    node.role.step()
    assert calls(plugin) == 2


def test_a_pod_that_ends_is_prepared_no_more(node: Node) -> None:
    plugin = admitted(node)
    appears(node, "one")
    node.until(lambda: prepared(node) == {"one"})
    node.run(replace(pod("a"), ending=True))
    ends(node, "one")
    node.role.step()
    removed(node, plugin)
    assert calls(plugin) == 1


def test_what_runs_when_the_agent_starts_is_prepared_and_its_next_start_is_not(node: Node) -> None:
    plugin = admitted(node, pod("a", container(running=True)))
    appears(node, "main-id")
    node.until(lambda: prepared(node) == {"main-id"})
    node.stop()
    node.start()
    appears(node, "main-id")
    node.until(lambda: prepared(node) == {"main-id"})
    assert node.cpus() == "1-2"
    assert calls(plugin) == 1
    appears(node, "two")
    node.until(lambda: "two" in prepared(node))
    assert calls(plugin) == 2


def test_what_runs_is_not_prepared_before_the_runtime_has_named_it(node: Node) -> None:
    plugin = admitted(node, pod("a", container(running=True)))
    appears(node, "main-id")
    node.until(lambda: prepared(node) == {"main-id"})
    node.stop()
    node.start()
    node.manager.forget_containers([ContainerID("main-id")])
    node.until(lambda: prepared(node) == {"main-id"})
    node.role.step()
    removed(node, plugin)
    assert calls(plugin) == 1


def test_another_plugin_prepares_what_the_one_before_has_not(node: Node) -> None:
    plugin = admitted(node)
    appears(node, "one")
    node.until(lambda: prepared(node) == {"one"})
    with slow(plugin):
        appears(node, "two")
        node.until(lambda: calls(plugin) == 2)
        other = node.plugin(name="other", pre_start_required=True)
        other.answers("PreStartContainer", DONE)
        node.until(lambda: prepared(node) == {"one", "two"})
    assert calls(other) == 1


def test_a_plugin_that_returns_without_the_wish_prepares_nothing(node: Node) -> None:
    admitted(node)
    assert ref("a") in node.manager.snapshot().facts.plugins.prepared
    again = node.plugin(name="again")
    node.until(lambda: ref("a") not in node.manager.snapshot().facts.plugins.prepared)
    assert node.cpus() == "1-2"
    assert not calls(again)


def test_a_pod_that_has_ended_is_forgotten(node: Node) -> None:
    plugin = admitted(node)
    plugin.answers("RemovePod", DONE)
    node.run()
    node.manager.observe(idle=frozenset({"a-uid"}))
    node.until(lambda: node.cpus() == "nothing")
    assert ref("a") not in node.manager.snapshot().facts.plugins.prepared
