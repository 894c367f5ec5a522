from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host import processes
from cpupool.host.processes import Daemon, command_lines, daemons


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
