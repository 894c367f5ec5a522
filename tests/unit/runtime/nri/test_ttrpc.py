from __future__ import annotations

import pytest

from cpupool.runtime.nri import ttrpc
from cpupool.runtime.nri.ttrpc import Frame

GREETING = bytes.fromhex("00000005 00000003 01 00") + b"hello"


def test_a_frame_is_ten_bytes_and_its_body() -> None:
    assert ttrpc.encode(3, ttrpc.REQUEST, b"hello") == GREETING
    assert ttrpc.Decoder().feed(GREETING) == [Frame(3, ttrpc.REQUEST, b"hello")]


def test_a_frame_cut_anywhere_is_the_same_frame() -> None:
    for cut in range(len(GREETING)):
        decoder = ttrpc.Decoder()

        assert decoder.feed(GREETING[:cut]) == []
        assert decoder.feed(GREETING[cut:]) == [Frame(3, ttrpc.REQUEST, b"hello")]


def test_frames_that_come_together_are_distinguished() -> None:
    empty = bytes.fromhex("00000000 00000005 07 04")

    assert ttrpc.Decoder().feed(GREETING + empty + GREETING[:4]) == [
        Frame(3, ttrpc.REQUEST, b"hello"),
        Frame(5, 7, b"", flags=4),
    ]


def test_the_longest_body_is_taken() -> None:
    body = bytes(ttrpc.MAX_BODY_BYTES)

    assert ttrpc.Decoder().feed(ttrpc.encode(1, ttrpc.RESPONSE, body)) == [
        Frame(1, ttrpc.RESPONSE, body)
    ]


@pytest.mark.parametrize("piece_bytes", [4096, 1 << 23])
def test_a_body_that_is_too_long_is_skipped_and_the_next_frame_read(piece_bytes: int) -> None:
    length = ttrpc.MAX_BODY_BYTES + 1
    stream = bytes.fromhex("00400001 00000003 01 00") + bytes(length) + GREETING
    decoder = ttrpc.Decoder()

    pieces = [stream[at : at + piece_bytes] for at in range(0, len(stream), piece_bytes)]
    found = [decoder.feed(piece) for piece in pieces]

    assert found[0][0] == Frame(3, ttrpc.REQUEST, None), "told at once"
    assert [frame for frames in found for frame in frames] == [
        Frame(3, ttrpc.REQUEST, None),
        Frame(3, ttrpc.REQUEST, b"hello"),
    ]


def test_a_body_that_is_too_long_is_not_written() -> None:
    with pytest.raises(ValueError, match="4194305 bytes"):
        ttrpc.encode(1, ttrpc.REQUEST, bytes(ttrpc.MAX_BODY_BYTES + 1))
