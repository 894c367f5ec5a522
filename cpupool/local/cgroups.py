"""The cgroups of the embedded node's containers: this machine's cgroups, or emulated ones.

A user who may write into the cpuset hierarchy gets a real cgroup `cpupool-<name>-<pid>`. Other
users get the same files in a folder, and a thread that emulates the kernel: it gives a container's
processes the CPUs in its `cpuset.cpus` by sched_setaffinity(2), so that /proc shows them, too.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, HostError, HostFileError
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.root import HostRoot
from cpupool.local.process import Process

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMOVE_S: Final = 5.0
_RETRY_S: Final = 0.005
_LOOK_S: Final = 0.02
_FILLED: Final = ("cpuset.mems", "cpuset.cpus")


class Cgroups(Protocol):
    """A cgroup hierarchy for containers. Paths are relative to `cgroup_root`."""

    @property
    def root(self) -> Path:
        """The folder that stands for /sys/fs/cgroup."""
        ...

    @property
    def cgroup_root(self) -> str:
        """The kubelet's `--cgroup-root`: `/`, or the cgroup of this node."""
        ...

    @property
    def described(self) -> str:
        """The kind of these cgroups, and why they are not the real ones."""
        ...

    def make(self, path: str) -> None:
        """Make a cgroup and those above it, each with the CPUs of its parent."""
        ...

    def enter(self, path: str, pid: int) -> None:
        """Move a process into a cgroup."""
        ...

    def remove(self, path: str) -> None:
        """Remove a cgroup with its processes and the cgroups below."""
        ...


@contextmanager
def opened(folder: Path, name: str, cpus: CPUSet) -> Iterator[Cgroups]:
    """Return this machine's own cgroups if they can be used, otherwise emulated cgroups.

    Args:
        folder: where to emulate them.
        name: a part of the real cgroup's name.
        cpus: the CPUs that containers may get.
    """
    try:
        real = RealCgroups.open(name, cpus)
    except HostError as error:
        with EmulatedCgroups(folder, cpus, str(error)) as emulated:
            yield emulated
    else:
        with real:
            yield real


