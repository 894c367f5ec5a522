"""The answers in the files of Katalyst's managers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cpupool.api.resourceplugin_pb2 import ListOfTopologyHints, TopologyHint
from cpupool.core.cpu_manager import TopologyHint as Hint
from cpupool.core.errors import CPUPoolError
from cpupool.core.plugin_facts import AnswerPart
from cpupool.core.workloads import ContainerRef
from cpupool.qrm import katalyst_checkpoint
from cpupool.qrm.katalyst_checkpoint import MAX_BYTES
from tests.qrm_checkpoints import Recorded, text, written

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.plugin_facts import AnswerParts

A, B = ContainerRef("a", "main"), ContainerRef("b", "main")
GIB = 1024**3


def read(folder: Path, *recorded: Recorded) -> Mapping[ContainerRef, AnswerParts]:
    file = folder / "kubelet_qrm_checkpoint"
    file.write_bytes(written(*recorded))
    return katalyst_checkpoint.answers([file])


def test_every_answer_of_every_container_is_read(tmp_path: Path) -> None:
    nodes = ListOfTopologyHints(hints=[TopologyHint(nodes=[1], preferred=True)])
    nic = Recorded.of(
        "a",
        "example.com/nic",
        allocated_quantity=3,
        envs={"NIC": "ü"},
        annotations={"a/b": "c"},
        resource_hints=nodes,
        topology_assignments={1: 3},
    )
    found = read(tmp_path, Recorded.cpus("a", "2-3"), nic, Recorded.cpus("b", "4-7", 4))

    assert found == {
        A: {
            "cpu": AnswerPart("CpusetCpus", "2-3", 2.0, scalar=True),
            "example.com/nic": AnswerPart(
                quantity=3.0,
                env={"NIC": "ü"},
                annotations={"a/b": "c"},
                hints=(Hint(frozenset({1}), preferred=True),),
                by_node={1: 3},
            ),
        },
        B: {"cpu": AnswerPart("CpusetCpus", "4-7", 4.0, scalar=True)},
    }


@pytest.mark.parametrize("quantity", [0.3, 237182648320.0, 1e-300])
def test_only_an_amount_is_lost_with_its_bytes(tmp_path: Path, quantity: float) -> None:
    memory = Recorded.of(
        "a",
        "memory",
        oci_property_name="CpusetMems",
        allocation_result="0-1",
        allocated_quantity=quantity,
        is_scalar_resource=True,
        topology_assignments={0: 10 * GIB, 1: 300},
    )
    assert "\ufffd" in text(memory.message)
    found = read(tmp_path, memory)
    assert found == {A: {"memory": AnswerPart("CpusetMems", "0-1", 0.0, scalar=True)}}


def test_an_answer_that_lacks_more_than_an_amount_is_left_out_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The length of a text of 200 characters has a byte that JSON replaces.
    long = Recorded.of("b", envs={"LONG": "x" * 200})
    unreadable = Recorded("b", "side", "cpu", b"\x0a\x7f")
    far = Recorded.of("b", resource_hints=ListOfTopologyHints(hints=[TopologyHint(nodes=[200])]))
    huge = Recorded.of("b", "huge", envs={str(at): "x" * 100 for at in range(2000)})

    found = read(tmp_path, Recorded.cpus("a", "2-3"), long, unreadable, far, huge)

    assert set(found) == {A}
    assert "answers cannot be read, and are asked for again" in caplog.text
    assert "count=4 first=b/main/cpu" in caplog.text


def test_without_a_file_there_is_no_answer(tmp_path: Path) -> None:
    assert katalyst_checkpoint.answers([tmp_path / "a", tmp_path / "missing/b"]) == {}


@pytest.mark.parametrize("younger", ["a", "b"])
def test_the_file_that_was_written_last_counts(tmp_path: Path, younger: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(written(Recorded.cpus(name, "2")))
        os.utime(tmp_path / name, ns=(0, 2 if name == younger else 1))
    found = katalyst_checkpoint.answers([tmp_path / "a", tmp_path / "b"])
    assert set(found) == {ContainerRef(younger, "main")}


def refusal(path: Path) -> str:
    with pytest.raises(CPUPoolError) as caught:
        katalyst_checkpoint.answers([path.parent / "missing", path])
    return str(caught.value)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(written(Recorded.cpus("a", "2-3")))
    folder, pipe, link = (tmp_path / name for name in ("folder", "pipe", "link"))
    folder.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(good)

    words = "the record of Katalyst's manager is not read"
    assert refusal(folder) == f"{folder}: {words} (Is a directory); remove it"
    assert refusal(pipe) == f"{pipe}: {words} (is no file of root's); remove it"
    assert refusal(link) == f"{link}: {words} (Too many levels of symbolic links); remove it"


def test_the_file_of_another_user_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubelet_qrm_checkpoint"
    path.write_bytes(written(Recorded.cpus("a", "2-3")))
    monkeypatch.setattr(katalyst_checkpoint, "ROOT", os.getuid() + 1)
    assert "(is no file of root's); remove it" in refusal(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_qrm_checkpoint"
    path.touch()
    os.truncate(path, MAX_BYTES + 1)
    assert f"(has more than {MAX_BYTES} bytes); remove it" in refusal(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_qrm_checkpoint"
    path.write_bytes(written(Recorded.cpus("a", "2-3")).replace(b"2-3", b"2-4"))
    assert "its checksum is" in refusal(path)


def test_a_place_that_cannot_be_looked_at_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    assert "(Not a directory); remove it" in refusal(tmp_path / "folder/kubelet_qrm_checkpoint")
