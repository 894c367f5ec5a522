"""Pool files as the kubelet mounts them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import HostFileError
from cpupool.host.pool_files import read_pool_files
from tests.mounts import Mount
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


def test_only_pool_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("poolconfig-b.yaml", "poolconfig-a.yaml", "other.yaml"):
        (tmp_path / name).write_text(name)

    assert list(read_pool_files(tmp_path).items()) == [
        ("poolconfig-a.yaml", b"poolconfig-a.yaml"),
        ("poolconfig-b.yaml", b"poolconfig-b.yaml"),
    ]


def test_a_folder_that_is_missing_is_told_with_the_option_that_names_it(tmp_path: Path) -> None:
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
