from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.quota import Bandwidth
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.runtime.nri_messages import (
    Adjustment,
    Configured,
    ContainerState,
    CPUResources,
    CreateContainer,
    Ended,
    NRIContainer,
    Registered,
    SandboxRemoved,
    SandboxStarted,
    Shutdown,
    Started,
    Synchronize,
    Update,
    UpdateContainer,
    Updated,
)
from cpupool.runtime.nri_session import Session
from tests import builders
from tests.nri_runtime import FIRST_EVENTS, PLUGIN, Container, Pod, frames, spoken

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

    from cpupool.runtime.nri_messages import Message

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED = 3, 8, 9, 12
POD = Pod()
CONTAINER = Container(
    POD,
    "c1",
    cpus="0-7",
    quota_us=400_000,
    devices={"exclusive_a": "2-3"},
    environment={"PATH": "/bin", "OPTIONS": "a=b"},
    state=nri_pb2.CONTAINER_RUNNING,
)
SANDBOX = RuntimeContainer(ContainerID(POD.sandbox), POD.uid, "default", "pod")
SEEN = NRIContainer(
    ContainerID("c1"),
    RuntimeContainer(
        ContainerID("c1"),
        POD.uid,
        "default",
        "pod",
        "main",
        {builders.resource("exclusive_a"): frozenset({"2", "3"})},
    ),
    CPUResources("0-7", 400_000, 100_000),
    {"PATH": "/bin", "OPTIONS": "a=b"},
    ContainerState.RUNNING,
)
CREATE = nri_pb2.CreateContainerRequest(pod=POD.message(), container=CONTAINER.message())


@pytest.fixture
def session() -> Session:
    return Session("cpupool", "10", Names())


def request(
    method: str,
    message: ProtobufMessage | bytes,
    *,
    call: int = 1,
    service: str = PLUGIN,
    timeout_ns: int = 0,
) -> bytes:
    payload = message if isinstance(message, bytes) else message.SerializeToString()
    body = ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=timeout_ns
    )
    return frames(1, call, 1, body.SerializeToString())


def said(session: Session) -> dict[int, ttrpc_pb2.Response]:
    """Give what the session has answered: call → response."""
    found = spoken(session.outgoing())
    assert all((connection, kind) == (1, 2) for connection, _, kind, _ in found)
    answers = {stream: ttrpc_pb2.Response.FromString(body) for _, stream, _, body in found}
    assert len(answers) == len(found), "a call is answered once"
    return answers


def asked(session: Session) -> dict[int, ttrpc_pb2.Request]:
    """Give what the session has asked for: call → request."""
    found = spoken(session.outgoing())
    assert all((connection, kind) == (2, 1) for connection, _, kind, _ in found)
    return {stream: ttrpc_pb2.Request.FromString(body) for _, stream, _, body in found}


def answer(call: int, message: ProtobufMessage | None = None, error: str = "") -> bytes:
    response = ttrpc_pb2.Response(payload=message.SerializeToString() if message else b"")
    if error:
        response.status.code = 2
        response.status.message = error
    return frames(2, call, 2, response.SerializeToString())


