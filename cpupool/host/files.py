"""Files and folders: watching a directory, and replacing a file whole."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

log = logging.getLogger(__name__)

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
        self._failed = False

    def ensure(self) -> None:
        """Watch the directory if it exists and is not being watched; never raises."""
        if self._observer is not None:
            # The emitter of a deleted directory ends by itself.
            if any(emitter.is_alive() for emitter in self._observer.emitters):
                return
            self.stop()
        if not self._directory.is_dir():
            return
        try:
            self._observe()
        except OSError as error:
            if not self._failed:
                log.warning(
                    "directory cannot be watched, changes are found by looking path=%s reason=%s",
                    self._directory,
                    error.strerror,
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
                    log.exception("watch callback failed path=%s", path)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file whole: readers see the old content or the new, also after a crash.

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
