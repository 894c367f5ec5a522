from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.mounts import Mount
from cpupool.core.pools import Pool
from cpupool.host import files
from cpupool.host.mounts import SPARE_S, Mounts
from cpupool.host.root import HostRoot
from cpupool.version import VERSION
from tests.events import Heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROGRAM = b"\x7fELF a program"
EXCLUSIVE, SHARED = Pool.named("exclusive_a", "2"), Pool.named("shared_a", "4-7")
LABEL = b"system_u:object_r:container_ro_file_t:s0"


class Node:
    """A node's folders, seen through `--host-root`, and what the kubelet says of them."""

    def __init__(self, folder: Path) -> None:
        self.root = HostRoot.under(folder)
        self.source = folder / "image/starter"
        self.source.parent.mkdir()
        self.source.write_bytes(PROGRAM)
        self.heard = Heard()
        self.named: set[str] | None = set()
        self.now_s = 0.0
        self.mounts = self.agent()

    def agent(self) -> Mounts:
        return Mounts(
            self.root,
            self.source,
            mounted=self._mounted,
            events=self.heard,
            now_s=lambda: self.now_s,
        )

    def provide(self, *announced: str, **shared: str) -> None:
        cpus = {name: CPUSet.parse(text) for name, text in shared.items()}
        self.mounts.provide(cpus, announced)

    def read(self, pool: str = "shared_a") -> tuple[str, int]:
        """Give a pool's CPUs and their generation."""
        folder = self.root.pool_folders / pool
        told = json.loads((folder / "cpus.json").read_text())
        assert told["pool"] == pool
        assert (folder / "cpus").read_text() == f"{told['cpus']}\n"
        assert {one.name for one in folder.iterdir()} == {"cpus", "cpus.json"}
        return told["cpus"], told["generation"]

    def versions(self) -> list[Path]:
        return sorted(self.root.starters.iterdir(), key=lambda path: path.stat().st_mtime_ns)

    def starter(self) -> str | None:
        """Give the host path of what a container has mounted."""
        found = [one.host_path for one in self.mounts.of(EXCLUSIVE)]
        return found[0] if found else None

    def _mounted(self) -> set[str]:
        if self.named is None:
            raise HostFileError("checkpoint", "cannot be read", "wait")
        return self.named


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_container_gets_the_starter_and_the_folders_of_its_shared_pools(node: Node) -> None:
    assert node.mounts.of(SHARED) == ()
    node.provide(shared_a="4-7")

    (version,) = node.versions()
    assert version.name.startswith(f"{VERSION}-")
    installed = f"/var/lib/cpupool/starter/{version.name}/process-starter"
    starter = Mount("/opt/cpupool/process-starter", installed)
    assert node.mounts.of(EXCLUSIVE) == (starter,)
    assert node.mounts.of(SHARED) == (
        starter,
        Mount("/run/cpupool/shared_a", "/var/lib/cpupool/pools/shared_a"),
    )
    assert (version / "process-starter").read_bytes() == PROGRAM
    assert node.read() == ("4-7", 1)
    assert node.heard.nodes == []


def test_every_user_can_read_what_an_agent_with_a_strict_umask_makes(node: Node) -> None:
    with _umask(0o077):
        node.provide(shared_a="4-7")
    pool = node.root.pool_folders / "shared_a"
    (version,) = node.versions()
    modes = {
        path.name: path.stat().st_mode & 0o7777
        for path in (version / "process-starter", pool, pool / "cpus", pool / "cpus.json")
    }
    assert modes == {"process-starter": 0o755, "shared_a": 0o755, "cpus": 0o644, "cpus.json": 0o644}
    assert version.stat().st_mode & 0o7777 == 0o755

    (pool / "cpus").chmod(0o600)
    node.provide(shared_a="4-7")
    assert (pool / "cpus").stat().st_mode & 0o7777 == 0o644


def test_the_generation_grows_with_every_change_and_over_restarts(node: Node) -> None:
    node.provide(shared_a="4-7")
    folder = node.root.pool_folders / "shared_a"
    inode = folder.stat().st_ino
    with (folder / "cpus").open() as reader:
        node.provide(shared_a="4-5")
        assert reader.read() == "4-7\n"
    assert node.read() == ("4-5", 2)

    node.mounts = node.agent()
    node.provide(shared_a="4-5")
    assert node.read() == ("4-5", 2)
    node.provide(shared_a="4-7")
    assert node.read() == ("4-7", 3)
    # It is mounted into containers that run.
    assert folder.stat().st_ino == inode


def test_the_generation_of_an_announced_pool_grows_although_its_cpus_are_the_same(
    node: Node,
) -> None:
    node.provide(shared_a="4-7", shared_b="8")
    node.provide("shared_a", shared_a="4-7", shared_b="8")
    assert [node.read("shared_a"), node.read("shared_b")] == [("4-7", 2), ("8", 1)]
    node.provide(shared_a="4-7", shared_b="8")
    assert node.read("shared_a") == ("4-7", 2)

    # Both at a time are one news.
    node.provide("shared_a", shared_a="4-5", shared_b="8")
    assert node.read("shared_a") == ("4-5", 3)

    node.mounts.provide(None, ["shared_b"])
    assert node.read("shared_b") == ("8", 1)
    node.provide(shared_a="4-5", shared_b="8")
    assert node.read("shared_b") == ("8", 2)


