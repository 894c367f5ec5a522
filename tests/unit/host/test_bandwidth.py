from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected, HostFileError
from cpupool.host.bandwidth import CFSBandwidth

if TYPE_CHECKING:
    from pathlib import Path

POD = "kubepods/pod1"


@pytest.fixture
def v2(folder: Path) -> Path:
    (folder / POD).mkdir(parents=True)
    (folder / "cgroup.controllers").write_text("cpuset cpu\n")
    (folder / POD / "cpu.max").write_text("200000 100000\n")
    return folder


@pytest.fixture(params=["cpu", "cpu,cpuacct"])
def v1(folder: Path, request: pytest.FixtureRequest) -> Path:
    """Give the machine's cgroups; `cpuacct` may be mounted with `cpu`, and `cpu` be a link."""
    for hierarchy in ("cpuset", request.param):
        (folder / hierarchy / POD).mkdir(parents=True)
    if request.param != "cpu":
        (folder / "cpu").symlink_to(request.param)
    (folder / "cpuset/cpuset.cpus").write_text("0-7\n")
    (folder / "cpu" / POD / "cpu.cfs_quota_us").write_text("200000\n")
    (folder / "cpu" / POD / "cpu.cfs_period_us").write_text("100000\n")
    return folder


class TestV2:
    @pytest.mark.parametrize(
        ("text", "bandwidth"),
        [
            ("200000 100000\n", Bandwidth(200_000)),
            ("max 100000\n", Bandwidth()),
            ("5000 7777\n", Bandwidth(5_000, 7_777)),
        ],
    )
    def test_what_is_written_is_read(self, v2: Path, text: str, bandwidth: Bandwidth) -> None:
        tree = CFSBandwidth(v2)
        (v2 / POD / "cpu.max").write_text(text)
        assert tree.bandwidth(POD) == bandwidth
        (v2 / POD / "cpu.max").write_text("something longer than that\n")
        tree.limit(POD, bandwidth)
        assert (v2 / POD / "cpu.max").read_text() == text.strip()

    def test_it_lies_beside_the_cpusets_and_needs_no_watch_of_its_own(self, v2: Path) -> None:
        assert CFSBandwidth(v2).places() == ()


class TestV1:
    def test_what_is_written_is_read(self, v1: Path) -> None:
        tree = CFSBandwidth(v1)
        assert tree.bandwidth(POD) == Bandwidth(200_000)
        tree.limit(POD, Bandwidth())
        assert tree.bandwidth(POD) == Bandwidth()
        tree.limit(POD, Bandwidth(5_000, 50_000))
        assert tree.bandwidth(POD) == Bandwidth(5_000, 50_000)

    def test_its_directories_are_to_be_watched(self, v1: Path) -> None:
        places = CFSBandwidth(v1, "/").places()
        assert {place.relative_to(v1).name for place in places} == {"kubepods", "kubepods.slice"}
        assert any((place / "pod1/cpu.cfs_quota_us").exists() for place in places)

    def test_without_the_hierarchy_there_is_nothing_to_limit(self, folder: Path) -> None:
        (folder / "cpuset").mkdir()
        (folder / "cpuset/cpuset.cpus").write_text("0-7\n")
        assert CFSBandwidth(folder).bandwidth(POD) is None


def test_what_is_gone_has_no_limit_and_takes_none(v2: Path) -> None:
    tree = CFSBandwidth(v2)
    assert tree.bandwidth("kubepods/pod2") is None
    with pytest.raises(CgroupNotFound, match="kubepods/pod2"):
        tree.limit("kubepods/pod2", Bandwidth())


@pytest.mark.parametrize("text", ["", "200000", "many 100000", "1 2 3", "max 0"])
def test_nonsense_is_reported(v2: Path, text: str) -> None:
    (v2 / POD / "cpu.max").write_text(text)
    with pytest.raises(HostFileError, match=r"cpu\.max: .* is not how long a cgroup may run; "):
        CFSBandwidth(v2).bandwidth(POD)


def test_what_cannot_be_read_or_written_is_reported(v2: Path) -> None:
    file = v2 / POD / "cpu.max"
    file.unlink()
    file.mkdir()
    with pytest.raises(HostFileError, match=r"cpu\.max: Is a directory; run cpupool as root"):
        CFSBandwidth(v2).bandwidth(POD)
    with pytest.raises(CgroupWriteRejected, match=r"'max 100000': cpu\.max: Is a directory"):
        CFSBandwidth(v2).limit(POD, Bandwidth())
