"""An agent, or the plugin that decides, is killed between two steps of an answer.

Whatever dies, a plugin allocates once for a container, no CPU has two owners, and every container
runs where it belongs.
"""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.names import Names
from cpupool.kube import views
from cpupool.local.pods import HostedPod
from tests import dying
from tests.machines import MACHINES
from tests.nri_pods import Container
from tests.nri_pods import Pod as NRIPod
from tests.nri_runtime import Refused
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    DEDICATED,
    POOLS,
    Plugin,
    body,
    cpus,
    right,
    run,
)
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.nri_runtime import FakeRuntime
    from tests.nri_runtime import Plugin as NRIPlugin
    from tests.processes import Process
    from tests.scenarios.test_agent_process import World

STEPS = (dying.PLANNED, *dying.STEPS)
GIVEN = {"first": "1-2", "own": "5-6"}
REST = "0,3-4,7"


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        yield world


class Bound:
    """Pods of dedicated cores that the scheduler has bound to the node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bodies: list[Any] = []
        self._attempts = 0

    def bind(self, *names: str) -> None:
        """Let the API server list more pods."""
        created = [views.created(body(name, DEDICATED, cpu="2"), f"{name}-uid") for name in names]
        self._bodies += [HostedPod(each, Names()).body for each in created]
        self._world.api.set_pods([*self._world.node.bodies()["items"], *self._bodies])

    def creates(self, plugin: NRIPlugin, name: str) -> str:
        """Let the runtime create a pod's container until that is not refused; return its CPUs."""
        answered: list[str] = []

        def created() -> bool:
            self._attempts += 1
            container = Container(NRIPod(f"{name}-uid", name), f"{name}-{self._attempts}")
            with suppress(Refused):
                answered.append(plugin.create(container).adjust.linux.resources.cpu.cpus)
            return bool(answered)

        eventually(created, f"{name} is created")
        return answered[0]


def agent(
    world: World, dies: str = "", victim: str = "own-uid", end: int = signal.SIGTERM
) -> AbstractContextManager[Process]:
    options = ("--resource-plugins", "--resource-plugin-reconcile=0.1")
    if not dies:
        return world.agent(*options)
    fate = {dying.DIES: dies, dying.VICTIM: victim}
    return world.agent(*options, environment=fate, program="tests.dying", end=end)


def giving(world: World, *, lists: bool = True) -> Plugin:
    """Make a plugin for the pods."""
    plugin = Plugin(world, need_reconcile=lists)
    plugin.gives = {name: cpus(text) for name, text in GIVEN.items()}
    return plugin


def gone(process: Process) -> None:
    eventually(lambda: process.process.poll() is not None, "the agent has died")


@pytest.mark.parametrize("step", STEPS)
def test_an_agent_that_is_killed_at_any_step_has_nothing_allocated_twice(
    world: World, runtime: FakeRuntime, step: str
) -> None:
    world.run("plain")
    bound = Bound(world)
    with giving(world) as plugin:
        with agent(world, step, end=signal.SIGKILL) as process:
            nri = runtime.welcome()
            process.await_line("plugins answer resources=cpu")
            bound.bind("first")
            assert bound.creates(nri, "first") == GIVEN["first"]
            bound.bind("own")
            answered = ""
            with suppress(ConnectionError):
                answered = bound.creates(nri, "own")
            gone(process)
        assert answered == (GIVEN["own"] if step == "answered" else "")

        world.disturb("plain", "0-15")
        with agent(world):
            nri = runtime.welcome()
            assert {name: bound.creates(nri, name) for name in GIVEN} == GIVEN
            world.await_containers({"plain/": REST, "plain/main": REST})
        assert plugin.allocated() == ["first", "own"]


def test_a_plugin_that_lists_nothing_may_be_asked_twice_and_its_last_answer_counts(
    world: World, runtime: FakeRuntime
) -> None:
    """Only if the agent is killed between the answer and the record: so it is in a kubelet."""
    bound = Bound(world)
    with giving(world, lists=False) as plugin:
        with agent(world, "chosen", end=signal.SIGKILL) as process:
            runtime.welcome()
            bound.bind("own")
            gone(process)
        assert plugin.allocated() == ["own"]
        plugin.gives["own"] = cpus("3-4")
        with agent(world) as process:
            nri = runtime.welcome()
            process.await_line("plugins answer resources=cpu")
            assert bound.creates(nri, "own") == "3-4"
    assert plugin.allocated() == ["own", "own"]


@pytest.mark.parametrize("step", ["chosen", "recorded"])
def test_an_agent_that_is_killed_at_a_change_by_the_plugin_makes_it_later(
    world: World, step: str
) -> None:
    with giving(world) as plugin:
        plugin.gives["web"] = cpus("1-4")
        with agent(world, step, '"value":"5-7"', end=signal.SIGKILL) as process:
            own, _ = run(world, "own", DEDICATED), run(world, "web")
            right(world, "0-4,7", own="5-6", web="1-4")
            plugin.now_gives(own, "5-7")
            gone(process)
        world.disturb("web", "0-15")
        with agent(world):
            right(world, "0-4", own="5-7", web="1-4")
    assert plugin.allocated() == ["own", "web"]


def test_a_plugin_that_dies_while_it_allocates_has_nothing_allocated_twice(
    world: World, runtime: FakeRuntime
) -> None:
    """It knows what it has given when it returns, and the agent has not heard it."""
    bound = Bound(world)
    dying_now, free = threading.Event(), threading.Event()
    first = giving(world)
    allocate = first.allocate

    def dies(request: bytes) -> bytes:
        answer = allocate(request)
        dying_now.set()
        free.wait(DEADLINE_S)
        return answer

    first.replies["Allocate"] = dies
    with agent(world) as process:
        nri = runtime.welcome()
        with first:
            process.await_line("plugins answer resources=cpu")
            bound.bind("own")
            eventually(dying_now.is_set, "the plugin allocates")
        free.set()
        first.socket.unlink(missing_ok=True)
        process.await_line("plugin is gone")
        again = giving(world)
        again.known = first.known
        with again:
            assert bound.creates(nri, "own") == GIVEN["own"]
    assert (first.allocated(), again.allocated()) == (["own"], [])


def test_a_plugin_that_has_lost_its_state_allocates_anew_and_nobody_shares(
    world: World, runtime: FakeRuntime
) -> None:
    world.run("plain")
    bound = Bound(world)
    with agent(world) as process:
        nri = runtime.welcome()
        with giving(world) as first:
            process.await_line("plugins answer resources=cpu")
            bound.bind("first", "own")
            assert {name: bound.creates(nri, name) for name in GIVEN} == GIVEN
        first.socket.unlink(missing_ok=True)
        again = giving(world)
        # CPU 2 is the other pod's until that has its new CPUs.
        again.gives = {"first": cpus("3-4"), "own": cpus("1-2")}
        with again:
            world.await_containers({"plain/": "0,5-7", "plain/main": "0,5-7"})
    assert sorted(again.allocated()) == ["first", "own"]
