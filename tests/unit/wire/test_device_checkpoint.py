from __future__ import annotations

import json
from typing import Any

import pytest

from cpupool.core.errors import RemoteProtocolError
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import NO_NODE, Checkpoint, Entry, Generation

# Written by a kubelet of a Jetson board.
REAL_FILE = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3",'
    b'"ContainerName":"check","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},'
    b'"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],'
    b'"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}'
)

ENTRY = Entry("uid", "main", "nokia.k8s.io/exclusive_a", {0: ("2", "3"), 10: ("20",)}, b"\x00\xff")
REGISTERED = {"nokia.k8s.io/shared": ("0", "1"), "nokia.k8s.io/exclusive_a": ("2", "3", "20")}


def _file(**changes: Any) -> bytes:
    """A good file with members of its one entry replaced; the checksum is that of the good one."""
    document = json.loads(device_checkpoint.encode(Checkpoint((ENTRY,), REGISTERED)))
    document["Data"]["PodDeviceEntries"][0] |= changes
    return json.dumps(document).encode()


def test_a_file_of_a_real_kubelet_is_read_and_its_checksum_is_right() -> None:
    read = device_checkpoint.parse(REAL_FILE)
    assert read.verified
    assert read.generation is Generation.PER_NODE
    assert read.registered == {"nvidia.com/gpu": ("tegra",)}
    (entry,) = read.entries
    assert (entry.pod_uid, entry.container) == ("bf52b2cd-b611-4e79-86b1-280b283185c3", "check")
    assert (entry.resource, entry.device_ids) == ("nvidia.com/gpu", {NO_NODE: ("tegra",)})
    assert entry.alloc_resp == b"\n\x1f\n\x16NVIDIA_VISIBLE_DEVICES\x12\x05tegra"


def test_a_file_of_a_real_kubelet_is_written_byte_for_byte() -> None:
    assert device_checkpoint.encode(device_checkpoint.parse(REAL_FILE)) == REAL_FILE


def test_ids_of_all_numa_nodes_are_one_set() -> None:
    assert ENTRY.ids == {"2", "3", "20"}


def test_an_id_may_lie_near_several_numa_nodes_or_near_none() -> None:
    entry = Entry("uid", "main", "x/nic", {0: ("a", "b"), 1: ("a",), NO_NODE: ("c",)})

    assert entry.nodes == {"a": {0, 1}, "b": {0}}


def test_what_is_written_is_read_back() -> None:
    written = Checkpoint((ENTRY, Entry("other", "main", "x/y", {})), REGISTERED)
    assert device_checkpoint.parse(device_checkpoint.encode(written)) == written


def test_a_file_from_before_1_20_has_its_ids_under_no_node() -> None:
    old = Checkpoint((ENTRY,), REGISTERED, Generation.FLAT)
    read = device_checkpoint.parse(device_checkpoint.encode(old))
    assert read.entries[0].device_ids == {NO_NODE: ("2", "3", "20")}
    assert read.generation is Generation.FLAT
    assert read.verified


def test_an_old_file_with_a_wrong_checksum_is_read_and_marked() -> None:
    read = device_checkpoint.parse(_file(DeviceIDs=["2"]))
    assert not read.verified
    assert read.entries[0].ids == {"2"}


def test_a_new_file_with_a_wrong_checksum_is_refused_with_both_sums() -> None:
    with pytest.raises(RemoteProtocolError, match=r"its checksum is \d+, and its content has \d+"):
        device_checkpoint.parse(_file(PodUID="another"))


def _hash(text: str) -> int:
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) % 2**32
    return value


@pytest.mark.parametrize(
    ("data", "entries", "registered"),
    [
        pytest.param({}, "<nil>", "<nil>", id="nothing at all"),
        pytest.param(
            {"PodDeviceEntries": None, "RegisteredDevices": None}, "<nil>", "<nil>", id="null"
        ),
        pytest.param({"PodDeviceEntries": []}, "[]", "<nil>", id="an empty list"),
        pytest.param({"RegisteredDevices": {}}, "<nil>", "map[]", id="an empty map"),
    ],
)
def test_gos_nil_differs_from_empty_in_the_checksum_only(
    data: object, entries: str, registered: str
) -> None:
    checksum = _hash(
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        f"{entries} RegisteredDevices:(map[string][]string){registered}}}"
    )
    file = json.dumps({"Data": data, "Checksum": checksum}).encode()
    assert device_checkpoint.parse(file) == Checkpoint()


