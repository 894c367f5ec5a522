from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.grants import PastResize, RecordedChange, Sharing
from cpupool.wire import cpu_manager_state
from cpupool.wire.cpu_manager_state import State

# The contents and checksums of these files are those of the kubelet's own tests.
V1_EMPTY = b'{"policyName":"none","defaultCPUSet":"1-3","checksum":1694838852}'
V1 = (
    b'{"policyName":"static","defaultCpuSet":"7-9",'
    b'"entries":{"containerID1":"4-6","containerID2":"1-3"},"checksum":2026311253}'
)
V2 = (
    b'{"policyName":"none","defaultCpuSet":"1-3",'
    b'"entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499}'
)
V2_EMPTY = b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
V2_AS_V3 = (
    b'{"policyName":"static","defaultCpuSet":"7-9",'
    b'"entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":1942532442}'
)
V3 = (
    b'{"policyName":"static","defaultCpuSet":"1-2",'
    b'"entries":{"pod1":{"container1":"5-6","container2":"3-4"}},'
    b'"podEntries":{"pod2":{"cpuSet":"7-9"}},"checksum":766259872}'
)
V4_DATA = (
    '{"policyName":"static","defaultCPUSet":"1-3","entries":{"pod":{"container1":"4-6",'
    '"container2":"7-9"}},"podEntries":{"pod":{"cpuSet":"4-10"}}}'
)
V4 = json.dumps({"policyName": "x", "checksum": 0, "data": V4_DATA, "dataChecksum": 2328898362})

FIRST, SECOND, THIRD = CPUSet.parse("1-3"), CPUSet.parse("4-6"), CPUSet.parse("7-9")
V3_STATE = State(
    "static",
    CPUSet.parse("1-2"),
    {"pod1": {"container1": CPUSet.parse("5-6"), "container2": CPUSet.parse("3-4")}},
    {"pod2": THIRD},
    version=3,
)


@pytest.mark.parametrize(
    ("file", "state"),
    [
        pytest.param(V1_EMPTY, State("none", FIRST), id="V1 without containers"),
        pytest.param(
            V1,
            State(
                "static",
                THIRD,
                by_id={"containerID1": SECOND, "containerID2": FIRST},
                version=1,
            ),
            id="V1",
        ),
        pytest.param(
            V2,
            State("none", FIRST, {"pod": {"container1": SECOND, "container2": FIRST}}),
            id="V2",
        ),
        pytest.param(V2_EMPTY, State("none"), id="V2 of the policy none"),
        pytest.param(
            V2_AS_V3,
            State("static", THIRD, {"pod": {"container1": SECOND, "container2": FIRST}}),
            id="V2 with a checksum of V3",
        ),
        pytest.param(
            V3.replace(b"766259872", b"2284712151"),
            V3_STATE,
            id="V3 with the struct's name of 1.36",
        ),
        pytest.param(
            V3,
            V3_STATE,
            id="V3",
        ),
        pytest.param(
            V4.encode(),
            State(
                "static",
                FIRST,
                {"pod": {"container1": SECOND, "container2": THIRD}},
                {"pod": CPUSet.parse("4-10")},
                version=4,
            ),
            id="V4",
        ),
    ],
)
def test_a_file_of_each_version_is_read_and_its_checksum_is_right(
    file: bytes, state: State
) -> None:
    assert cpu_manager_state.parse(file) == state


def test_what_the_agent_writes_is_version_2_with_its_boot_and_what_is_settled() -> None:
    entries = {"pod": {"container1": SECOND, "container2": FIRST}}
    settled = {"reserved": "0-1"}
    state = State("none", FIRST, entries, boot_id="b", settled=settled)
    written = cpu_manager_state.encode(state)
    assert json.loads(written) == {**json.loads(V2), "bootId": "b", "settled": settled}
    assert cpu_manager_state.parse(written) == state


def test_with_a_bubble_it_is_version_3() -> None:
    state = replace(V3_STATE, boot_id="b")
    written = cpu_manager_state.encode(state)
    of_kubelet = V3.replace(b"766259872", b"2284712151")
    assert json.loads(written) == {**json.loads(of_kubelet), "bootId": "b", "settled": {}}
    assert cpu_manager_state.parse(written) == state


def test_what_others_may_share_is_read_as_it_was_written() -> None:
    sharing = {"pod": Sharing.BEST_EFFORT, "other": Sharing.NONE}
    state = State("koordinator", FIRST, {"pod": {"": SECOND}}, boot_id="b", sharing=sharing)
    written = cpu_manager_state.encode(state)
    assert cpu_manager_state.parse(written) == state
    with pytest.raises(RemoteProtocolError, match="sharing: 'anybody' is not a valid Sharing"):
        cpu_manager_state.parse(written.replace(b"best effort", b"anybody"))


