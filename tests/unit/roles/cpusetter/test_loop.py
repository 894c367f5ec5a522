from __future__ import annotations

import threading
import time

from cpupool.core.cpuset import CPUSet
from tests.setters import EVERYTHING, Node, running
from tests.waiting import DEADLINE_S, eventually


def test_the_loop_sweeps_when_woken_and_ends_when_stopped() -> None:
    node = Node()
    stop = threading.Event()
    thread = threading.Thread(target=node.setter.run, args=(stop,), daemon=True)
    thread.start()
    assert node.swept.acquire(timeout=DEADLINE_S), "it looks at once when it starts"

    node.run("plain")
    node.setter.wake()
    assert node.swept.acquire(timeout=DEADLINE_S)
    stop.set()
    node.setter.wake()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()
    assert node.cpus("plain") == "1"


def test_the_loop_asks_again_by_itself() -> None:
    node = Node(clock=time.monotonic)
    node.run("plain")
    node.source.static_cpus = CPUSet.parse("2-5")
    with running(node):
        eventually(lambda: node.events.nodes, "the static CPU manager is found")
        node.source.static_cpus = CPUSet()
        eventually(lambda: node.cpus("plain") == "1", "that it is gone is found without an event")


def test_a_new_container_is_looked_at_once_more_without_an_event() -> None:
    node = Node(clock=time.monotonic)
    with running(node):
        eventually(lambda: node.setter.ready, "the first sweep")
        node.run("plain")
        node.setter.wake()
        eventually(lambda: node.cpus("plain") == "1", "it is put right")
        # No event reports this write: the directory is not watched yet.
        node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
        eventually(lambda: node.cpus("plain") == "1", "it is found")
