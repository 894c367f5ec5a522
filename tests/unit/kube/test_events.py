from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.kube import events
from cpupool.kube.client import APIServer
from cpupool.kube.events import BURST, MOST_WAITING, REFILL_S, SAME_AGAIN_S, EventRecorder
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.apiserver import FakeAPIServer
from tests.loops import running
from tests.printed import EVIL
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from cpupool.core.workloads import Pod


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Sink:
    """A recorder on the fake API server; its loop runs between `start` and `end`."""

    def __init__(self, server: FakeAPIServer) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.recorder = EventRecorder(
            APIServer(server.url, answer_s=10 * DEADLINE_S),
            "node-a",
            self.metrics,
            clock=self.clock,
        )

    def running(self) -> AbstractContextManager[threading.Event]:
        return running(self.recorder.run, wake=self.recorder.wake)

    def dropped(self, number: int) -> bool:
        return f"cpupool_events_dropped_total {number}.0" in self.metrics.render()[1].decode()


@pytest.fixture
def server() -> Iterator[FakeAPIServer]:
    with FakeAPIServer() as fake:
        yield fake


@pytest.fixture
def sink(server: FakeAPIServer) -> Sink:
    return Sink(server)


@pytest.fixture
def pod() -> Pod:
    return builders.pod("web")


def messages(server: FakeAPIServer) -> list[str]:
    return [event["message"] for event in list(server.events)]


def test_an_event_is_shown_with_its_pod(server: FakeAPIServer, sink: Sink, pod: Pod) -> None:
    with sink.running():
        sink.recorder.pod(pod, "CPUPoolMissing", "no such pool; ask for another")
        eventually(lambda: server.events, "the Event")
    (event,) = server.events
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "web-uid",
    }
    assert (event["type"], event["reason"]) == ("Warning", "CPUPoolMissing")
    assert event["message"] == "no such pool; ask for another"
    assert event["source"] == {"component": "cpupool", "host": "node-a"}
    assert event["metadata"]["name"].startswith("web.")
    assert server.verbs() == {("create", "events")}


def test_an_event_is_shown_with_the_node(server: FakeAPIServer, sink: Sink) -> None:
    with sink.running():
        sink.recorder.node("CPUPoolConfigApplied", "pools added", warning=False)
        eventually(lambda: server.events, "the Event")
    (event,) = server.events
    about = event["involvedObject"]
    assert about == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    assert (event["metadata"]["namespace"], event["type"]) == ("default", "Normal")


def test_the_selector_of_the_guide_finds_events_of_every_reason(
    server: FakeAPIServer, sink: Sink, pod: Pod
) -> None:
    guide = (Path(__file__).parents[3] / "docs/user/troubleshooting.md").read_text()
    (field, wanted) = re.findall(r"get events -A --field-selector (\w+)=(\w+)", guide)[0]
    with sink.running():
        sink.recorder.pod(pod, "SMTAlignmentError", "the kubelet has the same reason")
        sink.recorder.node("RecordSetAside", "a file is damaged")
        eventually(lambda: len(server.events) == 2, "the Events")

    # What the API server selects by: ToSelectableFields in pkg/registry/core/event/strategy.go.
    assert field in {"reportingComponent", "reason", "type", "involvedObject.kind"}
    assert [event[field] for event in server.events] == [wanted] * 2


def test_a_message_may_quote_what_is_no_text(server: FakeAPIServer, sink: Sink) -> None:
    with sink.running():
        sink.recorder.node("CPUPoolConfigInvalid", "poolconfig-\udcff.yaml: unknown key")
        eventually(lambda: server.events, "the Event")
    assert messages(server) == ["poolconfig-\\udcff.yaml: unknown key"]


def test_a_message_is_one_printable_line(server: FakeAPIServer, sink: Sink) -> None:
    with sink.running():
        sink.recorder.node("Odd", f"a plugin says {EVIL}\nDone")
        sink.recorder.node("Odd", EVIL * 1000)
        # Another end that is not said is no other message.
        sink.recorder.node("Odd", EVIL * 1001)
        eventually(lambda: len(server.events) == 2, "the Events")
    for said in messages(server):
        assert said.isprintable()
        assert "\\u001b]0;owned\\u0007" in said
        assert len(said.encode()) <= 1024


