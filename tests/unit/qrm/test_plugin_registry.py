"""Which plugin has the place of a resource, and when it hears of that."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api.pluginregistration_pb2 import PluginInfo
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.plugin_client import Introduction, PluginError
from cpupool.qrm.plugin_registry import MOST_ASKED, MOST_NAMES, PluginRegistry
from cpupool.qrm.question_table import GRACE_S
from tests.resource_plugins import PluginDouble, Refusal
from tests.unit.qrm.test_resource_manager import Node
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.qrm.plugin_worker import PluginWorker


class Registrations:
    """A registry whose role is the test.

    Attributes:
        events: which socket has got the place of a resource, or that it is vacant.
        refused: resource → why no plugin may serve it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened = ExitStack()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.events: list[tuple[str, str]] = []
        self.refused: dict[str, str] = {}
        self.registry = PluginRegistry(
            [folder],
            self._inbox.put,
            changed=lambda: None,
            registered=self._note,
            refuses=lambda resource: self.refused.get(resource, ""),
            observe=lambda _call: None,
        )
        self._opened.callback(self.registry.stop)

    def _note(self, resource: str, worker: PluginWorker | None) -> None:
        self.events.append((resource, worker.socket.name if worker else "vacant"))

    def close(self) -> None:
        self._opened.close()

    def plugin(self, name: str, resource: str = "cpu") -> PluginDouble:
        return self._opened.enter_context(PluginDouble(self.folder / f"{name}.sock", resource))

    def dead(self, *names: str) -> None:
        """Leave sockets at which no plugin listens."""
        for name in names:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
                left.bind(str(self.folder / f"{name}.sock"))

    def until(self, condition: Callable[[], object]) -> None:
        """Look, as the role does, until something holds."""

        def looked() -> object:
            self.registry.look()
            while not self._inbox.empty():
                self._inbox.get()()
            return condition()

        eventually(looked, lambda: f"{self.events} {sorted(self.registry.plugins)}")

    def expected(self) -> bool:
        return self.registry.expected

    def introduced(self) -> Callable[[], None]:
        """Wait until a plugin has said who it is; return what gives it the place."""
        self.registry.look()
        return self._inbox.get(timeout=DEADLINE_S)


@pytest.fixture
def role(tmp_path: Path) -> Iterator[Registrations]:
    made = Registrations(tmp_path)
    yield made
    made.close()


def notified(plugin: PluginDouble) -> Any:
    return lambda: plugin.asked["NotifyRegistrationStatus"]


def test_a_plugin_is_notified_once_it_has_the_place(role: Registrations) -> None:
    plugin = role.plugin("cpu")
    take_the_place = role.introduced()
    assert not plugin.asked["NotifyRegistrationStatus"]
    take_the_place()
    eventually(notified(plugin), "the plugin is notified")
    assert role.events == [("cpu", "cpu.sock")]


def test_a_plugin_is_expected_until_it_has_the_place_or_cannot_have_it(role: Registrations) -> None:
    assert role.expected(), "no folder has been read yet"
    role.registry.look()
    assert not role.expected()
    role.plugin("cpu")
    take_the_place = role.introduced()
    assert role.expected()
    take_the_place()
    assert not role.expected()

    role.plugin("new")
    take_the_place = role.introduced()
    assert role.expected()
    take_the_place()
    assert not role.expected()

    role.refused["nic"] = "it is a pool"
    role.plugin("refused", "nic")
    role.introduced()()
    assert not role.expected()
    other = role.plugin("other")
    other.answers("GetInfo", PluginInfo(type="CSIPlugin", name="nic"))
    role.introduced()()
    assert not role.expected()
    role.dead("dead")
    role.introduced()()
    assert not role.expected()
    assert set(role.registry.plugins) == {"cpu"}


def test_a_replacement_that_fails_leaves_the_place_to_no_plugin(role: Registrations) -> None:
    old = role.plugin("old")
    role.introduced()()
    eventually(notified(old), "the old plugin is notified")
    new = role.plugin("new")
    new.answers("NotifyRegistrationStatus", Refusal(grpc.StatusCode.INTERNAL))
    role.introduced()()
    # As in the kubelet: a plugin that cannot be notified has the place.
    eventually(notified(new), "the new plugin is notified")
    assert role.registry.plugins["cpu"].socket == new.socket

    new.socket.unlink()
    role.registry.look()
    assert role.events == [("cpu", "old.sock"), ("cpu", "new.sock"), ("cpu", "vacant")]
    assert not role.registry.plugins


def test_a_replaced_plugin_that_ends_leaves_the_place_alone(role: Registrations) -> None:
    old = role.plugin("old")
    role.introduced()()
    role.plugin("new")
    role.introduced()()
    old.socket.unlink()
    role.registry.look()
    assert role.events == [("cpu", "old.sock"), ("cpu", "new.sock")]


FUTURE_NS = 2**62


def test_a_socket_with_a_dot_in_front_is_not_asked(role: Registrations) -> None:
    role.dead(".web")
    role.registry.look()
    assert threads() == 0
    role.plugin("web")
    role.until(lambda: role.registry.plugins)
    assert threads() == 1


def threads() -> int:
    return sum(thread.name.startswith("plugin ") for thread in threading.enumerate())


