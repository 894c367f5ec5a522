"""Events of a tree of folders, from the kernel."""

from __future__ import annotations

import secrets
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from cpupool.host.inotify import FolderEvents
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


class Seen:
    """Paths that were called back with; a file at the top marks the end of what is looked at."""

    def __init__(self, folder: Path) -> None:
        self.paths: Queue[Path] = Queue()
        self._folder = folder

    def so_far(self) -> list[Path]:
        mark = self._folder / f"mark-{secrets.token_hex(8)}"
        mark.touch()
        return self.until(mark)[:-1]

    def until(self, path: Path) -> list[Path]:
        came: list[Path] = []
        while not came or came[-1] != path:
            came.append(self.paths.get(timeout=DEADLINE_S))
        return came


@contextmanager
def watching(folder: Path, depth: int, *, writes: bool = False) -> Iterator[Seen]:
    seen = Seen(folder)
    events = FolderEvents(folder, seen.paths.put, depth=depth, writes=writes)
    try:
        yield seen
    finally:
        events.stop()


def test_folders_are_watched_as_deep_as_asked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with watching(tmp_path, 2) as seen:
        (tmp_path / "a/b").mkdir()
        seen.until(tmp_path / "a/b")
        (tmp_path / "a/b/c").mkdir()
        seen.until(tmp_path / "a/b/c")
        (tmp_path / "a/b/c/d").mkdir()
        assert seen.so_far() == []


def test_a_tree_of_any_depth_costs_what_is_watched_of_it(tmp_path: Path) -> None:
    """A container may nest folders deeper than Python calls functions."""
    place = tmp_path
    with watching(tmp_path, 3) as seen:
        for _ in range(400):
            place /= "d"
            place.mkdir()
        first = seen.until(tmp_path / "d")
        levels = {len(path.relative_to(tmp_path).parts) for path in (*first, *seen.so_far())}
        assert max(levels) <= 4
    with watching(tmp_path, 3) as seen:
        assert seen.so_far() == []


def test_a_name_that_concerns_nobody_is_not_told_and_each_folder_is_watched(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    events = FolderEvents(
        tmp_path, seen.paths.put, depth=1, writes=True, concerns=lambda name: "mark" in name
    )
    with closing(_Stopped(events)):
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").touch()
        assert seen.so_far() == []
        (tmp_path / "folder/file").touch()
        (tmp_path / "folder/mark").touch()
        seen.until(tmp_path / "folder/mark")


def test_a_folder_that_the_owner_does_not_enter_is_not_watched(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name / "old").mkdir(parents=True)
    seen = Seen(tmp_path)

    def enters(path: Path) -> bool:
        return "other" not in path.parts

    events = FolderEvents(tmp_path, seen.paths.put, depth=2, writes=False, enters=enters)
    with closing(_Stopped(events)):
        (tmp_path / "other/old/file").touch()
        (tmp_path / "other/file").touch()
        (tmp_path / "mine/old/file").touch()
        assert seen.until(tmp_path / "mine/old/file") == [tmp_path / "mine/old/file"]
        (tmp_path / "mine/new").mkdir()
        seen.until(tmp_path / "mine/new")
        (tmp_path / "mine/new/file").touch()
        seen.until(tmp_path / "mine/new/file")


def test_what_follows_a_change_with_which_the_owner_is_busy_is_told_too(tmp_path: Path) -> None:
    seen = Seen(tmp_path)

    def busy(path: Path) -> bool:
        seen.paths.put(path)
        return True

    with closing(_Stopped(FolderEvents(tmp_path, busy, depth=0, writes=False))):
        for number in range(3):
            (tmp_path / str(number)).touch()
            seen.until(tmp_path / str(number))


def test_an_owner_that_looks_when_called_misses_nothing(tmp_path: Path) -> None:
    """However a tree grows while it is being walked."""
    looks = Queue[set[Path]]()

    def look(_path: Path) -> None:
        looks.put(set(tmp_path.rglob("*")))

    with closing(_Stopped(FolderEvents(tmp_path, look, depth=3, writes=False))):
        for number in range(50):
            last = tmp_path / f"pod{number}" / "container" / "nested"
            last.mkdir(parents=True)
            while last not in looks.get(timeout=DEADLINE_S):
                pass


def test_more_than_the_kernel_keeps_is_a_look_at_everything(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    held, seen = Queue[None](), Seen(tmp_path)

    def slow(path: Path) -> None:
        seen.paths.put(path)
        if path == tmp_path / "first":
            held.get(timeout=DEADLINE_S)

    (tmp_path / "folder").mkdir()
    with closing(_Stopped(FolderEvents(tmp_path, slow, depth=2, writes=False))):
        (tmp_path / "first").touch()
        seen.until(tmp_path / "first")
        one, two = tmp_path / "folder/one", tmp_path / "folder/two"
        one.touch()
        for _ in range(most // 4 + 1):
            one.rename(two)
            two.rename(one)
        (tmp_path / "late/below").mkdir(parents=True)
        held.put(None)
        seen.until(tmp_path)
        # Its own making was lost, and yet it is watched.
        (tmp_path / "late/below/file").touch()
        seen.until(tmp_path / "late/below/file")


@pytest.mark.parametrize("way", ["deleted", "moved"])
def test_a_folder_that_has_gone_ends_the_thread_without_an_error(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    seen = Seen(folder)
    events = FolderEvents(folder, seen.paths.put, depth=1, writes=False)
    if way == "deleted":
        folder.rmdir()
    else:
        folder.rename(tmp_path / "other")
    assert seen.until(folder) == [folder]
    events.thread.join()
    assert not events.thread.runs
    events.thread.check()
    events.stop()


def test_a_folder_below_that_comes_again_is_watched_again(tmp_path: Path) -> None:
    with watching(tmp_path, 1, writes=True) as seen:
        for _ in range(3):
            (tmp_path / "pod").mkdir()
            seen.until(tmp_path / "pod")
            (tmp_path / "pod/file").write_text("1")
            seen.until(tmp_path / "pod/file")
            (tmp_path / "pod/file").unlink()
            (tmp_path / "pod").rmdir()
            seen.until(tmp_path / "pod")


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FolderEvents(tmp_path / "none", lambda _path: None, depth=0, writes=False)


class _Stopped:
    def __init__(self, events: FolderEvents) -> None:
        self.close = events.stop
