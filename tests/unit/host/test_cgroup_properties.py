from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, HostFileError
from cpupool.core.properties import Properties
from cpupool.host.cgroupfs import CgroupVersion
from tests.property_folders import GIB, MAIN, NO_LIMIT_V1, PropertyFolder

if TYPE_CHECKING:
    from pathlib import Path

V1, V2 = CgroupVersion
BOTH = pytest.mark.parametrize("version", CgroupVersion)
LIMIT, SWAP = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
UNIFIED = {
    "io.weight": "50",
    "memory.high": str(GIB),
    "memory.low": "max",
    "memory.min": "8192",
}


@pytest.fixture
def v1(folder: Path) -> PropertyFolder:
    return PropertyFolder(folder, V1)


@pytest.fixture
def v2(folder: Path) -> PropertyFolder:
    return PropertyFolder(folder, V2)


@BOTH
def test_what_is_written_is_read(version: CgroupVersion, folder: Path) -> None:
    there = PropertyFolder(folder, version)
    unified = UNIFIED if version is V2 else {}
    for wanted in (
        Properties(512, Bandwidth(25_000, 50_000), GIB, 3 * GIB, unified=unified),
        Properties(2, Bandwidth(), 2 * GIB, 2 * GIB, unified=unified),
        Properties(262_144, Bandwidth(1_000), GIB, -1, unified=unified),
        Properties(memory_bytes=-1, swap_bytes=-1),
    ):
        assert wanted.differing(there.tree.properties(MAIN, wanted))
        there.tree.write(MAIN, wanted)
        assert there.tree.properties(MAIN, wanted) == wanted


def test_the_files_of_version_1(v1: PropertyFolder) -> None:
    v1.tree.write(MAIN, Properties(512, Bandwidth(25_000, 50_000), GIB, 3 * GIB))
    assert v1.has("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us") == [
        *("512", "25000", "50000")
    ]
    assert v1.has(LIMIT, SWAP) == [str(GIB), str(3 * GIB)]
    v1.tree.write(MAIN, Properties(memory_bytes=-1, swap_bytes=-1))
    assert v1.has(LIMIT, SWAP) == ["-1", "-1"]


def test_the_files_of_version_2(v2: PropertyFolder) -> None:
    wanted = Properties(1024, Bandwidth(25_000, 50_000), GIB, 3 * GIB, unified=UNIFIED)
    v2.put("cpu.weight", "1")
    v2.tree.write(MAIN, wanted)
    assert v2.has("cpu.weight", "cpu.max") == ["100", "25000 50000"]
    # Swap is counted without the memory.
    assert v2.has("memory.max", "memory.swap.max") == [str(GIB), str(2 * GIB)]
    assert v2.has(*UNIFIED) == list(UNIFIED.values())
    v2.tree.write(MAIN, Properties(memory_bytes=-1, swap_bytes=-1))
    assert v2.has("memory.max", "memory.swap.max") == ["max", "max"]


@pytest.mark.parametrize(
    ("shares", "before_runc_1_3_2", "since"),
    [(2, 1, 1), (100, 4, 17), (512, 20, 59), (1024, 39, 100), (262_144, 10_000, 10_000)],
)
def test_a_weight_of_any_runc_is_right(
    v2: PropertyFolder, shares: int, before_runc_1_3_2: int, since: int
) -> None:
    wanted = Properties(shares)
    for weight in (before_runc_1_3_2, since):
        v2.put("cpu.weight", str(weight))
        assert v2.tree.properties(MAIN, wanted) == wanted
    for weight in {before_runc_1_3_2 + 1, since + 1} - {before_runc_1_3_2, since}:
        v2.put("cpu.weight", str(weight))
        assert v2.tree.properties(MAIN, wanted) != wanted


