"""The mounts of containers that request pools: the process starter, and the CPUs of their pools.

Both are below the state folder, which survives a reboot: a container may start again before the
agent does. The agent then corrects an old file, while a missing file would stay missing for as long
as the container lives. Under a running container the agent replaces only single files, atomically;
it never changes a version of the starter.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.core.mounts import Mount
from cpupool.core.names import STARTER, shared_pool_folder
from cpupool.core.pools import PoolKind
from cpupool.host import files
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures
from cpupool.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from cpupool.core.events import EventSink
    from cpupool.core.pools import Pool
    from cpupool.host.root import HostRoot

log = logs.get(__name__)

SPARE_S: Final = 600.0
"""The time for which a folder is unused before the agent looks it up in the kubelet's checkpoint.
The kubelet writes the checkpoint after Allocate's response, and this agent may have started
between.
"""

_STARTER_FILE: Final = "process-starter"
_ELF: Final = b"\x7fELF"
_PROGRAM, _TEXT, _FOLDER = 0o755, 0o644, 0o755
_LABEL_TYPE: Final = "container_ro_file_t"
_LABEL: Final = f"system_u:object_r:{_LABEL_TYPE}:s0".encode()
"""Every container may read and execute such a file, and none may write it (container-selinux's
policy). The label has no categories: those of the agent would exclude other containers."""
_SELINUX: Final = "security.selinux"
_GENERATION: Final = re.compile(rb'"generation": ([0-9]{1,18}),')


class Mounts:
    """The keeper of the files that containers get mounted.

    Level-triggered: each call compares the files with the wanted files, and corrects them. A
    failure is reported once, and the next call tries again; until then containers lack the file.

    Args:
        root: where the state folder is.
        starter: the process starter in the agent's image; None to give containers no starter.
        mounted: returns the host paths with which pods may still start.
        events: receives Events for the node's admin.
        now_s: a monotonic clock.

    Attributes:
        provided: the shared pools of the last `provide`, with their CPUs; None before the first.
    """

    def __init__(
        self,
        root: HostRoot,
        starter: Path | None,
        *,
        mounted: Callable[[], Collection[str]],
        events: EventSink,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provided: Mapping[str, CPUSet] | None = None
        self._root = root
        self._source = starter
        self._mounted = mounted
        self._events = events
        self._now_s = now_s
        # The folder exists where the kernel has SELinux on, also in a container, which does not see
        # the file system that the host mounts there.
        self._selinux = (root.sysfs / "fs/selinux").is_dir()
        self._starter: Path | None = None
        self._announced: set[str] = set()
        self._spare_since: dict[Path, float] = {}
        self._failures = Failures()

    def provide(self, shared: Mapping[str, CPUSet] | None, announced: Collection[str] = ()) -> None:
        """Install the starter, write each shared pool's CPUs, and remove unused files.

        Only one thread calls this.

        Args:
            shared: shared pool → the CPUs of a container that starts now, offline CPUs included; a
                removed pool gets no CPUs. None where the pools are not known.
            announced: shared pools whose generation must grow although their CPUs are the same. It
                grows as soon as the file can be written, in this call or a later call.
        """
        self._announced.update(announced)
        self._attempt("process starter", self._install)
        if shared is not None:
            self._show_all(shared)
        self.provided = shared or {}

    @property
    def failing(self) -> bool:
        """Whether the last `provide` could not make everything right."""
        return bool(self._failures)

    def of(self, pool: Pool) -> tuple[Mount, ...]:
        """Return the mounts for a container of a pool: only existing files and folders.

        A runtime makes a folder where the source of a mount is missing, and the container would
        keep this folder.
        """
        found = []
        if self._starter is not None and self._starter.is_file():
            found.append(Mount(STARTER, self._root.on_host(self._starter)))
        folder = self._root.pool_folders / pool.name
        if pool.kind is PoolKind.SHARED and folder.is_dir():
            found.append(Mount(shared_pool_folder(pool.name), self._root.on_host(folder)))
        return tuple(found)

    def _show_all(self, shared: Mapping[str, CPUSet]) -> None:
        gone = (folder.name for folder in _folders(self._root.pool_folders))
        for pool, cpus in {**dict.fromkeys(gone, CPUSet()), **shared}.items():
            self._attempt(f"files of pool {pool}", partial(self._show, pool, cpus))
        kept = {self._root.pool_folders / pool for pool in shared}
        if self._starter is not None:
            kept.add(self._starter.parent)
        self._attempt("files that no pod has", partial(self._remove_spare, kept))

    def _install(self) -> None:
        if self._source is None:
            return
        if self._starter is None or not self._starter.is_file():
            self._starter = self._copy(self._source)
        self._open_to_all(self._starter, _PROGRAM)
        if not os.access(self._starter, os.X_OK):
            raise HostFileError(
                self._root.on_host(self._starter),
                "containers cannot run it",
                "mount its file system without noexec",
            )

    def _copy(self, source: Path) -> Path:
        program = source.read_bytes()
        if not program.startswith(_ELF):
            raise HostFileError(str(source), "is no program", "build the image again")
        version = f"{VERSION}-{hashlib.sha256(program).hexdigest()[:12]}"
        path = self._root.starters / version / _STARTER_FILE
        self._make(path.parent)
        if path.is_dir():
            # containerd and CRI-O make a folder where the source of a mount is missing.
            path.rmdir()
        self._put(path, program, _PROGRAM)
        return path

    def _show(self, pool: str, cpus: CPUSet) -> None:
        folder = self._root.pool_folders / pool
        self._make(folder)
        # First the file that containers wait for at their start: the disk may be full after it.
        self._put(folder / "cpus", f"{cpus}\n".encode(), _TEXT)
        path = folder / "cpus.json"
        before = _content(path)
        generation = _generation(before or b"")
        if pool in self._announced or before != _pool_document(pool, cpus, generation):
            generation += 1
        self._put(path, _pool_document(pool, cpus, generation), _TEXT)
        self._announced.discard(pool)

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._open_to_all(folder, _FOLDER)

    def _put(self, path: Path, content: bytes, mode: int) -> None:
        """Write a file, unless it has this content already."""
        if _content(path) == content:
            self._open_to_all(path, mode)
        else:
            files.write_atomically(path, content, lambda fresh: self._open_to_all(fresh, mode))

    def _open_to_all(self, path: Path, mode: int) -> None:
        """Make a path readable for containers of any user, whatever the agent's umask."""
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
        if not self._selinux:
            return
        try:
            if os.getxattr(path, _SELINUX).rstrip(b"\0") != _LABEL:
                os.setxattr(path, _SELINUX, _LABEL)
        except OSError as error:
            state = self._root.on_host(self._root.state)
            self._complain(
                "SELinux label",
                f"{error.strerror}; containers cannot read what they get mounted: run"
                f" chcon -R -t {_LABEL_TYPE} -l s0 {state}/starter {state}/pools",
            )

    def _remove_spare(self, kept: Collection[Path]) -> None:
        now_s = self._now_s()
        folders = (*_folders(self._root.starters), *_folders(self._root.pool_folders))
        since = {
            folder: self._spare_since.get(folder, now_s) for folder in folders if folder not in kept
        }
        due = [folder for folder, since_s in since.items() if now_s - since_s >= SPARE_S]
        # The checkpoint is long: the agent reads it again only after the same time.
        self._spare_since = {**since, **dict.fromkeys(due, now_s)}
        try:
            mounted = self._mounted() if due else ()
        except CPUPoolError as error:
            # The learner needs the checkpoint, too, and logs the failure.
            log.debug("files kept, as their pods are not known", reason=error)
            return
        for folder in due:
            name = self._root.on_host(folder)
            if not any(f"{path}/".startswith(f"{name}/") for path in mounted):
                shutil.rmtree(folder)
                log.info("files that no pod has removed", path=folder)

    def _attempt(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, CPUPoolError) as error:
            self._complain(what, str(error))
        else:
            self._failures.ends(what)

    def _complain(self, what: str, why: str) -> None:
        if self._failures.begins(why, what):
            log.warning("containers' files are not as they should be", what=what, reason=why)
            self._events.node("CPUPoolFilesFailed", f"{what}: {why}")


def _folders(parent: Path) -> Iterator[Path]:
    if parent.is_dir():
        yield from (entry for entry in parent.iterdir() if entry.is_dir())


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _pool_document(pool: str, cpus: CPUSet, generation: int) -> bytes:
    shown = {"cpus": str(cpus), "generation": generation, "pool": pool}
    return f"{json.dumps(shown)}\n".encode()


def _generation(shown: bytes) -> int:
    """Read the generation in a pool's document; 0 where there is none."""
    found = _GENERATION.search(shown)
    return int(found[1]) if found else 0
