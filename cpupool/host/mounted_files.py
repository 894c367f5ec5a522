"""The files that containers mount: complete at each read, and readable for containers of any user.

Under a running container only single files are replaced, each by a rename.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.host import files
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpupool.core.events import EventSink
    from cpupool.host.root import HostRoot

log = logs.get(__name__)

PROGRAM: Final = 0o755
_TEXT, _FOLDER = 0o644, 0o755
_LABEL_TYPE: Final = "container_ro_file_t"
_LABEL: Final = f"system_u:object_r:{_LABEL_TYPE}:s0".encode()
"""Every container may read and execute such a file, and none may write it (container-selinux's
policy). The label has no categories: those of the agent would exclude other containers."""
_SELINUX: Final = "security.selinux"
_GENERATION: Final = re.compile(rb'"generation": ([0-9]{1,18}),')


class MountedFiles:
    """A writer of such files. A failure is reported once, until it ends or has another reason.

    Args:
        root: where the files are.
        folders: the folders that have them, for the remedy of a refused label.
        events: receives Events for the node's admin.
        durable: wait until the disk has a file, so that it also survives a power failure.
    """

    def __init__(
        self, root: HostRoot, folders: tuple[Path, ...], events: EventSink, *, durable: bool = True
    ) -> None:
        self._root = root
        self._folders = folders
        self._events = events
        self._durable = durable
        # The folder exists where the kernel has SELinux on, also in a container, which does not see
        # the file system that the host mounts there.
        self._selinux = (root.sysfs / "fs/selinux").is_dir()
        self._failures = Failures()

    @property
    def failing(self) -> bool:
        """Whether something is not as it should be."""
        return bool(self._failures)

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do some work, and report its failure."""
        try:
            work()
        except (OSError, CPUPoolError) as error:
            self._complain(what, str(error))
        else:
            self._failures.ends(what)

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it, and open it to all.

        Raises:
            OSError: it cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.open_to_all(folder, _FOLDER)

    def put(self, path: Path, content: bytes, mode: int = _TEXT) -> None:
        """Write a file, unless it has this content already.

        Raises:
            HostFileError: it cannot be written.
            OSError: its mode cannot be set.
        """
        if read(path) == content:
            self.open_to_all(path, mode)
        else:
            files.write_atomically(
                path,
                content,
                lambda fresh: self.open_to_all(fresh, mode),
                durable=self._durable,
            )

    def open_to_all(self, path: Path, mode: int) -> None:
        """Make a path readable for containers of any user, whatever the agent's umask.

        Raises:
            OSError: its mode cannot be set.
        """
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
        if not self._selinux:
            return
        try:
            if os.getxattr(path, _SELINUX).rstrip(b"\0") != _LABEL:
                os.setxattr(path, _SELINUX, _LABEL)
        except OSError as error:
            concerned = " ".join(map(self._root.on_host, self._folders))
            self._complain(
                "SELinux label",
                f"{error.strerror}; containers cannot read what they get mounted: run"
                f" chcon -R -t {_LABEL_TYPE} -l s0 {concerned}",
            )

    def _complain(self, what: str, why: str) -> None:
        if self._failures.begins(why, what):
            log.warning("containers' files are not as they should be", what=what, reason=why)
            self._events.node("CPUPoolFilesFailed", f"{what}: {why}")


def read(path: Path) -> bytes | None:
    """Return a file's content; None where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def generation(document: bytes | None) -> int:
    """Return the generation in a document; 0 where there is none."""
    found = _GENERATION.search(document or b"")
    return int(found[1]) if found else 0


def folders(parent: Path) -> Iterator[Path]:
    """Yield the folders in a folder, which may be missing."""
    if parent.is_dir():
        yield from (entry for entry in parent.iterdir() if entry.is_dir())
