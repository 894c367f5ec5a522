from __future__ import annotations

import pytest

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri.messages import CreateContainer, Update, Updated
from cpupool.runtime.nri.session import Session
from tests.nri_frames import frames
from tests.unit.runtime.nri.session.conversation import (
    CREATE,
    INVALID_ARGUMENT,
    POD,
    RESOURCE_EXHAUSTED,
    SANDBOX,
    SEEN,
    UNIMPLEMENTED,
    answer,
    asked,
    request,
    said,
)


class TestUpdatesFromOutside:
    def test_the_runtime_tells_what_failed(self, session: Session) -> None:
        session.register()
        session.receive(answer(1))
        session.outgoing()

        call = session.update(
            [Update(ContainerID("c1"), CPUSet.of(2)), Update(ContainerID("c2"), CPUSet.of(3))]
        )

        [(stream, update)] = asked(session).items()
        assert (stream, update.method) == (call, "UpdateContainers")
        listed = nri_pb2.UpdateContainersRequest.FromString(update.payload).update
        assert [(one.container_id, one.linux.resources.cpu.cpus) for one in listed] == [
            ("c1", "2"),
            ("c2", "3"),
        ]
        failed = nri_pb2.UpdateContainersResponse(failed=[listed[1]])
        assert session.receive(answer(call, failed)) == [Updated(call, (ContainerID("c2"),), "")]
        assert session.receive(answer(call, failed)) == [], "it is answered once"

    def test_calls_are_odd_count_up_and_are_answered_in_any_order(self, session: Session) -> None:
        first, second = (session.update([]) for _ in range(2))

        assert (first % 2, second - first) == (1, 2)
        assert session.receive(answer(second, error="busy") + answer(first)) == [
            Updated(second, (), "busy"),
            Updated(first, (), ""),
        ]

    @pytest.mark.parametrize(
        ("what", "error"),
        [
            (frames(2, 1, 3, b""), "a frame of type 3"),
            (frames(2, 1, 2, b"\xff"), "cannot be read"),
            (frames(2, 1, 2, ttrpc_pb2.Response(payload=b"\xff").SerializeToString()), "cannot"),
            (bytes.fromhex("00000002 0000000a 00400001 00000001 02 00"), "too long"),
        ],
    )
    def test_an_answer_that_makes_no_sense_fails_its_call(
        self, session: Session, what: bytes, error: str
    ) -> None:
        call = session.update([])

        [updated] = session.receive(what)

        assert isinstance(updated, Updated)
        assert (updated.call, updated.failed) == (call, ())
        assert error in updated.error

    def test_an_answer_to_nothing_is_nothing(self, session: Session) -> None:
        assert session.receive(answer(7)) == []
        assert session.outgoing() == b""


class TestTrouble:
    @pytest.mark.parametrize(
        ("data", "stream", "code"),
        [
            (request("Whatever", b""), 1, UNIMPLEMENTED),
            (request("CreateContainer", b"", service="other"), 1, UNIMPLEMENTED),
            (request("CreateContainer", b"\xff"), 1, INVALID_ARGUMENT),
            (request("PostStartContainer", b"\xff"), 1, INVALID_ARGUMENT),
            (frames(1, 1, 1, b"\xff"), 1, INVALID_ARGUMENT),
            (frames(1, 1, 3, b""), 1, INVALID_ARGUMENT),
            (frames(1, 2, 1, b""), 2, INVALID_ARGUMENT),
            (
                bytes.fromhex("00000001 00400000 00400001 00000001 01 00")
                + bytes(4194294)
                + bytes.fromhex("00000001 0000000b")
                + bytes(11),
                1,
                RESOURCE_EXHAUSTED,
            ),
        ],
        ids=["method", "service", "payload", "event", "body", "data", "even stream", "too long"],
    )
    def test_a_call_that_makes_no_sense_is_refused_and_the_next_one_answered(
        self, session: Session, data: bytes, stream: int, code: int
    ) -> None:
        after = request("CreateContainer", CREATE, call=5)

        assert session.receive(data + after) == [CreateContainer(5, SANDBOX, SEEN, None)]
        session.answer_create(5, None)
        answers = said(session)
        assert answers[stream].status.code == code
        assert not answers[5].HasField("status")

    def test_a_call_number_that_has_been_used_is_refused(self, session: Session) -> None:
        session.receive(request("CreateContainer", CREATE, call=5))

        assert session.receive(request("CreateContainer", CREATE, call=5)) == []
        assert session.receive(request("CreateContainer", CREATE, call=3)) == []
        assert {call: one.status.code for call, one in said(session).items()} == {
            5: INVALID_ARGUMENT,
            3: INVALID_ARGUMENT,
        }

    def test_frames_of_a_later_version_and_of_unknown_connections_are_dropped(
        self, session: Session
    ) -> None:
        assert session.receive(frames(1, 1, 9, b"news") + frames(3, 1, 1, b"\xff")) == []
        assert session.outgoing() == b""

    def test_a_long_method_name_does_not_come_back(self, session: Session) -> None:
        session.receive(request("x" * 4_000_000, b""))

        assert len(session.outgoing()) < 1000

    def test_what_no_runtime_sends_ends_the_conversation(self, session: Session) -> None:
        with pytest.raises(RemoteProtocolError, match="check that a container runtime"):
            session.receive(b"HTTP/1.1 400 Bad Request\r\n")


def test_an_answer_of_any_length_can_be_read_by_the_runtime(session: Session) -> None:
    session.receive(request("Synchronize", nri_pb2.SynchronizeRequest()))

    updates = [Update(ContainerID(f"{number:064}"), CPUSet.of(number)) for number in range(1000)]
    session.answer_synchronize(1, updates)

    answered = nri_pb2.SynchronizeResponse.FromString(said(session)[1].payload)
    assert [one.linux.resources.cpu.cpus for one in answered.update] == list(map(str, range(1000)))


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 8, 9, 10, 11, 4096])
def test_it_does_not_matter_how_the_bytes_are_cut(piece_bytes: int) -> None:
    session, cut = (Session("cpupool", "10", Names()) for _ in range(2))
    data = b"".join(
        (
            request("Configure", nri_pb2.ConfigureRequest()),
            request("Synchronize", nri_pb2.SynchronizeRequest(pods=[POD.message()]), call=3),
            request("CreateContainer", CREATE, call=5),
            request("Whatever", b"", call=7),
        )
    )

    messages = [
        message
        for at in range(0, len(data), piece_bytes)
        for message in cut.receive(data[at : at + piece_bytes])
    ]

    assert messages == session.receive(data)
    assert cut.outgoing() == session.outgoing()