def test_no_checksum_is_checked_where_the_kubelet_has_written_none() -> None:
    assert cpu_manager_state.parse(V2.replace(b"3610638499", b"0")).entries
    with pytest.raises(RemoteProtocolError, match="its checksum is 0"):
        cpu_manager_state.parse(V3.replace(b"766259872", b"0"))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        pytest.param(b"", "not JSON", id="an empty file"),
        pytest.param(V2[:-9], "not JSON", id="a file cut off"),
        pytest.param(b"\xff", "not JSON", id="no UTF-8"),
        pytest.param(b"[]", "it is not of type dict", id="no object"),
        pytest.param(b"{}", "checksum is not of type int", id="no checksum"),
        pytest.param(
            V2.replace(b"4-6", b"4-7"), r"checksum is \d+, and its content has", id="edit"
        ),
        pytest.param(V1.replace(b"4-6", b"4-7"), "2026311253", id="an edit of V1"),
        pytest.param(V3.replace(b"7-9", b"7-8"), "766259872", id="an edit of V3"),
        pytest.param(V4.replace("4-10", "4-11").encode(), "2328898362", id="an edit of V4"),
        pytest.param(
            V4.replace('"dataChecksum": 2328898362', '"x": 1').encode(),
            "dataChecksum is not of type int",
            id="V4 without its checksum",
        ),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"x","checksum":0}',
            "defaultCpuSet is no CPU list",
            id="no CPU list",
        ),
        pytest.param(
            b'{"policyName":1,"checksum":0}', "policyname is not of type str", id="another type"
        ),
        pytest.param(
            b'{"policyName":"x","entries":{"p":{"c":1}},"checksum":0}',
            r"p\.c is not of type str",
            id="a number for CPUs",
        ),
        pytest.param(
            b'{"policyName":"x","entries":{"p":{"c":"1"},"q":"2"},"checksum":0}',
            "q is not of type dict",
            id="two versions at once",
        ),
        pytest.param(b'{"policyName":"\\ud800","checksum":1}', "surrogate", id="half a pair"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(file: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        cpu_manager_state.parse(file)


CHANGED = State(
    "dynamic",
    FIRST,
    {"pod": {"main": SECOND}},
    boot_id="b",
    changes={"pod": {"main": RecordedChange(CPUSet.of(4), THIRD, (PastResize(FIRST, SECOND, 5),))}},
)
MOVE = PastResize(FIRST, SECOND, 5, "so that pod ns/late can have its CPUs")
MOVED = replace(
    CHANGED,
    changes={"pod": {"main": RecordedChange(SECOND, FIRST, (MOVE,))}},
    moved_unix_s=(3, 5),
)


def test_how_cpus_have_changed_is_read_as_it_was_written() -> None:
    written = cpu_manager_state.encode(CHANGED)
    assert cpu_manager_state.parse(written) == CHANGED
    without = json.loads(written)
    del without["changes"]["pod"]["main"]["resizes"]
    (change,) = cpu_manager_state.parse(json.dumps(without).encode()).changes["pod"].values()
    assert change == RecordedChange(CPUSet.of(4), THIRD)


def test_moves_are_read_as_they_were_written_and_a_record_without_them_is_as_before() -> None:
    written = cpu_manager_state.encode(MOVED)
    assert cpu_manager_state.parse(written) == MOVED
    without = json.loads(cpu_manager_state.encode(CHANGED))
    assert "movedUnixSeconds" not in without
    assert without["changes"]["pod"]["main"]["resizes"] == [
        {"before": "1-3", "after": "4-6", "unixSeconds": 5}
    ]


@pytest.mark.parametrize("damaged", [b"[-3,5]", b"7", b'["3",5]', b"[3,253402300800]"])
def test_a_time_of_a_move_that_cannot_be_is_refused(damaged: bytes) -> None:
    written = cpu_manager_state.encode(MOVED)
    with pytest.raises(RemoteProtocolError, match="movedUnixSeconds"):
        cpu_manager_state.parse(written.replace(b"[3,5]", damaged))


@pytest.mark.parametrize(
    ("text", "damaged"),
    [
        (b'"unixSeconds":5', b'"unixSeconds":-5'),
        (b'"unixSeconds":5', b'"unixSeconds":5.5'),
        (b'"unixSeconds":5', b'"unixSeconds":253402300800'),
        (b'"before":"1-3"', b'"before":"3-1"'),
        (b'"after":"4-6"', b'"after":6'),
        (b'"leaving":"7-9"', b'"leaving":"x"'),
        (b'"baseline":"4"', b'"baseline":[]'),
        (b'"resizes":[{', b'"resizes":[7,{'),
    ],
)
def test_a_change_that_cannot_be_is_refused(text: bytes, damaged: bytes) -> None:
    written = cpu_manager_state.encode(CHANGED)
    assert text in written
    with pytest.raises(RemoteProtocolError):
        cpu_manager_state.parse(written.replace(text, damaged))
