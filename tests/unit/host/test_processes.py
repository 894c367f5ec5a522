from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host import processes
from cpupool.host.processes import (
    Daemon,
    RuntimeProcess,
    affinities,
    command_lines,
    daemons,
    runtimes,
    threads,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def write(proc: Path, pid: str, cgroup: str, status: str) -> None:
    (proc / pid).mkdir(parents=True)
    (proc / pid / "cgroup").write_text(cgroup)
    (proc / pid / "status").write_text(status)


STATUS = "Name:\tsshd\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3\n"


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/sshd.service\n", "sshd.service"),
        ("12:cpuset:/\n1:name=systemd:/system.slice/sshd.service\n0::/\n", "sshd.service"),
        ("0::/system.slice/system-getty.slice/getty@tty1.service/x\n", "getty@tty1.service"),
        ("0::/system.slice/docker-abc.scope\n", "docker-abc.scope"),
        ("0::/system.slice/odd:name.service\n", "odd:name.service"),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n", ""),
        ("0::/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:1\n", ""),
        ("0::/system.slice\n", ""),
        ("0::/user.slice/user-0.slice/session-1.scope\n", ""),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_a_process_belongs_to_the_service_of_its_cgroup(
    tmp_path: Path, cgroup: str, unit: str
) -> None:
    write(tmp_path, "7", cgroup, STATUS)

    found = list(daemons(tmp_path))

    assert found == ([Daemon(7, unit, "sshd", CPUSet.parse("0-3"))] if unit else [])


def test_a_process_that_ends_meanwhile_hides_no_other(tmp_path: Path) -> None:
    cgroup = "0::/system.slice/a.service\n"
    write(tmp_path, "7", cgroup, "Name:\tzombie\n")
    write(tmp_path, "8", cgroup, STATUS)
    (tmp_path / "9").mkdir()
    (tmp_path / "self").mkdir()

    assert [one.pid for one in daemons(tmp_path)] == [8]


def test_the_kernel_writes_what_is_read_here() -> None:
    status = processes._status(Path("/proc/self/status").read_text())

    assert CPUSet.parse(status[processes.ALLOWED]) == CPUSet(os.sched_getaffinity(os.getpid()))
    assert status[processes.NAME]


def test_the_command_lines_of_a_program_have_its_words(tmp_path: Path) -> None:
    for pid, words in (
        ("7", b"/bin/koordlet\0-a=b\0c\0"),
        ("8", b"/bin/other\0koordlet\0"),
        ("9", b""),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(words)
    (tmp_path / "10").mkdir()

    assert list(command_lines(tmp_path, "koordlet")) == [("/bin/koordlet", "-a=b", "c")]


@pytest.mark.parametrize(
    ("files", "cgroup", "cpuset"),
    [
        pytest.param(
            {"cgroup.controllers": "cpuset", "system.slice/cpuset.cpus.effective": "0-1"},
            "0::/system.slice/containerd.service\n",
            "0-1",
            id="v2, of the slice",
        ),
        pytest.param(
            {"cgroup.controllers": "cpuset", "cpuset.cpus.effective": "0-7"},
            "0::/system.slice/containerd.service\n",
            "0-7",
            id="v2, of the root",
        ),
        pytest.param(
            {"cpuset/cpuset.cpus": "0-7", "cpuset/a/cpuset.cpus": "0-5"},
            "4:cpu,cpuacct:/\n3:cpuset:/a\n1:name=systemd:/system.slice/containerd.service\n",
            "0-5",
            id="v1",
        ),
    ],
)
def test_a_runtime_is_found_with_its_own_cpus_and_its_cpuset(
    tmp_path: Path, files: Mapping[str, str], cgroup: str, cpuset: str
) -> None:
    for name, text in files.items():
        (tmp_path / "cg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cg" / name).write_text(f"{text}\n")
    for pid, name in (("7", "containerd"), ("8", "containerd-shim"), ("9", "sshd")):
        write(tmp_path / "proc", pid, cgroup, STATUS.replace("sshd", name))
    found = sorted(runtimes(tmp_path / "proc", tmp_path / "cg"), key=lambda one: one.pid)
    cpus = CPUSet.parse("0-3")
    assert found == [
        RuntimeProcess(7, "containerd", cpus, CPUSet.parse(cpuset)),
        RuntimeProcess(8, "containerd-shim", cpus, CPUSet.parse(cpuset)),
    ]


@pytest.mark.parametrize("name", ["cgroup.threads", "tasks"])
def test_threads_of_a_cgroup_and_below_are_asked(tmp_path: Path, name: str) -> None:
    cgroup, proc = tmp_path / "c", tmp_path / "proc"
    (cgroup / "nested").mkdir(parents=True)
    assert threads(proc, cgroup) == CPUSet()
    (cgroup / name).write_text("7\n8\n")
    (cgroup / "nested" / name).write_text("9\n")
    for pid, cpus in (("7", "1"), ("9", "4-5")):
        write(proc, pid, "", STATUS.replace("0-3", cpus))
    assert threads(proc, cgroup) == CPUSet.parse("1,4-5")
    # Of another process namespace than the reader's, or gone.
    (cgroup / name).write_text("0\n7\n8\n")
    assert list(map(str, affinities(proc, cgroup))) == ["", "1", "", "4-5"]
