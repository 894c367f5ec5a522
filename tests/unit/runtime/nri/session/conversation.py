"""What a runtime says to a session, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.api import nri_pb2, ttrpc_pb2
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.runtime.nri.messages import (
    ContainerState,
    CPUResources,
    NamedContainer,
    NRIContainer,
)
from tests import builders
from tests.nri_frames import frames, spoken
from tests.nri_pods import Container, Pod
from tests.nri_runtime import PLUGIN

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

    from cpupool.runtime.nri.session import Session


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
NAMED = NamedContainer(
    ContainerID("c1"), RuntimeContainer(ContainerID("c1"), POD.uid, "default", "pod", "main")
)
CREATE = nri_pb2.CreateContainerRequest(pod=POD.message(), container=CONTAINER.message())


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
