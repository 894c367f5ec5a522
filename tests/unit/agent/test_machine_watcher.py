from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.machine_watcher import MachineWatcher
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError
from cpupool.core.pools import NodePools, Pool
from cpupool.core.withheld import Withheld
from cpupool.host.sysfs import FolderTree, Sysfs
from cpupool.host.uevents import CPUEvents
from cpupool.manager.manager import Manager
from cpupool.telemetry.health import Health
from tests.loops import running
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cpupool.core.topology import CPUTopology

POOLS = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "0-1"))


class Silent(CPUEvents):
    """Events of a kernel that sends none; remembers how long it was waited for."""

    def __init__(self, silence: str = "") -> None:
        def refused() -> socket.socket:
            raise HostError(silence)

        super().__init__(refused)
        self.waited_s: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waited_s.append(timeout_s)
        return super().wait(DEADLINE_S)


class Machine(Sysfs):
    """A machine in a folder that counts how often it is read whole."""

    readings = 0

    def topology(self) -> CPUTopology:
        self.readings += 1
        return super().topology()


class Taken:
    """CPUs that cgroups withhold."""

    def __init__(self, *parts: Withheld, unwatched: bool = False) -> None:
        self.parts = parts
        self.unwatched = unwatched
        self.watched = False

    def withheld(self) -> tuple[Withheld, ...]:
        return self.parts

    def watch(self, changed: Callable[[], None]) -> Taken:
        self.tell = changed
        self.watched = True
        return self

    def ensure(self) -> bool:
        return False

    def stop(self) -> None:
        self.watched = False


class Node:
    """A machine in a folder, and the role that watches it."""

    def __init__(self, folder: Path) -> None:
        self.machine = MACHINES["laptop_4c8t"].write(folder)
        self.sysfs = Machine(FolderTree(self.machine.sys))
        self.manager = Manager()
        self.manager.reconfigure(POOLS, self.machine.topology())
        self.health = Health()
        self.changes = 0
        self.events = Silent()
        self.role = MachineWatcher(
            self.manager,
            self.sysfs,
            health=self.health,
            changed=self._changed,
            listen=lambda: self.events,
        )

    def _changed(self) -> None:
        self.changes += 1

    @property
    def topology(self) -> CPUTopology:
        return self.manager.snapshot().facts.topology

    def running(self) -> AbstractContextManager[threading.Event]:
        return running(self.role.run, wake=self.role.wake)


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


def test_what_goes_offline_and_comes_back_is_put_in_force(node: Node) -> None:
    whole = node.topology
    node.machine.switch_off(CPUSet.of(2, 3))
    node.role.look()
    assert node.topology == MACHINES["laptop_4c8t"].having_lost(CPUSet.of(2, 3))
    node.machine.switch_on(CPUSet.of(2, 3))
    node.role.look()
    assert (node.topology, node.changes) == (whole, 2)


def test_a_machine_that_is_as_it_was_is_no_news(node: Node) -> None:
    node.role.look()
    assert (node.changes, node.sysfs.readings) == (0, 0)


def test_a_machine_that_loses_cpus_is_not_read_anew(node: Node) -> None:
    node.machine.switch_off(CPUSet.of(2))
    node.role.look()
    assert (node.changes, node.sysfs.readings) == (1, 0)
    node.machine.switch_on(CPUSet.of(2))
    node.machine.switch_off(CPUSet.of(4))
    node.role.look()
    assert (node.changes, node.sysfs.readings) == (2, 1)
    assert node.topology.online == CPUSet.parse("0-3,5-7")


def test_a_first_look_reads_the_machine(folder: Path) -> None:
    node = Node(folder)
    node.manager = Manager()
    node.role = MachineWatcher(
        node.manager, node.sysfs, health=node.health, changed=node._changed, listen=Silent
    )
    node.role.look()
    assert (node.topology, node.changes) == (node.machine.topology(), 1)


