"""Every thread of the agent is ended, and every loop is made to hang: nothing ends in silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cpupool.agent import pod_failer
from cpupool.agent.app import Agent
from cpupool.agent.changes import Change
from cpupool.api.deviceplugin_pb2 import Empty
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.loops import supervisor
from cpupool.loops.supervisor import LoopFailed
from cpupool.loops.threads import SILENT_S, OwnedThread, ThreadFailed
from cpupool.telemetry.health import Health
from tests.kubelets import dial
from tests.machines import MACHINES
from tests.processes import Process
from tests.scenarios.test_agent_process import NODE, POOLS, living
from tests.unit.agent.test_app import get
from tests.victim import CONTROLLER
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenarios.test_agent_process import World

SERVING = "device plugins"
LOOPS = {
    "compactor",
    "configurator",
    "cpusetter",
    "device manager",
    "event recorder",
    "load watcher",
    "machine watcher",
    "node watch",
    "nri plugin",
    "pod watch",
    "memory keeper",
    "mount keeper",
    "own CPUs keeper",
    "pod failer",
    "reporter",
}
"""What has a heartbeat."""
OWNED = {
    SERVING,
    "watch FOLDER/etc",
    "watch FOLDER/var/lib/kubelet/device-plugins",
    "watch FOLDER/sys/fs/cgroup/cpuset",
    "watch FOLDER/sys/fs/cgroup/cpuset/kubepods",
}
STREAMS = {"cpupool-exclusive_a.sock", "cpupool-shared_b.sock"}
"""What waits for another list, for the kubelet: it takes the stream with it."""
MAIN = "MainThread"


class Victim(Process):
    """An agent whose threads can be ended."""

    def __init__(self, *options: str | os.PathLike[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.victim", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("COV_CORE", "COVERAGE"))
            },
        )
        self.lines = []

    def threads(self) -> set[str]:
        return self._ask("")

    def await_threads(self, known: set[str], folder: Path) -> None:
        """Wait until it has exactly these threads; in their names, FOLDER stands for a folder."""

        def others() -> set[str]:
            return known ^ named(self.threads(), folder)

        eventually(lambda: not others(), lambda: str(others()))

    def end(self, thread: str) -> None:
        self._ask(thread)

    def _ask(self, line: str) -> set[str]:
        question, answer = self.process.stdin, self.process.stdout
        assert question
        assert answer
        question.write(f"{line}\n")
        question.flush()
        return set(iter(lambda: answer.readline().strip(), ""))

    @contextmanager
    def collecting(self, end: int = signal.SIGTERM) -> Iterator[Victim]:
        with self.process, super().collecting(end):
            yield self


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        # Its cgroup is there to be watched from the start.
        world.run_now("plain")
        yield world


@contextmanager
def agent(world: World) -> Iterator[Victim]:
    """Start an agent, and wait until the kubelet listens to each pool."""
    victim = Victim(
        *("agent", "--host-root", world.folder, "--config", world.mount.folder),
        *("--api-server", world.api.url, "--node-name", NODE, "--metrics-port", "1"),
    )
    with victim.collecting():
        world.await_pool("exclusive_a", 4)
        world.await_pool("shared_b", 2000)
        eventually(lambda: named(victim.threads(), world.folder) >= OWNED, "the watches")
        yield victim


def named(threads: set[str], folder: Path) -> set[str]:
    return {name.replace(str(folder), "FOLDER") for name in threads}


def serves(world: World) -> bool:
    """Return whether a device plugin answers; where its thread has ended, once the process has."""
    with dial(world.folder / "var/lib/kubelet/device-plugins/cpupool-shared_b.sock") as channel:
        try:
            DevicePluginStub(channel).GetDevicePluginOptions(Empty(), timeout=DEADLINE_S)
        except grpc.RpcError:
            return False
    return True


def test_every_thread_is_known(world: World) -> None:
    known = LOOPS | OWNED | STREAMS | {MAIN, CONTROLLER, "telemetry"}
    with agent(world) as victim:
        victim.await_threads(known, world.folder)


def test_the_agent_has_no_thread_that_python_does_not_know(world: World) -> None:
    """Those of gRPC's C core wake all the time, the more of them the more CPUs there are."""
    with agent(world) as victim:
        process = Path(f"/proc/{victim.process.pid}")
        assert "cygrpc" not in (process / "maps").read_text()
        eventually(
            lambda: len(list((process / "task").iterdir())) == len(victim.threads()),
            lambda: str([(task / "comm").read_text() for task in (process / "task").iterdir()]),
        )


@pytest.mark.parametrize("thread", sorted(LOOPS | OWNED | {MAIN, "telemetry"}))
def test_a_thread_that_is_ended_ends_the_process(world: World, thread: str) -> None:
    with agent(world) as victim:
        victim.end(thread.replace("FOLDER", str(world.folder)))
        # An event loop goes on where the exception meets a callback.
        while thread == SERVING and serves(world):
            # The process may end meanwhile.
            with suppress(BrokenPipeError):
                victim.end(thread)
        eventually(lambda: victim.process.poll() is not None, lambda: victim.log)
        assert victim.process.returncode == 1, victim.log
    if thread in LOOPS:
        assert f"cpupool: the {thread} stopped: Ended; this process must be started" in victim.log


