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
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.core.mounts import Mount
from cpupool.core.names import STARTER, shared_pool_folder
from cpupool.core.pools import PoolKind
from cpupool.host import mounted_files
from cpupool.host.mounted_files import PROGRAM, MountedFiles
from cpupool.telemetry import log as logs
from cpupool.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
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
        self._files = MountedFiles(root, (root.starters, root.pool_folders), events)
        self._now_s = now_s
        self._starter: Path | None = None
        self._announced: set[str] = set()
        self._spare_since: dict[Path, float] = {}

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
        self._files.attempt("process starter", self._install)
        if shared is not None:
            self._show_all(shared)
        self.provided = shared or {}

    @property
    def failing(self) -> bool:
        """Whether the last `provide` could not make everything right."""
        return self._files.failing

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
        gone = (folder.name for folder in mounted_files.folders(self._root.pool_folders))
        for pool, cpus in {**dict.fromkeys(gone, CPUSet()), **shared}.items():
            self._files.attempt(f"files of pool {pool}", partial(self._show, pool, cpus))
        kept = {self._root.pool_folders / pool for pool in shared}
        if self._starter is not None:
            kept.add(self._starter.parent)
        self._files.attempt("files that no pod has", partial(self._remove_spare, kept))

    def _install(self) -> None:
        if self._source is None:
            return
        if self._starter is None or not self._starter.is_file():
            self._starter = self._copy(self._source)
        self._files.open_to_all(self._starter, PROGRAM)
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
        self._files.make(path.parent)
        if path.is_dir():
            # containerd and CRI-O make a folder where the source of a mount is missing.
            path.rmdir()
        self._files.put(path, program, PROGRAM)
        return path

    def _show(self, pool: str, cpus: CPUSet) -> None:
        folder = self._root.pool_folders / pool
        self._files.make(folder)
        # First the file that containers wait for at their start: the disk may be full after it.
        self._files.put(folder / "cpus", f"{cpus}\n".encode())
        path = folder / "cpus.json"
        before = mounted_files.read(path)
        generation = mounted_files.generation(before)
        if pool in self._announced or before != _pool_document(pool, cpus, generation):
            generation += 1
        self._files.put(path, _pool_document(pool, cpus, generation))
        self._announced.discard(pool)

    def _remove_spare(self, kept: Collection[Path]) -> None:
        now_s = self._now_s()
        since = {
            folder: self._spare_since.get(folder, now_s)
            for parent in (self._root.starters, self._root.pool_folders)
            for folder in mounted_files.folders(parent)
            if folder not in kept
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


def _pool_document(pool: str, cpus: CPUSet, generation: int) -> bytes:
    shown = {"cpus": str(cpus), "generation": generation, "pool": pool}
    return f"{json.dumps(shown)}\n".encode()