@pytest.mark.parametrize("file", ["cpus", "cpus.json"])
def test_what_is_announced_is_reported_as_soon_as_it_can_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    node.provide(shared_a="4-7")
    write = files.write_atomically
    full = True

    def write_or_refuse(
        path: Path, data: bytes, prepare: Callable[[Path], None], *, durable: bool
    ) -> None:
        if full and path.name == file:
            raise HostFileError(str(path), "cannot be written (No space left on device)", "tidy up")
        write(path, data, prepare, durable=durable)

    monkeypatch.setattr(files, "write_atomically", write_or_refuse)
    for announced in (["shared_a"], [], ["shared_a"], []):
        node.provide(*announced, shared_a="4-5")
    told = json.loads((node.root.pool_folders / "shared_a/cpus.json").read_text())
    assert told["generation"] == 1
    full = False
    node.provide(shared_a="4-7")
    assert node.read() == ("4-7", 2)
    node.provide(shared_a="4-7")
    assert node.read() == ("4-7", 2)


def test_until_the_pools_are_known_their_files_stay_as_they_were(node: Node) -> None:
    node.provide(shared_a="4-7")
    node.mounts = node.agent()
    node.mounts.provide(None)
    assert node.read() == ("4-7", 1)
    assert len(node.mounts.of(SHARED)) == 2


def test_what_is_right_is_not_written(node: Node) -> None:
    node.provide(shared_a="4-7")
    before = {path: path.stat() for path in node.root.state.rglob("*")}
    for _ in range(2):
        node.provide(shared_a="4-7")
        node.mounts = node.agent()
    assert {path: path.stat().st_ctime_ns for path in node.root.state.rglob("*")} == {
        path: status.st_ctime_ns for path, status in before.items()
    }


def test_whatever_is_deleted_or_damaged_is_made_again(node: Node) -> None:
    node.provide(shared_a="4-7")
    folder = node.root.pool_folders / "shared_a"
    damaged = (b'{"generation": ', b"[]", b'{"generation": 1e999, "pool": ""}', b"[" * 100_000)
    for name, content in (("cpus", b""), *(("cpus.json", one) for one in damaged)):
        (folder / name).write_bytes(content)
        node.provide(shared_a="4-7")
        assert node.read()[0] == "4-7"

    (version,) = node.versions()
    (version / "process-starter").unlink()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert node.mounts.of(SHARED) == ()
    node.provide(shared_a="4-7")
    assert len(node.mounts.of(SHARED)) == 2
    assert node.read() == ("4-7", 1)


def test_a_starter_that_was_damaged_on_the_disk_is_written_again_by_the_next_agent(
    node: Node,
) -> None:
    node.provide()
    (version,) = node.versions()
    (version / "process-starter").write_bytes(PROGRAM[:5])
    node.mounts = node.agent()
    node.provide()
    assert (version / "process-starter").read_bytes() == PROGRAM


