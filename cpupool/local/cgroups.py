"""Where the embedded node's containers live: this machine's cgroups, or a folder that plays them.

Whoever may write into the cpuset hierarchy gets the real thing, in a cgroup of its own named
`cpupool-<name>-<pid>`. Everybody else gets the same files in a folder, and a thread that plays the
kernel: it gives a container's processes the CPUs in its `cpuset.cpus` by sched_setaffinity(2), so
that /proc tells the truth there too.
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
    """A cgroup hierarchy in which containers can be put. Paths are relative to `cgroup_root`."""

    @property
    def root(self) -> Path:
        """What plays /sys/fs/cgroup."""
        ...

    @property
    def cgroup_root(self) -> str:
        """The kubelet's `--cgroup-root`: `/`, or the cgroup of this node."""
        ...

    @property
    def described(self) -> str:
        """Say which kind this is, and why it is not the real one."""
        ...

    def make(self, path: str) -> None:
        """Make a cgroup and those above it, each with the CPUs of its parent."""
        ...

    def enter(self, path: str, pid: int) -> None:
        """Move a process into a cgroup."""
        ...

    def remove(self, path: str) -> None:
        """Remove a cgroup with all that is in it and below."""
        ...


@contextmanager
def opened(folder: Path, name: str, cpus: CPUSet) -> Iterator[Cgroups]:
    """Give this machine's own cgroups where they can be used, otherwise emulated ones.

    Args:
        folder: where to emulate them.
        name: goes into the name of the real cgroup.
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
        home: the cgroup to make for everything else, relative to `base`.
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
        """Find a place where containers can live, by making one and putting a process there.

        Raises:
            HostError: there is none; the message says why.
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
        """Remove everything that was made, and switch off the controllers switched on above it."""
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
        """Kill what runs in a cgroup and below, and remove it.

        Raises:
            HostFileError: it does not go away.
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
        """Give the children of a cgroup the cpuset controller (cgroup-v2.rst)."""
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
    """The files of a version 1 cpuset hierarchy in a folder, with a thread that plays the kernel.

    CPUs that this machine lacks are passed over; a process of a container that has none of the
    machine's stays where it is. Unlike the kernel it takes any value, and keeps no other rule.

    Args:
        folder: what plays `/`.
        cpus: the CPUs of the machine that is played.
        reason: why the real ones are not used.
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
                        # Two wrote at once into what is a plain file here; the kernel takes one
                        # after the other.
                        self._put(directory, "cpuset.cpus", applied.get(directory, str(self._cpus)))
                    else:
                        applied[directory] = text

    def _fill(self, directory: Path) -> None:
        for name in _FILLED:
            self._put(directory, name, (directory.parent / name).read_text())

    def _put(self, directory: Path, name: str, text: str) -> None:
        """Let a file appear whole, as the kernel's do: somebody may write into it at once."""
        fresh = self._base / f".{threading.get_ident()}"
        fresh.write_text(text)
        with suppress(FileNotFoundError):
            fresh.replace(directory / name)


def _candidates(base: Path, version: CgroupVersion, memberships: Path) -> Iterator[str]:
    """Give this process's own cgroup and those above it, up to the root."""
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
    """Do as the kernel does when a cpuset changes; an empty list changes nothing."""
    for pid in pids:
        # ESRCH: it has ended. EINVAL: no such CPU here, or none at all.
        with suppress(OSError):
            os.sched_setaffinity(pid, set(cpus))
