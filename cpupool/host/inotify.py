"""Events of inotify(7) in a folder and some levels below it.

An event only says *look now*, so the watch pairs and remembers nothing. Where events may be lost,
it names the watched folder itself, and the owner looks at all of it.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from typing import TYPE_CHECKING, Final

from cpupool.telemetry import log as logs
from cpupool.threads import OwnedThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logs.get(__name__)

_MODIFY: Final = 0x2
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_DIRECTORIES: Final = 0x1000000
_IS_DIRECTORY: Final = 0x40000000

# The kernel reports only these events, and not for example opening and reading.
_ENTRIES: Final = _CREATE | _MOVED_FROM | _MOVED_TO | _DELETE
_ITSELF: Final = _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORIES
_HEADER: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16


class FolderEvents:
    """A watch that calls back from its own thread, until the folder is gone or `stop` is called.

    Args:
        folder: the folder to watch.
        changed: called with the path concerned; with `folder` if it is gone, if events were lost,
            or if the thread has failed.
        depth: how many levels of folders below it to watch, too.
        writes: call back when a file is written, too.

    Raises:
        OSError: the kernel refuses.
    """

    def __init__(
        self, folder: Path, changed: Callable[[Path], None], *, depth: int, writes: bool
    ) -> None:
        self._folder = folder
        self._changed = changed
        self._depth = depth
        self._mask = _ENTRIES | _ITSELF | (_MODIFY if writes else 0)
        self._levels: dict[int, tuple[Path, int]] = {}
        self._stopping = self._incomplete = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._woken = -1
        try:
            self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._add(folder, 0)
        except OSError:
            self._close()
            raise
        self._reach(folder, 0)
        self.thread: Final = OwnedThread(
            f"watch {folder}", self._run, ask=self._wake, failed=lambda: changed(folder)
        )
        self.thread.start()

    @property
    def complete(self) -> bool:
        """Whether every folder is watched that could be."""
        return not self._incomplete

    def stop(self) -> None:
        """Stop watching; no callback runs after this."""
        self._stopping = True
        self._wake()
        self.thread.join()
        if not self.thread.runs:
            self._close()

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    def _close(self) -> None:
        for fd in (self._fd, self._woken):
            if fd >= 0:
                os.close(fd)

    def _run(self) -> None:
        poll = select.poll()
        for fd in (self._fd, self._woken):
            poll.register(fd, select.POLLIN)
        while not self._stopping:
            ready = {fd for fd, _ in poll.poll()}
            if self._woken in ready:
                os.eventfd_read(self._woken)
                self.thread.answer()
            if self._fd in ready and not all(self._take(*event) for event in self._read()):
                self._notify(self._folder)
                return

    def _read(self) -> Iterator[tuple[int, int, str]]:
        """Yield watch, mask and name of each event that waits."""
        data = os.read(self._fd, _READ_BYTES)
        at = 0
        while at < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            yield watch, mask, os.fsdecode(data[at - length : at].rstrip(b"\0"))

    def _take(self, watch: int, mask: int, name: str) -> bool:
        """Handle an event; return whether the folder still exists after it."""
        if mask & _OVERFLOW:
            self._reach(self._folder, 0)
            self._notify(self._folder)
            return True
        known = self._levels.get(watch)
        if known is None:
            return True
        folder, level = known
        if mask & _IGNORED:
            del self._levels[watch]
        if mask & (_IGNORED | _DELETE_SELF | _MOVE_SELF):
            return level > 0
        path = folder / name
        below: list[Path] = []
        if mask & _IS_DIRECTORY and mask & (_CREATE | _MOVED_TO) and level < self._depth:
            # Before the callback: the owner then finds files that are older than the watch.
            below = self._reach(path, level + 1)
        for changed in (path, *below):
            self._notify(changed)
        return True

    def _reach(self, folder: Path, level: int) -> list[Path]:
        """Watch a folder and those below it, as far as they exist and the kernel allows it.

        Return those below: no event names them if they are older than the watch.
        """
        below: list[Path] = []
        remaining = [(folder, level)]
        while remaining:
            folder, level = remaining.pop()
            try:
                self._add(folder, level)
                if level < self._depth:
                    with os.scandir(folder) as entries:
                        found = [
                            folder / entry.name
                            for entry in entries
                            if entry.is_dir(follow_symlinks=False)
                        ]
                    below += found
                    remaining.extend((path, level + 1) for path in found)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if not self._incomplete:
                    log.warning(
                        "folder cannot be watched, changes in it are found by looking",
                        path=folder,
                        reason=error.strerror,
                    )
                self._incomplete = True
        return below

    def _add(self, folder: Path, level: int) -> None:
        path = os.fsencode(folder)
        watch = self._checked(self._libc.inotify_add_watch(self._fd, path, self._mask))
        self._levels[watch] = (folder, level)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def _notify(self, path: Path) -> None:
        try:
            self._changed(path)
        except Exception:  # a thread's edge: the next event must find it alive
            log.exception("watch callback failed", path=path)
