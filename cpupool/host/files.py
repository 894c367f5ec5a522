"""Files and folders: watching a directory, replacing a file whole, and locking one."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

from cpupool.core.errors import HostFileError
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

log = logs.get(__name__)

_LOCK_S: Final = 1.0
"""How often a lock that another process has is asked for."""

# What is not asked for, the kernel does not even report: opening and reading above all.
_EVENTS: Final = [
    FileCreatedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]


class DirectoryWatch:
    """Calls back when entries of a directory are created, moved or deleted.

    An event only says *look now*: the owner compares what is with what it knows, and looks every
    now and then without an event too. Each time it looks it calls `ensure` first, so a directory
    that is missing, or that was deleted and made again, is watched as soon as it is there.

    Args:
        directory: what to watch; a directory and not a file, which would be lost when replaced.
        changed: called with the path concerned, from a thread of its own; must not block.
        recursive: watch everything below as well.
        writes: call back when a file is written, too.
    """

    def __init__(
        self,
        directory: Path,
        changed: Callable[[Path], None],
        *,
        recursive: bool = False,
        writes: bool = False,
    ) -> None:
        self._directory = directory
        self._handler = _Handler(changed)
        self._recursive = recursive
        self._events = [*_EVENTS, FileModifiedEvent] if writes else _EVENTS
        self._observer: BaseObserver | None = None
        self._watched: tuple[int, int] | None = None
        self._failed = False

    def ensure(self) -> None:
        """Watch the directory if it exists and is not being watched; never raises."""
        there = _identity(self._directory)
        if self._observer is not None:
            # The emitter of a deleted directory ends by itself; that of one whose place another
            # has taken would go on watching where nothing happens any more.
            alive = any(emitter.is_alive() for emitter in self._observer.emitters)
            if alive and there in (None, self._watched):
                return
            self.stop()
        if there is None:
            return
        self._watched = there
        try:
            self._observe()
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

    def stop(self) -> None:
        """Stop watching; no callback runs after this."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None

    def _observe(self) -> None:
        # A directory made while its parent is being added is met twice: watchdog warns, and has it
        # once all the same.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, "watchdog")
        observer = Observer()
        try:
            observer.schedule(
                self._handler,
                str(self._directory),
                recursive=self._recursive,
                event_filter=self._events,
            )
            observer.start()
        except OSError:
            observer.stop()
            raise
        self._observer = observer


class _Handler(FileSystemEventHandler):
    def __init__(self, changed: Callable[[Path], None]) -> None:
        self._changed = changed

    def on_any_event(self, event: FileSystemEvent) -> None:
        for path in (event.src_path, event.dest_path):
            if path:
                try:
                    self._changed(Path(os.fsdecode(path)))
                except Exception:  # a thread's edge: the next event must find it alive
                    log.exception("watch callback failed", path=path)


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


class FileLock:
    """A lock that one process of the machine has; it is free again when that one ends (flock(2)).

    Args:
        path: the file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self, stop: threading.Event, waiting: Callable[[], None]) -> bool:
        """Wait until the lock is ours.

        Args:
            stop: ends the waiting.
            waiting: called once if another process has the lock.

        Returns:
            Whether it is ours.

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
        """Let another process have it."""
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


def write_atomically(
    path: Path, data: bytes, prepare: Callable[[Path], None] = lambda _fresh: None
) -> None:
    """Replace a file whole: readers see the old content or the new, also after a crash.

    Args:
        path: the file.
        data: what it is to hold.
        prepare: called with the new file before it takes its place; only its owner may read it.

    Raises:
        HostFileError: it could not be written; the old file is as it was, and nothing else is left.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".cpupool-")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                prepare(temporary)
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
