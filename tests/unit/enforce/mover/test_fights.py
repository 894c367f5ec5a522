from __future__ import annotations

import time

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from tests.setters import EVERYTHING, MACHINE, Node, owner_on_2, running
from tests.waiting import eventually


def test_a_cgroup_that_refuses_again_and_again_is_left_in_peace_for_a_while() -> None:
    node = Node()
    node.run("stuck")
    node.kernel.refusing.add(node.path("stuck"))
    tries = [len(node.setter.sweep().repairs) for _ in range(12)]
    assert tries == [1] * 11 + [0]
    node.now_s += 0.2
    node.kernel.refusing.clear()
    assert len(node.setter.sweep().repairs) == 1
    assert node.events.pods == [], "nobody overwrites it"


def test_a_fight_is_slowed_reported_once_and_holds_up_no_other() -> None:
    node = owner_on_2()

    def disturb(pod: str) -> str:
        node.kernel.write(node.path(pod), CPUSet.parse("5"))
        node.setter.sweep()
        return node.cpus(pod)

    assert [disturb("owner") for _ in range(11)] == ["2"] * 11
    assert disturb("owner") == "5", "the twelfth time in no time, it is not hurried"
    assert disturb("plain") == "1"
    assert node.measured('cpupool_containers{state="failed"}') == 1

    node.now_s += 0.2
    node.setter.sweep()
    assert node.cpus("owner") == "2"
    disturb("owner")
    node.now_s += 0.3
    assert disturb("owner") == "5", "it waits longer and longer"
    node.now_s += 0.2
    node.setter.sweep()
    assert node.cpus("owner") == "2"

    ((pod, reason, message),) = node.events.pods
    assert (pod, reason) == ("owner", "CPUSetContested")
    assert "overwritten again and again, probably by an unknown program; find" in message

    node.now_s += 60
    assert [disturb("owner") for _ in range(10)] == ["2"] * 10, "a minute of quiet forgives"


def test_one_that_trespasses_is_moved_back_however_often() -> None:
    node = owner_on_2()
    for _ in range(50):
        node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
        assert len(node.setter.sweep().repairs) == 1
    assert (node.cpus("plain"), node.now_s) == ("1", 0.0)
    assert [reason for _, reason, _ in node.events.pods] == ["CPUSetContested"]


def test_moving_trespassers_back_takes_a_quarter_of_a_cpu() -> None:
    node = owner_on_2()
    node.sweep_costs_s = 0.6

    def is_moved_back() -> bool:
        node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
        node.setter.sweep()
        return node.cpus("plain") == "1"

    # Eleven come before the back-off, and a second of CPU time is saved up.
    assert [is_moved_back() for _ in range(14)] == [True] * 13 + [False]
    node.now_s += 0.7
    assert not is_moved_back()
    node.now_s += 0.2
    assert is_moved_back()


def test_what_is_refused_though_it_trespasses_is_tried_again_after_a_second() -> None:
    node = owner_on_2()
    node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
    node.kernel.refusing.add(node.path("plain"))
    for _ in range(20):
        node.setter.sweep()
        node.now_s += 0.45
    tries = []
    for _ in range(20):
        tries.append(len(node.setter.sweep().repairs))
        node.now_s += 0.25
    assert sum(tries) == 5


def test_who_began_a_fight_is_named_while_it_lasts() -> None:
    node = owner_on_2()
    for number in range(30):
        node.kernel.write(node.path("owner"), CPUSet.parse(EVERYTHING if number < 11 else "5"))
        node.setter.sweep()
        node.now_s += 0.4

    ((_, _, message),) = node.events.pods
    assert "probably by the container runtime" in message


def test_the_loop_ends_a_pause_in_a_fight_by_itself() -> None:
    node = Node(clock=time.monotonic)
    node.run("plain")
    node.setter.sweep()
    for _ in range(12):
        node.kernel.write(node.path("plain"), CPUSet.of(5))
        node.setter.sweep()
    with running(node):
        eventually(lambda: node.cpus("plain") == "1", "it is put right without an event")


def test_a_fought_container_that_belongs_elsewhere_now_moves_at_once() -> None:
    node = owner_on_2()
    for _ in range(12):
        node.kernel.write(node.path("plain"), CPUSet.parse("5"))
        node.setter.sweep()
    assert node.cpus("plain") == "5"

    node.manager.reconfigure(NodePools.of(Pool.named("default", "0")), MACHINE.topology())
    node.setter.sweep()
    assert node.cpus("plain") == "0"