class TestRegistration:
    def test_the_plugin_says_its_name_and_place_first(self, session: Session) -> None:
        session.register()

        [(call, said_first)] = asked(session).items()
        assert (call, said_first.service, said_first.method) == (
            1,
            "nri.pkg.api.v1alpha1.Runtime",
            "RegisterPlugin",
        )
        assert nri_pb2.RegisterPluginRequest.FromString(
            said_first.payload
        ) == nri_pb2.RegisterPluginRequest(plugin_name="cpupool", plugin_idx="10")
        assert session.receive(answer(call)) == [Registered()]

    def test_a_runtime_that_does_not_take_it_ends_the_conversation(self, session: Session) -> None:
        session.register()

        with pytest.raises(RemoteProtocolError, match="does not take the plugin 10-cpupool: no"):
            session.receive(answer(1, error="no"))

    @pytest.mark.parametrize(
        ("version", "may"),
        [
            pytest.param("", True, id="before 0.12 none is told"),
            ("v0.12.0", True),
            ("v0.12.1", False),
            ("0.13.0-rc.1", False),
            ("v1.0.0", False),
            pytest.param("0.0.0-unknown", True, id="the build does not know"),
            ("(devel)", True),
        ],
    )
    def test_a_runtime_tells_by_its_nri_whether_updates_can_lock_it_up(
        self, session: Session, version: str, *, may: bool
    ) -> None:
        configure = nri_pb2.ConfigureRequest(
            runtime_name="containerd", runtime_version="v2.4.0", NRI_version=version
        )
        (configured,) = session.receive(request("Configure", configure))
        assert isinstance(configured, Configured)
        assert (configured.nri, configured.may_lock_up) == (version, may)

    def test_it_subscribes_to_what_every_runtime_knows(self, session: Session) -> None:
        configure = nri_pb2.ConfigureRequest(runtime_name="containerd", runtime_version="v1.7")

        assert session.receive(request("Configure", configure)) == [
            Configured("containerd", "v1.7")
        ]
        events = nri_pb2.ConfigureResponse.FromString(said(session)[1].payload).events
        assert events & ~FIRST_EVENTS == 0
        for needed in (
            nri_pb2.RUN_POD_SANDBOX,
            nri_pb2.REMOVE_POD_SANDBOX,
            nri_pb2.CREATE_CONTAINER,
            nri_pb2.POST_START_CONTAINER,
            nri_pb2.UPDATE_CONTAINER,
            nri_pb2.STOP_CONTAINER,
            nri_pb2.REMOVE_CONTAINER,
        ):
            assert events & 1 << (needed - 1), nri_pb2.Event.Name(needed)


class TestSynchronize:
    def test_everything_that_runs_is_named_and_corrected(self, session: Session) -> None:
        everything = nri_pb2.SynchronizeRequest(
            pods=[POD.message()], containers=[CONTAINER.message()]
        )

        assert session.receive(request("Synchronize", everything)) == [
            Synchronize(1, (SANDBOX,), (SEEN,))
        ]
        assert session.outgoing() == b""
        session.answer_synchronize(
            1, [Update(ContainerID("c1"), CPUSet.of(2, 3), Bandwidth(50_000))]
        )
        [update] = nri_pb2.SynchronizeResponse.FromString(said(session)[1].payload).update
        assert (update.container_id, update.ignore_failure) == ("c1", True)
        assert update.linux.resources.cpu.cpus == "2-3"
        assert update.linux.resources.cpu.quota.value == 50_000
        assert update.linux.resources.cpu.period.value == 100_000

    def test_parts_are_put_together_and_a_container_may_come_before_its_pod(
        self, session: Session
    ) -> None:
        bare = Container(POD, "c2", own_labels=False)
        first = nri_pb2.SynchronizeRequest(containers=[bare.message()], more=True)
        last = nri_pb2.SynchronizeRequest(pods=[POD.message()])

        assert session.receive(request("Synchronize", first)) == []
        assert nri_pb2.SynchronizeResponse.FromString(
            said(session)[1].payload
        ) == nri_pb2.SynchronizeResponse(more=True)
        [whole] = session.receive(request("Synchronize", last, call=3))
        assert isinstance(whole, Synchronize)
        assert [one.known and one.known.pod for one in whole.containers] == [POD.uid]

    def test_a_second_synchronisation_starts_afresh(self, session: Session) -> None:
        full = nri_pb2.SynchronizeRequest(pods=[POD.message()])

        session.receive(request("Synchronize", full))
        assert session.receive(request("Synchronize", nri_pb2.SynchronizeRequest(), call=3)) == [
            Synchronize(3, (), ())
        ]