@pytest.mark.parametrize("thread", sorted(STREAMS))
def test_a_stream_that_is_ended_is_made_again(world: World, thread: str) -> None:
    resource = thread.removeprefix("cpupool-").removesuffix(".sock")
    registered = f"device plugin registered resource=nokia.k8s.io/{resource}"
    with agent(world) as victim:
        # The kubelet has the first list before the wait for another one begins.
        eventually(lambda: thread in victim.threads(), lambda: f"{thread}: {victim.threads()}")
        victim.end(thread)
        eventually(lambda: victim.log.count(registered) == 2, lambda: victim.log)
        world.run("late", **{resource: 1})
    assert victim.process.returncode == 0


@pytest.mark.parametrize("thread", sorted(OWNED))
def test_an_owned_thread_that_hangs_ends_the_agent(
    world: World, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    name = thread.replace("FOLDER", str(world.folder))
    release, failures = threading.Event(), list[str]()
    run, answer, check = Agent.run, OwnedThread.answer, OwnedThread.check

    def hang(owned: OwnedThread) -> None:
        if owned.name == name:
            release.wait(DEADLINE_S)
        answer(owned)

    def check_late(owned: OwnedThread) -> None:
        if owned.name == name and owned._asked_s is not None:
            owned._asked_s -= SILENT_S
        try:
            check(owned)
        except ThreadFailed:
            release.set()
            raise

    def run_to_failure(agent: Agent, stop: threading.Event) -> None:
        try:
            run(agent, stop)
        except LoopFailed as error:
            failures.append(str(error))

    monkeypatch.setattr(Agent, "run", run_to_failure)
    monkeypatch.setattr(OwnedThread, "answer", hang)
    monkeypatch.setattr(OwnedThread, "check", check_late)
    with world.agent_here() as agent:

        def ended() -> list[str]:
            agent.wake()
            agent._device_manager.wake()
            return failures

        eventually(ended, "its end")
    assert f"the thread {name!r} has not answered for {SILENT_S:g} s; this process" in failures[0]


def test_a_server_that_hangs_is_not_ready_at_once_and_ends_the_agent_without_its_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, hangs, failures = threading.Event(), threading.Event(), list[str]()
    run, answer = Agent.run, OwnedThread.answer

    def hang(owned: OwnedThread) -> None:
        if owned.name == SERVING and hangs.is_set():
            release.wait(DEADLINE_S)
        answer(owned)

    def run_to_failure(agent: Agent, stop: threading.Event) -> None:
        try:
            run(agent, stop)
        except LoopFailed as error:
            failures.append(str(error))

    found: list[str] = []

    def hang_to_the_end(owned: OwnedThread) -> bool:
        hangs = owned.name == SERVING and owned.late
        if hangs:
            found.append(owned.name)
        if len(found) > 1:
            # The agent ends, and what the thread serves is to be closed.
            release.set()
        return hangs

    monkeypatch.setattr(supervisor, "_LOOK_S", 0.05)
    monkeypatch.setattr(Agent, "run", run_to_failure)
    monkeypatch.setattr(OwnedThread, "answer", hang)
    # The owner may wait for the same thread.
    monkeypatch.setattr(OwnedThread, "check", lambda _owned: None)
    with world.agent_here() as agent:
        eventually(lambda: get(agent, "/readyz")[0] == 200, "a ready agent")
        hangs.set()
        told = "device plugins: failing: it has not answered for "
        eventually(lambda: told in get(agent, "/readyz")[1], lambda: get(agent, "/readyz")[1])
        assert get(agent, "/healthz")[0] == 200
        monkeypatch.setattr(OwnedThread, "hangs", property(hang_to_the_end))
        eventually(lambda: failures, "its end")
    assert "the device plugins stopped: it hangs; this process must be started" in failures[0]


def test_a_loop_that_hangs_is_named_by_the_probe(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging: dict[str, threading.Event] = {}
    hung: set[str] = set()
    now_s, beats = [time.monotonic()], Health.beat

    def beat(health: Health, loop: str) -> None:
        if release := hanging.get(loop):
            hung.add(loop)
            release.wait(DEADLINE_S)
        beats(health, loop)

    monkeypatch.setattr(Health, "beat", beat)
    # The time that this test lets pass ends no agent.
    monkeypatch.setattr(supervisor, "_LOOK_S", 10 * DEADLINE_S)
    with world.agent_here() as agent:
        monkeypatch.setattr(agent.health, "_clock_s", lambda: now_s[0])
        world.await_pool("exclusive_a", 4)

        def failing() -> set[str]:
            for change in (Change.CLUSTER, Change.POOLS, Change.READINESS):
                agent._signals.tell(change)
            agent._cluster.wake()
            agent._reporter.wake()
            for keeper in (agent._enforcement.memory_keeper, agent._enforcement.own_cpus_keeper):
                keeper.wake()
            # No sweep wakes the pod failer of a node whose pods never fail.
            agent._cluster_writers[pod_failer.NAME].wake()
            lines = get(agent, "/healthz")[1].splitlines()
            return {line.partition(":")[0] for line in lines if ": failing: silent for" in line}

        for loop in sorted(LOOPS):
            release = hanging[loop] = threading.Event()
            # A beat that has begun must not come after the time has passed.
            eventually(partial(lambda loop: not failing() and loop in hung, loop), f"{loop} hangs")
            # Each of the others must beat again before it is known which one hangs.
            now_s[0] += 1000
            eventually(partial(lambda loop: failing() == {loop}, loop), lambda: str(failing()))
            del hanging[loop]
            release.set()
            eventually(lambda: not failing(), lambda: str(failing()))