def test_gos_nil_inside_an_entry_is_read_as_nothing() -> None:
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r"}
    data = {"PodDeviceEntries": [entry], "RegisteredDevices": {"r": None}}
    checksum = _hash(
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        "[{PodUID:(string)u ContainerName:(string)c ResourceName:(string)r"
        " DeviceIDs:(checkpoint.DevicesPerNUMA)<nil> AllocResp:([]uint8)<nil>}]"
        " RegisteredDevices:(map[string][]string)map[r:<nil>]}"
    )
    read = device_checkpoint.parse(json.dumps({"Data": data, "Checksum": checksum}).encode())
    assert read == Checkpoint((Entry("u", "c", "r", {}),), {"r": ()})


def test_maps_are_hashed_in_gos_order() -> None:
    entry: dict[str, object] = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r"}
    entry |= {"DeviceIDs": {"10": ["b"], "9": ["a", "d"], "-1": ["c"]}, "AllocResp": "AP8="}
    data = {"PodDeviceEntries": [entry], "RegisteredDevices": {"r/b": ["2"], "r/a": ["1", "0"]}}
    checksum = _hash(
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        "[{PodUID:(string)u ContainerName:(string)c ResourceName:(string)r"
        " DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[c] 9:[a d] 10:[b]]"
        " AllocResp:([]uint8)[0 255]}]"
        " RegisteredDevices:(map[string][]string)map[r/a:[1 0] r/b:[2]]}"
    )
    file = json.dumps({"Data": data, "Checksum": checksum}).encode()
    assert device_checkpoint.parse(file).verified


@pytest.mark.parametrize(
    ("file", "words"),
    [
        pytest.param(b"", "not JSON", id="an empty file"),
        pytest.param(REAL_FILE[:-9], "not JSON", id="a file cut off"),
        pytest.param(b"\xff\xfe", "not JSON", id="no UTF-8"),
        pytest.param(b"[" * 100_000, "not JSON", id="nested too deep"),
        pytest.param(b'{"Checksum":' + b"9" * 5000 + b"}", "not JSON", id="a number too long"),
        pytest.param(b"[]", "it is not of type dict", id="no object"),
        pytest.param(b"{}", "Checksum is not of type int", id="no checksum"),
        pytest.param(b'{"Checksum":true}', "Checksum is not of type int", id="true for a number"),
        pytest.param(b'{"Checksum":1}', "Data is not of type dict", id="no data"),
        pytest.param(
            b'{"Data":{"PodDeviceEntries":{}},"Checksum":1}',
            "PodDeviceEntries is not of type list",
            id="an object for the entries",
        ),
        pytest.param(
            b'{"Data":{"PodDeviceEntries":[null]},"Checksum":1}',
            r"PodDeviceEntries\[0\] is not of type dict",
            id="an entry that is null",
        ),
        pytest.param(
            b'{"Data":{"RegisteredDevices":[]},"Checksum":1}',
            "RegisteredDevices is not of type dict",
            id="a list of registered devices",
        ),
        pytest.param(
            b'{"Data":{"RegisteredDevices":{"r":[1]}},"Checksum":1}',
            "RegisteredDevices.r holds something else than device ids",
            id="a number for a device id",
        ),
        pytest.param(
            b'{"Data":{"RegisteredDevices":{"\\ud800":1}},"Checksum":1}',
            r"RegisteredDevices\.\\ud800 is not of type list",
            id="a name that cannot be printed",
        ),
        pytest.param(
            b'{"Data":{"RegisteredDevices":{"\\ud800":[]}},"Checksum":1}',
            "half of a surrogate pair",
            id="text that is no Unicode",
        ),
        pytest.param(_file(PodUID=None), r"\[0\]\.PodUID is not of type str", id="no pod UID"),
        pytest.param(_file(ContainerName=1), "ContainerName is not of", id="a number for a name"),
        pytest.param(_file(ResourceName=[]), "ResourceName is not of", id="a list for a resource"),
        pytest.param(_file(AllocResp=1), "AllocResp is not of type str", id="a number for bytes"),
        pytest.param(_file(AllocResp="a"), "AllocResp is not base64", id="half a base64 group"),
        pytest.param(_file(AllocResp="\u0663"), "AllocResp is not base64", id="no base64 at all"),
        pytest.param(_file(DeviceIDs="2"), "DeviceIDs is not of type dict", id="text for ids"),
        pytest.param(_file(DeviceIDs=[2]), "something else than device ids", id="numbers for ids"),
        pytest.param(_file(DeviceIDs={"0": "2"}), "not of type list", id="text for a node's ids"),
        pytest.param(_file(DeviceIDs={"x": []}), "no NUMA node", id="a node that is no number"),
        pytest.param(_file(DeviceIDs={"01": []}), "no NUMA node", id="a node with a leading zero"),
        pytest.param(_file(DeviceIDs={"9" * 5000: []}), "no NUMA node", id="a node too large"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(file: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words) as refused:
        device_checkpoint.parse(file)
    assert "the kubelet writes it again" in str(refused.value)
    assert len(str(refused.value)) < 400