class TestCreateContainer:
    def test_the_container_gets_its_cpus_quota_and_environment(self, session: Session) -> None:
        assert session.receive(request("CreateContainer", CREATE, timeout_ns=2 * 10**9)) == [
            CreateContainer(1, SANDBOX, SEEN, 2.0)
        ]
        session.answer_create(
            1,
            Adjustment(CPUSet.of(2, 3), Bandwidth(200_000, 50_000), {"EXCLUSIVE_CPUS": "2,3"}),
            [Update(ContainerID("c0"), CPUSet.of(4), ignore_failure=False)],
        )

        answered = nri_pb2.CreateContainerResponse.FromString(said(session)[1].payload)
        cpu = answered.adjust.linux.resources.cpu
        assert (cpu.cpus, cpu.quota.value, cpu.period.value) == ("2-3", 200_000, 50_000)
        assert [(one.key, one.value) for one in answered.adjust.env] == [("EXCLUSIVE_CPUS", "2,3")]
        [other] = answered.update
        assert (other.container_id, other.ignore_failure) == ("c0", False)
        assert other.linux.resources.cpu == nri_pb2.LinuxCPU(cpus="4")

    def test_what_is_not_asked_for_is_not_written(self, session: Session) -> None:
        session.receive(
            request("CreateContainer", CREATE) + request("CreateContainer", CREATE, call=3)
        )

        session.answer_create(1, None)
        session.answer_create(3, Adjustment(CPUSet()), [Update(ContainerID("c0"), CPUSet())])

        answers = said(session)
        assert answers[1].payload == b""
        assert nri_pb2.CreateContainerResponse.FromString(answers[3].payload) == (
            nri_pb2.CreateContainerResponse(
                update=[nri_pb2.ContainerUpdate(container_id="c0", ignore_failure=True)]
            )
        )

    def test_it_can_be_refused_with_the_reason(self, session: Session) -> None:
        session.receive(request("CreateContainer", CREATE))

        session.refuse(1, "its devices are not known yet")

        status = said(session)[1].status
        assert (status.code, status.message) == (
            FAILED_PRECONDITION,
            "cpupool: its devices are not known yet",
        )

    @pytest.mark.parametrize(
        "wrongly",
        [
            lambda session: session.answer_update(1, []),
            lambda session: session.answer_synchronize(1, []),
            lambda session: session.answer_create(3, None),
            lambda session: session.refuse(3, "no"),
        ],
    )
    def test_only_what_waits_can_be_answered(self, session: Session, wrongly: object) -> None:
        assert callable(wrongly)
        session.receive(request("CreateContainer", CREATE))

        with pytest.raises(ValueError, match=r"call \d "):
            wrongly(session)
        assert session.outgoing() == b""
        session.answer_create(1, None)
        with pytest.raises(ValueError, match="call 1 "):
            session.answer_create(1, None)


class TestWhoseContainerItIs:
    def seen(self, session: Session, create: nri_pb2.CreateContainerRequest) -> CreateContainer:
        [message] = session.receive(request("CreateContainer", create))
        assert isinstance(message, CreateContainer)
        return message

    def test_the_pod_is_the_sandboxs_where_the_container_does_not_say(
        self, session: Session
    ) -> None:
        bare = Container(POD, "c1", devices={"exclusive_a": "2"}, own_labels=False)

        known = self.seen(
            session,
            nri_pb2.CreateContainerRequest(pod=POD.message(), container=bare.message()),
        ).container.known

        assert known == RuntimeContainer(
            ContainerID("c1"),
            POD.uid,
            "default",
            "pod",
            "main",
            {builders.resource("exclusive_a"): frozenset("2")},
        )

    def test_what_the_pods_author_wrote_is_no_device(self, session: Session) -> None:
        forged = {"nokia.k8s.io/allocated.exclusive_a": "2"}
        pod = Pod(annotations={**forged, "example.com/note": "x"})
        container = Container(pod, "c1", devices={"exclusive_b": "6"})

        known = self.seen(
            session,
            nri_pb2.CreateContainerRequest(pod=pod.message(), container=container.message()),
        ).container.known

        assert known is not None
        assert known.devices == {"exclusive_b": {"6"}}

    def test_of_a_pod_that_is_not_named_no_annotation_counts(self, session: Session) -> None:
        named = nri_pb2.SynchronizeRequest(containers=[CONTAINER.message()])

        [message] = session.receive(request("Synchronize", named))

        assert isinstance(message, Synchronize)
        [known] = [one.known for one in message.containers]
        assert known is not None
        assert (known.name, known.devices) == ("main", {})

    def test_what_the_kubelet_has_not_labelled_is_not_known(self, session: Session) -> None:
        other = Pod(labelled=False)

        message = self.seen(
            session,
            nri_pb2.CreateContainerRequest(
                pod=other.message(), container=Container(other, "c1").message()
            ),
        )

        assert message.sandbox is None
        assert message.container == NRIContainer(
            ContainerID("c1"), None, CPUResources("", None, None), {}, ContainerState.CREATED
        )

    def test_the_pods_author_cannot_make_a_container_of_its_sandbox(self, session: Session) -> None:
        pod = POD.message()
        pod.labels["io.kubernetes.container.name"] = "main"

        [started] = session.receive(request("RunPodSandbox", nri_pb2.LifecycleEvent(pod=pod)))

        assert started == SandboxStarted(SANDBOX)

    def test_a_state_and_a_variable_of_another_kind_are_taken(self, session: Session) -> None:
        odd = CONTAINER.message()
        odd.state = 77  # type: ignore[assignment]
        odd.env.append("no equals sign")

        container = self.seen(
            session, nri_pb2.CreateContainerRequest(pod=POD.message(), container=odd)
        ).container

        assert container.state is ContainerState.UNKNOWN
        assert set(container.environment) == {"PATH", "OPTIONS"}


