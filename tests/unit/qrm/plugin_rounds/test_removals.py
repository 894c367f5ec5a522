"""Plugins forget the pods that have ended; one that does not costs little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.api.resourceplugin_pb2 import RemovePodRequest
from cpupool.qrm.assembly import answers_file
from cpupool.qrm.question_table import GRACE_S
from tests.unit.manager.plugged import pod
from tests.unit.qrm.test_resource_manager import DEDICATED, FULL, Node, answer

if TYPE_CHECKING:
    from tests.resource_plugins import PluginDouble


def removed(plugin: PluginDouble) -> list[str]:
    """Return the pods that a plugin was asked to forget."""
    return [RemovePodRequest.FromString(each).pod_uid for each in plugin.asked["RemovePod"]]


def known(node: Node) -> set[str]:
    """Return the pods with an answer."""
    return {container.pod for container in answers_file(node.file).read()}


def ended(node: Node, *names: str) -> PluginDouble:
    """Let pods of shared cores end, whose plugin refuses to forget them."""
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    plugin.answers("RemovePod", FULL)
    node.run(*(pod(name) for name in names))
    node.until(lambda: known(node) == {f"{name}-uid" for name in names})
    node.run()
    refused(node, plugin, 1)
    return plugin


def busy(node: Node) -> bool:
    """Return whether an answer to a plugin's round is missing."""
    return any(turn.asked for turn in node.role._rounds._turns.values())


def refused(node: Node, plugin: PluginDouble, count: int) -> None:
    """Wait until the role has heard so many refusals."""
    node.until(lambda: len(removed(plugin)) == count and not busy(node))


def test_the_plugin_forgets_a_pod_that_has_ended(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    plugin.answers("RemovePod", b"")
    node.run(pod("a", level=DEDICATED))
    node.until(lambda: node.cpus() == "1-2")
    node.run()
    # A container of the pod may still run there.
    node.role.step()
    assert not plugin.asked["RemovePod"]
    node.manager.observe(idle=frozenset({"a-uid"}))
    node.until(lambda: node.cpus() == "nothing")
    assert removed(plugin) == ["a-uid"]
    assert not answers_file(node.file).read()


def test_a_plugin_that_forgets_no_pod_is_asked_later_and_later(node: Node) -> None:
    plugin = ended(node, "a")
    for count, pause_s in enumerate((1.0, 2.0, 4.0), 1):
        for _ in range(20):
            assert node.role.step() > 0.0
        assert len(removed(plugin)) == count
        node.now_s += pause_s
        refused(node, plugin, count + 1)
    plugin.answers("RemovePod", b"")
    node.now_s += 8.0
    node.until(lambda: not known(node))


def test_a_pod_that_the_plugin_keeps_holds_up_no_other(node: Node) -> None:
    plugin = ended(node, "a", "b", "c")
    (first,) = set(removed(plugin))

    def forget(request: bytes) -> bytes:
        if RemovePodRequest.FromString(request).pod_uid == first:
            raise FULL
        return b""

    plugin.replies["RemovePod"] = forget
    node.now_s += 1.0
    node.until(lambda: known(node) == {first})


def test_a_pod_that_a_plugin_never_forgets_is_forgotten(node: Node) -> None:
    ended(node, "a")
    node.now_s += GRACE_S - 1.0
    node.role.step()
    assert known(node) == {"a-uid"}
    node.now_s += 1.0
    node.until(lambda: not known(node))


def test_another_plugin_is_asked_at_once(node: Node) -> None:
    plugin = ended(node, "a")
    plugin.socket.unlink()
    again = node.plugin(name="again")
    again.answers("RemovePod", b"")
    node.until(lambda: not known(node))
    assert removed(again) == ["a-uid"]
