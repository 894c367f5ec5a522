"""The folder of one container: what stands in its files, who may read them, and their number."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.mounts import Mount
from cpupool.core.workloads import ContainerRef
from cpupool.host.own_folders import NotBefore, OwnFolders, Told, ToldChange
from cpupool.host.root import HostRoot
from cpupool.manager.resizing import Reason
from tests.events import Heard

if TYPE_CHECKING:
    from pathlib import Path

REF = ContainerRef("b1e6b9f4-3a2a-4b9c-8f0e-7d4a9f6f0c11", "main")
BEGUN_S = 1_795_000_000
TOLD = Told(CPUSet.parse("4-7"), CPUSet.parse("4-7"), CPUSet.parse("4-5"))
SHRINK = ToldChange(
    Reason.SHRINK,
    removed=CPUSet.parse("7"),
    # 2026-11-22T14:00:05.9Z
    not_before=NotBefore(1_795_356_005.9, 81234.5678),
)
LABEL = b"system_u:object_r:container_ro_file_t:s0"


class Node:
    """A node's folders, seen through `--host-root`."""

    def __init__(self, folder: Path) -> None:
        self.root = HostRoot.under(folder)
        self.heard = Heard()
        self.wall_s = float(BEGUN_S)
        self.folders = self.agent()
        self.folder = self.root.own_folders / REF.pod / REF.name

    def agent(self) -> OwnFolders:
        return OwnFolders(self.root, self.heard, wall_s=lambda: self.wall_s)

    def tell(self, told: Told = TOLD, *, again: bool = False) -> int:
        """Tell a container something; return the generation that it then reads."""
        self.folders.tell(REF, told, again=again)
        return self.generation

    @property
    def generation(self) -> int:
        return int(json.loads((self.folder / "cpus.json").read_text())["generation"])


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


def test_a_container_finds_three_files_in_its_folder(node: Node) -> None:
    node.tell()

    assert node.folders.mount(REF) == Mount(
        "/run/cpupool/self", f"/var/lib/cpupool/self/{REF.pod}/main"
    )
    assert {path.name: path.read_text() for path in node.folder.iterdir()} == {
        "cpus": "4-7\n",
        "assigned": "4-7\n",
        "cpus.json": (
            f'{{"generation": {BEGUN_S + 1}, "cpus": "4-7", "assigned": "4-7",'
            ' "baseline": "4-5", "change": null}\n'
        ),
    }


def test_an_announced_change_names_its_earliest_time_rounded_down(node: Node) -> None:
    node.tell(replace(TOLD, assigned=CPUSet.parse("4-6"), change=SHRINK))

    assert (node.folder / "cpus").read_text() == "4-7\n"
    assert (node.folder / "assigned").read_text() == "4-6\n"
    assert (node.folder / "cpus.json").read_text() == (
        f'{{"generation": {BEGUN_S + 1}, "cpus": "4-7", "assigned": "4-6", "baseline": "4-5",'
        ' "change": {"reason": "shrink", "removed": "7", "added": "",'
        ' "notBefore": "2026-11-22T14:00:05Z", "notBeforeMonotonic": 81234.567}}\n'
    )


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(TOLD, id="no change"),
        pytest.param(
            replace(TOLD, change=ToldChange(Reason.GROW, added=CPUSet.of(7))), id="complete"
        ),
        pytest.param(
            replace(TOLD, change=replace(SHRINK, not_before=NotBefore(BEGUN_S, 1.5))),
            id="announced",
        ),
    ],
)
def test_the_next_agent_reads_what_is_told(node: Node, told: Told) -> None:
    node.tell(told)
    assert node.agent().told(REF) == told


def test_the_generation_grows_with_every_change_of_any_field(node: Node) -> None:
    changes = (
        TOLD,
        replace(TOLD, assigned=CPUSet.parse("4-6")),
        replace(TOLD, assigned=CPUSet.parse("4-6"), change=SHRINK),
        replace(TOLD, assigned=CPUSet.parse("4-6"), change=replace(SHRINK, reason=Reason.COMPACT)),
        replace(TOLD, cpus=CPUSet.parse("4-6")),
        replace(TOLD, baseline=CPUSet.parse("4-6")),
        TOLD,
    )
    assert [node.tell(told) - BEGUN_S for told in changes] == [1, 2, 3, 4, 5, 6, 7]
    node.wall_s += 1000.0
    assert node.tell() == BEGUN_S + 7
    assert node.tell(again=True) == BEGUN_S + 8

    node.folders = node.agent()
    assert node.tell() == BEGUN_S + 8
    assert node.tell(changes[1]) == BEGUN_S + 9


