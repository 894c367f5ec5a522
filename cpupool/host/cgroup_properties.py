"""The properties that plugins set of containers: reads and writes their files in cgroups.

Paths are those of the cpuset hierarchy; version 1 has other hierarchies for CPU time and memory.
The rules are the kernel's: Documentation/admin-guide/cgroup-v2.rst, sections "CPU", "Memory" and
"IO"; Documentation/admin-guide/cgroup-v1/memory.rst; Documentation/scheduler/sched-design-CFS.rst.
"""

from __future__ import annotations

import errno
import math
from contextlib import suppress
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CgroupNotFound, HostFileError
from cpupool.core.properties import MAX, UNLIMITED, Properties
from cpupool.host import bandwidth
from cpupool.host.bandwidth import CFSBandwidth
from cpupool.host.cgroup_files import CgroupFiles
from cpupool.host.cgroupfs import CgroupVersion, hierarchy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.bandwidth import Bandwidth

_SHARES, _WEIGHT = "cpu.shares", "cpu.weight"
_LIMIT_V1, _SWAP_V1 = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
_LIMIT_V2, _SWAP_V2 = "memory.max", "memory.swap.max"
_IO_WEIGHT: Final = "io.weight"
_UNIFIED: Final = frozenset({_IO_WEIGHT, "memory.high", "memory.low", "memory.min"})
FILES: Final = _UNIFIED | {_SHARES, _WEIGHT, _LIMIT_V1, _SWAP_V1, _LIMIT_V2, _SWAP_V2}
"""The names of the files with properties, without those of `host.bandwidth`."""
_MOST_PAGES: Final = (2**63 - 1) // PAGESIZE
"""The kernel counts pages; so many are no limit (mm/page_counter.c)."""
_LEAST_SHARES: Final = 2
_MOST_SHARES: Final = 262_144
_MOST_WEIGHT: Final = 10_000
_HINTS: Final = {
    errno.EACCES: "run cpupool as root",
    errno.EBUSY: "the container uses more; wait until it uses less, or raise the limit",
    errno.EINVAL: "the cgroup above it, or memory and swap together, have less",
    errno.EROFS: "give cpupool the host's cgroups mounted writable",
}


