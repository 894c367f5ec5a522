"""What the mover says of containers between two sweeps."""

from __future__ import annotations

import math

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.enforce.mover import Mover
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.runtimes import without_runtime
from tests.setters import EVERYTHING, MACHINE, Node, ids


class World:
    """A node with a plain container, its mover, and what a sweep does of both."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.run("plain")
        self.limited = False
        # The manager learns of the container.
        self.node.setter.sweep()
        self.path = self.node.path("plain")
        self.mover = Mover(
            self.node.manager,
            self.node.kernel,
            without_runtime(),
            Metrics(),
            beat=lambda: None,
            refused=lambda: None,
            now_s=lambda: 0.0,
            starts_limited=lambda _path, _limit: self.limited,
        )

    def write(self, cpus: str) -> None:
        self.node.kernel.write(self.path, CPUSet.parse(cpus))

    def put_right(self, *, reported: bool = False) -> None:
        self.mover.begin()
        self.mover.put_right(self.node.kernel.containers(), new=True, reported=reported)

    def starts_right(self, pod: str) -> bool:
        key = (f"{pod}-uid", ContainerID("main-id"))
        return self.mover.starts_right(self.node.path(pod), key)


@pytest.fixture
def world() -> World:
    return World()


def test_a_container_that_no_sweep_has_seen_may_be_anywhere(world: World) -> None:
    assert not world.mover.stays(world.path)


def test_a_container_stays_where_the_mover_has_left_it(world: World) -> None:
    world.write(EVERYTHING)
    world.put_right()
    assert world.mover.stays(world.path)


def test_a_container_on_other_cpus_does_not_stay(world: World) -> None:
    world.put_right()
    world.write(EVERYTHING)
    assert not world.mover.stays(world.path)


def test_a_container_of_which_more_is_kept_may_have_been_written_elsewhere(world: World) -> None:
    world.node.run("owner", builders.container(exclusive_a=1))
    world.node.source.live = {"owner": {"exclusive_a": ids("2")}}
    world.node.setter.sweep()
    world.put_right()
    assert world.node.cpus("owner") == "2"
    assert not world.mover.stays(world.node.path("owner"))


def test_a_container_whose_runtime_has_moved_it_alone_does_not_stay(world: World) -> None:
    world.write(EVERYTHING)
    world.put_right()
    seen = world.node.cpus("plain")
    world.node.manager.reconfigure(NodePools.of(Pool.named("default", "4")), MACHINE.topology())
    world.write("4")
    assert seen != world.node.cpus("plain")
    assert not world.mover.stays(world.path), "cgroups nested in it are brought along"


def test_a_container_that_has_ended_does_not_stay(world: World) -> None:
    world.put_right()
    del world.node.kernel.sets[world.path]
    assert not world.mover.stays(world.path)


@pytest.mark.parametrize(("reported", "due_s"), [(False, 1.0), (True, math.inf)])
def test_a_new_container_is_looked_at_once_more_unless_each_write_is_reported(
    world: World, reported: bool, due_s: float
) -> None:
    world.put_right(reported=reported)
    assert world.mover.due_s == due_s


def test_nor_is_each_write_reported_of_a_container_of_which_more_is_kept(world: World) -> None:
    world.node.run("owner", builders.container(exclusive_a=1))
    world.node.source.live = {"owner": {"exclusive_a": ids("2")}}
    world.node.setter.sweep()
    world.put_right(reported=True)
    assert world.mover.due_s == 1.0


def test_a_container_starts_right_that_has_its_cpus_and_its_cpu_time(world: World) -> None:
    world.put_right()
    assert world.starts_right("plain")
    world.node.run("sharer", builders.container(shared_a=500))
    world.node.source.live = {"sharer": {"shared_a": ids("0")}}
    world.node.setter.sweep()
    assert world.node.cpus("sharer") == "0"
    assert not world.starts_right("sharer"), "its quota differs"
    world.limited = True
    assert world.starts_right("sharer")
    world.node.kernel.write(world.node.path("sharer"), CPUSet.parse(EVERYTHING))
    assert not world.starts_right("sharer")
