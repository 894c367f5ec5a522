"""An archive of a node's facts, to examine the node from elsewhere.

The archive has the machine's folders, so `HostRoot.under` fits it. This module names each file of
the archive: sets of CPUs, names, pool files, the agent's status. Environments, arguments, tokens
and all other data stay on the node.
"""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile
import zlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from cpupool.config import kubelet_config, poolconfig
from cpupool.core.errors import CPUPoolError, HostError, HostFileError
from cpupool.host import cgroup_names, interrupts, processes
from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.kubelet_file import KubeletConfigFile, KubeletFiles
from cpupool.host.root import HostRoot
from cpupool.version import VERSION
from cpupool.wire import checkpoint_checksum, cpu_manager_state, device_checkpoint, json_text
from cpupool.wire.cpu_manager_state import State
from cpupool.wire.json_text import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cpupool.core.names import Names

CONTENTS: Final = "bundle.json"
POOL_FILES: Final = Path("etc/cpu-pooler")
AGENT: Final = Path("agent")
"""The places of these in the archive; all other files are in the places of `HostRoot`."""

_SCHEMA: Final = "cpupool-bundle/1"
_CPU: Final = "devices/system/cpu"
_NODE: Final = "devices/system/node/node[0-9]*"
_SYSFS: Final = (
    *(
        f"{_CPU}/{name}"
        for name in ("online", "offline", "present", "possible", "isolated", "nohz_full")
    ),
    f"{_CPU}/cpu[0-9]*/online",
    f"{_CPU}/cpu[0-9]*/topology/*",
    f"{_CPU}/cpu[0-9]*/cache/index*/level",
    f"{_CPU}/cpu[0-9]*/cache/index*/shared_cpu_*",
    f"{_NODE}/cpu[lm]*",
    f"{_NODE}/distance",
    "devices/cpu_*/cpus",
)
_MEMORY: Final = (f"{_NODE}/meminfo", f"{_NODE}/hugepages/hugepages-*/nr_hugepages")
_NODE_LINKS: Final = f"{_CPU}/cpu[0-9]*/node[0-9]*"
_BOOT_PARAMETERS: Final = (
    *("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "kthread_cpus", "maxcpus", "nosmt"),
    *("cgroup_disable", "cgroup_no_v1", "systemd.unified_cgroup_hierarchy"),
)
"""The recorded parameters: the rest of the kernel's command line can hold passwords."""
_CPUSET: Final = ("cpuset.cpus", "cpuset.cpus.effective")
_LARGEST_FILE_BYTES: Final = 4 * 2**20
_MOST_FILES: Final = 200_000
_MOST_BYTES: Final = 256 * 2**20
"""A machine with 1024 CPUs and 500 containers stays below a tenth of both."""


@dataclass(slots=True)
class Recording:
    """The files of an archive that is not written yet.

    Attributes:
        files: path in the archive → content; the path of a folder ends with a slash.
        changed_s: path → the file's last change, in seconds since 1970.
        left_out: the files that could not be read, and why.
        listed: whether the archive has a list of its contents.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    changed_s: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    listed: bool = True

    def take(
        self, source: Path, name: Path, edit: Callable[[bytes], bytes] = lambda content: content
    ) -> None:
        """Add a file with the content that `edit` returns; ignore a missing file."""
        try:
            with source.open("rb") as file:
                content = file.read(_LARGEST_FILE_BYTES + 1)
                changed_s = os.fstat(file.fileno()).st_mtime
            if len(content) > _LARGEST_FILE_BYTES:
                self.left_out.append(f"{name}: it has more than {_LARGEST_FILE_BYTES} bytes")
                return
            self.files[str(name)] = edit(content)
            self.changed_s[str(name)] = changed_s
        except CPUPoolError as error:
            self.left_out.append(f"{name}: {error}")
        except OSError as error:
            # Files of a CPU that goes offline meanwhile answer ENODEV.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
                self.left_out.append(f"{name}: {error.strerror}")

    def write(self, out: BinaryIO) -> None:
        """Write the archive."""
        now = datetime.now(UTC)
        contents = {
            "schema": _SCHEMA,
            "cpupool": VERSION,
            "recorded": now.isoformat(timespec="seconds"),
            "files": sorted(self.files),
            "left_out": self.left_out,
        }
        files = dict(self.files)
        if self.listed:
            files[CONTENTS] = json.dumps(contents, indent=2).encode()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name in sorted(files):
                member = tarfile.TarInfo(name.rstrip("/"))
                member.mtime = int(self.changed_s.get(name, now.timestamp()))
                member.size = len(files[name])
                member.mode = 0o600
                if name.endswith("/"):
                    member.type, member.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(member, io.BytesIO(files[name]))


def record_machine(sysfs: Path) -> Recording:
    """Collect a machine's topology and the size of its memory; `left_out` has the missing files.

    Args:
        sysfs: the machine's sysfs.
    """
    kept = Recording(listed=False)
    _take_machine(kept, sysfs, (*_SYSFS, *_MEMORY))
    return kept


def record(
    root: HostRoot,
    names: Names,
    *,
    cgroup_root: str,
    config: Path,
    kubelet_config_file: Path,
    kubelet_config_dir: str = "",
) -> Recording:
    """Collect a node's facts; `left_out` has the files that cannot be read.

    Args:
        root: where the machine's folders are.
        names: for cpupool's resources.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.
        config: the pool file, or the folder of pool files.
        kubelet_config_file: the kubelet's configuration.
        kubelet_config_dir: the folder of its drop-ins; empty for the one that its command line
            names.
    """
    kept, there = Recording(), HostRoot.under(Path())
    _take_machine(kept, root.sysfs, _SYSFS)
    kept.take(root.proc / "version", there.proc / "version")
    kept.take(root.proc / "cmdline", there.proc / "cmdline", _boot_parameters)
    _take_interrupts(kept, root, there)
    _take_daemons(kept, root, there)
    _take_cgroups(kept, root, there, cgroup_root)
    kept.take(root.checkpoint, there.checkpoint, lambda content: _checkpoint(content, names))
    kept.take(root.cpu_manager_state, there.cpu_manager_state, _cpu_manager_state)
    kept.take(root.memory_manager_state, there.memory_manager_state, _memory_manager_state)
    _take_kubelet_config(kept, root, kubelet_config_file, kubelet_config_dir)
    kept.take(root.status, there.status)
    kept.take(root.choices, there.choices)
    kept.take(root.last_good_pools, there.last_good_pools)
    kept.take(root.last_config_map, there.last_config_map)
    for path in sorted(config.glob("*")) if config.is_dir() else [config]:
        if poolconfig.is_pool_file(path.name) or path == config:
            kept.take(path, POOL_FILES / path.name)
    return kept


def extract(archive: Path, folder: Path) -> datetime:
    """Unpack an archive of `Recording.write`; the archive may come from an untrusted source.

    Returns:
        The time of the recording.

    Raises:
        HostFileError: it is not such an archive, or too large.
    """
    try:
        with tarfile.open(archive, "r:gz") as members:
            _unpack(members, folder)
        if not (folder / CONTENTS).exists():
            raise ValueError(f"it has no {CONTENTS}")
        return _recorded(json_text.load((folder / CONTENTS).read_bytes()))
    except (
        *(tarfile.TarError, EOFError, zlib.error, OSError),
        *(ValueError, LookupError, OverflowError),
    ) as error:
        why = getattr(error, "strerror", None) or error
        raise HostFileError(
            str(archive), f"no support bundle, or a damaged one ({why})", "name another file"
        ) from error


def _recorded(contents: object) -> datetime:
    fields = Fields.of(contents)
    if fields.get("schema", str) != _SCHEMA:
        raise ValueError(f"{CONTENTS} is not of the schema {_SCHEMA}")
    return fields.read("recorded", _moment)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text[:60]!r} has no time zone")
    return moment


def _unpack(members: tarfile.TarFile, folder: Path) -> None:
    count = size = 0
    for member in members:
        count, size = count + 1, size + member.size
        if count > _MOST_FILES or size > _MOST_BYTES:
            raise ValueError(f"it holds more than {_MOST_FILES} files or {_MOST_BYTES} bytes")
        if not (member.isreg() or member.isdir()):
            raise ValueError(f"{member.name[:60]!r} is neither a file nor a folder")
        _write(members, member, folder)


def _write(members: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file or folder of an archive (`extract(filter="data")` needs Python 3.11.4)."""
    name = Path(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{member.name[:60]!r} leads out of the folder")
    content = members.extractfile(member)
    if content is None:
        (folder / name).mkdir(parents=True, exist_ok=True)
        return
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.read())
    # The age of the agent's status follows from it.
    os.utime(folder / name, (member.mtime, member.mtime))


def _take_machine(kept: Recording, sysfs: Path, patterns: Iterable[str]) -> None:
    there = HostRoot.under(Path()).sysfs
    for pattern in patterns:
        for path in sorted(sysfs.glob(pattern)):
            kept.take(path, there / path.relative_to(sysfs))
    for link in sorted(sysfs.glob(_NODE_LINKS)):
        # A folder stands for the link to a CPU's NUMA node.
        kept.files[f"{there / link.relative_to(sysfs)}/"] = b""


def _take_interrupts(kept: Recording, root: HostRoot, there: HostRoot) -> None:
    for interrupt in interrupts.interrupts(root.proc):
        folder = there.proc / interrupts.FOLDER / str(interrupt.number)
        kept.files[str(folder / interrupts.ALLOWED)] = f"{interrupt.allowed}\n".encode()
        kept.files[str(folder / interrupts.EFFECTIVE)] = f"{interrupt.effective}\n".encode()
        for handler in interrupt.handlers:
            kept.files[f"{folder / handler}/"] = b""


def _take_daemons(kept: Recording, root: HostRoot, there: HostRoot) -> None:
    for daemon in processes.daemons(root.proc):
        folder = there.proc / str(daemon.pid)
        cgroup = f"0::/{processes.SYSTEM_SLICE}/{daemon.unit}\n"
        status = f"{processes.NAME}:\t{daemon.name}\n{processes.ALLOWED}:\t{daemon.cpus}\n"
        kept.files[str(folder / "cgroup")] = cgroup.encode()
        kept.files[str(folder / "status")] = status.encode()


def _take_cgroups(kept: Recording, root: HostRoot, there: HostRoot, cgroup_root: str) -> None:
    try:
        base, version = hierarchy(root.cgroup)
    except HostError as error:
        kept.left_out.append(str(error))
        return
    copied = there.cgroup / base.relative_to(root.cgroup)
    v2 = version is CgroupVersion.V2
    for name in ("cgroup.controllers", *_CPUSET) if v2 else _CPUSET:
        kept.take(base / name, copied / name)

    def unreadable(error: OSError) -> None:
        if error.errno != errno.ENOENT:
            kept.left_out.append(f"{error.filename}: {error.strerror}")

    for place in (*cgroup_names.kubepods(cgroup_root), processes.SYSTEM_SLICE):
        for above, _folders, files in os.walk(base / place, onerror=unreadable):
            folder = copied / Path(above).relative_to(base)
            kept.files[f"{folder}/"] = b""
            for name in set(_CPUSET).intersection(files):
                kept.take(Path(above, name), folder / name)


def _boot_parameters(content: bytes) -> bytes:
    words = content.decode("utf-8", "replace").split()
    return " ".join(word for word in words if word.partition("=")[0] in _BOOT_PARAMETERS).encode()


def _checkpoint(content: bytes, names: Names) -> bytes:
    """Return only our entries: other plugins' answers may hold secrets for their containers."""
    found = device_checkpoint.parse(content)
    ours = tuple(entry for entry in found.entries if names.pool_of(entry.resource))
    registered = {name: ids for name, ids in found.registered.items() if names.pool_of(name)}
    return device_checkpoint.encode(replace(found, entries=ours, registered=registered))


def _cpu_manager_state(content: bytes) -> bytes:
    found = cpu_manager_state.parse(content)
    return cpu_manager_state.encode(State(found.policy, found.default_cpus))


def _memory_manager_state(content: bytes) -> bytes:
    policy = checkpoint_checksum.policy("memory_manager_state", content)
    return json.dumps({"policyName": policy}).encode()


def _take_kubelet_config(kept: Recording, root: HostRoot, path: Path, folder: str) -> None:
    """Add the configuration that the kubelet uses, not the files that it comes from."""
    name = HostRoot.under(Path()).kubelet_config
    if path.exists() and not path.is_file():
        kept.take(path, name, _kubelet_config)
        return
    try:
        config = KubeletConfigFile(KubeletFiles.of(root, path, folder), host=root).read()
    except CPUPoolError as error:
        kept.left_out.append(f"{name}: {error}")
        return
    if config:
        kept.files[str(name)] = json.dumps(config.excerpt(), indent=2).encode()


def _kubelet_config(content: bytes) -> bytes:
    config = kubelet_config.parse("config.yaml", content)
    return json.dumps(config.excerpt(), indent=2).encode()