@BOTH
def test_memory_is_compared_in_pages(version: CgroupVersion, folder: Path) -> None:
    there = PropertyFolder(folder, version)
    wanted = Properties(memory_bytes=GIB + 4095, swap_bytes=3 * GIB + 4095)
    there.tree.write(MAIN, Properties(memory_bytes=GIB, swap_bytes=3 * GIB))
    assert there.tree.properties(MAIN, wanted) == wanted
    less = there.tree.properties(MAIN, Properties(memory_bytes=GIB + 65_536, swap_bytes=4 * GIB))
    assert (less.memory_bytes, less.swap_bytes) == (GIB, 3 * GIB)


def test_no_limit_is_a_number_on_version_1(v1: PropertyFolder) -> None:
    for wanted in (Properties(memory_bytes=-1, swap_bytes=-1), Properties(memory_bytes=2**63 - 1)):
        assert not wanted.differing(v1.tree.properties(MAIN, wanted))
    assert v1.tree.properties(MAIN, Properties(memory_bytes=GIB)).memory_bytes == -1
    assert v1.has(LIMIT) == [NO_LIMIT_V1]


def test_no_limit_has_no_period(v2: PropertyFolder) -> None:
    wanted = Properties(bandwidth=Bandwidth(-1, 50_000))
    assert v2.tree.properties(MAIN, wanted) == wanted


def test_the_weight_of_a_device_does_not_count(v2: PropertyFolder) -> None:
    for text in ("100", "default 100"):
        wanted = Properties(unified={"io.weight": text})
        assert v2.tree.properties(MAIN, wanted) == wanted
    other = v2.tree.properties(MAIN, Properties(unified={"io.weight": "300"}))
    assert other.unified == {"io.weight": "default 100\n8:0 300"}


@pytest.mark.parametrize(
    ("limit", "left"), [(2 * GIB, str(GIB)), (GIB // 2, str(GIB // 2))], ids=["raise", "lower"]
)
def test_memory_never_has_more_than_memory_and_swap(
    v1: PropertyFolder, limit: int, left: str
) -> None:
    v1.put(LIMIT, str(GIB))
    v1.file(SWAP).unlink()
    v1.file(SWAP).mkdir()
    with pytest.raises(CgroupWriteRejected, match=SWAP):
        v1.tree.write(MAIN, Properties(memory_bytes=limit, swap_bytes=limit))
    assert v1.has(LIMIT) == [left]


@BOTH
def test_what_the_kernel_lacks_is_nothing(version: CgroupVersion, folder: Path) -> None:
    there = PropertyFolder(folder, version)
    wanted = Properties(512, Bandwidth(1_000), GIB, GIB, unified=UNIFIED)
    there.file(SWAP if version is V1 else "memory.swap.max").unlink()
    has = there.tree.properties(MAIN, wanted)
    assert (has.memory_bytes, has.swap_bytes) == (-1, None)
    names = (
        ("cpu.shares", "cpu.cfs_quota_us", LIMIT)
        if version is V1
        else ("cpu.weight", "cpu.max", "memory.max", *UNIFIED)
    )
    for name in names:
        there.file(name).unlink()
    assert there.tree.properties(MAIN, wanted) == Properties()


@BOTH
def test_what_has_ended_has_nothing(version: CgroupVersion, folder: Path) -> None:
    there = PropertyFolder(folder, version)
    there.end()
    with pytest.raises(CgroupNotFound):
        there.tree.properties(MAIN, Properties(512))
    with pytest.raises(CgroupNotFound):
        there.tree.write(MAIN, Properties(512))


def test_only_version_2_limits_memory_in_use(folder: Path) -> None:
    (folder / "1").mkdir()
    (folder / "2").mkdir()
    assert PropertyFolder(folder / "1", V1).tree.memory_in_use(MAIN) is None
    assert PropertyFolder(folder / "2", V2).tree.memory_in_use(MAIN) == 4096


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cpu.weight", Properties(512)),
        ("memory.max", Properties(memory_bytes=GIB)),
        ("memory.high", Properties(unified=UNIFIED)),
    ],
)
def test_nonsense_is_reported(v2: PropertyFolder, name: str, wanted: Properties) -> None:
    v2.put(name, "much")
    with pytest.raises(HostFileError, match=rf"{name}: 'much' is no number; write a number there"):
        v2.tree.properties(MAIN, wanted)
