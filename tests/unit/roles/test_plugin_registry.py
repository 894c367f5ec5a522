"""Which plugin has the place of a resource, and when it hears of that."""

from __future__ import annotations

from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.roles.plugin_registry import PluginRegistry
from tests.resource_plugins import PluginDouble, Refusal
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.roles.plugin_worker import PluginWorker


class Registrations:
    """A registry whose role is the test.

    Attributes:
        events: which socket has got the place of a resource, or that it is vacant.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = ExitStack()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.events: list[tuple[str, str]] = []
        self.registry = PluginRegistry(
            [folder],
            self._inbox.put,
            changed=lambda: None,
            registered=self._note,
            observe=lambda _call: None,
        )
        self._opened.callback(self.registry.stop)

    def _note(self, resource: str, worker: PluginWorker | None) -> None:
        self.events.append((resource, worker.socket.name if worker else "vacant"))

    def close(self) -> None:
        self._opened.close()

    def plugin(self, name: str) -> PluginDouble:
        return self._opened.enter_context(PluginDouble(self._folder / f"{name}.sock"))

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
