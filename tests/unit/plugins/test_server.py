"""The server of our plugins, over sockets."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_time import CPUTime
from cpupool.core.errors import CPUPoolError, HostFileError, RemoteProtocolError
from cpupool.loops.threads import OwnedThread
from cpupool.plugins.config_file import parse
from cpupool.plugins.cpu import CPUPlugin
from cpupool.plugins.load_sizing import PERIOD_S
from cpupool.plugins.pool_loop import PoolLoop
from cpupool.plugins.server import PluginServer
from cpupool.qrm.plugin_client import PluginError, ResourcePlugin, introduced
from tests.unit.plugins.asking import LAYOUT, ask
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.plugins.base import Plugin
    from cpupool.policies.qrm.questions import Question
    from cpupool.qrm.plugin_client import Introduction

POOLS = "pools: {online: {cpus: 76}, offline: {cpus: 4}}\nroles: {a: {pool: online}}\n"


@dataclass
class World:
    folder: Path
    failures: list[CPUPoolError] = field(default_factory=list)
    now_s: float = 0.0
    """The clock of the load: a pod uses four CPUs."""

    def made(self) -> Mapping[str, Plugin]:
        text = (self.folder / "etc/config.yaml").read_text()
        return {"cpu": CPUPlugin(LAYOUT, parse("f.yaml", text), "mark")}

    def cpu_time(self) -> CPUTime:
        return CPUTime(dict.fromkeys(LAYOUT.cpus, 0), {"web": round(4e6 * self.now_s)})

    def configure(self, text: str) -> None:
        path = self.folder / "etc/config.yaml"
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)

    @property
    def socket(self) -> Path:
        return self.folder / "sockets/cpupool-cpu.sock"

    @contextmanager
    def serving(self) -> Iterator[PluginServer]:
        server = PluginServer(
            ["cpu"],
            self.made,
            PoolLoop(self.cpu_time, self.folder / "pools.json", lambda: self.now_s),
            watched=self.folder / "etc",
            sockets=self.socket.parent,
            states=self.folder / "states",
        )
        stop = threading.Event()

        def run() -> None:
            try:
                server.run(stop)
            except CPUPoolError as error:
                self.failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield server
        finally:
            stop.set()
            server.wake()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def asked(self) -> ResourcePlugin:
        found: list[Introduction] = []

        def answers() -> bool:
            # A socket is there before it listens.
            with suppress(RemoteProtocolError):
                found.extend(filter(None, [introduced(self.socket)]))
            return bool(found)

        eventually(answers, "the plugin answers")
        return ResourcePlugin(found[0])

    def has(self, question: Question) -> str:
        return self.asked().allocations()[question.container]["cpu"].value


@pytest.fixture
def world(folder: Path) -> World:
    made = World(folder)
    made.configure(POOLS)
    return made


WEB = ask("web", 4, "a", says={"a": "kept"})


def test_a_state_outlives_the_process(world: World) -> None:
    with world.serving():
        answers = world.asked().allocate(WEB)
        assert answers["cpu"].value == "0-37,40-77"
    assert not world.socket.exists()
    with world.serving():
        assert world.has(WEB) == "0-37,40-77"
        world.asked().remove("web")
        world.asked().remove("web")
        assert world.asked().allocations() == {}
    assert world.failures == []


def test_an_edit_moves_the_containers_and_a_bad_one_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.serving():
        world.asked().allocate(WEB)
        world.configure(POOLS.replace("76", "28"))
        eventually(lambda: world.has(WEB) == "0-13,40-53", lambda: world.has(WEB))
        world.configure("pools: [")
        eventually(lambda: "change refused" in caplog.text, "the edit is refused")
        assert world.has(WEB) == "0-13,40-53"
        world.configure(POOLS)
        eventually(lambda: world.has(WEB) == "0-37,40-77", lambda: world.has(WEB))
    assert world.failures == []


def test_a_pool_follows_its_load(world: World) -> None:
    world.configure("pools: {online: {minCpus: 4}}\nroles: {a: {pool: online}}\n")
    with world.serving():
        assert world.asked().allocate(WEB)["cpu"].value == "0-1,40-41"
        # Any change makes it look.
        world.now_s += PERIOD_S
        world.configure("pools: {online: {minCpus: 3}}\nroles: {a: {pool: online}}\n")
        eventually(lambda: world.has(WEB) == "0-3,40-41", lambda: world.has(WEB))
        status = world.folder / "pools.json"
        eventually(lambda: "needs 6: from 4" in status.read_text(), status.read_text)
    with world.serving():
        assert world.has(WEB) == "0-3,40-41"
    assert world.failures == []


def test_a_state_that_cannot_be_written_gives_no_answer(world: World) -> None:
    with world.serving():
        plugin = world.asked()
        plugin.allocate(WEB)
        states = world.folder / "states"
        states.rename(world.folder / "gone")
        states.write_text("")
        with pytest.raises(PluginError, match="states"):
            plugin.allocate(ask("more", 1, "a"))
        assert list(plugin.allocations()) == [WEB.container]
        states.unlink()
        plugin.allocate(ask("more", 1, "a"))
        assert len(plugin.allocations()) == 2


def test_a_deleted_socket_is_made_again(world: World) -> None:
    with world.serving():
        world.asked()
        world.socket.unlink()
        # Any change makes it look.
        world.configure(POOLS)
        assert world.asked().resource == "cpu"


def test_a_second_process_waits_for_the_first(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.serving():
        world.asked().allocate(WEB)
        with world.serving():
            eventually(lambda: "waiting" in caplog.text, "the second one waits")
            assert world.has(WEB) == "0-37,40-77"
    assert world.failures == []


def test_a_socket_that_cannot_be_bound_ends_it(world: World) -> None:
    world.socket.parent.write_text("")
    with world.serving():
        eventually(lambda: world.failures, "it has ended")
    (failure,) = world.failures
    assert isinstance(failure, HostFileError)
    assert "cannot be bound" in str(failure)


@pytest.mark.parametrize("quantity", [math.nan, math.inf, -1.0, -0.0, 2.0**54])
def test_a_request_for_what_is_no_amount_is_refused_and_changes_nothing(
    world: World, quantity: float
) -> None:
    with world.serving():
        plugin = world.asked()
        plugin.allocate(WEB)
        with pytest.raises(PluginError, match="is not a quantity"):
            plugin.allocate(replace(WEB, quantity=quantity))
        with pytest.raises(PluginError, match="is not a quantity"):
            plugin.hints(replace(WEB, quantity=quantity))
        assert world.has(WEB) == "0-37,40-77"
    assert world.failures == []


def test_a_damaged_state_is_set_aside_and_the_plugin_is_asked_again(world: World) -> None:
    with world.serving():
        world.asked().allocate(WEB)
    (state,) = (world.folder / "states").glob("*.json")
    damaged = state.read_bytes()[:-9]
    state.write_bytes(damaged)
    with world.serving():
        assert world.asked().allocations() == {}
        assert world.asked().allocate(WEB)["cpu"].value == "0-37,40-77"
    assert state.with_name(f"{state.name}.corrupt").read_bytes() == damaged
    assert world.failures == []


def test_a_thread_that_hangs_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    release, hangs, answer = threading.Event(), threading.Event(), OwnedThread.answer

    def hang(owned: OwnedThread) -> None:
        if hangs.is_set():
            release.wait(DEADLINE_S)
        answer(owned)

    monkeypatch.setattr(OwnedThread, "answer", hang)
    # The owner may wait for the same thread.
    monkeypatch.setattr(OwnedThread, "check", lambda _owned: None)
    monkeypatch.setattr(OwnedThread, "hangs", property(lambda owned: owned.open_s > 0.05))
    with world.serving() as server:
        world.asked()
        hangs.set()
        eventually(lambda: server.hung() == "plugins", "its name")
        hangs.clear()
        release.set()
        eventually(lambda: server.hung() == "", "its answer")
