from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from queue import Empty, Queue
from typing import TYPE_CHECKING

import pytest

from cpupool.core.errors import HostFileError
from cpupool.host import files
from cpupool.host.files import DirectoryWatch, FileLock
from cpupool.loops.threads import ThreadFailed
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Seen:
    """What a watch has called back with."""

    def __init__(self) -> None:
        self.paths: Queue[Path] = Queue()

    def until(self, path: Path) -> list[Path]:
        """Collect what comes up to and including `path`."""
        collected: list[Path] = []
        while path not in collected:
            try:
                collected.append(self.paths.get(timeout=DEADLINE_S))
            except Empty:
                raise AssertionError(f"{path} was not seen, but {collected}") from None
        return collected


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def watch(tmp_path: Path, seen: Seen) -> Iterator[DirectoryWatch]:
    made = DirectoryWatch(tmp_path / "watched", seen.paths.put)
    yield made
    made.stop()


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    folder = tmp_path / "watched"
    folder.mkdir()
    return folder


def test_created_moved_and_deleted_entries_are_seen(
    watch: DirectoryWatch, watched: Path, seen: Seen
) -> None:
    watch.ensure()
    one, two = watched / "one", watched / "two"
    one.touch()
    seen.until(one)
    one.rename(two)
    assert seen.until(two) == [one, two]
    two.unlink()
    seen.until(two)


def test_a_swapped_symbolic_link_is_seen(watch: DirectoryWatch, watched: Path, seen: Seen) -> None:
    (watched / "..data").symlink_to("first")
    watch.ensure()
    (watched / "..data_tmp").symlink_to("second")
    (watched / "..data_tmp").rename(watched / "..data")
    seen.until(watched / "..data")


def test_reading_and_writing_are_not_seen(watch: DirectoryWatch, watched: Path, seen: Seen) -> None:
    (watched / "file").touch()
    watch.ensure()
    (watched / "file").write_text("changed")
    (watched / "file").read_text()
    (watched / "last").touch()
    assert seen.until(watched / "last") == [watched / "last"]


def test_writing_is_seen_on_demand(watched: Path) -> None:
    (watched / "file").touch()
    seen = Seen()
    watch = DirectoryWatch(watched, seen.paths.put, writes=True)
    watch.ensure()
    (watched / "file").write_text("changed")
    assert set(seen.until(watched / "file")) == {watched / "file"}
    watch.stop()


def test_what_lies_below_is_seen_on_demand_only(tmp_path: Path) -> None:
    top, deep = Seen(), Seen()
    (tmp_path / "a").mkdir()
    flat = DirectoryWatch(tmp_path, top.paths.put)
    recursive = DirectoryWatch(tmp_path, deep.paths.put, depth=2)
    try:
        flat.ensure()
        recursive.ensure()
        (tmp_path / "a" / "b").mkdir()
        deep.until(tmp_path / "a" / "b")
        (tmp_path / "a" / "b" / "c").mkdir()
        deep.until(tmp_path / "a" / "b" / "c")
        (tmp_path / "last").touch()
        assert top.until(tmp_path / "last") == [tmp_path / "last"]
    finally:
        flat.stop()
        recursive.stop()


def test_a_missing_directory_is_watched_once_it_is_there(
    watch: DirectoryWatch, tmp_path: Path, seen: Seen
) -> None:
    watch.ensure()
    (tmp_path / "watched").mkdir()
    watch.ensure()
    (tmp_path / "watched" / "file").touch()
    seen.until(tmp_path / "watched" / "file")


def test_a_directory_that_is_made_again_is_watched_again(
    watch: DirectoryWatch, watched: Path, seen: Seen
) -> None:
    watch.ensure()
    for _ in range(3):
        watched.rmdir()
        seen.until(watched)
        watched.mkdir()
        # The watching thread ends a moment after it has reported the deletion.
        while not any(watched.iterdir()):
            watch.ensure()
            (watched / "file").touch()
            try:
                assert seen.paths.get(timeout=0.1) == watched / "file"
            except Empty:
                (watched / "file").unlink()
        (watched / "file").unlink()
        seen.until(watched / "file")


def test_a_directory_in_the_place_of_another_is_watched(
    watch: DirectoryWatch, watched: Path, seen: Seen
) -> None:
    watch.ensure()
    watched.rename(watched.with_name("old"))
    watched.mkdir()
    watch.ensure()
    (watched / "file").touch()
    seen.until(watched / "file")


