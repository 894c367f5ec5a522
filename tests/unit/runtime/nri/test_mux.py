from __future__ import annotations

import struct

import pytest

from cpupool.core.errors import RemoteProtocolError
from cpupool.runtime.nri import mux

HELLO = bytes.fromhex("00000001 00000005") + b"hello"
WORLD = bytes.fromhex("00000002 00000005") + b"world"


def streams(pieces: list[tuple[int, bytes]]) -> dict[int, bytes]:
    """Put the pieces of each connection together."""
    found: dict[int, bytes] = {}
    for connection, piece in pieces:
        found[connection] = found.get(connection, b"") + piece
    return found


def test_a_frame_is_eight_bytes_and_its_payload() -> None:
    assert mux.encode(mux.PLUGIN_SERVICE, b"hello") == HELLO
    assert mux.Decoder().feed(HELLO) == [(mux.PLUGIN_SERVICE, b"hello")]


@pytest.mark.parametrize("piece_bytes", range(1, 27))
def test_frames_cut_and_glued_in_any_way_are_the_same_streams(piece_bytes: int) -> None:
    data = HELLO + WORLD
    decoder = mux.Decoder()

    pieces = [
        piece
        for at in range(0, len(data), piece_bytes)
        for piece in decoder.feed(data[at : at + piece_bytes])
    ]

    assert streams(pieces) == {1: b"hello", 2: b"world"}


def test_one_message_may_come_in_several_frames() -> None:
    again = bytes.fromhex("00000001 00000006") + b" again"

    assert streams(mux.Decoder().feed(HELLO + WORLD + again)) == {
        1: b"hello again",
        2: b"world",
    }


def test_an_empty_frame_is_nothing() -> None:
    assert mux.Decoder().feed(bytes.fromhex("00000001 00000000") + WORLD) == [(2, b"world")]


def test_the_longest_frame_is_taken_and_a_longer_one_ends_the_conversation_at_its_header() -> None:
    longest = struct.pack(">II", 1, mux.MAX_PAYLOAD_BYTES)
    decoder = mux.Decoder()

    assert decoder.feed(longest) == []
    assert len(decoder.feed(bytes(mux.MAX_PAYLOAD_BYTES))[0][1]) == mux.MAX_PAYLOAD_BYTES
    with pytest.raises(RemoteProtocolError, match="4194315 bytes, the longest has 4194314"):
        decoder.feed(struct.pack(">II", 1, mux.MAX_PAYLOAD_BYTES + 1))


@pytest.mark.parametrize(
    ("length", "payloads"),
    [
        (10, [10]),
        (4096, [4096]),
        (4097, [4096, 1]),
        (mux.MAX_PAYLOAD_BYTES, [4096, mux.MAX_PAYLOAD_BYTES - 4096]),
    ],
)
def test_a_message_is_cut_where_the_runtimes_reader_has_room(
    length: int, payloads: list[int]
) -> None:
    message = bytes(range(256)) * (length // 256) + bytes(length % 256)
    written = mux.encode(mux.RUNTIME_SERVICE, message)

    lengths = []
    rest = written
    while rest:
        connection, payload = struct.unpack(">II", rest[:8])
        assert connection == mux.RUNTIME_SERVICE
        lengths.append(payload)
        rest = rest[8 + payload :]
    assert lengths == payloads
    assert streams(mux.Decoder().feed(written)) == {2: message}