def test_of_many_sockets_those_that_serve_and_the_youngest_are_asked(role: Registrations) -> None:
    role.plugin("a")
    role.until(lambda: role.registry.plugins)
    role.dead(*(f"dead-{number}" for number in range(300)))
    role.registry.look()
    assert threads() == MOST_ASKED

    young = role.plugin("z", "memory")
    os.utime(young.socket, ns=(FUTURE_NS, FUTURE_NS))
    role.until(lambda: "memory" in role.registry.plugins)
    assert threads() <= MOST_ASKED
    assert role.events == [("cpu", "a.sock"), ("memory", "z.sock")]


def test_a_plugin_that_registers_by_a_call_takes_the_place_of_a_dead_socket(
    role: Registrations,
) -> None:
    calls = role.plugin("calls")
    os.utime(calls.socket, ns=(1, 1))
    role.dead(*(f"dead-{number}" for number in range(100)))
    role.registry.look()
    role.registry.register(Introduction("cpu", calls.socket, PluginOptions()))
    assert len(role.registry.workers) == MOST_ASKED
    role.until(lambda: "cpu" in role.registry.plugins)
    role.registry.look()
    assert role.events == [("cpu", "calls.sock")]


def test_a_plugin_that_registers_again_and_again_changes_nothing(role: Registrations) -> None:
    plugin = role.plugin("cpu")
    known = Introduction("cpu", plugin.socket, PluginOptions())
    for _ in range(100):
        role.registry.register(known)
    role.until(lambda: role.registry.plugins)
    (worker,) = role.registry.workers
    role.registry.register(known)
    assert role.registry.workers == [worker]
    assert role.events == [("cpu", "cpu.sock")]

    # With other options it is another plugin.
    role.registry.register(known._replace(options=PluginOptions(reconciled=True)))
    role.until(lambda: len(role.events) == 3)
    assert role.events[1:] == [("cpu", "vacant"), ("cpu", "cpu.sock")]


def test_plugins_that_serve_keep_their_places_from_one_too_many(role: Registrations) -> None:
    known = [
        Introduction(f"r-{number}", role.plugin(f"p-{number}").socket, PluginOptions())
        for number in range(MOST_ASKED)
    ]
    for each in known:
        role.registry.register(each)
    role.until(lambda: len(role.registry.plugins) == MOST_ASKED)
    late = role.plugin("late", "late")
    role.registry.register(Introduction("late", late.socket, PluginOptions()))
    role.until(lambda: True)
    assert set(role.registry.plugins) == {each.resource for each in known}


def test_a_plugin_that_registers_a_path_that_cannot_be_is_not_asked(role: Registrations) -> None:
    for name in ("a\0b", "a" * 5000, "\udcff"):
        role.registry.register(Introduction("cpu", role.folder / name, PluginOptions()))
    assert not role.registry.workers


def test_a_plugin_that_is_refused_hears_why_and_is_asked_again_once_it_may(
    role: Registrations,
) -> None:
    role.refused["cpu"] = "no room"
    plugin = role.plugin("cpu")
    role.until(notified(plugin))
    assert b"no room" in plugin.asked["NotifyRegistrationStatus"][0]
    role.registry.register(Introduction("cpu", plugin.socket, PluginOptions()))
    (worker,) = role.registry.workers
    assert worker.complaint == "no room"
    assert not role.events
    role.refused.clear()
    role.until(lambda: role.events == [("cpu", "cpu.sock")])


def test_names_that_a_plugin_makes_up_are_bounded_and_end(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.start()
        makes_up_names(node)


def makes_up_names(node: Node) -> None:
    plugin = node.plugin("example.com/nic", name="nic")
    node.run()
    node.until(lambda: plugin.asked["NotifyRegistrationStatus"])
    came = [node.knock(f"example.com/r{number}", plugin) for number in range(200)]
    assert came.count("") == MOST_NAMES - 1
    assert "64 resources, and more are not taken; end those that make up names" in came[-1]
    assert len(node.manager.snapshot().facts.plugins.served) == MOST_NAMES
    assert "is a pool of cpupool" in node.knock("nokia.k8s.io/exclusive_a", plugin)
    assert ("PluginRefused", came[-1]) in node.events.nodes

    # So are plugins in a folder; they are taken once there is room.
    late = node.plugin("example.com/late", name="late")
    node.until(lambda: late.asked["NotifyRegistrationStatus"])
    assert b"64 resources" in late.asked["NotifyRegistrationStatus"][0]
    assert "example.com/late" not in node.manager.snapshot().facts.plugins.served
    node.now_s += GRACE_S + 1
    node.until(lambda: "example.com/late" in node.manager.snapshot().facts.plugins.served)
    node.role.step()
    assert len(node.manager.snapshot().facts.plugins.served) == 2
    assert "example.com/r5" not in node.metrics.render()[1].decode()


def test_the_error_of_a_plugin_has_no_frame_of_its_call(role: Registrations) -> None:
    found: list[object] = []
    role.plugin("cpu")
    role.until(lambda: role.registry.plugins)
    role.registry.plugins["cpu"].ask(lambda plugin: plugin.allocations(), found.append)
    role.until(lambda: found)
    (error,) = found
    assert isinstance(error, PluginError)
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)
