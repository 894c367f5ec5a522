"""How many messages the bytes of a message hold: as many as the parser would make."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from cpupool.api.deviceplugin_pb2 import AllocateRequest, PreStartContainerRequest
from cpupool.api.resourceplugin_pb2 import (
    GetResourcesAllocationResponse,
    ResourceAllocationResponse,
    ResourceHintsResponse,
)
from cpupool.rpc.parts import TooManyParts, check_parts


def listed(pods: int, containers: int, variables: int) -> GetResourcesAllocationResponse:
    found = GetResourcesAllocationResponse()
    for pod in range(pods):
        of_pod = found.pod_resources[f"pod-{pod:04}"].container_resources
        for container in range(containers):
            info = of_pod[f"container-{container:04}"].resource_allocation.add(key="cpu").value
            info.allocated_quantity = 2.5
            info.allocation_result = "0-3"
            info.topology_assignments[0] = 2
            for variable in range(variables):
                info.envs[f"VARIABLE_{variable}"] = "value"
    return found


@pytest.mark.parametrize(
    ("pods", "containers", "variables", "parts"),
    [
        # A pod is an entry and its value, a container as well, with an entry, its value and nodes.
        (1000, 2, 0, 1000 * (2 + 2 * (2 + 2 + 1))),
        (10, 300, 3, 10 * (2 + 300 * (2 + 2 + 1 + 3))),
    ],
)
def test_messages_count_at_any_depth(
    pods: int, containers: int, variables: int, parts: int
) -> None:
    data = listed(pods, containers, variables).SerializeToString()
    assert len(data) > 128 * 1024 or pods == 1000
    data += b"\x12\x00" * 70_000  # fields that the type does not have
    check_parts(GetResourcesAllocationResponse, data, parts)
    with pytest.raises(TooManyParts, match=f"more than {parts - 1} messages in one"):
        check_parts(GetResourcesAllocationResponse, data, parts - 1)


@pytest.mark.parametrize(
    ("kind", "piece"),
    [
        (GetResourcesAllocationResponse, b"\x0a\x00"),
        (ResourceHintsResponse, b"\x52\x00"),
        (ResourceHintsResponse, b"\x5a\x00"),
        (ResourceAllocationResponse, b"\x62\x00"),
        (AllocateRequest, b"\x0a\x00"),
        # In a group, which the parser passes over with what is in it.
        (AllocateRequest, b"\x1b\x0a\x00\x1c\x0a\x00"),
    ],
)
def test_the_smallest_messages_count(kind: type[AllocateRequest], piece: bytes) -> None:
    data = piece * (200_000 // len(piece))
    with pytest.raises(TooManyParts, match="more than 10000 messages"):
        check_parts(kind, data, 10_000)


def test_identifiers_are_no_messages() -> None:
    many = PreStartContainerRequest(devices_ids=[f"id-{number}" for number in range(200_000)])
    check_parts(PreStartContainerRequest, many.SerializeToString(), 0)


def test_a_message_of_many_fields_is_not_counted_to_its_end() -> None:
    with pytest.raises(TooManyParts, match="more than 500000 fields"):
        check_parts(AllocateRequest, b"\x10\x00" * 2_000_000, 10_000)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a", id="a length that is missing"),
        pytest.param(b"\x0a\xff", id="a length that is cut"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", id="a length past the end"),
        pytest.param(b"\xff" * 20, id="a number without an end"),
        pytest.param(b"\x0f", id="a type that does not exist"),
        pytest.param(b"\x09", id="a fixed number that is cut"),
    ],
)
def test_the_parser_says_what_is_no_message(data: bytes) -> None:
    data = b"\x12\x00" * 100_000 + data
    check_parts(AllocateRequest, data, 10)
    with pytest.raises(DecodeError):
        AllocateRequest.FromString(data)
