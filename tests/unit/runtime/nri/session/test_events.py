from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.messages import (
    Ended,
    SandboxRemoved,
    SandboxStarted,
    Shutdown,
    StartContainer,
    Started,
)
from tests.nri_pods import Pod
from tests.unit.runtime.nri.session.conversation import (
    CONTAINER,
    NAMED,
    POD,
    SANDBOX,
    SEEN,
    request,
    said,
)

if TYPE_CHECKING:
    from cpupool.runtime.nri.messages import Message
    from cpupool.runtime.nri.session import Session

EVENTS = [
    ("RunPodSandbox", nri_pb2.RUN_POD_SANDBOX, SandboxStarted(SANDBOX)),
    ("RemovePodSandbox", nri_pb2.REMOVE_POD_SANDBOX, SandboxRemoved(ContainerID(POD.sandbox))),
    ("PostStartContainer", nri_pb2.POST_START_CONTAINER, Started(NAMED)),
    ("StopContainer", nri_pb2.STOP_CONTAINER, Ended(SEEN.id)),
    ("RemoveContainer", nri_pb2.REMOVE_CONTAINER, Ended(SEEN.id)),
]


class TestEvents:
    @pytest.mark.parametrize(("method", "event", "message"), EVENTS)
    def test_new_and_old_runtimes_tell_the_same(
        self, session: Session, method: str, event: nri_pb2.Event, message: Message
    ) -> None:
        new = nri_pb2.LifecycleEvent(pod=POD.message(), container=CONTAINER.message())
        old = nri_pb2.StateChangeEvent(
            event=event, pod=POD.message(), container=CONTAINER.message()
        )

        assert session.receive(request(method, new)) == [message]
        assert session.receive(request("StateChange", old, call=3)) == [message]
        assert said(session) == {1: ttrpc_pb2.Response(), 3: ttrpc_pb2.Response()}

    def test_an_event_that_changes_nothing_is_only_answered(self, session: Session) -> None:
        other = nri_pb2.StateChangeEvent(event=nri_pb2.POST_CREATE_CONTAINER, pod=POD.message())
        foreign = nri_pb2.StateChangeEvent(
            event=nri_pb2.RUN_POD_SANDBOX, pod=Pod(labelled=False).message()
        )

        assert session.receive(request("StateChange", other)) == []
        assert session.receive(request("StateChange", foreign, call=3)) == []
        assert set(said(session)) == {1, 3}

    @pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
    def test_a_start_waits_for_its_answer(self, session: Session, old: bool) -> None:
        pod, container = POD.message(), CONTAINER.message()
        asked = (
            nri_pb2.StateChangeEvent(event=nri_pb2.START_CONTAINER, pod=pod, container=container)
            if old
            else nri_pb2.LifecycleEvent(pod=pod, container=container)
        )
        method = "StateChange" if old else "StartContainer"

        said_ns = 2_000_000_000
        messages = [
            *session.receive(request(method, asked, timeout_ns=said_ns)),
            *session.receive(request(method, asked, call=3)),
        ]
        assert messages == [StartContainer(1, NAMED, 2.0), StartContainer(3, NAMED, None)]
        assert said(session) == {}
        assert session.owes

        session.answer_start(1)
        session.refuse(3, "its CPUs are occupied")
        answers = said(session)
        assert answers[1] == ttrpc_pb2.Response()
        assert answers[3].status.message == "cpupool: its CPUs are occupied"
        assert not session.owes

    def test_a_creation_that_is_taken_back_ends_with_nothing_but_the_id(
        self, session: Session
    ) -> None:
        undone = nri_pb2.LifecycleEvent(
            pod=POD.message(), container=nri_pb2.Container(id="c1", pod_sandbox_id=POD.sandbox)
        )

        [ended] = session.receive(request("RemoveContainer", undone))

        assert isinstance(ended, Ended)
        assert ended.id == "c1"

    def test_the_runtimes_end_is_announced(self, session: Session) -> None:
        assert session.receive(request("Shutdown", nri_pb2.Empty())) == [Shutdown()]
        assert set(said(session)) == {1}
