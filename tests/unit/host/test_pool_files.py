"""Pool files as the kubelet mounts them, and as the API server shows them before."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import HostFileError
from cpupool.host import pool_files
from cpupool.host.pool_files import PoolFiles, read_pool_files
from tests.mounts import Mount, Shown
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


def test_only_pool_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("poolconfig-b.yml", "poolconfig-a", "other.yaml"):
        (tmp_path / name).write_text(name)

    assert list(read_pool_files(tmp_path).items()) == [
        ("poolconfig-a", b"poolconfig-a"),
        ("poolconfig-b.yml", b"poolconfig-b.yml"),
    ]


def test_a_folder_that_is_missing_is_reported_with_the_option_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match=r"missing.*--config"):
        read_pool_files(tmp_path / "missing")


def test_an_endless_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "poolconfig-a.yaml").symlink_to("/dev/zero")
    with pytest.raises(HostFileError, match=r"poolconfig-a\.yaml: a pool file has at most"):
        read_pool_files(tmp_path)


def test_the_files_of_two_edits_are_never_mixed(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    mount.show(a="0", b="0")
    ended = threading.Event()

    def edit() -> None:
        for number in range(300):
            mount.show(a=str(number), b=str(number))
        ended.set()

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        while not ended.is_set():
            texts = read_pool_files(tmp_path)
            assert len(texts) == 2
            assert len(set(texts.values())) == 1
    finally:
        editor.join(DEADLINE_S)


class Node:
    """A mounted folder, and what one process after the other makes of it."""

    def __init__(self, folder: Path) -> None:
        self.mount = Mount(folder / "etc")
        self.mount.show(a="0")
        self.last = folder / "state/last.json"

    def started(self, shown: Shown | None = None) -> PoolFiles:
        return PoolFiles(self.mount.folder, shown or Shown(), last=self.last)


def read(files: PoolFiles) -> dict[str, str]:
    return {
        name.removeprefix("poolconfig-").removesuffix(".yaml"): text.decode()
        for name, text in files.read().items()
    }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


class TestPoolFiles:
    def test_the_folder_counts_until_the_api_server_shows_the_configmap(self, node: Node) -> None:
        shown = Shown()
        files = node.started(shown)
        assert read(files) == {"a": "0"}
        node.mount.show(a="1")
        assert read(files) == {"a": "1"}
        shown.show(b="2", a="2")
        assert list(read(files).items()) == [("a", "2"), ("b", "2")]
        node.mount.show(a="3")
        assert read(files) == {"a": "2", "b": "2"}
        # A silent API server holds up the start, and nothing after it.
        assert shown.waits_s == [pool_files.FIRST_ANSWER_S]

    def test_without_a_configmap_to_follow_the_folder_alone_counts(self, node: Node) -> None:
        read(node.started(Shown(a="1")))
        files = PoolFiles(node.mount.folder, last=node.last)
        assert read(files) == {"a": "0"}

    def test_a_folder_that_lags_takes_no_edit_back_after_a_restart(
        self, node: Node, caplog: pytest.LogCaptureFixture
    ) -> None:
        read(node.started(Shown(a="1")))
        for _ in range(2):
            files = node.started()
            for _ in range(2):
                assert read(files) == {"a": "1"}
        assert caplog.text.count("pool folder lags") == 2

    def test_a_folder_that_has_moved_on_counts_after_a_restart(self, node: Node) -> None:
        read(node.started(Shown(a="1")))
        for text in ("1", "2"):
            node.mount.show(a=text)
            assert read(node.started()) == {"a": text}

    def test_each_edit_is_kept_with_what_the_folder_shows_then(self, node: Node) -> None:
        shown = Shown(a="1")
        files = node.started(shown)
        read(files)
        node.mount.show(a="1")
        shown.show(a="0")
        read(files)
        assert read(node.started()) == {"a": "0"}

    def test_a_folder_that_goes_back_after_it_caught_up_counts_after_a_restart(
        self, node: Node
    ) -> None:
        files = node.started(Shown(a="1"))
        read(files)
        node.mount.show(a="1")
        read(files)
        node.mount.show(a="0")
        assert read(node.started()) == {"a": "0"}

    def test_a_folder_that_is_ahead_of_a_lost_watch_counts_after_a_restart(
        self, node: Node
    ) -> None:
        files = node.started(Shown(a="1"))
        read(files)
        node.mount.show(a="2")
        read(files)
        assert read(node.started()) == {"a": "2"}

    def test_a_configmap_without_pool_files_is_one(self, node: Node) -> None:
        shown = Shown(a="1")
        files = node.started(shown)
        read(files)
        shown.show()
        assert read(files) == {}
        assert read(node.started()) == {}

    def test_a_text_that_is_no_utf_8_is_kept_too(self, node: Node) -> None:
        node.started(Shown(a="\udcff")).read()
        assert node.started().read() == {"poolconfig-a.yaml": b"\xff"}

    @pytest.mark.parametrize(
        "kept", [b"[" * 100_000, b"", b"[]", b'{"files": {"a": 1}}', b'{"files": {}}', b"\xff"]
    )
    def test_what_cannot_be_used_is_reported_and_not_used(
        self, node: Node, kept: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        node.last.parent.mkdir()
        node.last.write_bytes(kept)
        assert read(node.started()) == {"a": "0"}
        assert "kept pool files cannot be used" in caplog.text
        assert node.last.with_name(f"{node.last.name}.corrupt").read_bytes() == kept

    def test_a_disk_that_takes_nothing_costs_a_warning_only(
        self, node: Node, caplog: pytest.LogCaptureFixture
    ) -> None:
        node.last.parent.touch()
        files = node.started(Shown(a="1"))
        for _ in range(2):
            assert read(files) == {"a": "1"}
        assert caplog.text.count("pool files not kept") == 1

    def test_a_folder_that_is_missing_hides_no_configmap(self, node: Node) -> None:
        node.mount.folder.rename(node.mount.folder.with_name("hidden"))
        shown = Shown()
        files = node.started(shown)
        with pytest.raises(HostFileError):
            files.read()
        shown.show(a="1")
        assert read(files) == {"a": "1"}
        # Of a folder that could not be seen it is not known that it lags.
        node.mount.folder.with_name("hidden").rename(node.mount.folder)
        assert read(node.started()) == {"a": "0"}

    def test_a_folder_that_may_be_missing_has_no_files(self, tmp_path: Path) -> None:
        assert PoolFiles(tmp_path / "missing", optional=True).read() == {}

    def test_what_is_passed_over_with_nearly_a_pool_files_name_is_reported_once(
        self, node: Node, caplog: pytest.LogCaptureFixture
    ) -> None:
        node.mount.put({"poolconfig-a.yaml": "0", "poolconfig_b.yaml": "0"})
        shown = Shown()
        files = node.started(shown)
        for _ in range(2):
            assert read(files) == {"a": "0"}
        assert caplog.text.count("'poolconfig_b.yaml' is no pool file") == 1
        shown.entries = lambda: {"PoolConfig.yaml": b"0"}  # type: ignore[method-assign]
        for _ in range(2):
            assert read(files) == {}
        assert caplog.text.count("'PoolConfig.yaml' is no pool file") == 1

    def test_an_entry_that_is_too_long_is_refused_as_a_file_is(self, node: Node) -> None:
        files = node.started(Shown(a="#" * 70_000))
        with pytest.raises(HostFileError, match=r"poolconfig-a\.yaml: a pool file has at most"):
            files.read()
