from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.errors import RemoteProtocolError
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import NO_NODE, Checkpoint, Entry, Generation

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
IDS = st.lists(TEXTS, max_size=4).map(tuple)
ENTRIES = st.builds(
    Entry,
    pod_uid=TEXTS,
    container=TEXTS,
    resource=TEXTS,
    device_ids=st.dictionaries(st.integers(NO_NODE, 2**40), IDS, max_size=3),
    alloc_resp=st.binary(max_size=12),
)
CHECKPOINTS = st.builds(
    Checkpoint,
    entries=st.lists(ENTRIES, max_size=3).map(tuple),
    registered=st.dictionaries(TEXTS, IDS, max_size=3),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["PodDeviceEntries", "PodUID", "DeviceIDs", "AllocResp", "0"]),
            inner,
            max_size=3,
        )
    ),
)


@given(CHECKPOINTS)
def test_a_checkpoint_survives_writing_and_reading(written: Checkpoint) -> None:
    assert device_checkpoint.parse(device_checkpoint.encode(written)) == written


@given(st.lists(ENTRIES, min_size=1, max_size=3).map(tuple))
def test_an_old_checkpoint_keeps_every_id(entries: tuple[Entry, ...]) -> None:
    old = Checkpoint(entries, generation=Generation.FLAT)
    read = device_checkpoint.parse(device_checkpoint.encode(old))
    assert (read.generation, read.verified) == (Generation.FLAT, True)
    assert [entry.ids for entry in read.entries] == [entry.ids for entry in entries]


@given(CHECKPOINTS, st.data())
def test_damaged_bytes_are_refused_with_one_error_only(
    written: Checkpoint, data: st.DataObject
) -> None:
    good = device_checkpoint.encode(written)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    damaged = good[:start] + data.draw(st.binary(max_size=4)) + good[end:]
    with contextlib.suppress(RemoteProtocolError):
        device_checkpoint.parse(damaged)


@given(JSON, JSON)
def test_other_json_is_refused_with_one_error_only(body: object, registered: object) -> None:
    for document in (
        {"Data": body, "Checksum": 0},
        {"Data": {"PodDeviceEntries": [body], "RegisteredDevices": registered}, "Checksum": 0},
    ):
        with contextlib.suppress(RemoteProtocolError):
            device_checkpoint.parse(json.dumps(document).encode())