def test_a_machine_that_cannot_be_read_stays_as_it_was_and_is_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    online = node.machine.sys / "devices/system/cpu/online"
    before, text = node.topology, online.read_text()
    for _ in range(2):
        online.write_text("no list\n")
        node.role.look()
        node.role.look()
        assert (node.topology, node.changes) == (before, 0)
        online.write_text(text)
    assert caplog.text.count("topology not read") == 1
    node.machine.switch_off(CPUSet.of(1))
    node.role.look()
    assert node.topology.online == CPUSet.parse("0,2-7")


def test_pools_that_the_machine_does_not_fit_any_more_are_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(folder)
    node.machine.switch_off(CPUSet.of(2))
    node.role.look()
    assert "pools.exclusive_a.cpus" in caplog.text


def test_the_loop_looks_whenever_it_is_woken_and_says_that_it_turns(node: Node) -> None:
    node.role.wake()  # no thread waits yet
    node.health.expect("machine watcher", math.inf)
    with node.running():
        eventually(lambda: node.events.waited_s, "the first look has ended")
        node.machine.switch_off(CPUSet.of(2))
        node.role.wake()
        eventually(lambda: node.changes == 1, "a change")
    assert node.health.live().lines == ("machine watcher: ok",)


def test_another_cause_of_the_same_state_is_put_in_force(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    part = Withheld(CPUSet.of(2), "/dpdk.service", "isolated")
    taken = Taken()
    role = MachineWatcher(
        node.manager,
        node.sysfs,
        health=node.health,
        changed=node._changed,
        withholding=taken,
    )
    for taken.parts in ((part,), (replace(part, cgroup="/other.service"),), ()):
        role.look()
        role.look()
        assert node.topology.withheld == taken.parts
    assert node.changes == 3
    assert [name in caplog.text for name in ("/dpdk.service", "/other.service")] == [True, True]


def test_a_machine_that_is_read_anew_has_the_causes_of_that_reading(node: Node) -> None:
    before, after = (Withheld(CPUSet.of(2), cgroup, "isolated") for cgroup in ("/a", "/b"))

    class TakenMeanwhile(Machine):
        def topology(self) -> CPUTopology:
            return replace(super().topology(), withheld=(after,))

    role = MachineWatcher(
        node.manager,
        TakenMeanwhile(FolderTree(node.machine.sys)),
        health=node.health,
        changed=node._changed,
        withholding=Taken(before),
    )
    node.machine.switch_off(CPUSet.of(4))
    role.look()
    assert node.topology.withheld == (before,)
    node.machine.switch_on(CPUSet.of(4))
    role.look()
    assert node.topology.withheld == (after,)


def test_cgroups_are_looked_at_often_while_one_may_take_cpus_unseen(node: Node) -> None:
    taken = Taken(unwatched=True)
    role = MachineWatcher(
        node.manager,
        node.sysfs,
        health=node.health,
        changed=node._changed,
        listen=lambda: node.events,
        withholding=taken,
    )
    with running(role.run, wake=role.wake):
        eventually(lambda: node.events.waited_s, "a look")
        taken.unwatched = False
        taken.parts = (Withheld(CPUSet.of(2), "/dpdk.service", "isolated"),)
        taken.tell()
        eventually(lambda: len(node.events.waited_s) == 2, "a look after an event")
        assert node.topology.withheld == taken.parts
    assert node.events.waited_s[:2] == [1.0, 10.0]
    assert not taken.watched


@pytest.mark.parametrize(
    ("silence", "looks_s"),
    [
        pytest.param("", 10.0, id="the kernel sends events"),
        pytest.param("no netlink socket; allow it", 0.05, id="it does not"),
    ],
)
def test_a_machine_is_looked_at_more_often_without_events(
    node: Node, silence: str, looks_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    node.events = Silent(silence)
    with node.running():
        for looks in range(1, 4):
            eventually(lambda looks=looks: len(node.events.waited_s) >= looks, "a look")  # type: ignore[misc]
            node.role.wake()
    assert set(node.events.waited_s) == {looks_s}
    assert caplog.text.count("no events of CPUs from the kernel") == bool(silence)
