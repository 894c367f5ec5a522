from __future__ import annotations

from dataclasses import dataclass

import pytest

from cpupool.telemetry.health import Health, Report


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


def test_a_process_of_which_nothing_is_known_is_live_and_not_ready(health: Health) -> None:
    assert health.live() == Report(ok=True, lines=())
    assert health.ready() == Report(ok=False, lines=("agent: failing: it is starting; wait",))


def test_a_loop_is_hung_once_it_is_silent_for_longer_than_its_limit(
    health: Health, clock: Clock
) -> None:
    health.expect("cpusetter", 30)
    clock.now_s += 30
    assert health.live() == Report(ok=True, lines=("cpusetter: ok",))
    clock.now_s += 1
    report = health.live()
    assert not report.ok
    told = "failing: silent for 31 s, 30 s are allowed; the kubelet restarts this container"
    assert report.lines == (f"cpusetter: {told}",)
    health.beat("cpusetter")
    assert health.live().ok


def test_one_hung_loop_among_others_is_named(health: Health, clock: Clock) -> None:
    health.expect("cpusetter", 30)
    health.expect("a watch", 300)
    clock.now_s += 31
    health.beat("a watch")
    report = health.live()
    assert not report.ok
    assert [line.split(":")[1] for line in report.lines] == [" ok", " failing"]


def test_a_loop_that_nothing_expects_counts_for_nothing(health: Health, clock: Clock) -> None:
    health.beat("stranger")
    clock.now_s += 1e6
    assert health.live() == Report(ok=True, lines=())


def test_ready_is_when_every_condition_holds(health: Health) -> None:
    health.set("pods", ok=True)
    health.set("kubelet", ok=False, message="no socket; start the kubelet")
    assert health.ready() == Report(
        ok=False, lines=("kubelet: failing: no socket; start the kubelet", "pods: ok")
    )
    health.set("kubelet", ok=True, message="no socket; start the kubelet")
    assert health.ready() == Report(ok=True, lines=("kubelet: ok", "pods: ok"))
    health.set("pods", ok=False)
    assert not health.ready().ok


def test_a_message_stays_on_its_line(health: Health) -> None:
    health.set("pods", ok=False, message="pod 'a\npods: ok'\n; rename it")
    assert len(health.ready().lines) == len("\n".join(health.ready().lines).splitlines()) == 1


@dataclass
class Thread:
    """A thread of which the test says how it answers."""

    name: str
    runs: bool = True
    open_s: float = 0.0
    late: bool = False
    hangs: bool = False
    asked: int = 0

    def ask(self) -> None:
        self.asked += 1


def test_a_thread_that_owes_an_answer_is_not_ready_and_then_not_live(health: Health) -> None:
    serving, other = Thread("device plugins"), Thread("door")
    health.set("pods", ok=True)
    health.watch(serving)
    health.watch(other)
    assert health.ready() == Report(ok=True, lines=("pods: ok",))
    assert serving.asked == other.asked == 1
    serving.open_s, serving.late = 4.2, True
    told = "failing: it has not answered for 4 s; if this lasts, the process ends"
    assert health.ready() == Report(ok=False, lines=(f"device plugins: {told}", "pods: ok"))
    assert health.live().ok
    assert health.stuck() == ""
    serving.hangs = True
    assert not health.live().ok
    assert health.stuck() == "device plugins"


def test_a_thread_that_has_ended_is_asked_no_more(health: Health) -> None:
    gone = Thread("plugin a.sock", runs=False)
    health.watch(gone)
    health.watch(Thread("plugin b.sock"))
    health.ready()
    assert gone.asked == 0


def test_only_a_loop_that_peers_wait_for_ends_the_process(health: Health, clock: Clock) -> None:
    health.set("pods", ok=True)
    health.expect("reporter", 30)
    health.expect("nri plugin", 60, serves=True)
    clock.now_s += 31
    assert health.hung() == "reporter"
    assert health.stuck() == ""
    assert health.ready().ok
    clock.now_s += 30
    assert health.stuck() == "nri plugin"
    told = "nri plugin: failing: silent for 61 s"
    assert health.ready() == Report(ok=False, lines=(told, "pods: ok"))
