"""The CPU topology from sysfs: from this machine, a copied folder or a recorded archive.

Kernel documents, named at each kind of file: Documentation/ABI/stable/sysfs-devices-system-cpu,
Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-node,
Documentation/ABI/testing/sysfs-devices-system-cpu (cache, hybrid). A file that a kernel does not
write is not an error: the reader uses an older file instead, or "unknown".
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError, HostFileError
from cpupool.core.topology import CPUFacts, CPUTopology, assemble
from cpupool.host.root import HostRoot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CPU: Final = "devices/system/cpu"
_NODE: Final = "devices/system/node"
_HYBRID: Final = ("cpu_core", "cpu_atom", "cpu_lowpower")
_ATTEMPTS: Final = 3
_MAX_FILE_BYTES: Final = 1 << 16
"""The longest file to read: a list of every other of 8192 CPUs is 20 kB."""

_CORE: Final = ("core_cpus_list", "core_cpus", "thread_siblings_list", "thread_siblings")
_SOCKET: Final = ("package_cpus_list", "package_cpus", "core_siblings_list", "core_siblings")
_DIE: Final = ("die_cpus_list", "die_cpus")
_CACHE: Final = ("shared_cpu_list", "shared_cpu_map")
_NODE_CPUS: Final = ("cpulist", "cpumap")
"""Names of one set of CPUs, names of newer kernels first; the list format before the mask."""
_MASKS: Final = ("map", "_cpus", "_siblings", "mask_requested")
"""The suffixes of the names of masks."""

_KEPT: Final = re.compile(r"(?:.*?/)?(devices/(?:system/(?:cpu|node)|cpu_[a-z]+)/.+)")
THIS_MACHINE: Final = ("this", "sysfs")
"""The words for the machine on which a command runs."""
_NODE_LINK: Final = re.compile(rf"{_CPU}/cpu[0-9]+/node[0-9]+")
_OTHER_SOURCE: Final = (
    "give `this`, a folder that holds sys/devices/system/cpu, or a .tar.gz of one"
)


class FileTree(Protocol):
    """The files of one sysfs, by their path below `/sys`."""

    @property
    def name(self) -> str:
        """The name for messages."""
        ...

    def read(self, path: str) -> str | None:
        """Return a file's text without blanks and NUL bytes around it; None without the file.

        Raises:
            HostFileError: the file exists and cannot be read.
        """
        ...

    def names(self, folder: str) -> Iterable[str]:
        """Return the names in a folder; none without the folder."""
        ...


class FolderTree:
    """A sysfs in the file system: the live one, or a copy.

    Args:
        root: the folder that stands for `/sys`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        """The folder."""
        return str(self._root)

    def read(self, path: str) -> str | None:
        """Read one file, as `FileTree.read`."""
        try:
            descriptor = os.open(f"{self._root}/{path}", os.O_RDONLY)
            try:
                # The kernel gives at most a page at once: a list of a thousand CPUs is longer.
                parts = iter(partial(os.read, descriptor, _MAX_FILE_BYTES), b"")
                return _text(b"".join(parts))
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # A file of a CPU that goes offline between open and read.
            if error.errno == errno.ENODEV:
                return None
            raise HostFileError(
                f"{self._root}/{path}", error.strerror or str(error), "make it readable"
            ) from error

    def names(self, folder: str) -> Iterable[str]:
        """List one folder, as `FileTree.names`."""
        try:
            return [entry.name for entry in (self._root / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise HostFileError(
                f"{self._root}/{folder}", error.strerror or str(error), "make it readable"
            ) from error


class RecordedTree:
    """A sysfs in memory.

    Args:
        name: the name for messages.
        files: path below `/sys` → content.
    """

    def __init__(self, name: str, files: Mapping[str, str]) -> None:
        self._name = name
        self._files = files
        self._folders: dict[str, set[str]] = {}
        for path in files:
            folder = path
            while folder:
                folder, _, entry = folder.rpartition("/")
                self._folders.setdefault(folder, set()).add(entry)

    @classmethod
    def from_archive(cls, path: Path, written: BinaryIO | None = None) -> RecordedTree:
        """Read the CPU and node files of a `.tar.gz`.

        The members have names as `sys/devices/...`, with or without a prefix.

        Args:
            path: the archive.
            written: what the file will have, if it is not there yet.

        Raises:
            HostFileError: this is not an archive, or a damaged one.
        """
        import tarfile  # noqa: PLC0415 - no running machine is an archive

        files: dict[str, str] = {}
        try:
            with tarfile.open(path, "r:gz", written) as archive:
                for member in archive:
                    match = _KEPT.fullmatch(member.name)
                    content = archive.extractfile(member) if match and member.isreg() else None
                    if match and content:
                        files[match[1]] = _text(content.read(_MAX_FILE_BYTES))
                    elif match and _NODE_LINK.fullmatch(match[1]):
                        files[match[1]] = ""
        except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
            # The last: the headers of a sparse file, as tarfile reads them.
            raise HostFileError(
                str(path), f"no .tar.gz, or a damaged one ({error})", _OTHER_SOURCE
            ) from error
        return cls(str(path), files)

    @property
    def name(self) -> str:
        """The archive."""
        return self._name

    def read(self, path: str) -> str | None:
        """Read one file, as `FileTree.read`."""
        return self._files.get(path)

    def names(self, folder: str) -> Iterable[str]:
        """List one folder, as `FileTree.names`."""
        return self._folders.get(folder, ())


class Sysfs:
    """The reader of the topology from one sysfs.

    Args:
        tree: its files.
    """

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree

    @classmethod
    def at(cls, root: Path) -> Sysfs:
        """Read the sysfs in a folder: `/sys`, or a copy of it."""
        return cls(FolderTree(root))

    def online(self) -> CPUSet:
        """Return the CPUs that are online now; reads one file on any kernel since 2.6.37.

        Raises:
            HostFileError: there are no CPUs, or the list is damaged.
        """
        # sysfs-devices-system-cpu: cpu/online; cpuN/online is 1 or 0, and missing where the CPU
        # cannot be switched off.
        listed = self._cpus(_CPU, ("online",))
        online = listed or CPUSet(
            cpu
            for cpu in self._numbered(_CPU, "cpu")
            if self._tree.read(f"{_CPU}/cpu{cpu}/online") != "0"
        )
        if not online:
            raise HostFileError(self._tree.name, f"no CPU in {_CPU}", _OTHER_SOURCE)
        return online

    def tickless(self) -> CPUSet:
        """Return the CPUs whose timer tick stops while one task runs there (`nohz_full=`).

        Raises:
            HostFileError: the list is damaged.
        """
        # drivers/base/cpu.c: "(null)" where the kernel supports it and the parameter is not set.
        if self._tree.read(f"{_CPU}/nohz_full") == "(null)":
            return CPUSet()
        return self._cpus(_CPU, ("nohz_full",)) or CPUSet()

    def unbound_workqueues(self) -> CPUSet:
        """Return the CPUs on which the admin lets unbound workqueues run.

        CPUs of partitions are included. Without the file (before Linux 6.8) there are none: such a
        kernel changes no workqueue for a partition. Source: Documentation/core-api/workqueue.rst.

        Raises:
            HostFileError: the file cannot be read or holds no mask.
        """
        folder = "devices/virtual/workqueue"
        return self._cpus(folder, ("cpumask_requested",)) or CPUSet()

    def topology(self) -> CPUTopology:
        """Read the whole topology.

        Raises:
            HostFileError: a file does not have the content that the kernel documents, or CPUs go
                on and off during every reading.
        """
        for _ in range(_ATTEMPTS):
            online = self.online()
            topology = self._read(online)
            # If a CPU goes offline during the reading, its files and some siblings are missing.
            if self.online() == online:
                return topology
        raise HostFileError(
            f"{self._tree.name}/{_CPU}/online",
            f"the online CPUs changed during each of {_ATTEMPTS} readings",
            "try again when no CPU is being switched on or off",
        )

    def _read(self, online: CPUSet) -> CPUTopology:
        present = self._cpus(_CPU, ("present",))
        if present is None:
            present = CPUSet(self._numbered(_CPU, "cpu"))
        hybrid = {kind: self._cpus(f"devices/{kind}", ("cpus",)) for kind in _HYBRID}
        return assemble(
            online=online,
            present=present,
            possible=self._cpus(_CPU, ("possible",)),
            isolated=self._cpus(_CPU, ("isolated",)) or CPUSet(),
            facts={cpu: self._facts(cpu, online) for cpu in online},
            nodes=self._nodes(online),
            distances={
                node: distances
                for node in self._numbered(_NODE, "node")
                if (distances := self._distances(node))
            },
            hybrid={kind: cpus for kind, cpus in hybrid.items() if cpus is not None},
        )

    def _nodes(self, online: CPUSet) -> dict[int, CPUSet]:
        """Return NUMA node → its CPUs: no CPU is on two nodes."""
        # sysfs-devices-node: nodeN/cpulist, cpumap. With numa=fake=N every node lists all CPUs of
        # the memory that it is a part of.
        listed = {
            node: self._cpus(f"{_NODE}/node{node}", _NODE_CPUS) or CPUSet()
            for node in self._numbered(_NODE, "node")
        }
        # register_cpu_under_node in drivers/base/node.c makes a link to the one node that the
        # scheduler takes for the CPU's, cpu_to_node. Copies of sysfs may lack it.
        linked: defaultdict[int, list[int]] = defaultdict(list)
        for cpu in online:
            for node in self._numbered(f"{_CPU}/cpu{cpu}", "node")[:1]:
                linked[node].append(cpu)
        known = CPUSet(cpu for cpus in linked.values() for cpu in cpus)
        return {
            node: listed.get(node, CPUSet()) - known | CPUSet(linked.get(node, ()))
            for node in sorted(listed.keys() | linked.keys())
        }

    def _facts(self, cpu: int, online: CPUSet) -> CPUFacts:
        # cputopology.rst. A machine whose kernel names no packages is one package; where it names
        # no dies, die_id is -1 and die_cpus holds the CPU alone.
        folder = f"{_CPU}/cpu{cpu}/topology"
        die_id = self._id(f"{folder}/die_id")
        return CPUFacts(
            core=self._cpus(folder, _CORE) or CPUSet.of(cpu),
            socket=self._cpus(folder, _SOCKET) or online,
            die=None if die_id is None else self._cpus(folder, _DIE),
            l3=self._l3(f"{_CPU}/cpu{cpu}/cache"),
            core_id=self._id(f"{folder}/core_id"),
            package_id=self._id(f"{folder}/physical_package_id"),
            die_id=die_id,
        )

    def _l3(self, folder: str) -> CPUSet | None:
        # ABI/testing/sysfs-devices-system-cpu: cache/indexN, numbered from 0 without a gap.
        index = 0
        while (level := self._tree.read(f"{folder}/index{index}/level")) is not None:
            if level == "3":
                return self._cpus(f"{folder}/index{index}", _CACHE)
            index += 1
        return None

    def _distances(self, node: int) -> tuple[int, ...]:
        path = f"{_NODE}/node{node}/distance"
        return tuple(self._number(path, word) for word in (self._tree.read(path) or "").split())

    def _id(self, path: str) -> int | None:
        text = self._tree.read(path)
        number = -1 if text is None else self._number(path, text)
        # The kernel writes -1 where the firmware names no package.
        return None if number < 0 else number

    def _number(self, path: str, text: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise self._damaged(path, f"{text[:60]!r} is not a number") from error

    def _cpus(self, folder: str, names: Iterable[str]) -> CPUSet | None:
        """Read a set of CPUs from the first file that exists."""
        for name in names:
            path = f"{folder}/{name}"
            text = self._tree.read(path)
            if text is None:
                continue
            try:
                return CPUSet.parse_mask(text) if name.endswith(_MASKS) else CPUSet.parse(text)
            except CPUSetParseError as error:
                raise self._damaged(path, str(error)) from error
        return None

    def _numbered(self, folder: str, prefix: str) -> tuple[int, ...]:
        """Return the numbers N of the entries `<prefix>N`, ascending."""
        numbers = (
            name.removeprefix(prefix)
            for name in self._tree.names(folder)
            if name.startswith(prefix)
        )
        return tuple(sorted(int(number) for number in numbers if number.isdecimal()))

    def _damaged(self, path: str, reason: str) -> HostFileError:
        return HostFileError(f"{self._tree.name}/{path}", reason, "record the machine again")


def open_topology(spec: str) -> CPUTopology:
    """Read the topology of a machine that a user names, as `open_tree`.

    Raises:
        HostFileError: names what to give instead.
    """
    return Sysfs(open_tree(spec)).topology()


def open_tree(spec: str) -> FileTree:
    """Return the sysfs of a machine that a user names.

    Args:
        spec: `this` or `sysfs` for this machine, a folder with a copy of `/sys` or of its parent,
            or a `.tar.gz` of such a folder.

    Raises:
        HostFileError: names what to give instead.
    """
    if spec in THIS_MACHINE:
        return FolderTree(HostRoot().sysfs)
    path = Path(spec)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise HostFileError(spec, error.strerror or str(error), _OTHER_SOURCE) from error
    if is_file:
        return RecordedTree.from_archive(path)
    if not is_folder:
        raise HostFileError(spec, "no such file or folder", _OTHER_SOURCE)
    below = path / "sys"
    return FolderTree(below if below.is_dir() else path)


def _text(content: bytes) -> str:
    # Dumps of sysfs pad files with NUL bytes to the size that sysfs reports.
    return content.decode("ascii", "replace").strip("\0 \t\n")
