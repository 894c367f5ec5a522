"""Files and folders: a watch of a directory, the atomic replacement and the lock of a file."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from cpupool.core.errors import HostFileError
from cpupool.host.inotify import FolderEvents
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

log = logs.get(__name__)

_UNFINISHED: Final = ".cpupool-"
_LOCK_S: Final = 1.0
"""The time between two attempts to get a lock that another process has."""


class DirectoryWatch:
    """A watch that calls back when entries of a directory are created, moved or deleted.

    An event only says *look now*: the owner compares the directory with its facts, and also looks
    without an event from time to time. Each time it calls `ensure` first, so a directory that was
    missing, or deleted and made again, is watched as soon as it exists.

    Args:
        directory: the directory to watch; a watch of a file would end when the file is replaced.
        changed: called with the path concerned, or with `directory` where everything in it may have
            changed; runs in the watch's thread; must not block. It returns what `FolderEvents`
            expects.
        depth: how many levels of directories below it to watch, too.
        writes: call back when a file is written, too.
        concerns: the same argument of `FolderEvents`.
        enters: the same argument of `FolderEvents`.
    """

    def __init__(
        self,
        directory: Path,
        changed: Callable[[Path], bool | None],
        *,
        depth: int = 0,
        writes: bool = False,
        concerns: Callable[[str], bool] = lambda _name: True,
        enters: Callable[[Path], bool] = lambda _path: True,
    ) -> None:
        self._directory = directory
        self._changed = changed
        self._concerns = concerns
        self._enters = enters
        self._depth = depth
        self._writes = writes
        self._events: FolderEvents | None = None
        self._watched: tuple[int, int] | None = None
        self._failed = False

    def ensure(self) -> bool:
        """Watch the directory if it exists and is not being watched.

        Returns:
            Whether it has not been watched until now, so that changes may have gone unseen.

        Raises:
            ThreadFailed: the watching thread has failed, or hangs.
        """
        there = _identity(self._directory)
        if self._events is not None:
            # Before the check: a thread that has ended by then has recorded any failure.
            runs = self._events.thread.runs
            self._events.thread.check()
            # The thread ends when the kernel reports the deletion. If another directory has taken
            # the place, the watch of the old directory would report nothing.
            if runs and there in (None, self._watched):
                return False
            self.stop()
        self._watched = there
        if there is None:
            return False
        try:
            self._events = FolderEvents(
                self._directory,
                self._changed,
                depth=self._depth,
                writes=self._writes,
                concerns=self._concerns,
                enters=self._enters,
            )
        except OSError as error:
            if not self._failed:
                log.warning(
                    "directory cannot be watched, changes are found by looking",
                    path=self._directory,
                    reason=error.strerror,
                )
            self._failed = True
        else:
            self._failed = False
        return True

    @property
    def watching(self) -> bool:
        """Whether the kernel reports changes, as of the last `ensure`."""
        return self._events is not None

    @property
    def complete(self) -> bool:
        """Whether the kernel reports every change, as of the last `ensure`."""
        if self._events is None:
            return self._watched is None
        return self._events.complete

    def stop(self) -> None:
        """Stop watching; no callback runs after this."""
        if self._events is not None:
            self._events.stop()
            self._events = None


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


class FileLock:
    """A lock that one process of the machine has; it is free when that process ends (flock(2)).

    Args:
        path: the file; created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self, stop: threading.Event, waiting: Callable[[], None]) -> bool:
        """Wait until this process has the lock.

        Args:
            stop: ends the waiting.
            waiting: called once if another process has the lock.

        Returns:
            Whether this process has the lock.

        Raises:
            HostFileError: the file cannot be made or locked.
        """
        with ExitStack() as opened:
            file = opened.enter_context(self._open())
            if not self._try(file):
                waiting()
                while not self._try(file):
                    if stop.wait(_LOCK_S):
                        return False
            opened.pop_all()
            self._file = file
        return True

    def release(self) -> None:
        """Release the lock for another process."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return self._path.open("ab")
        except OSError as error:
            raise self._failed(error) from error

    def _try(self, file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._failed(error) from error
        return True

    def _failed(self, error: OSError) -> HostFileError:
        return HostFileError(
            str(self._path), f"cannot be locked ({error.strerror})", "check the folder's rights"
        )


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, if it is missing.

    Raises:
        HostFileError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot be made ({error.strerror})"
        raise HostFileError(str(folder), why, "check the folder's rights") from error


def read_first(path: Path, most_bytes: int) -> bytes:
    """Return the first bytes of a file; a pipe without a writer has none.

    Args:
        path: the file.
        most_bytes: one more than its reader takes, so that the reader refuses what is too long.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", opener=_unblocked) as file:
        return file.read(most_bytes)


def _unblocked(path: str, flags: int) -> int:
    # The open of a pipe waits for a writer.
    return os.open(path, flags | os.O_NONBLOCK)


def write_atomically(
    path: Path,
    data: bytes,
    prepare: Callable[[Path], None] = lambda _fresh: None,
    *,
    durable: bool = True,
) -> None:
    """Replace a file atomically: readers see the old content or the new, also after a crash.

    Args:
        path: the file.
        data: its new content.
        prepare: called with the new file, which only its owner may read, before the replacement.
        durable: wait until the disk has the content, so that it also survives a power failure.

    Raises:
        HostFileError: the write failed; the old file is unchanged, and no other file is left.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                prepare(temporary)
                if durable:
                    os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            # An interrupt may come after the file has its new name.
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise HostFileError(
            str(path),
            f"cannot be written ({error.strerror})",
            "check the folder's rights and the free space",
        ) from error


def remove_unfinished(*folders: Path) -> None:
    """Remove the files of atomic writes that a kill has ended; only where no other process writes.

    Args:
        folders: where to look, at any depth; a folder may be missing.
    """
    for folder in folders:
        for path in folder.rglob(f"{_UNFINISHED}*"):
            try:
                path.unlink()
            except OSError as error:
                why = error.strerror
                log.warning("unfinished file cannot be removed", path=path, reason=why)
            else:
                log.info("unfinished file removed: its writer was killed", path=path)
