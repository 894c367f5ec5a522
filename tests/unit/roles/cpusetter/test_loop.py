from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.manager import Manager
from tests.cgroups import KernelModel
from tests.setters import EVERYTHING, Node, Source, running, setter_on
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_containers_new_cgroup_ends_the_rest_after_a_sweep(tmp_path: Path) -> None:
    pod = tmp_path / "podweb-uid"
    pod.mkdir()
    swept, stop = threading.Semaphore(0), threading.Event()
    setter = setter_on(
        KernelModel(CgroupVersion.V1, {"kubepods": EVERYTHING}, EVERYTHING),
        Manager(Names()),
        Source(),
        places=[tmp_path],
        settle_s=2 * DEADLINE_S,
        swept=lambda _report: swept.release(),
    )
    thread = threading.Thread(target=setter.run, args=(stop,), daemon=True)
    thread.start()
    try:
        assert swept.acquire(timeout=DEADLINE_S)
        (pod / ("a" * 64)).mkdir()
        assert swept.acquire(timeout=DEADLINE_S)
    finally:
        stop.set()
        (pod / ("b" * 64)).mkdir()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
