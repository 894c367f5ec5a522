"""The file of Katalyst's managers; its form is that of a file in Katalyst's own tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cpupool.core.errors import RemoteProtocolError
from cpupool.qrm import katalyst_checkpoint_codec
from cpupool.qrm.katalyst_checkpoint_codec import Entry
from tests import qrm_checkpoints
from tests.qrm_checkpoints import Recorded

CPUS = Recorded("a-uid", "main", "cpu", b"\n\nCpusetCpus\x18\x01!\0\0\0\0\0\0\x10@*\x032-5")
MEMORY = Recorded("a-uid", "main", "memory", b"*\x010")
TENTHS = Recorded("b-uid", "main", "cpu", b"!333333\xd3?*\x012")
SUMS = {(CPUS,): 3874491097, (CPUS, MEMORY): 2357161846}


def entry(recorded: Recorded) -> Entry:
    return Entry(
        recorded.pod,
        recorded.container,
        recorded.resource,
        qrm_checkpoints.text(recorded.message),
    )


def changed(*recorded: Recorded, checksum: int | None = None, **members: Any) -> bytes:
    """Write a file with another checksum, or with members of its last entry replaced."""
    document = json.loads(qrm_checkpoints.written(*recorded))
    if checksum is not None:
        document["Checksum"] = checksum
    document["Data"]["PodResourceEntries"][-1] |= members
    return json.dumps(document).encode()


@pytest.mark.parametrize("recorded", [(CPUS,), (CPUS, MEMORY)])
def test_a_whole_file_is_read_and_its_checksum_is_right(recorded: tuple[Recorded, ...]) -> None:
    data = changed(*recorded, checksum=SUMS[recorded])
    assert data == changed(*recorded)
    found = katalyst_checkpoint_codec.parse(data)
    assert found == tuple(map(entry, recorded))
    assert [each.message(0) for each in found] == [each.message for each in recorded]
    assert all(each.whole for each in found)


def test_a_file_without_entries_is_read() -> None:
    assert katalyst_checkpoint_codec.parse(qrm_checkpoints.written()) == ()
    assert (
        katalyst_checkpoint_codec.parse(
            b'{"Data":{"PodResourceEntries":null},"Checksum":2079453817}'
        )
        == ()
    )


def test_a_wrong_checksum_is_refused_with_both_sums_and_a_remedy() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        katalyst_checkpoint_codec.parse(changed(CPUS, checksum=1))
    assert str(caught.value) == (
        "kubelet_qrm_checkpoint is not readable: its checksum is 1, and its content has 3874491097;"
        " the agent imports nothing: remove the file, and it asks plugins for every container"
    )


def test_the_checksum_of_a_file_with_lost_bytes_says_nothing() -> None:
    whole, lossy = katalyst_checkpoint_codec.parse(qrm_checkpoints.written(CPUS, TENTHS))
    assert (whole, lossy) == (entry(CPUS), entry(TENTHS))
    assert not lossy.whole


def test_a_lost_byte_may_be_any() -> None:
    lossy = entry(TENTHS)
    assert lossy.message(0xD3) == TENTHS.message
    assert lossy.message(0x80) == TENTHS.message.replace(b"\xd3", b"\x80")
    assert Entry("", "", "", "é\ufffd\ufffd").message(0x80) == b"\xc3\xa9\x80\x80"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff", "it is not JSON"),
        (b"[]", "it is not of type dict"),
        (b"{}", "Checksum is not of type int"),
        (b'{"Checksum":1}', "Data is not of type dict"),
        (
            b'{"Checksum":1,"Data":{"PodResourceEntries":{}}}',
            "PodResourceEntries is not of type list",
        ),
        (
            b'{"Checksum":1,"Data":{"PodResourceEntries":[1]}}',
            r"PodResourceEntries\[0\] is not of type dict",
        ),
        (changed(CPUS, PodUID=1), r"PodResourceEntries\[0\].PodUID is not of type str"),
        (changed(CPUS, AllocationInfo=None), r"\[0\].AllocationInfo is not of type str"),
        (changed(TENTHS, PodUID="\ud800"), "half of a surrogate pair"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        katalyst_checkpoint_codec.parse(data)