class CgroupProperties:
    """The properties of this node's cgroups; satisfies `enforce.properties.PropertyTree`.

    Args:
        cgroup: the folder that stands for `/sys/fs/cgroup`.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.

    Raises:
        HostFileError: no hierarchy has the cpuset controller.
    """

    def __init__(self, cgroup: Path, cgroup_root: str = "") -> None:
        self._base, version = hierarchy(cgroup)
        self._v1 = version is CgroupVersion.V1
        self._bandwidth = CFSBandwidth(cgroup, cgroup_root)
        self._bases = dict.fromkeys(("cpu", "memory", "io"), self._base)
        if self._v1:
            self._bases |= {"cpu": bandwidth.v1_hierarchy(cgroup), "memory": cgroup / "memory"}
        self._files = {
            controller: CgroupFiles(base, _HINTS, "see the kernel's cgroup-v1 and cgroup-v2.rst")
            for controller, base in self._bases.items()
        }

    def properties(self, path: str, wanted: Properties) -> Properties:
        """Read the values of a cgroup for the properties that it must have.

        Returns:
            The wanted value itself where the cgroup has it as the kernel or the runtime rounds it,
            and None where this kernel has no such file. With the memory comes the swap; without a
            limit of memory it is the swap alone.

        Raises:
            CgroupNotFound: it has ended.
            HostFileError: a file cannot be read, or has unexpected content.
        """
        memory_bytes, swap_bytes = self._memory(path, wanted)
        has = Properties(
            self._shares(path, wanted.shares),
            self._time(path, wanted.bandwidth),
            memory_bytes,
            swap_bytes,
            unified=dict(self._unified(path, wanted.unified)),
        )
        if wanted.lacking(has) and not (self._base / path).is_dir():
            raise CgroupNotFound(path)
        return has

    def memory_in_use(self, path: str) -> int | None:
        """Read the bytes that a cgroup uses; None on version 1, which refuses a limit below them.

        Raises:
            HostFileError: the file cannot be read, or has unexpected content.
        """
        return self._number("memory", path, "memory.current")

    def write(self, path: str, properties: Properties) -> None:
        """Write properties of a cgroup.

        Raises:
            CgroupNotFound: it has ended.
            CgroupWriteRejected: the kernel refuses a value.
            HostFileError: a file cannot be read.
        """
        if properties.shares is not None:
            name, number = _WEIGHT, _logarithmic(properties.shares)
            if self._v1:
                name, number = _SHARES, properties.shares
            self._files["cpu"].write(path, name, str(number))
        if properties.bandwidth is not None:
            self._bandwidth.limit(path, properties.bandwidth)
        for name, text in self._memory_writes(path, properties):
            self._files["memory"].write(path, name, text)
        for name, text in properties.unified.items():
            self._files[_controller(name)].write(path, name, text)

    def _shares(self, path: str, wanted: int | None) -> int | None:
        if wanted is None:
            return None
        if self._v1:
            return self._number("cpu", path, _SHARES)
        weight = self._number("cpu", path, _WEIGHT)
        if weight is None:
            return None
        return wanted if weight in {_linear(wanted), _logarithmic(wanted)} else _shares_of(weight)

    def _time(self, path: str, wanted: Bandwidth | None) -> Bandwidth | None:
        if wanted is None:
            return None
        has = self._bandwidth.bandwidth(path)
        # Without a limit the period has no meaning.
        return wanted if has and has.cpus is None and wanted.cpus is None else has

    def _memory(self, path: str, wanted: Properties) -> tuple[int | None, int | None]:
        """Return the limit of memory, and that of memory and swap together."""
        if wanted.memory_bytes is None:
            return None, None
        names = (_LIMIT_V1, _SWAP_V1) if self._v1 else (_LIMIT_V2, _SWAP_V2)
        limit, swap = (self._number("memory", path, name) for name in names)
        has = _as_wanted(limit, wanted.memory_bytes)
        if self._v1 or limit is None or swap is None:
            return has, _as_wanted(swap, wanted.swap_bytes)
        if has == wanted.memory_bytes and _is_same(swap, _swap_alone(wanted)):
            return has, wanted.swap_bytes
        return has, UNLIMITED if swap == UNLIMITED else swap + max(0, limit)

    def _unified(self, path: str, wanted: Mapping[str, str]) -> Mapping[str, str]:
        has: dict[str, str] = {}
        for name, text in wanted.items():
            found = self._read(_controller(name), path, name)
            if found is None:
                continue
            if name == _IO_WEIGHT:
                same = _weight(found) == _weight(text)
            else:
                limit = self._parsed(found, path, name)
                same = _is_same(limit, self._parsed(text, path, name))
            has[name] = text if same else found
        return has

    def _memory_writes(self, path: str, properties: Properties) -> list[tuple[str, str]]:
        limit, swap = properties.memory_bytes, properties.swap_bytes
        if limit is None:
            return []
        if not self._v1:
            writes = [(_LIMIT_V2, _text(limit))]
            alone = _swap_alone(properties)
            return writes if alone is None else [*writes, (_SWAP_V2, _text(alone))]
        writes = [(_LIMIT_V1, str(limit))]
        if swap is not None:
            has = self._number("memory", path, _LIMIT_V1)
            raises = has is not None and _pages(limit) > _pages(has)
            # At no moment may memory have more than memory and swap together.
            writes.insert(0 if raises else 1, (_SWAP_V1, str(swap)))
        return writes

    def _number(self, controller: str, path: str, name: str) -> int | None:
        text = self._read(controller, path, name)
        if text is None:
            return None
        number = self._parsed(text, path, name)
        # Version 1 has a number for no limit.
        return UNLIMITED if _is_same(number, UNLIMITED) else number

    def _parsed(self, text: str, path: str, name: str) -> int:
        with suppress(ValueError):
            return UNLIMITED if text == MAX else int(text)
        file = self._bases[_controller(name)] / path / name
        raise HostFileError(str(file), f"{text[:40]!r} is no number", "write a number there")

    def _read(self, controller: str, path: str, name: str) -> str | None:
        try:
            return self._files[controller].read(path, name)
        except CgroupNotFound:
            return None


def _controller(name: str) -> str:
    return name.partition(".")[0]


def _as_wanted(number: int | None, wanted: int | None) -> int | None:
    return wanted if _is_same(number, wanted) else number


def _is_same(number: int | None, wanted: int | None) -> bool:
    """Return whether two numbers of bytes are the same for the kernel, which counts pages."""
    if number is None or wanted is None:
        return False
    return _pages(number) == _pages(wanted)


def _pages(number: int) -> int:
    return _MOST_PAGES if number == UNLIMITED else min(number // PAGESIZE, _MOST_PAGES)


def _swap_alone(properties: Properties) -> int | None:
    """Return the limit for swap without memory, which version 2 has."""
    swap = properties.swap_bytes
    if swap is None or swap == UNLIMITED:
        return swap
    return max(0, swap - max(0, properties.memory_bytes or 0))


def _text(number: int) -> str:
    return MAX if number == UNLIMITED else str(number)


def _weight(text: str) -> str:
    """Return the default weight in `io.weight`, which comes before those of single devices."""
    return text.partition("\n")[0].removeprefix("default ")


def _linear(shares: int) -> int:
    """Return the `cpu.weight` for shares as by runc before 1.3.2."""
    span = (_MOST_WEIGHT - 1, _MOST_SHARES - _LEAST_SHARES)
    return 1 + (shares - _LEAST_SHARES) * span[0] // span[1]


def _shares_of(weight: int) -> int:
    """Return the least shares for which `_linear` returns this weight."""
    span = (_MOST_WEIGHT - 1, _MOST_SHARES - _LEAST_SHARES)
    return _LEAST_SHARES - (1 - weight) * span[1] // span[0]


def _logarithmic(shares: int) -> int:
    """Return the `cpu.weight` for shares as by runc since 1.3.2: the defaults are the same.

    Source: opencontainers/cgroups, utils.go, `ConvertCPUSharesToCgroupV2Value`.
    """
    if not _LEAST_SHARES < shares < _MOST_SHARES:
        return 1 if shares <= _LEAST_SHARES else _MOST_WEIGHT
    log = math.log2(shares)
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))