def test_a_callback_that_fails_is_logged_and_called_again(
    watched: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()

    def failing(path: Path) -> None:
        seen.paths.put(path)
        raise ZeroDivisionError

    watch = DirectoryWatch(watched, failing)
    watch.ensure()
    for name in ("one", "two"):
        (watched / name).touch()
        seen.until(watched / name)
    watch.stop()
    assert [record.message for record in caplog.records] == [
        f"watch callback failed path={watched / name}" for name in ("one", "two")
    ]


def test_a_stopped_watch_leaves_no_thread(watch: DirectoryWatch, watched: Path) -> None:
    before = set(threading.enumerate())
    watch.ensure()
    assert set(threading.enumerate()) > before
    watch.stop()
    assert set(threading.enumerate()) <= before
    watch.stop()


def test_a_watch_that_the_kernel_refuses_is_one_warning_and_no_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    watch = DirectoryWatch(tmp_path, Seen().paths.put)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        watch.ensure()
        watch.ensure()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    (record,) = caplog.records
    assert "changes are found by looking" in record.message
    assert record.message.endswith(f'path={tmp_path} reason="Too many open files"')
    assert set(threading.enumerate()) <= before
    watch.ensure()
    assert set(threading.enumerate()) > before
    watch.stop()


def test_a_thread_that_has_failed_is_reported_to_its_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()

    def failing(path: Path) -> None:
        seen.paths.put(path)
        if path != tmp_path:
            raise SystemExit

    watch = DirectoryWatch(tmp_path, failing)
    watch.ensure()
    (tmp_path / "file").touch()
    assert seen.until(tmp_path) == [tmp_path / "file", tmp_path]
    with pytest.raises(ThreadFailed, match=r"the thread 'watch .*' has ended: SystemExit"):
        watch.ensure()
    watch.stop()
    assert "thread failed" in caplog.text


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"", b"second"):
        files.write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, b"old")
    with path.open("rb") as reader:
        files.write_atomically(path, b"new")
        assert reader.read() == b"old"


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("missing/file", id="a folder that is missing"),
        pytest.param("folder", id="a folder in the place of the file"),
    ],
)
def test_what_cannot_be_written_is_one_clear_error(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HostFileError, match=r"cannot be written \(.*\); check the folder's rights"):
        files.write_atomically(tmp_path / target, b"content")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, b"old")
    # The limit on a file's size fails a write in the middle, as a full disk does.
    program = """
import pathlib, resource, sys
from cpupool.core.errors import HostFileError
from cpupool.host.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    write_atomically(pathlib.Path(sys.argv[1]), b"new" * 65536)
except HostFileError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert "cannot be written (File too large)" in done.stdout
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_killed_write_leaves_a_file_that_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "deep" / "file"
    path.parent.mkdir()
    files.write_atomically(path, b"old")
    program = """
import os, pathlib, signal, sys
from cpupool.host.files import write_atomically
write_atomically(pathlib.Path(sys.argv[1]), b"new", lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], timeout=DEADLINE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = (entry for entry in path.parent.iterdir() if entry != path)
    with caplog.at_level("INFO"):
        files.remove_unfinished(tmp_path / "missing", tmp_path)
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == b"old"
    assert f"unfinished file removed: its writer was killed path={left}" in caplog.text


def test_what_cannot_be_removed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".cpupool-folder").mkdir()
    (tmp_path / ".cpupool-file").touch()
    files.remove_unfinished(tmp_path)
    assert "unfinished file cannot be removed" in caplog.text
    assert list(tmp_path.iterdir()) == [tmp_path / ".cpupool-folder"]


class TestFileLock:
    def test_one_has_it_until_it_ends(self, tmp_path: Path) -> None:
        path = tmp_path / "run" / "lock"
        first, second = FileLock(path), FileLock(path)
        waiting = threading.Event()
        assert first.acquire(threading.Event(), pytest.fail)

        got: list[bool] = []
        waiter = threading.Thread(
            target=lambda: got.append(second.acquire(threading.Event(), waiting.set))
        )
        waiter.start()
        assert waiting.wait(DEADLINE_S)
        first.release()
        waiter.join(DEADLINE_S)
        assert got == [True]
        second.release()
        assert first.acquire(threading.Event(), pytest.fail)
        first.release()

    def test_a_process_that_is_killed_leaves_it(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        program = """
import pathlib, sys, threading
from cpupool.host.files import FileLock
lock = FileLock(pathlib.Path(sys.argv[1]))
print(lock.acquire(threading.Event(), lambda: None), flush=True)
sys.stdin.read()
"""
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout
            assert other.stdout.readline() == "True\n"
            lock = FileLock(path)
            assert lock.acquire(threading.Event(), other.kill)
            lock.release()

    def test_who_waits_for_it_can_be_stopped(self, tmp_path: Path) -> None:
        first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
        first.acquire(threading.Event(), pytest.fail)
        stop = threading.Event()
        assert not second.acquire(stop, stop.set)
        first.release()

    def test_a_folder_that_cannot_be_made_is_one_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(HostFileError, match=r"file/lock: cannot be locked \(.*\); check"):
            FileLock(tmp_path / "file" / "lock").acquire(threading.Event(), pytest.fail)