def test_a_folder_that_the_runtime_made_for_a_missing_starter_gives_way(node: Node) -> None:
    node.provide()
    (version,) = node.versions()
    (version / "process-starter").unlink()
    (version / "process-starter").mkdir()
    assert node.starter() is None
    node.provide()
    assert (version / "process-starter").read_bytes() == PROGRAM
    assert node.starter()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param(b"", "is no program", id="empty"),
        pytest.param(b"#!/bin/sh\n", "is no program", id="a script"),
    ],
)
def test_without_a_starter_all_else_goes_on_and_it_is_reported_once(
    node: Node, content: bytes | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.source.unlink()
    if content is not None:
        node.source.write_bytes(content)
    for _ in range(3):
        node.provide(shared_a="4-7")
    assert [one.container_path for one in node.mounts.of(SHARED)] == ["/run/cpupool/shared_a"]
    ((reason, message),) = node.heard.nodes
    assert (reason, said in message) == ("CPUPoolFilesFailed", True)
    assert len(caplog.records) == 1

    node.source.write_bytes(PROGRAM)
    node.provide(shared_a="4-7")
    assert len(node.mounts.of(SHARED)) == 2
    node.source.unlink()
    node.provide(shared_a="4-7")
    assert len(node.mounts.of(SHARED)) == 2


def test_an_agent_that_was_given_no_starter_does_not_miss_it(node: Node) -> None:
    node.mounts = Mounts(node.root, None, mounted=frozenset, events=node.heard)
    node.provide(shared_a="4-7")
    assert [one.container_path for one in node.mounts.of(SHARED)] == ["/run/cpupool/shared_a"]
    assert node.heard.nodes == []


def test_a_file_that_cannot_be_written_keeps_no_other_from_being_right(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.provide(shared_a="4-7")
    folder = node.root.pool_folders / "shared_a"
    (folder / "cpus").unlink()
    (folder / "cpus").mkdir()
    for _ in range(3):
        node.provide(shared_a="4", shared_b="5")
    assert node.read("shared_b") == ("5", 1)
    assert len(caplog.records) == len(node.heard.nodes) == 1
    assert "files of pool shared_a" in node.heard.nodes[0][1]

    (folder / "cpus").rmdir()
    node.provide(shared_a="4", shared_b="5")
    assert node.read() == ("4", 2)

    # Containers start by this file, whatever becomes of the other one.
    (folder / "cpus.json").unlink()
    (folder / "cpus.json").mkdir()
    node.provide(shared_a="6", shared_b="5")
    assert (folder / "cpus").read_text() == "6\n"


def test_a_pool_that_is_gone_has_no_cpus_and_goes_when_no_pod_names_it(node: Node) -> None:
    node.provide(shared_a="4-7", shared_b="8")
    node.named = {"/var/lib/cpupool/pools/shared_a", "/var/lib/cpupool/pools/shared_bb"}
    node.provide()
    assert [node.read("shared_a")[0], node.read("shared_b")[0]] == ["", ""]

    node.now_s = SPARE_S - 1
    node.provide()
    assert (node.root.pool_folders / "shared_b").is_dir()
    node.now_s = SPARE_S
    node.provide()
    assert [one.name for one in node.root.pool_folders.iterdir()] == ["shared_a"]

    # A pod may outlive its pool by years, and the pool may come back.
    node.now_s = 5 * SPARE_S
    node.provide(shared_a="4")
    assert node.read() == ("4", 3)
    node.named = set()
    node.provide()
    node.now_s = 6 * SPARE_S - 1.0
    node.provide()
    assert node.read() == ("", 4)
    node.now_s = 6 * SPARE_S
    node.provide()
    assert not list(node.root.pool_folders.iterdir())


def test_an_old_starter_stays_while_a_pod_has_it(node: Node) -> None:
    node.provide()
    old = node.starter()
    assert old
    node.named = {old}
    node.source.write_bytes(PROGRAM + b", built again")
    node.mounts = node.agent()
    node.provide()
    first, second = node.versions()
    assert node.starter() == node.root.on_host(second / "process-starter") != old

    # It is asked of the kubelet only now and then, and its pod ends in between.
    for now_s in (SPARE_S, 2 * SPARE_S - 1.0):
        node.now_s = now_s
        node.provide()
        assert node.versions() == [first, second]
        node.named = set()
    node.now_s = 2 * SPARE_S
    node.provide()
    assert node.versions() == [second]


def test_nothing_is_removed_while_it_is_not_known_who_has_it(node: Node) -> None:
    node.provide(shared_a="4")
    node.source.write_bytes(PROGRAM + b", built again")
    node.mounts = node.agent()
    node.provide()
    node.named = None
    for now_s in (SPARE_S, 2 * SPARE_S, 3 * SPARE_S):
        node.now_s = now_s
        node.provide()
    assert len(node.versions()) == 2
    assert node.read("shared_a")[0] == ""
    assert node.heard.nodes == []


@pytest.fixture
def labels(node: Node, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Give the node SELinux: labels are kept by inode, since a file is labelled before its name."""
    (node.root.sysfs / "fs/selinux").mkdir(parents=True)
    found: dict[str, bytes] = {}

    def read(path: Path, name: str) -> bytes:
        return found.get(f"{name} {path.stat().st_ino}", b"system_u:object_r:var_lib_t:s0\0")

    def write(path: Path, name: str, value: bytes) -> None:
        found[f"{name} {path.stat().st_ino}"] = value

    monkeypatch.setattr(os, "getxattr", read)
    monkeypatch.setattr(os, "setxattr", write)
    node.mounts = node.agent()
    return found


def test_selinux_lets_containers_read_it(node: Node, labels: dict[str, bytes]) -> None:
    node.provide(shared_a="4-7")
    pool = node.root.pool_folders / "shared_a"
    (version,) = node.versions()
    mounted = {version / "process-starter", pool, pool / "cpus", pool / "cpus.json"}
    assert set(labels.values()) == {LABEL}
    assert {f"security.selinux {path.stat().st_ino}" for path in mounted} <= labels.keys()

    # As after a `restorecon -R /var/lib`.
    labels.clear()
    node.provide(shared_a="4-7")
    assert {f"security.selinux {path.stat().st_ino}" for path in mounted} <= labels.keys()


@pytest.mark.usefixtures("labels")
def test_a_label_that_is_refused_is_reported_once_with_the_command_to_run(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, name: str, value: bytes) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refuse)
    for _ in range(2):
        node.provide(shared_a="4-7")
    ((_, message),) = node.heard.nodes
    assert message.endswith(
        "run chcon -R -t container_ro_file_t -l s0 /var/lib/cpupool/starter /var/lib/cpupool/pools"
    )
    assert len(node.mounts.of(SHARED)) == 2


def test_without_selinux_no_label_is_set(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setxattr", None)
    node.provide(shared_a="4-7")
    assert node.heard.nodes == []
