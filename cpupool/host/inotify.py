"""Events of inotify(7) in a folder and some levels below it.

An event only says *look now*, so the watch pairs and remembers nothing. Where events may be lost,
it names the watched folder itself, and the owner looks at all of it.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from inotify_simple import Event, INotify, flags, parse_events

from cpupool.loops.threads import OwnedThread
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logs.get(__name__)

# The kernel reports only these events, and not for example opening and reading.
_ENTRIES: Final = flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE
_ITSELF: Final = flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
# What is asked of each event: a flag of the enumeration takes longer to look up.
_ADDED: Final = flags.CREATE | flags.MOVED_TO
_DELETED: Final = int(flags.DELETE)
_GONE: Final = flags.IGNORED | flags.DELETE_SELF | flags.MOVE_SELF
_IGNORED: Final = int(flags.IGNORED)
_IS_FOLDER: Final = int(flags.ISDIR)
_LOST: Final = int(flags.Q_OVERFLOW)
_READ_BYTES: Final = 1 << 13
_TOGETHER_MS: Final = 5
"""Events come in bursts. One of which the owner makes much is told at once, those that follow it
together: the owner is busy with the first."""
_ASK_S: Final = 10.0
"""How often the thread is asked whether it runs, at most: its owner looks at each event."""


class FolderEvents:
    """A watch that calls back from its own thread, until the folder is gone or `stop` is called.

    Args:
        folder: the folder to watch.
        changed: called with the path concerned; with `folder` if it is gone, if events were lost,
            or if the thread has failed. It returns whether the owner is busy with this change.
        depth: how many levels of folders below it to watch, too.
        writes: call back when a file is written, too.
        concerns: returns whether to call back for a file or a folder of this name; a folder is
            watched also if the answer is no.
        enters: returns whether to watch a folder below, by its path; depth still limits it.

    Raises:
        OSError: the kernel refuses.
    """

    def __init__(
        self,
        folder: Path,
        changed: Callable[[Path], bool | None],
        *,
        depth: int,
        writes: bool,
        concerns: Callable[[str], bool] = lambda _name: True,
        enters: Callable[[Path], bool] = lambda _path: True,
    ) -> None:
        self._folder = folder
        self._changed = changed
        self._concerns = concerns
        self._enters = enters
        self._depth = depth
        self._mask = _ENTRIES | _ITSELF | (flags.MODIFY if writes else 0)
        self._levels: dict[int, tuple[Path, int]] = {}
        self._watches: dict[Path, int] = {}
        self._stopping = self._incomplete = self._busy = False
        self._events = INotify(nonblocking=True)
        self._woken = -1
        try:
            self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._add(folder, 0)
        except OSError:
            self._close()
            raise
        self._reach(folder, 0)
        self.thread: Final = OwnedThread(
            f"watch {folder}",
            self._run,
            ask=self._wake,
            failed=lambda: self._notify(folder),
            every_s=_ASK_S,
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
        self._events.close()
        if self._woken >= 0:
            os.close(self._woken)

    def _run(self) -> None:
        events, poll, asked = self._events.fileno(), select.poll(), select.poll()
        for fd in (events, self._woken):
            poll.register(fd, select.POLLIN)
        asked.register(self._woken, select.POLLIN)
        while not self._stopping:
            ready = {fd for fd, _ in poll.poll()}
            if self._woken in ready:
                os.eventfd_read(self._woken)
                self.thread.answer()
            if events in ready:
                data = os.read(events, _READ_BYTES)
                if not all(self._take(event) for event in parse_events(data)):
                    self._notify(self._folder)
                    return
                if self._busy:
                    self._busy = False
                    asked.poll(_TOGETHER_MS)

    def _take(self, event: Event) -> bool:
        """Handle an event; return whether the folder still exists after it."""
        mask = event.mask
        if mask & _LOST:
            self._reach(self._folder, 0)
            self._notify(self._folder)
            return True
        known = self._levels.get(event.wd)
        if known is None:
            return True
        folder, level = known
        if mask & _IGNORED:
            self._forget(folder, event.wd)
        if mask & _GONE:
            return level > 0
        if not (mask & _IS_FOLDER or self._concerns(event.name)):
            return True
        path = folder / event.name
        if mask & _IS_FOLDER and mask & _DELETED:
            self._end(path)
        below: list[Path] = []
        if mask & _IS_FOLDER and mask & _ADDED and level < self._depth and self._enters(path):
            # Before the callback: the owner then finds files that are older than the watch.
            below = self._reach(path, level + 1)
        for changed in (path, *below):
            if self._concerns(changed.name):
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
                            path
                            for entry in entries
                            if entry.is_dir(follow_symlinks=False)
                            and self._enters(path := folder / entry.name)
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

    def _end(self, folder: Path) -> None:
        """End the watch of a folder that has been deleted.

        The kernel ends it by itself on most file systems. A cgroup tells only its parent of its end
        (fs/kernfs), and its watch would keep the kernel's inode, and count for the user's limit.
        """
        watch = self._watches.get(folder)
        if watch is not None:
            self._forget(folder, watch)
            with suppress(OSError):  # the kernel has ended the watch
                self._events.rm_watch(watch)

    def _forget(self, folder: Path, watch: int) -> None:
        self._levels.pop(watch, None)
        if self._watches.get(folder) == watch:
            del self._watches[folder]

    def _add(self, folder: Path, level: int) -> None:
        watch = self._events.add_watch(folder, self._mask)
        self._levels[watch] = (folder, level)
        self._watches[folder] = watch

    def _notify(self, path: Path) -> None:
        try:
            self._busy |= bool(self._changed(path))
        except Exception:  # a thread's edge: the next event must find it alive
            log.exception("watch callback failed", path=path)
