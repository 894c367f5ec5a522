"""The CPU time of CPUs and pods, from files as the kernel writes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_time import Waited
from cpupool.core.errors import HostFileError
from cpupool.host.cpu_time import CPUTimes

if TYPE_CHECKING:
    from pathlib import Path

STAT = """\
cpu  400 40 30 9000 77 20 10 5 3 0
cpu0 100 10 5 4000 7 3 2 5 3 0
cpu12 300 30 25 5000 70 17 8 0 0 0
intr 12345 0 0
ctxt 99
"""
TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
V2 = "usage_usec {us}\nuser_usec 1\nsystem_usec 2\n"
UID = "6f6f0c2e-1111-2222-3333-444455556666"


@pytest.fixture(params=["v1", "v1 of systemd", "v2"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make the files of a node with three pods; give the folder of the machine's trees."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    cgroup = tmp_path / "cgroup"
    if request.param == "v2":
        base = cgroup
        base.mkdir()
        (base / "cgroup.controllers").write_text("cpuset cpu\n")
    else:
        base = cgroup / ("cpuacct" if request.param == "v1" else "cpu,cpuacct")
        (cgroup / "cpuset").mkdir(parents=True)
        (cgroup / "cpuset/cpuset.cpus").write_text("0,12\n")
    slices = UID.replace("-", "_")
    for path, used_us in {
        "kubepods": 700,
        "kubepods/podguaranteed": 100,
        "kubepods/burstable": 200,
        "kubepods/burstable/podburstable": 200,
        "kubepods/besteffort": 400,
        f"kubepods/besteffort/pod{UID}": 400,
        "kubepods.slice/kubepods-besteffort.slice": 900,
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slices}x.slice": 900,
    }.items():
        write(base / path, used_us)
    return tmp_path


def write(directory: Path, used_us: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpuacct.usage").write_text(f"{used_us * 1000 + 999}\n")
    (directory / "cpu.stat").write_text(V2.format(us=used_us))


def times(node: Path) -> CPUTimes:
    return CPUTimes(node / "proc", node / "cgroup")


def pod_files(node: Path) -> list[Path]:
    names = ("cpuacct.usage", "cpu.stat")
    return [file for name in names for file in (node / "cgroup").rglob(f"podburstable/{name}")]


def test_cpus_and_pods_are_read(node: Path) -> None:
    read = times(node).read()

    assert read.by_cpu_us == {0: 120 * TICK_US, 12: 380 * TICK_US}
    assert read.by_pod_us == {"guaranteed": 100, "burstable": 200, UID: 400, f"{UID}x": 900}


def test_a_pod_that_has_ended_meanwhile_is_left_out(node: Path) -> None:
    for file in pod_files(node):
        file.unlink()

    assert "burstable" not in times(node).read().by_pod_us


def test_damaged_and_missing_files_are_named(node: Path) -> None:
    for file in pod_files(node):
        file.write_text("nothing")
    with pytest.raises(HostFileError, match=r"podburstable.*is no CPU time"):
        times(node).read()

    (node / "proc/stat").write_text("intr 1\n")
    with pytest.raises(HostFileError, match="has no CPU time"):
        times(node).read()
    (node / "proc/stat").unlink()
    with pytest.raises(HostFileError, match="has no CPU time"):
        times(node).read()


def test_a_node_without_the_hierarchy_is_named(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    (tmp_path / "cgroup/cpuset").mkdir(parents=True)
    (tmp_path / "cgroup/cpuset/cpuset.cpus").write_text("0\n")

    with pytest.raises(HostFileError, match="no hierarchy has the CPU time of pods"):
        times(tmp_path).read()


def test_how_long_pods_waited_is_read_where_the_kernel_says_it(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    pods = tmp_path / "cgroup/kubepods"
    for number, pod in enumerate(("web", "silent", "odd")):
        for path, throttled in {f"pod{pod}": 2, f"pod{pod}/main": 3, f"pod{pod}/side": 4}.items():
            write(pods / path, 100 + number)
            with (pods / path / "cpu.stat").open("a") as stat:
                stat.write(f"nr_periods 9\nnr_throttled {throttled}\nthrottled_usec 1\n")
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpuset cpu\n")
    full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
    some = "some avg10=0.12 avg60=0.10 avg300=0.05 total=123456\n"
    (pods / "podweb/cpu.pressure").write_text(some + full)
    (pods / "pododd/cpu.pressure").write_text("nothing\n")

    assert times(tmp_path).read(waited=True).waited == {"web": Waited(123456, throttled=9)}
    assert times(tmp_path).read().waited == {}


def test_without_pressure_the_threads_say_how_long_they_waited(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    (tmp_path / "cgroup/cpuset").mkdir(parents=True)
    (tmp_path / "cgroup/cpuset/cpuset.cpus").write_text("0\n")
    pods = tmp_path / "cgroup/cpu,cpuacct/kubepods"
    for path, processes in {
        "podweb": "",
        "podweb/main": "11\n12\n",
        "podweb/main/deep": "13\n",
        "podgone": "14\n",
    }.items():
        write(pods / path, 100)
        (pods / path / "cpu.stat").write_text("nr_periods 9\nnr_throttled 2\n")
        (pods / path / "cgroup.procs").write_text(processes)
    write(pods / "podbare", 100)
    for thread, delay_us in {"11/task/11": 5, "11/task/21": 7, "12/task/12": 11}.items():
        (tmp_path / "proc" / thread).mkdir(parents=True)
        (tmp_path / "proc" / thread / "schedstat").write_text(f"9 {delay_us}999 3\n")
    # They end meanwhile.
    (tmp_path / "proc/13/task/13").mkdir(parents=True)
    (tmp_path / "proc/13/task/23/schedstat").mkdir(parents=True)

    assert times(tmp_path).read(waited=True).waited == {"web": Waited(23, throttled=6)}
