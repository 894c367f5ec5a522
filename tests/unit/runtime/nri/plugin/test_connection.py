from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from cpupool.api import nri_pb2
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.connection import Connection, Launch
from tests.nri_agents import OWNER, PLAIN, Agent, cpu_of, of
from tests.nri_runtime import FIRST_EVENTS, FakeRuntime
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_runs_is_corrected_when_the_plugin_comes(agent: Agent, runtime: FakeRuntime) -> None:
    running = nri_pb2.CONTAINER_RUNNING
    owner = of(OWNER, "owner", cpus="2", devices={"exclusive_a": "2"}, state=running)
    there = [
        of(PLAIN, "right", cpus="0", state=running),
        of(PLAIN, "wrong", cpus="0-7", state=running),
        of(PLAIN, "nobodys", state=running),
        of(PLAIN, "not-started"),
        of(PLAIN, "over", cpus="0-7", state=nri_pb2.CONTAINER_STOPPED),
        agent.allocated(owner),
        of(PLAIN, "garbage", cpus="banana", state=running),
    ]
    with agent.running():
        plugin = runtime.accept()
        plugin.configure()
        updates = plugin.synchronize(there)
        assert {one.container_id: one.linux.resources.cpu.cpus for one in updates} == {
            "wrong": "0",
            "not-started": "0",
        }
        eventually(agent.runtime.connected, "the plugin is connected")
        # Some runtimes start one while they name it, and do not tell.
        assert not agent.runtime.starting(ContainerID("not-started"))
        # The runtime has no list for these, so they are written directly.
        assert agent.runtime.cpu_list(ContainerID("nobodys")) == ""
        assert agent.runtime.cpu_list(ContainerID("over")) is None
        assert agent.metric("cpupool_nri_connected 1.0")
        assert agent.looked.acquire(timeout=DEADLINE_S)


def test_it_comes_back_when_the_runtime_does(agent: Agent, runtime: FakeRuntime) -> None:
    with agent.running():
        first = runtime.welcome([of(PLAIN, cpus="0", state=nri_pb2.CONTAINER_RUNNING)])
        eventually(agent.runtime.connected, "the plugin is connected")
        first.create(agent.allocated(of(OWNER, "c2", devices={"exclusive_a": "2"})))
        agent.manager.observe(pods=[OWNER])
        first.creating(of(OWNER, "c3", name="other"))
        first.hang_up()
        second = runtime.accept()
        assert not agent.runtime.connected()
        # What the runtime has is remembered: it may be reached another way.
        assert agent.runtime.cpu_list(ContainerID("c1")) == "0"
        assert not agent.runtime.starting(ContainerID("c2"))
        second.configure()
        second.synchronize()
        eventually(agent.runtime.connected, "the plugin is connected again")
        assert agent.runtime.cpu_list(ContainerID("c1")) is None


def test_without_a_runtime_it_tries_again(agent: Agent, folder: Path) -> None:
    agent.required = True
    agent.__post_init__()
    with agent.running():
        eventually(lambda: "nri.sock" in str(agent.health.ready()), "the probe tells why")
        with FakeRuntime(folder / "nri.sock") as runtime:
            runtime.welcome()
            eventually(lambda: agent.health.ready().ok, "the node is ready")


def test_a_runtime_that_refuses_as_its_socket_appears_is_reached_soon(
    agent: Agent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of two pauses in a row the second lasts for ever.
    monkeypatch.setattr("cpupool.runtime.nri.plugin._PAUSES_S", (0.0, 100 * DEADLINE_S))
    reach = Connection.to
    attempts: list[str] = []
    refused = threading.Event()

    def recorded(path: Path, timeout_s: float) -> Connection:
        try:
            return reach(path, timeout_s)
        except RemoteProtocolError as error:
            attempts.append(str(error))
            if "Connection refused" in str(error):
                made.listen()
                refused.set()
            raise

    monkeypatch.setattr(Connection, "to", recorded)
    with agent.running():
        eventually(lambda: len(attempts) == 2, "no pause follows but the last")
        with FakeRuntime(folder / "nri.sock", listens=False) as made:
            agent.plugin.wake()
            assert refused.wait(DEADLINE_S)
            made.accept()


def test_its_end_is_not_overheard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(folder / "nri.sock", ready=False)
    monkeypatch.setattr("cpupool.runtime.nri.plugin._LOOK_S", 10 * DEADLINE_S)

    class Stop(threading.Event):
        """Set by somebody the moment after it was looked at first."""

        def is_set(self) -> bool:
            was = super().is_set()
            self.set()
            agent.plugin.wake()
            return was

    loop = threading.Thread(target=agent.plugin.run, args=(Stop(),), daemon=True)
    loop.start()
    loop.join(DEADLINE_S)
    assert not loop.is_alive()


def test_it_waits_until_it_is_known_who_owns_which_cpu(folder: Path, runtime: FakeRuntime) -> None:
    agent = Agent(folder / "nri.sock", ready=False)
    with agent.running():
        agent.ready = True
        agent.plugin.wake()
        runtime.welcome()


def test_a_plugin_that_the_runtime_has_started_serves_at_once_and_ends_with_it(
    runtime: FakeRuntime, folder: Path
) -> None:
    ours, its = socket.socketpair()
    launch = Launch(ours.detach(), "cpupool", "07")
    agent = Agent(folder / "nri.sock", ready=False, launch=launch)
    ended: list[RemoteProtocolError] = []

    def run() -> None:
        try:
            agent.plugin.run(threading.Event())
        except RemoteProtocolError as error:
            ended.append(error)

    loop = threading.Thread(target=run)
    loop.start()
    plugin = runtime.adopt(its)
    assert plugin.registered.result().plugin_idx == "07"
    plugin.configure()
    assert not plugin.synchronize([of(PLAIN, cpus="0-7", state=nri_pb2.CONTAINER_RUNNING)])
    # Until it is known who owns what, only what Allocate has answered is certain.
    assert not plugin.create(of(PLAIN, cpus="0-3")).HasField("adjust")
    assert agent.runtime.cpu_list(ContainerID("c1")) == "0-3"
    owner = agent.allocated(of(OWNER, "c2", devices={"exclusive_a": "2"}))
    assert cpu_of(plugin.create(owner)).cpus == "2"
    plugin.hang_up()
    loop.join(DEADLINE_S)
    assert ended


def test_an_old_runtime_is_served_too(agent: Agent, folder: Path) -> None:
    with (
        FakeRuntime(folder / "nri.sock", dedicated=False, events=FIRST_EVENTS) as runtime,
        agent.running(),
    ):
        plugin = runtime.welcome()
        container = of(PLAIN, own_labels=False)
        plugin.run_sandbox(container.pod)
        assert cpu_of(plugin.create(container)).cpus == "0"
        plugin.start(container)
        assert not agent.runtime.starting(ContainerID("c1"))
