from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from tests import builders
from tests.runtimes import ModelRuntime, reported
from tests.setters import EVERYTHING, Node, ids, running
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from cpupool.core.workloads import Pod


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


def test_a_folder_that_is_watched_from_now_on_is_looked_at_once_more(tmp_path: Path) -> None:
    # Its interval never passes: the clock stands still.
    node = Node(places={tmp_path / "kubepods": True})
    with running(node):
        assert node.swept.acquire(timeout=DEADLINE_S), "the folder is missing"
        (tmp_path / "kubepods").mkdir()
        node.setter.facts_changed()
        for why in ("the event", "no event names what came before the watch"):
            assert node.swept.acquire(timeout=DEADLINE_S), why


def test_a_question_that_is_due_reads_no_cgroup_without_an_event() -> None:
    node = Node(nri=ModelRuntime(here=True), cri=ModelRuntime(here=True), clock=time.monotonic)
    with running(node):
        eventually(lambda: node.setter.ready, "the first sweep")
        node.run("plain")
        node.setter.facts_changed()
        eventually(lambda: node.cpus("plain") == "1", "it is put right")
        node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
        node.kernel.make("kubepods/podlate-uid", EVERYTHING)
        node.kernel.make("kubepods/podlate-uid/late-id", EVERYTHING)
        node.setter.facts_changed()
        eventually(lambda: node.cri.asked, "the runtime is asked about the new one")
        sweep(node)
        assert node.cpus("plain") == EVERYTHING
        node.setter.wake()
        eventually(lambda: node.cpus("plain") == "1", "everything is read")


def sweep(node: Node) -> None:
    """Let a sweep begin and end."""
    for _ in range(2):
        while node.swept.acquire(blocking=False):
            pass
        node.setter.facts_changed()
        assert node.swept.acquire(timeout=DEADLINE_S)


def known(node: Node) -> set[str]:
    return {pod.name for pod in node.manager.snapshot().facts.pods or ()}


def lists(node: Node, pod: Pod) -> None:
    """Let the API server list one more pod."""
    assert node.source.listed is not None
    node.source.listed.append(pod)
    node.setter.pods_changed()


def test_a_pod_that_moves_no_container_is_learned_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cpupool.agent.cpusetter._LATER_S", 0.01)
    node = Node(nri=ModelRuntime(here=True), clock=time.monotonic)
    with running(node):
        eventually(lambda: node.setter.ready, "the first sweep")
        lists(node, builders.pod("plain", builders.container(running=False)))
        eventually(lambda: known(node) == {"plain"}, "it is learned without another event")


def test_what_waits_is_learned_with_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpupool.agent.cpusetter._LATER_S", 1e6)
    node = Node(nri=ModelRuntime(here=True), clock=time.monotonic)
    with running(node):
        eventually(lambda: node.setter.ready, "the first sweep")
        lists(node, builders.pod("plain", builders.container(running=False)))
        lists(node, builders.pod("owner", builders.container(exclusive_a=1, running=False)))
        eventually(lambda: known(node) == {"plain", "owner"}, "the owner does not wait")


def test_a_container_that_has_started_elsewhere_is_moved_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpupool.agent.cpusetter._LATER_S", 1e6)
    (tmp_path / "podplain-uid").mkdir()
    runtime = ModelRuntime(here=True)
    node = Node(nri=runtime, clock=time.monotonic, places={tmp_path: True})
    with running(node):
        eventually(lambda: node.setter.ready, "the first sweep")
        runtime.begun.add("main-id")
        node.manager.observe_containers([reported("plain-uid")])
        node.run("plain")
        (tmp_path / "podplain-uid/main-id").mkdir()
        runtime.begun.clear()
        node.setter.container_started(ContainerID("main-id"))
        eventually(lambda: node.cpus("plain") == "1", "it is put right")


def test_a_program_that_moves_a_container_and_then_another_is_undone_in_one_sweep() -> None:
    node = Node()
    for name in ("one", "two"):
        node.run(name, builders.container(shared_a=1))
    node.source.live = {
        name: {"shared_a": ids(device)} for name, device in (("one", "0"), ("two", "1"))
    }
    node.setter.sweep()
    assert (node.cpus("one"), node.cpus("two")) == ("0", "0")
    written = iter([node.path("two")])

    def follow() -> None:
        for path in written:
            node.kernel.write(path, CPUSet.parse(EVERYTHING))

    node.kernel.write(node.path("one"), CPUSet.parse(EVERYTHING))
    node.kernel.before_write = dict.fromkeys(range(100), follow)
    node.setter.sweep({"one-uid"})
    assert (node.cpus("one"), node.cpus("two")) == ("0", "0")
