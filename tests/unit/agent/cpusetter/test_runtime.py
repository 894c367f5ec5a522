from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ContainerNotFound, RuntimeRefused, RuntimeSilent
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from tests import builders
from tests.runtimes import ModelRuntime, reported
from tests.setters import EVERYTHING, MACHINE, Node, ids, owner_on_2, running
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable


def held_by(writer: Writer) -> tuple[Node, ModelRuntime]:
    """Give a node with `owner`, and the runtime that has the list of it: CPUs 0-7."""
    runtime = ModelRuntime(here=True, lists={"main-id": EVERYTHING})
    node = Node(nri=runtime) if writer is Writer.NRI else Node(cri=runtime)
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    runtime.written = lambda _, cpus: node.kernel.sets.update({node.path("owner"): cpus})
    return node, runtime


def written(node: Node) -> set[str]:
    """Give the paths of the containers that were written directly."""
    return {write.path for write in node.kernel.writes if write.path.count("/") > 1}


def test_a_container_whose_start_has_waited_is_known_while_the_runtime_starts_it() -> None:
    runtime = ModelRuntime(here=True)
    node = Node(nri=runtime)
    node.run("owner", builders.container(running=False, exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.manager.observe_containers([reported("owner-uid")])
    for begun in (set[str](), {"main-id"}, set[str]()):
        runtime.begun = begun
        node.setter.sweep()
    moves = [write.cpus for write in node.kernel.writes if write.path == node.path("owner")]
    assert moves == [CPUSet.of(2)]


@pytest.mark.parametrize("writer", [Writer.NRI, Writer.CRI])
def test_a_container_whose_list_the_runtime_has_is_repaired_through_the_runtime(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    node, _ = held_by(writer)
    with caplog.at_level(logging.INFO):
        (repair,) = node.setter.sweep().repairs
    assert (node.cpus("owner"), repair.error) == ("2", "")
    assert f"way={writer.value} " in caplog.text

    node.kernel.sets[node.path("owner")] = CPUSet.parse("4-5")
    node.setter.sweep()
    assert (node.cpus("owner"), written(node)) == ("2", set())


def test_a_refusal_of_the_runtime_is_tried_again_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, runtime = held_by(Writer.CRI)
    runtime.refusing = "it is busy"
    with caplog.at_level(logging.WARNING):
        (repair,) = node.setter.sweep().repairs
        node.setter.sweep()
    assert "it is busy" in repair.error
    assert caplog.text.count("container stays on wrong CPUs") == 1
    assert written(node) == set()

    runtime.refusing = ""
    node.setter.sweep()
    assert (node.cpus("owner"), written(node)) == ("2", set())


def test_the_loop_tries_again_what_the_runtime_refused() -> None:
    runtime = ModelRuntime(here=True, lists={"main-id": EVERYTHING}, refusing="it is busy")
    node = Node(clock=time.monotonic, cri=runtime)
    node.run("plain")
    runtime.written = lambda _, cpus: node.kernel.sets.update({node.path("plain"): cpus})
    node.setter.sweep()
    with running(node):
        assert node.swept.acquire(timeout=DEADLINE_S), "it is refused, and not new any more"
        runtime.refusing = ""
        eventually(lambda: node.cpus("plain") == "1", "it is put right without an event")


def test_a_container_that_only_the_runtime_may_write_waits_for_the_runtime() -> None:
    node, runtime = held_by(Writer.NRI)
    runtime.here = False
    (repair,) = node.setter.sweep().repairs
    assert "the container runtime has its CPUs and cannot be reached" in repair.error
    runtime.here = True
    node.setter.sweep()
    assert (node.cpus("owner"), written(node)) == ("2", set())


def silent_runtime() -> tuple[Node, ModelRuntime]:
    """A node with `held`, which a runtime that does not answer has on CPUs 0-7, and `owner`."""
    runtime = ModelRuntime(here=True, lists={"held-id": EVERYTHING}, mute=True)
    node = Node(nri=runtime)
    node.run("first", builders.container("held"))
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    runtime.written = lambda _, cpus: node.kernel.sets.update({node.path("first", "held"): cpus})
    return node, runtime


def test_what_cpupool_writes_itself_goes_before_what_the_runtime_writes() -> None:
    node, runtime = silent_runtime()
    runtime.mute = False
    placed: list[str] = []
    write = runtime.written

    def written(container: ContainerID, cpus: CPUSet) -> None:
        placed.append(node.cpus("plain"))
        write(container, cpus)

    runtime.written = written
    node.setter.sweep()
    assert placed == ["1"]
    assert node.cpus("first", "held") == "1"


def test_a_silent_runtime_is_asked_again_after_a_second_and_keeps_no_other_waiting() -> None:
    node, runtime = silent_runtime()
    for _ in range(30):
        assert node.setter.sweep().repairs
        assert node.cpus("plain") == "1"
        node.kernel.write(node.path("plain"), CPUSet.of(5))
        node.now_s += 1
    node.run("late")
    node.setter.sweep()
    assert node.cpus("late") == "1"
    assert node.cpus("first", "held") == EVERYTHING
    runtime.mute = False
    node.setter.sweep()
    assert node.cpus("first", "held") == "1", "an answer is all that it waited for"


def test_an_owner_gets_its_cpu_once_the_runtime_has_moved_the_others_away() -> None:
    node, runtime = silent_runtime()
    node.setter.sweep()
    assert node.cpus("owner") == "1", "nobody has named its devices"

    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    for _ in range(3):
        node.now_s += 1
        node.setter.sweep()
    assert node.cpus("owner") == "1"
    ((pod, reason, message),) = node.events.pods
    assert (pod, reason) == ("owner", "CPUOccupied")
    assert message.startswith("container main: other pods still run on its CPUs 2; look at")

    runtime.mute = False
    node.setter.sweep()
    assert (node.cpus("first", "held"), node.cpus("owner")) == ("1", "2")


def test_an_owner_does_not_wait_for_what_has_ended() -> None:
    node, runtime = silent_runtime()
    node.setter.sweep()
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.now_s += 1
    runtime.mute = False
    del runtime.lists["held-id"]
    node.kernel.remove(node.path("first", "held"))
    node.setter.sweep()
    assert node.cpus("owner") == "2"


def test_the_runtime_writes_several_containers_in_one_call() -> None:
    runtime = ModelRuntime(here=True)
    node = Node(nri=runtime)
    for number in range(10):
        name = f"held{number}"
        node.run("pod", builders.container(name)) if not number else node.kernel.make(
            f"kubepods/podpod-uid/{name}-id", EVERYTHING
        )
        runtime.lists[f"{name}-id"] = EVERYTHING
    runtime.written = lambda container, cpus: node.kernel.sets.update(
        {f"kubepods/podpod-uid/{container}": cpus}
    )
    node.setter.sweep()
    assert [len(call) for call in runtime.calls] == [8, 2]
    assert set(node.kernel.sets.values()) == {CPUSet.parse(EVERYTHING), CPUSet.of(1)}
    assert {str(node.kernel.effective(f"kubepods/podpod-uid/held{n}-id")) for n in range(10)} == {
        "1"
    }


class StuckRuntime(ModelRuntime):
    """A runtime that hangs for as long as it is to update one container.

    Attributes:
        stuck: the container's id; empty for none.
        dialled: it counts as away after a call that has hung, as CRI does.
        now_s: a clock.
    """

    stuck = ""
    dialled = False
    now_s: Callable[[], float]
    _until_s = 0.0

    def connected(self) -> bool:
        return not self.dialled or self.now_s() >= self._until_s

    def update(self, container: ContainerID, cpus: CPUSet) -> None:
        if container == self.stuck and self.now_s() >= self._until_s:
            self._until_s = self.now_s() + 5
        if self.now_s() < self._until_s:
            raise RuntimeSilent(container, f"CPUs {cpus}", "it does not answer")
        super().update(container, cpus)


@pytest.mark.parametrize("writer", [Writer.NRI, Writer.CRI])
def test_a_container_for_which_the_runtime_hangs_keeps_no_other_from_its_cpus(
    writer: Writer,
) -> None:
    runtime = StuckRuntime()
    node = Node(nri=runtime) if writer is Writer.NRI else Node(cri=runtime)
    runtime.dialled, runtime.now_s = writer is Writer.CRI, lambda: node.now_s
    paths = {f"held{number}-id": node.path(f"pod{number}", f"held{number}") for number in range(3)}
    for number, identifier in enumerate(paths):
        node.run(f"pod{number}", builders.container(f"held{number}"))
        runtime.lists[identifier] = EVERYTHING
    runtime.written = lambda container, cpus: node.kernel.sets.update({paths[container]: cpus})
    node.setter.sweep()
    assert {str(node.kernel.effective(path)) for path in paths.values()} == {"1"}

    runtime.stuck = "held0-id"
    for path in paths.values():
        node.kernel.sets[path] = CPUSet.parse(EVERYTHING)
    for _ in range(30):
        node.setter.sweep()
        node.now_s += 1
    assert [str(node.kernel.effective(path)) for path in paths.values()] == [EVERYTHING, "1", "1"]

    runtime.stuck = ""
    for _ in range(10):
        node.setter.sweep()
        node.now_s += 1
    assert {str(node.kernel.effective(path)) for path in paths.values()} == {"1"}


def test_a_slow_runtime_is_left_for_pods_and_others_after_half_a_second() -> None:
    runtime = ModelRuntime(here=True)
    node = Node(cri=runtime)
    for number in range(10):
        node.run(f"slow{number}", builders.container(f"held{number}"))
        runtime.lists[f"held{number}-id"] = EVERYTHING

    lock = threading.Lock()

    def written(container: ContainerID, cpus: CPUSet) -> None:
        number = container.removeprefix("held").removesuffix("-id")
        with lock:
            node.now_s += 0.3
            node.kernel.sets[node.path(f"slow{number}", f"held{number}")] = cpus

    runtime.written = written
    moved = []
    for _ in range(4):
        node.source.asked.clear()
        node.setter.sweep()
        assert "pods" in node.source.asked
        moved.append(sum(node.cpus(f"slow{n}", f"held{n}") == "1" for n in range(10)))
    assert moved == [4, 8, 10, 10]


def test_by_calls_all_that_leave_are_seen_elsewhere_before_one_that_comes_is_called_for() -> None:
    runtime = ModelRuntime(here=True)
    node = Node(asked=Writer.CRI, cri=runtime)
    leaving = {
        f"held{number}-id": node.path(f"pod{number}", f"held{number}") for number in range(6)
    }
    for number in range(6):
        node.run(f"pod{number}", builders.container(f"held{number}"))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    paths = {**leaving, "main-id": node.path("owner")}
    runtime.lists |= dict.fromkeys(paths, EVERYTHING)
    node.kernel.sets[paths["main-id"]] = CPUSet.of(1)
    order: list[str] = []
    left = threading.Barrier(2, timeout=DEADLINE_S)

    def written(container: ContainerID, cpus: CPUSet) -> None:
        if container == "main-id":
            order.extend(str(node.kernel.effective(path)) for path in leaving.values())
        else:
            # No call ends before another is made.
            left.wait()
        node.kernel.sets[paths[container]] = cpus

    runtime.written = written
    assert not any(repair.error for repair in node.setter.sweep().repairs)
    assert order == ["1"] * 6
    assert node.cpus("owner") == "2"


def test_by_calls_a_burst_of_new_containers_is_written_without_a_question() -> None:
    class Counting(ModelRuntime):
        questions = 0

        def cpu_list(self, container: ContainerID) -> str | None:
            self.questions += 1
            return super().cpu_list(container)

    runtime = Counting(here=True)
    node = Node(asked=Writer.CRI, cri=runtime)
    node.setter.sweep()
    names = [f"late{number}" for number in range(6)]
    for name in names:
        node.run(name, builders.container(name, running=False))
        node.kernel.make(node.path(name, name), EVERYTHING)
    paths = {f"{name}-id": node.path(name, name) for name in names}
    runtime.lists = dict.fromkeys(paths, "")
    runtime.containers = tuple(reported(f"{name}-uid", name) for name in names)
    runtime.written = lambda container, cpus: node.kernel.sets.update({paths[container]: cpus})
    node.setter.sweep()
    assert {node.cpus(name, name) for name in names} == {"1"}
    assert (set(runtime.lists.values()), runtime.questions) == ({"1"}, 0)


@pytest.mark.parametrize("refusing", ["", "it is full"])
def test_by_calls_a_container_that_is_not_moved_keeps_no_other_of_its_batch(refusing: str) -> None:
    class Picky(ModelRuntime):
        def update(self, container: ContainerID, cpus: CPUSet) -> None:
            if container == "held0-id":
                if not refusing:
                    raise ContainerNotFound(container)
                raise RuntimeRefused(container, f"CPUs {cpus}", refusing)
            super().update(container, cpus)

    runtime = Picky(here=True)
    node = Node(cri=runtime)
    paths = {f"held{number}-id": node.path(f"pod{number}", f"held{number}") for number in range(3)}
    for number in range(3):
        node.run(f"pod{number}", builders.container(f"held{number}"))
    runtime.lists |= dict.fromkeys(paths, EVERYTHING)
    runtime.written = lambda container, cpus: node.kernel.sets.update({paths[container]: cpus})
    repairs = node.setter.sweep().repairs
    why = f"container held0-id: the container runtime did not set CPUs 1: {refusing}"
    assert {repair.error for repair in repairs if repair.error} == ({why} if refusing else set())
    assert [str(node.kernel.effective(path)) for path in paths.values()] == [EVERYTHING, "1", "1"]


def test_a_container_that_ends_while_the_runtime_is_called_is_no_error() -> None:
    class Ended(ModelRuntime):
        def update(self, container: ContainerID, cpus: CPUSet) -> None:
            raise ContainerNotFound(container)

    node = Node(cri=Ended(here=True, lists={"main-id": EVERYTHING}))
    node.run("plain")
    assert node.setter.sweep().repairs == ()


def test_a_container_that_the_runtime_is_bringing_up_is_not_judged() -> None:
    node, runtime = held_by(Writer.NRI)
    runtime.begun = {"main-id"}
    report = node.setter.sweep()
    assert (report.repairs, report.found) == ((), ())
    assert node.measured('cpupool_containers{state="failed"}') == 0
    assert node.cpus("owner") == EVERYTHING

    runtime.begun = set()
    assert len(node.setter.sweep().repairs) == 1
    assert node.cpus("owner") == "2"


def test_another_way_is_for_containers_that_start_from_then_on() -> None:
    node = Node(asked=Writer.CRI, cri=ModelRuntime(here=True, lists={"main-id": "", "late-id": ""}))
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.cri.written = lambda _, cpus: node.kernel.sets.update({node.path("new", "late"): cpus})
    node.setter.sweep()
    assert written(node) == {node.path("owner")}

    node.run("new", builders.container("late"))
    node.kernel.make("kubepods/podnew-uid/sandbox", EVERYTHING)
    node.setter.sweep()
    assert (node.cpus("new", "late"), node.cri.lists["late-id"]) == ("1", "1")
    assert written(node) == {node.path("owner"), "kubepods/podnew-uid/sandbox"}, (
        "a sandbox is no container that CRI can update"
    )

    switched = Node(source=node.source, kernel=node.kernel, asked=Writer.CGROUP, cri=node.cri)
    node.kernel.writes.clear()
    for path in (node.path("owner"), node.path("new", "late")):
        node.kernel.sets[path] = CPUSet.parse(EVERYTHING)
    switched.setter.sweep()
    assert (node.cpus("owner"), node.cpus("new", "late")) == ("2", "1")
    assert written(node) == {node.path("owner")}, "what the runtime has stays the runtime's"


def test_a_container_is_placed_as_soon_as_the_runtime_recognises_it() -> None:
    node = owner_on_2()
    node.cri.here = True
    node.cri.containers = (
        reported("owner-uid", identifier="again"),
        reported("stranger", identifier="other", exclusive_a="4"),
    )
    node.manager.promise(builders.resource("exclusive_a"), ["4"])
    node.kernel.remove(node.path("owner"))
    for path in ("kubepods/podowner-uid/again", "kubepods/podstranger/other"):
        node.kernel.make(path.rpartition("/")[0], EVERYTHING)
        node.kernel.make(path, EVERYTHING)
    node.setter.sweep()
    assert str(node.kernel.effective("kubepods/podowner-uid/again")) == "2"
    assert str(node.kernel.effective("kubepods/podstranger/other")) == "4"
    assert node.measured("cpupool_container_placement_seconds_count") == 2


@pytest.mark.parametrize("then", ["1,3", "1,3,5", "5"])
def test_nested_cgroups_follow_a_container_that_the_runtime_moves_too_late(then: str) -> None:
    node, runtime = silent_runtime()
    path = node.path("first", "held")
    for nested in ("init", "init/scope"):
        node.kernel.make(f"{path}/{nested}", EVERYTHING)
    runtime.mute = False
    node.setter.sweep()
    assert str(node.kernel.sets[f"{path}/init/scope"]) == "1"

    def default(cpus: str) -> None:
        node.manager.reconfigure(NodePools.of(Pool.named("default", cpus)), MACHINE.topology())
        node.setter.sweep()

    runtime.mute = True
    default("1,3")
    assert str(node.kernel.sets[path]) == "1", "there is no answer"
    runtime.mute = False
    runtime.update(ContainerID("held-id"), CPUSet.of(1, 3))
    default(then)

    assert {str(cpus) for one, cpus in node.kernel.sets.items() if one.startswith(path)} == {then}