def test_a_lost_or_damaged_file_does_not_take_the_generation_back(node: Node) -> None:
    for _ in range(20):
        newest = node.tell(again=True)
    # The same agent, and another with a clock that went on.
    for number, content in enumerate(
        (None, b"", b"{", b'{"generation": 3, "cpus": 5}', b"[" * 999)
    ):
        (node.folder / "cpus.json").unlink()
        if content is not None:
            (node.folder / "cpus.json").write_bytes(content)
        assert content is None or node.folders.told(REF) is None
        if number == 3:
            # This file has a number: an older copy that somebody has put back.
            assert node.tell() == newest + 1
        else:
            assert node.tell() > newest
        newest = node.generation

    (node.folder / "cpus.json").unlink()
    node.wall_s += 60.0
    node.folders = node.agent()
    assert node.tell() > newest


def test_what_is_right_is_not_written(node: Node) -> None:
    node.tell()
    before = {path: path.stat().st_ctime_ns for path in node.root.state.rglob("*")}
    node.tell()
    node.folders = node.agent()
    node.tell()
    assert {path: path.stat().st_ctime_ns for path in node.root.state.rglob("*")} == before


def test_a_file_of_cpus_that_was_changed_is_written_again(node: Node) -> None:
    newest = node.tell()
    (node.folder / "cpus").write_text("0-63\n")
    (node.folder / "assigned").unlink()
    assert node.tell() == newest
    assert (node.folder / "cpus").read_text() == (node.folder / "assigned").read_text() == "4-7\n"


def test_every_user_can_read_what_an_agent_with_a_strict_umask_makes(node: Node) -> None:
    before = os.umask(0o077)
    try:
        node.tell()
    finally:
        os.umask(before)
    assert node.folder.stat().st_mode & 0o7777 == 0o755
    assert {path.stat().st_mode & 0o7777 for path in node.folder.iterdir()} == {0o644}


def test_selinux_lets_containers_read_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: dict[int, bytes] = {}

    def read(path: Path, name: str) -> bytes:
        assert name == "security.selinux"
        return labels.get(path.stat().st_ino, b"system_u:object_r:var_lib_t:s0\0")

    def write(path: Path, name: str, value: bytes) -> None:
        assert name == "security.selinux"
        labels[path.stat().st_ino] = value

    (node.root.sysfs / "fs/selinux").mkdir(parents=True)
    monkeypatch.setattr(os, "getxattr", read)
    monkeypatch.setattr(os, "setxattr", write)
    node.folders = node.agent()
    node.tell()
    mounted = {node.folder, *node.folder.iterdir()}
    assert {path.stat().st_ino for path in mounted} <= labels.keys()
    assert set(labels.values()) == {LABEL}

    def refuse(path: Path, name: str, value: bytes) -> None:
        raise PermissionError(1, "Operation not permitted")

    labels.clear()
    monkeypatch.setattr(os, "setxattr", refuse)
    for _ in range(2):
        node.tell()
    ((_, message),) = node.heard.nodes
    assert message.endswith("run chcon -R -t container_ro_file_t -l s0 /var/lib/cpupool/self")


@pytest.mark.parametrize(
    "ref",
    [
        ContainerRef("..", "main"),
        ContainerRef("uid", ".."),
        ContainerRef("uid", ""),
        ContainerRef("", "main"),
        ContainerRef("uid", "a/b"),
        ContainerRef("../../etc", "main"),
        ContainerRef("uid", "/etc"),
        ContainerRef("uid", "main\n"),
        ContainerRef("uid", "a\0b"),
        ContainerRef("uid", "a" * 254),
        ContainerRef(".uid", "main"),
    ],
    ids=repr,
)
def test_a_name_that_is_no_folder_is_refused(node: Node, ref: ContainerRef) -> None:
    with pytest.raises(HostFileError, match="is no name of a folder"):
        node.folders.tell(ref, TOLD)
    with pytest.raises(HostFileError, match="is no name of a folder"):
        node.folders.mount(ref)
    assert not node.folders.there(ref)
    assert node.folders.told(ref) is None
    assert not list(node.root.base.rglob("cpus.json"))


def test_the_folders_of_a_pod_are_removed_together(node: Node) -> None:
    assert node.folders.pods() == frozenset()
    node.tell()
    node.folders.tell(ContainerRef(REF.pod, "side"), TOLD)
    node.folders.tell(ContainerRef("other", "main"), TOLD)
    assert node.folders.pods() == {REF.pod, "other"}

    node.folders.remove(REF.pod)
    assert node.folders.pods() == {"other"}
    assert not node.folders.there(REF)
    with pytest.raises(HostFileError):
        node.folders.remove("..")
    with suppress(FileNotFoundError):
        node.folders.remove(REF.pod)
    assert node.root.state.is_dir()
