from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.memory_keeper import MemoryKeeper
from cpupool.core.assignments import MemoryNodes
from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import PluginFacts
from cpupool.enforce.sweep import SweepReport
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.loops.threads import ThreadFailed
from tests import builders, loops
from tests.events import Heard
from tests.memory import Beats, MemoryModel, having, on
from tests.setters import EVERYTHING, Node, owner_on_2
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cpupool.manager.resolve import Snapshot

WANTED = {"owner": MemoryNodes(on("1"), migrates=True), "plain": MemoryNodes(on("1"))}


class SlowModel(MemoryModel):
    """A kernel whose writes take until a test lets them end.

    Attributes:
        begun: released at each write.
        let: a write waits for it.
        bug: what a write raises that is no error of cpupool.
        written: called after each write.
    """

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Event()
        self.let.set()
        self.bug: Exception | None = None
        self.written: Callable[[], None] = lambda: None
        super().__init__(CgroupVersion.V2, {})

    def write(self, path: str, cpus: CPUSet) -> None:
        self.begun.release()
        assert self.let.wait(DEADLINE_S)
        if self.bug:
            raise self.bug
        super().write(path, cpus)
        self.written()


@dataclass
class World:
    """A node whose cpusetter the memory keeper follows."""

    node: Node = field(default_factory=owner_on_2)
    memory: SlowModel = field(default_factory=SlowModel)
    wanted: dict[str, MemoryNodes] = field(default_factory=lambda: dict(WANTED))
    events: Heard = field(default_factory=Heard)
    health: Beats = field(default_factory=Beats)
    sweeps: int = 0

    def __post_init__(self) -> None:
        for path in self.node.kernel.sets:
            self.memory.make(path, "0-1" if path.count("/") < 2 else "0")
        self.keeper = MemoryKeeper(
            self._decided,
            self.memory,
            placed={},
            look=self.sweep,
            telemetry=builders.telemetry(events=self.events, health=self.health),
        )

    def _decided(self) -> Snapshot:
        now = self.node.manager.snapshot()
        return now._replace(resolution=having(now.resolution, self.wanted))

    def sweep(self) -> None:
        self.sweeps += 1
        self.keeper.swept(self.node.setter.sweep())

    def turn(self) -> None:
        """Sweep, and let the turn that follows come to its end."""
        self.sweep()
        self.keeper.turn()

    def nodes(self, pod: str) -> str:
        return str(self.memory.effective(self.node.path(pod)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the loop run; whatever a test does, no write waits at the end."""
        try:
            with loops.running(self.keeper.run, wake=self.keeper.wake):
                yield
        finally:
            self.memory.let.set()


def test_a_sweep_begins_a_turn_and_the_cpus_are_right_before() -> None:
    world = World()
    with world.running():
        world.node.kernel.write(world.node.path("owner"), CPUSet.parse(EVERYTHING))
        assert world.nodes("owner") == "0"
        world.sweep()
        eventually(lambda: world.nodes("owner") == "1", "the memory is on its node")
    assert world.node.cpus("owner") == "2"
    assert world.nodes("plain") == "0", "it may not be migrated"


def test_cpus_are_repaired_while_a_write_hangs_and_the_end_does_not_wait() -> None:
    world = World()
    world.memory.let.clear()
    with world.running():
        world.sweep()
        assert world.memory.begun.acquire(timeout=DEADLINE_S)
        world.node.kernel.write(world.node.path("owner"), CPUSet.parse(EVERYTHING))
        world.sweep()
        assert world.node.cpus("owner") == "2"
        assert world.nodes("owner") == "0", "the write hangs"
        beats = world.health.beats
        eventually(lambda: world.health.beats != beats, "it beats meanwhile")


def test_no_write_begins_after_the_end() -> None:
    world = World(wanted=dict.fromkeys(WANTED, WANTED["owner"]))
    world.memory.let.clear()
    with world.running():
        world.sweep()
        assert world.memory.begun.acquire(timeout=DEADLINE_S)
    eventually(lambda: "1" in {world.nodes(pod) for pod in WANTED}, "the write has ended")
    assert not world.memory.begun.acquire(blocking=False)


def test_a_missed_node_is_an_event_and_a_try_that_is_due_begins_with_a_sweep() -> None:
    world = World(wanted={"owner": MemoryNodes(on("7"), migrates=True)})
    with world.running():
        world.sweep()
        # The Event comes once the state has lasted, with the report of a later sweep.
        eventually(lambda: world.events.pods, "the pod has an Event")
    ((pod, reason, message),) = world.events.pods
    assert (pod, reason) == ("owner", "MemoryNodesMissed")
    assert "no memory on NUMA node 7; this machine has memory on 0-1" in message
    assert world.sweeps > 1


def test_a_bug_in_a_write_ends_the_loop() -> None:
    world = World()
    world.memory.bug = RuntimeError("a bug")
    world.sweep()
    with pytest.raises(ThreadFailed, match="a bug"):
        world.keeper.run(threading.Event())


def test_a_container_that_ran_without_a_wish_is_not_new() -> None:
    world = World(wanted={})
    world.turn()
    world.node.run("late")
    world.memory.make("kubepods/podlate-uid", "0-1")
    world.memory.make(world.node.path("late"), "0")
    world.turn()
    world.wanted = {"late": WANTED["plain"]}
    world.turn()
    assert world.nodes("late") == "0"


def test_a_container_that_is_new_gets_its_nodes() -> None:
    world = World()
    world.turn()
    world.node.run("late")
    world.memory.make("kubepods/podlate-uid", "0-1")
    world.memory.make(world.node.path("late"), "0")
    world.wanted["late"] = WANTED["plain"]
    world.turn()
    assert world.nodes("late") == "1"


def test_a_sweep_that_waits_for_facts_makes_no_container_new() -> None:
    world = World()
    world.turn()
    world.keeper.swept(SweepReport(waiting_for="the pods"))
    world.keeper.turn()
    world.turn()
    assert world.nodes("plain") == "0", "it may not be migrated"


def test_without_memory_nodes_only_another_state_of_the_node_begins_a_turn() -> None:
    world = World(wanted={})
    world.node.manager.observe(plugins=PluginFacts(enabled=True))
    with world.running():
        eventually(lambda: world.health.beats == 1, "the loop runs")
        world.sweep()
        eventually(lambda: world.health.beats == 2, "the first look")
        world.sweep()
        world.node.run("late")
        world.sweep()
        eventually(lambda: world.health.beats >= 3, "a container has come")
        assert world.health.beats == 3


def test_where_no_plugin_can_name_memory_nodes_no_sweep_begins_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, turns = World(wanted={}), Queue[None]()

    def turn() -> float:
        turns.put(None)
        return math.inf

    monkeypatch.setattr(world.keeper, "turn", turn)
    with world.running():
        eventually(lambda: world.health.beats == 1, "the loop runs")
        world.sweep()
        world.node.run("late")
        world.sweep()
        world.keeper.wake()
        eventually(lambda: world.health.beats >= 2, "it has looked")
        assert turns.empty()
        # The answer of an earlier agent counts, and so does its end.
        for wanted in ({"owner": WANTED["owner"]}, {}):
            world.wanted = wanted
            world.node.run(f"later-{len(wanted)}")
            world.sweep()
            turns.get(timeout=DEADLINE_S)


def test_a_turn_ends_with_the_role() -> None:
    world = World(wanted=dict.fromkeys(WANTED, WANTED["owner"]))
    world.sweep()
    stop = threading.Event()
    world.memory.written = stop.set
    world.keeper.run(stop)
    assert sorted(world.nodes(pod) for pod in WANTED) == ["0", "1"]