class RealCgroups:
    """A part of this machine's cpuset hierarchy, version 1 or 2.

    Args:
        base: the root of the hierarchy.
        version: its version.
        home: the cgroup that contains all others, relative to `base`.
    """

    def __init__(self, base: Path, version: CgroupVersion, home: str) -> None:
        v1 = version is CgroupVersion.V1
        self.root = base.parent if v1 else base
        self.cgroup_root = f"/{home}"
        self.described = f"this machine's cgroup {'v1' if v1 else 'v2'}, below {base / home}"
        self._version = version
        self._home = base / home
        self._enabled: list[Path] = []

    @classmethod
    def open(cls, name: str, cpus: CPUSet, root: HostRoot | None = None) -> RealCgroups:
        """Find a usable place for containers: make a cgroup and move a process into it.

        Raises:
            HostError: there is no such place; the message says why.
        """
        root = root or HostRoot()
        base, version = hierarchy(root.cgroup)
        reason = ""
        for parent in _candidates(base, version, root.proc / "self/cgroup"):
            home = f"{parent}/cpupool-{name}-{os.getpid()}".lstrip("/")
            found = cls(base, version, home)
            try:
                found._prove(cpus)
            except OSError as error:
                reason = reason or f"{error.filename or base / home}: {error.strerror}"
                found.close()
            except HostError as error:
                reason = reason or str(error)
                found.close()
            else:
                return found
        raise HostError(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all cgroups, and switch off the controllers that `make` switched on above them."""
        self.remove("")
        for above in reversed(self._enabled):
            with suppress(OSError):
                (above / "cgroup.subtree_control").write_text("-cpuset")
        self._enabled.clear()

    def make(self, path: str) -> None:
        """Make a cgroup and those above it, each with the CPUs of its parent."""
        for directory in self._steps(path):
            if not directory.exists():
                if self._version is CgroupVersion.V2:
                    self._enable(directory.parent)
                directory.mkdir()
                if self._version is CgroupVersion.V1:
                    _fill(directory)

    def enter(self, path: str, pid: int) -> None:
        """Move a process into a cgroup."""
        (self._home / path / "cgroup.procs").write_text(str(pid))

    def remove(self, path: str) -> None:
        """Kill the processes in a cgroup and below, and remove it.

        Raises:
            HostFileError: the cgroup cannot be removed in time.
        """
        top = self._home / path
        deadline_s = time.monotonic() + _REMOVE_S
        # A killed process leaves its cgroup a moment later.
        while top.is_dir():
            for directory, _, _ in os.walk(top, topdown=False):
                _kill_all(Path(directory))
                with suppress(FileNotFoundError), _unless(errno.EBUSY):
                    Path(directory).rmdir()
            if top.is_dir() and time.monotonic() > deadline_s:
                raise HostFileError(str(top), "this cgroup is still in use", "end what runs in it")
            if top.is_dir():
                time.sleep(_RETRY_S)

    def _steps(self, path: str) -> Iterator[Path]:
        yield self._home
        yield from (self._home / step for step in accumulate(path.split("/"), "{}/{}".format))

    def _enable(self, parent: Path) -> None:
        """Enable the cpuset controller for the children of a cgroup (cgroup-v2.rst)."""
        control = parent / "cgroup.subtree_control"
        if "cpuset" not in control.read_text().split():
            control.write_text("+cpuset")
            if parent == self._home.parent:
                self._enabled.append(parent)

    def _prove(self, cpus: CPUSet) -> None:
        self.make("probe")
        name = "cpuset.cpus" if self._version is CgroupVersion.V1 else "cpuset.cpus.effective"
        there = CPUSet.parse((self._home / "probe" / name).read_text())
        if not cpus <= there:
            raise HostError(f"CPUs {cpus - there} are not on this machine; it has {there}")
        with Process("probe", {}) as process:
            self.enter("probe", process.pid)
        self.remove("probe")


class EmulatedCgroups:
    """The files of a version 1 cpuset hierarchy in a folder, and a thread that emulates the kernel.

    It ignores CPUs that this machine lacks; if all CPUs of a container are missing, its processes
    keep their CPUs. Unlike the kernel it accepts any value, and checks no other rule.

    Args:
        folder: the folder that stands for `/`.
        cpus: the CPUs of the emulated machine.
        reason: why the real cgroups are not used.
    """

    def __init__(self, folder: Path, cpus: CPUSet, reason: str) -> None:
        self.root = HostRoot.under(folder).cgroup
        self.cgroup_root = "/"
        self.described = f"cgroups emulated in {self.root} ({reason})"
        self._base = self.root / "cpuset"
        self._cpus = cpus
        self._lock = threading.Lock()
        self._members: dict[Path, list[int]] = {}
        self._stopped = threading.Event()
        self._kernel = threading.Thread(target=self._run, name="emulated kernel", daemon=True)

    def __enter__(self) -> Self:
        self._base.mkdir(parents=True)
        (self._base / "cpuset.cpus").write_text(f"{self._cpus}\n")
        (self._base / "cpuset.mems").write_text("0\n")
        self._kernel.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._kernel.join()
        shutil.rmtree(self._base)

    def make(self, path: str) -> None:
        """Make a cgroup and those above it, each with the CPUs of its parent."""
        for step in accumulate(path.split("/"), "{}/{}".format):
            directory = self._base / step
            if not directory.exists():
                directory.mkdir()
                (directory / "cgroup.procs").touch()
                self._fill(directory)

    def enter(self, path: str, pid: int) -> None:
        """Move a process into a cgroup."""
        directory = self._base / path
        with (directory / "cgroup.procs").open("a") as file:
            file.write(f"{pid}\n")
        with self._lock:
            self._members.setdefault(directory, []).append(pid)
            # Where two writes have mixed, `_run` puts the file right and applies it.
            with suppress(CPUSetParseError):
                _apply(CPUSet.parse(_cpus_of(directory)), [pid])

    def remove(self, path: str) -> None:
        """Remove a cgroup with those below it."""
        top = self._base / path
        with self._lock:
            for directory in [member for member in self._members if member.is_relative_to(top)]:
                del self._members[directory]
        with suppress(FileNotFoundError):
            shutil.rmtree(top)

    def _run(self) -> None:
        applied: dict[Path, str] = {}
        while not self._stopped.wait(_LOOK_S):
            with self._lock:
                for directory, pids in self._members.items():
                    text = _cpus_of(directory)
                    if applied.get(directory) == text:
                        continue
                    try:
                        _apply(CPUSet.parse(text), pids)
                    except CPUSetParseError:
                        # Two writes at once have mixed in this plain file; the kernel would accept
                        # one after the other.
                        before = applied.pop(directory, str(self._cpus))
                        self._put(directory, "cpuset.cpus", before)
                    else:
                        applied[directory] = text

    def _fill(self, directory: Path) -> None:
        for name in _FILLED:
            self._put(directory, name, (directory.parent / name).read_text())

    def _put(self, directory: Path, name: str, text: str) -> None:
        """Create a file atomically, as the kernel does: others may write into it at once."""
        fresh = self._base / f".{threading.get_ident()}"
        fresh.write_text(text)
        with suppress(FileNotFoundError):
            fresh.replace(directory / name)


def _candidates(base: Path, version: CgroupVersion, memberships: Path) -> Iterator[str]:
    """Yield this process's own cgroup and those above it, up to the root."""
    own = "/"
    for line in memberships.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuset" in controllers.split(",") or (version is CgroupVersion.V2 and not controllers):
            own = path
    # Inside a container the path may be that of the host, which is not mounted here.
    if not (base / own.lstrip("/")).is_dir():
        own = "/"
    while own != "/":
        yield own
        own = str(Path(own).parent)
    yield ""


def _fill(directory: Path) -> None:
    """Copy the CPUs and memory nodes of the parent, as runc does: version 1 starts with none."""
    for name in _FILLED:
        (directory / name).write_text((directory.parent / name).read_text())


def _kill_all(directory: Path) -> None:
    with suppress(FileNotFoundError, ProcessLookupError), _unless(errno.ENODEV):
        for pid in (directory / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


@contextmanager
def _unless(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _cpus_of(directory: Path) -> str:
    try:
        return (directory / "cpuset.cpus").read_text().strip()
    except OSError:
        return ""


def _apply(cpus: CPUSet, pids: list[int]) -> None:
    """Move processes as the kernel does when a cpuset changes; an empty list changes nothing."""
    for pid in pids:
        # ESRCH: it has ended. EINVAL: no such CPU here, or none at all.
        with suppress(OSError):
            os.sched_setaffinity(pid, set(cpus))