def test_names_and_messages_stay_within_the_apis_limits(server: FakeAPIServer, sink: Sink) -> None:
    with sink.running():
        sink.recorder.pod(builders.pod("a" * 235 + "-" * 10 + "b"), "Long", "é" * 600)
        eventually(lambda: server.events, "the Event")
    assert messages(server) == ["é" * 512]


def test_the_same_is_said_once_in_ten_minutes(server: FakeAPIServer, sink: Sink, pod: Pod) -> None:
    with sink.running():
        sink.recorder.pod(pod, "Odd", "one")
        sink.clock.now_s += SAME_AGAIN_S - 1
        sink.recorder.pod(pod, "Odd", "one")
        sink.recorder.pod(pod, "Odd", "two")
        sink.recorder.pod(pod, "Strange", "one")
        sink.recorder.pod(builders.pod("other"), "Odd", "one")
        sink.clock.now_s += 1
        sink.recorder.pod(pod, "Odd", "one")
        eventually(lambda: len(server.events) == 5, lambda: str(messages(server)))
    assert messages(server) == ["one", "two", "one", "one", "one"]
    assert sink.dropped(0)


def test_of_one_object_only_so_much_is_said(server: FakeAPIServer, sink: Sink, pod: Pod) -> None:
    with sink.running():
        for number in range(BURST + 3):
            sink.recorder.pod(pod, "Odd", str(number))
        sink.recorder.node("Odd", "another object")
        sink.clock.now_s += REFILL_S
        sink.recorder.pod(pod, "Odd", "a minute later")
        sink.recorder.pod(pod, "Odd", "no more")
        eventually(lambda: len(server.events) == BURST + 2, lambda: str(messages(server)))
    expected = [*(str(number) for number in range(BURST)), "another object", "a minute later"]
    assert messages(server) == expected
    assert sink.dropped(4)


def test_what_was_said_is_forgotten_in_time(sink: Sink) -> None:
    for number in range(50):
        sink.recorder.pod(builders.pod(f"pod-{number}"), "Odd", "one")
    sink.clock.now_s += SAME_AGAIN_S
    sink.recorder.node("Odd", "one")
    assert len(sink.recorder._said) == 1


def test_while_the_server_is_away_only_so_many_wait(sink: Sink) -> None:
    for number in range(MOST_WAITING + 7):
        sink.recorder.pod(builders.pod(f"pod-{number}"), "Odd", "one")
    assert sink.dropped(7)


def test_an_event_survives_a_server_that_fails_for_a_moment(
    server: FakeAPIServer, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_PATIENCE", 0)
    server.refuse(500, "InternalError")
    server.refuse(401, "Unauthorized")
    server.refuse(429, "TooManyRequests", headers={"Retry-After": "0"})
    with sink.running():
        sink.recorder.node("Odd", "one")
        eventually(lambda: server.events, "the Event")
    assert messages(server) == ["one"]
    assert sink.dropped(0)


def test_an_event_that_cannot_be_sent_is_given_up(
    server: FakeAPIServer,
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(events, "_PATIENCE", 0)
    server.refuse(500, "InternalError", times=events.TRIES)
    server.refuse(403, "Forbidden")
    with sink.running():
        sink.recorder.node("Odd", "never answered")
        sink.recorder.node("Odd", "not allowed")
        sink.recorder.node("Odd", "sent")
        eventually(lambda: server.events, "the Event")
    assert messages(server) == ["sent"]
    assert sink.dropped(2)
    assert "must grant create on events" in caplog.text


def test_at_the_end_what_waits_is_sent(
    server: FakeAPIServer, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_FLUSH_S", DEADLINE_S)
    server.slow()
    with sink.running():
        sink.recorder.node("Odd", "one")
        sink.recorder.node("Odd", "two")
        eventually(lambda: server.requests, "the first is under way")
        server.up()
    assert sorted(messages(server)) == ["one", "two"]
    assert sink.dropped(0)


def test_at_the_end_a_silent_server_is_left_alone(server: FakeAPIServer, sink: Sink) -> None:
    server.slow()
    with sink.running():
        for number in range(BURST):
            sink.recorder.node("Odd", str(number))
        eventually(lambda: server.requests, "the first is under way")
