from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cpupool.api.deviceplugin_pb2 import ContainerAllocateResponse, Mount
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import HostFileError, RemoteProtocolError
from cpupool.host import files
from cpupool.kubelet.checkpoint import CheckpointFile
from cpupool.wire import device_checkpoint
from cpupool.wire.device_checkpoint import Checkpoint, Entry, Generation

if TYPE_CHECKING:
    from pathlib import Path

EXCLUSIVE = "nokia.k8s.io/exclusive_a"


def grant(*ids: str, told: str = "", nodes: tuple[int, ...] = (0,)) -> AllocatedDevices:
    """Return devices, each on one of these NUMA nodes."""
    on = frozenset(frozenset({node}) for node in nodes)
    return AllocatedDevices(frozenset(ids), CPUSet.parse(told), nodes=on)


def reply(**environment: str) -> bytes:
    return ContainerAllocateResponse(envs=environment).SerializeToString()


def _write(path: Path, *entries: Entry, generation: Generation = Generation.PER_NODE) -> None:
    checkpoint = Checkpoint(entries, generation=generation)
    files.write_atomically(path, device_checkpoint.encode(checkpoint))


def test_devices_are_found_by_pod_and_container(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    _write(
        path,
        Entry("uid-1", "init", EXCLUSIVE, {0: ("2",), 1: ("10",)}),
        Entry("uid-1", "main", EXCLUSIVE, {0: ("2",)}),
        Entry("uid-1", "main", "nokia.k8s.io/shared", {-1: ("7", "8")}),
        Entry("uid-2", "main", EXCLUSIVE, {0: ("3",)}),
    )
    assert CheckpointFile(path).by_pod_uid() == {
        "uid-1": {
            "init": {EXCLUSIVE: grant("2", "10", nodes=(0, 1))},
            "main": {EXCLUSIVE: grant("2"), "nokia.k8s.io/shared": grant("7", "8", nodes=())},
        },
        "uid-2": {"main": {EXCLUSIVE: grant("3")}},
    }


def test_two_entries_of_one_resource_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    _write(
        path,
        Entry("uid", "main", EXCLUSIVE, {0: ("2",)}),
        Entry("uid", "main", EXCLUSIVE, {1: ("9",)}),
    )
    assert CheckpointFile(path).by_pod_uid() == {
        "uid": {"main": {EXCLUSIVE: grant("2", "9", nodes=(0, 1))}}
    }


def test_a_device_on_two_nodes_is_one_device(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    _write(path, Entry("uid", "main", "example.com/gpu", {0: ("a", "b"), 1: ("b",)}))
    (resources,) = CheckpointFile(path).by_pod_uid()["uid"].values()
    assert resources["example.com/gpu"].nodes == {frozenset({0}), frozenset({0, 1})}


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        pytest.param(reply(EXCLUSIVE_CPUS="2,18", OTHER="9"), "2,18", id="exclusive"),
        pytest.param(reply(SHARED_CPUS="4-5"), "4-5", id="shared"),
        pytest.param(reply(GPU="0"), "", id="another plugin's"),
        pytest.param(reply(EXCLUSIVE_CPUS="two"), "", id="no CPU list"),
        pytest.param(b"\xff\xff", "", id="damaged"),
    ],
)
def test_what_the_container_was_told_is_remembered(
    tmp_path: Path, stored: bytes, told: str
) -> None:
    path = tmp_path / "checkpoint"
    _write(path, Entry("uid", "main", EXCLUSIVE, {0: ("2",)}, stored))
    found = CheckpointFile(path).by_pod_uid()
    assert found == {"uid": {"main": {EXCLUSIVE: grant("2", told=told)}}}


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    _write(path, Entry("uid", "main", EXCLUSIVE, {0: ("2",)}))
    source = CheckpointFile(path)
    first = source.by_pod_uid()
    assert source.by_pod_uid() is first
    _write(path, Entry("uid", "main", EXCLUSIVE, {0: ("3",)}))
    assert source.by_pod_uid() == {"uid": {"main": {EXCLUSIVE: grant("3")}}}


def test_a_file_replaced_within_one_clock_tick_is_read_again(tmp_path: Path) -> None:
    path, successor = tmp_path / "checkpoint", tmp_path / "successor"
    _write(path, Entry("uid", "main", EXCLUSIVE, {0: ("2",)}))
    source = CheckpointFile(path)
    source.by_pod_uid()
    written = path.stat()
    _write(successor, Entry("uid", "main", EXCLUSIVE, {0: ("3",)}))
    os.utime(successor, ns=(written.st_atime_ns, written.st_mtime_ns))
    successor.replace(path)
    assert source.by_pod_uid() == {"uid": {"main": {EXCLUSIVE: grant("3")}}}


def test_what_containers_have_mounted_is_named_by_its_host_path(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    mounts = [Mount(container_path="/x", host_path=host) for host in ("/a", "/b")]
    stored = ContainerAllocateResponse(mounts=mounts).SerializeToString()
    devices = {0: ("2",)}
    _write(path, Entry("1", "main", EXCLUSIVE, devices, stored), Entry("2", "c", "x/y", devices))
    source = CheckpointFile(path)
    assert source.mounted() == {"/a", "/b"}
    _write(path)
    assert source.mounted() == frozenset()


def test_a_reply_that_cannot_be_read_hides_what_is_mounted(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    _write(path, Entry("uid", "main", EXCLUSIVE, {0: ("2",)}, b"\xff\xff"))
    with pytest.raises(RemoteProtocolError, match=r"a reply .* is damaged"):
        CheckpointFile(path).mounted()


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    source = CheckpointFile(tmp_path / "none")
    for read in (source.by_pod_uid, source.mounted):
        with pytest.raises(
            HostFileError, match=r"cannot be read .*; check that the kubelet's fold"
        ):
            read()


def test_a_damaged_file_is_an_error_until_it_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b'{"Data":')
    source = CheckpointFile(path)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="not JSON"):
            source.by_pod_uid()
    _write(path)
    assert source.by_pod_uid() == {}


def test_an_old_file_with_a_wrong_checksum_is_read_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "checkpoint"
    _write(path, Entry("uid", "main", EXCLUSIVE, {0: ("2",)}), generation=Generation.FLAT)
    path.write_bytes(path.read_bytes().replace(b'"uid"', b'"new"'))
    source = CheckpointFile(path)
    for _ in range(2):
        assert source.by_pod_uid() == {"new": {"main": {EXCLUSIVE: grant("2", nodes=())}}}
    assert [record.message.partition(" path=")[0] for record in caplog.records] == [
        "kubelet checkpoint has a wrong checksum"
    ]
