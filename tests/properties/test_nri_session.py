"""Whatever comes out of the NRI socket, the agent goes on."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerID
from cpupool.runtime.nri import mux as nri_mux
from cpupool.runtime.nri import ttrpc
from cpupool.runtime.nri.messages import (
    Adjustment,
    CreateContainer,
    Synchronize,
    Update,
    UpdateContainer,
)
from cpupool.runtime.nri.session import Session
from tests.nri_frames import frames, spoken
from tests.nri_runtime import PLUGIN

METHODS = (
    "Configure",
    "Synchronize",
    "CreateContainer",
    "UpdateContainer",
    "StateChange",
    "Shutdown",
    "RunPodSandbox",
    "RemoveContainer",
    "Unheard",
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
LABELS = st.dictionaries(
    TEXTS
    | st.sampled_from(
        ["io.kubernetes.pod.uid", "io.kubernetes.pod.namespace", "io.kubernetes.pod.name"]
    ),
    TEXTS,
    max_size=4,
)
ANNOTATIONS = st.dictionaries(
    TEXTS | st.just("nokia.k8s.io/allocated.exclusive_a"),
    TEXTS | st.just("0-3,7"),
    max_size=2,
)
PODS = st.builds(nri_pb2.PodSandbox, id=TEXTS, labels=LABELS)
CONTAINERS = st.builds(
    nri_pb2.Container,
    id=TEXTS,
    name=TEXTS,
    pod_sandbox_id=TEXTS,
    state=st.integers(-(2**31), 2**31 - 1),
    labels=LABELS,
    annotations=ANNOTATIONS,
    env=st.lists(TEXTS, max_size=2),
)
MESSAGES = st.one_of(
    st.builds(nri_pb2.CreateContainerRequest, pod=PODS, container=CONTAINERS),
    st.builds(
        nri_pb2.SynchronizeRequest,
        pods=st.lists(PODS, max_size=2),
        containers=st.lists(CONTAINERS, max_size=2),
        more=st.booleans(),
    ),
    st.builds(
        nri_pb2.StateChangeEvent,
        event=st.integers(-(2**31), 2**31 - 1),
        pod=PODS,
        container=CONTAINERS,
    ),
)
PAYLOADS = st.binary(max_size=40) | MESSAGES.map(lambda message: message.SerializeToString())
BODIES = st.binary(max_size=20) | st.builds(
    lambda service, method, payload, timeout_nano: ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=timeout_nano
    ).SerializeToString(),
    st.sampled_from([PLUGIN, "other"]),
    st.sampled_from(METHODS),
    PAYLOADS,
    st.integers(-(2**63), 2**63 - 1),
)
FRAMES = st.builds(
    frames,
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(0, 4),
    BODIES,
    st.integers(0, 7),
)


def converse(session: Session, data: bytes) -> None:
    """Hear what the runtime says, and answer all that waits."""
    for message in session.receive(data):
        match message:
            case Synchronize():
                session.answer_synchronize(message.call, [])
            case CreateContainer():
                session.answer_create(message.call, Adjustment(CPUSet.of(1)))
            case UpdateContainer():
                session.answer_update(message.call, [])


def fresh() -> Session:
    session = Session("cpupool", "10", Names())
    session.update([Update(ContainerID("c"), CPUSet.of(1))])
    return session


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_arbitrary_bytes_end_the_conversation_at_most(pieces: list[bytes]) -> None:
    session = fresh()

    with suppress(RemoteProtocolError):
        for piece in pieces:
            converse(session, piece)


@given(st.lists(FRAMES, max_size=6))
def test_whole_frames_with_anything_in_them_never_end_it(said: list[bytes]) -> None:
    session = fresh()

    for frame in said:
        converse(session, frame)

    alive = ttrpc_pb2.Request(service=PLUGIN, method="Configure").SerializeToString()
    session.outgoing()
    converse(session, frames(1, 1001, 1, alive))
    [(connection, stream, kind, body)] = spoken(session.outgoing())
    assert (connection, stream, kind) == (1, 1001, 2)
    assert not ttrpc_pb2.Response.FromString(body).HasField("status")


@given(st.lists(FRAMES, max_size=6), st.data())
def test_every_call_is_answered_once(said: list[bytes], data: st.DataObject) -> None:
    """As from ttrpc's own server: unknown types are silence, an even number is always an error."""
    whole = b"".join(said)
    expected = Counter(
        stream
        for connection, stream, kind, _ in spoken(whole)
        if connection == 1 and (stream % 2 == 0 or kind in (1, 3))
    )
    cut = data.draw(st.integers(0, len(whole)))
    session = fresh()
    session.outgoing()

    converse(session, whole[:cut])
    converse(session, whole[cut:])

    assert Counter(stream for _, stream, _, _ in spoken(session.outgoing())) == expected


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 2**32 - 1), st.binary(max_size=300)),
        max_size=5,
    ),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_interleaved_streams_come_out_as_they_went_in(
    sent: list[tuple[int, int, bytes]], inner_bytes: int, outer_bytes: int
) -> None:
    """Each stream cut into payloads of one size, both dealt alternately, the whole cut again."""
    streams = {
        connection: b"".join(
            ttrpc.encode(number, ttrpc.REQUEST, body)
            for to, number, body in sent
            if to == connection
        )
        for connection in (1, 2)
    }
    wire = b""
    while any(streams.values()):
        for connection, rest in streams.items():
            payload = rest[:inner_bytes]
            wire += struct.pack(">II", connection, len(payload)) + payload
            streams[connection] = rest[inner_bytes:]

    mux = nri_mux.Decoder()
    decoders: dict[int, ttrpc.Decoder] = defaultdict(ttrpc.Decoder)
    found = [
        (connection, frame.stream, frame.body)
        for at in range(0, len(wire), outer_bytes)
        for connection, piece in mux.feed(wire[at : at + outer_bytes])
        for frame in decoders[connection].feed(piece)
    ]

    for connection in (1, 2):
        assert [one for one in found if one[0] == connection] == [
            one for one in sent if one[0] == connection
        ]