class TestUpdateContainer:
    def test_what_is_asked_is_told_and_can_be_changed(self, session: Session) -> None:
        resize = nri_pb2.UpdateContainerRequest(pod=POD.message(), container=CONTAINER.message())
        resize.linux_resources.cpu.cpus = "0-63"
        resize.linux_resources.cpu.quota.value = -1
        resize.linux_resources.cpu.period.value = 50_000

        assert session.receive(request("UpdateContainer", resize)) == [
            UpdateContainer(1, SEEN, CPUResources("0-63", -1, 50_000))
        ]
        session.answer_update(1, [Update(ContainerID("c1"), CPUSet.of(2))])
        [update] = nri_pb2.UpdateContainerResponse.FromString(said(session)[1].payload).update
        assert update.container_id == "c1"
        assert update.linux.resources.cpu == nri_pb2.LinuxCPU(cpus="2")

    def test_what_is_not_asked_is_not_told(self, session: Session) -> None:
        [message] = session.receive(
            request(
                "UpdateContainer", nri_pb2.UpdateContainerRequest(container=CONTAINER.message())
            )
        )

        assert isinstance(message, UpdateContainer)
        assert message.asked == CPUResources("", None, None)


EVENTS = [
    ("RunPodSandbox", nri_pb2.RUN_POD_SANDBOX, SandboxStarted(SANDBOX)),
    ("RemovePodSandbox", nri_pb2.REMOVE_POD_SANDBOX, SandboxRemoved(ContainerID(POD.sandbox))),
    ("PostStartContainer", nri_pb2.POST_START_CONTAINER, Started(SEEN)),
    ("StopContainer", nri_pb2.STOP_CONTAINER, Ended(SEEN)),
    ("RemoveContainer", nri_pb2.REMOVE_CONTAINER, Ended(SEEN)),
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
        other = nri_pb2.StateChangeEvent(event=nri_pb2.START_CONTAINER, pod=POD.message())
        foreign = nri_pb2.StateChangeEvent(
            event=nri_pb2.RUN_POD_SANDBOX, pod=Pod(labelled=False).message()
        )

        assert session.receive(request("StateChange", other)) == []
        assert session.receive(request("StateChange", foreign, call=3)) == []
        assert set(said(session)) == {1, 3}

    def test_a_creation_that_is_taken_back_ends_with_nothing_but_the_id(
        self, session: Session
    ) -> None:
        undone = nri_pb2.LifecycleEvent(
            pod=POD.message(), container=nri_pb2.Container(id="c1", pod_sandbox_id=POD.sandbox)
        )

        [ended] = session.receive(request("RemoveContainer", undone))

        assert isinstance(ended, Ended)
        assert (ended.container.id, ended.container.known) == ("c1", None)

    def test_the_runtimes_end_is_announced(self, session: Session) -> None:
        assert session.receive(request("Shutdown", nri_pb2.Empty())) == [Shutdown()]
        assert set(said(session)) == {1}


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

    def test_frames_of_a_later_version_and_connections_of_nobody_are_dropped(
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
