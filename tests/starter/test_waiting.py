"""The starter waits for its CPUs, in this machine's own cgroups where they can be written."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError
from cpupool.local.cgroups import RealCgroups
from tests.starter.containers import (
    Containers,
    Started,
    await_starter,
    ended,
    is_waiting,
    needs_namespaces,
)
from tests.starter.tracing import Tracer
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ONE, BOTH = CPUSet.of(1), CPUSet.of(0, 1)

pytestmark = pytest.mark.skipif(
    not CPUSet(os.sched_getaffinity(0)) >= BOTH, reason="CPUs 0 and 1 are needed"
)


@pytest.fixture
def cgroups() -> Iterator[RealCgroups]:
    try:
        opened = RealCgroups.open("starter", BOTH)
    except HostError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def _cpuset(cgroups: RealCgroups, name: str, cpus: str) -> None:
    for base in (cgroups.root / "cpuset", cgroups.root):
        if (base / cgroups.cgroup_root[1:] / name).is_dir():
            (base / cgroups.cgroup_root[1:] / name / "cpuset.cpus").write_text(cpus)
            return


def _start_in(
    cgroups: RealCgroups,
    name: str,
    containers: Containers,
    argv: Sequence[str | Path],
    environment: Mapping[str, str],
    *,
    cpus: str = "0-1",
) -> subprocess.Popen[bytes]:
    """Start a container whose first process is in its cgroup before it becomes the starter."""
    enter = ("sh", "-c", 'read -r _ && exec "$@"', "sh")
    process = containers.start(argv, environment, cpus=cpus, before=enter)
    # taskset(1) cannot set an affinity outside the cpuset.
    comm = Path(f"/proc/{process.pid}/comm")
    eventually(lambda: comm.read_text() == "sh\n", "the affinity is set")
    cgroups.enter(name, process.pid)
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()
    return process


@pytest.mark.real_cgroup
@pytest.mark.parametrize("seed", range(20))
def test_not_one_instruction_of_the_application_runs_on_other_cpus(
    cgroups: RealCgroups, containers: Containers, report: Path, seed: int
) -> None:
    cgroups.make("c")
    _cpuset(cgroups, "c", "0")
    argv: list[str | Path] = ["--exclusive", "CPUPOOL_CPUS_A", "--", report]
    process = _start_in(cgroups, "c", containers, argv, {"CPUPOOL_CPUS_A": "1"})
    await_starter(process, containers.starter)
    tracer = Tracer.attach(process.pid)
    threading.Event().wait(random.Random(seed).uniform(0, 0.2))
    assert tracer.is_waiting()
    _cpuset(cgroups, "c", "1")
    assert list(tracer.cpus_at_exec()) == [ONE]
    assert ended(process).started == (Started(ONE, (str(report),)),)


@pytest.mark.real_cgroup
def test_a_process_on_all_of_its_cpus_follows_a_pool_that_grows(
    cgroups: RealCgroups, containers: Containers
) -> None:
    """From Linux 6.2 on it would not, had the starter set an affinity."""
    cgroups.make("c")
    _cpuset(cgroups, "c", "1")
    argv = ["--", "sleep", "1000"]
    process = _start_in(cgroups, "c", containers, argv, {"SHARED_CPUS": "1"})
    name = Path(f"/proc/{process.pid}/comm")
    eventually(lambda: name.read_text() == "sleep\n", "the application runs")
    assert os.sched_getaffinity(process.pid) == {1}
    _cpuset(cgroups, "c", "0-1")
    eventually(lambda: os.sched_getaffinity(process.pid) == {0, 1}, "it may run on both")


@pytest.mark.real_cgroup
def test_every_process_is_pinned_before_its_first_instruction(
    cgroups: RealCgroups, containers: Containers, report: Path
) -> None:
    cgroups.make("c")
    _cpuset(cgroups, "c", "0")
    wheres = ["CPUPOOL_CPUS_B:1", "CPUPOOL_CPUS_A:1", "all:0"]
    argv: list[str | Path] = ["--exclusive", "CPUPOOL_CPUS_A", "--exclusive", "CPUPOOL_CPUS_B"]
    for number, where in enumerate(wheres):
        argv += ["--process", f"{number}:{where}:1", report]
    variables = {"CPUPOOL_CPUS_A": "1", "CPUPOOL_CPUS_B": "0"}
    process = _start_in(cgroups, "c", containers, argv, variables)
    await_starter(process, containers.starter)
    tracer = Tracer.attach(process.pid)
    assert tracer.is_waiting()
    _cpuset(cgroups, "c", "0-1")
    assert list(tracer.cpus_at_exec()) == [CPUSet.of(0), ONE, BOTH]
    assert len(ended(process).started) == 3


@pytest.mark.real_cgroup
def test_processes_are_pinned_within_a_cpuset(
    cgroups: RealCgroups, containers: Containers, report: Path
) -> None:
    cgroups.make("c")
    argv: list[str | Path] = [
        "--process",
        "0:EXCLUSIVE_CPUS:1:1",
        report,
        "--process",
        "1:EXCLUSIVE_CPUS:1:1",
        report,
    ]
    _cpuset(cgroups, "c", "0")
    process = _start_in(cgroups, "c", containers, argv, {"EXCLUSIVE_CPUS": "0-1"})
    await_starter(process, containers.starter)
    _cpuset(cgroups, "c", "0-1")
    found = {one.cpus for one in ended(process).started}
    assert found == {CPUSet.of(0), ONE}


def test_an_affinity_of_the_runtime_is_dropped_for_the_application_and_its_children(
    containers: Containers, report: Path
) -> None:
    """As a runtime with `CPUAffinity=0` hands it down."""
    argv: list[str | Path] = ["--exclusive", "CPUPOOL_CPUS_A", "--", "sh", "-c", f"{report}; true"]
    variables = {"CPUPOOL_CPUS_A": "1", "SHARED_CPUS": "0"}
    found = containers.run(argv, variables, cpus="0", timeout_s=0)
    assert (found.status, found.started) == (0, (Started(BOTH, (str(report),)),))


@pytest.mark.real_cgroup
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("1", "0-1", id="the affinity had no CPU of the cpuset"),
        pytest.param("0-1", "1", id="the affinity had a part of it"),
    ],
)
def test_a_dropped_affinity_does_not_come_back_with_the_next_cpuset(
    cgroups: RealCgroups, containers: Containers, before: str, after: str
) -> None:
    cgroups.make("c")
    _cpuset(cgroups, "c", before)
    argv = ["--", "sleep", "1000"]
    process = _start_in(cgroups, "c", containers, argv, {"SHARED_CPUS": before}, cpus="0")
    name = Path(f"/proc/{process.pid}/comm")
    eventually(lambda: name.read_text() == "sleep\n", "the application runs")
    assert os.sched_getaffinity(process.pid) == set(CPUSet.parse(before))
    for cpus in (after, before):
        _cpuset(cgroups, "c", cpus)
        eventually(
            lambda cpus=cpus: os.sched_getaffinity(process.pid) == set(CPUSet.parse(cpus)),  # type: ignore[misc]
            f"it may run on {cpus}",
        )


@pytest.mark.real_cgroup
def test_a_cpuset_that_is_too_small_is_no_affinity(
    cgroups: RealCgroups, containers: Containers, report: Path
) -> None:
    cgroups.make("c")
    _cpuset(cgroups, "c", "0")
    argv: list[str | Path] = ["--", report]
    variables = {"EXCLUSIVE_CPUS": "0-1", "CPUPOOL_START_TIMEOUT": "0"}
    found = ended(_start_in(cgroups, "c", containers, argv, variables, cpus="0"))
    assert (found.status, found.started) == (125, ())
    assert "expected 0-1, found 0; likely cause: the cpuset of a cgroup above" in found.stderr


def test_the_pool_may_change_while_the_starter_waits(containers: Containers, report: Path) -> None:
    containers.share(shared_a="0\n")
    argv: list[str | Path] = ["--shared", "shared_a", "--", report]
    process = containers.start(argv, {"SHARED_CPUS": "0"}, cpus="1")
    await_starter(process, containers.starter)
    containers.share(shared_a="1\n")
    assert ended(process).started == (Started(ONE, (str(report),)),)


def test_a_variable_of_then_does_not_hold_up_a_restart(
    containers: Containers, report: Path
) -> None:
    """The pool was resized, and an exclusive CPU went offline, since the container was created."""
    containers.share(shared_a="1\n")
    argv: list[str | Path] = ["--exclusive", "CPUPOOL_CPUS_A", "--shared", "shared_a", "--", report]
    found = containers.run(argv, {"CPUPOOL_CPUS_A": "0,8190", "SHARED_CPUS": "1-3"}, timeout_s=0)
    assert found.started == (Started(BOTH, (str(report),)),)


def test_lists_of_thousands_of_cpus(containers: Containers, report: Path) -> None:
    every_second = ",".join(str(cpu) for cpu in range(2, 8192, 2))
    found = containers.run(["--", report], {"EXCLUSIVE_CPUS": f"0-1,{every_second}"})
    assert found.started == (Started(BOTH, (str(report),)),)


def test_a_pools_file_that_is_too_long_is_no_list(containers: Containers, report: Path) -> None:
    """Cut anywhere it would name the right CPUs."""
    containers.share(shared_a="0-1," * 7000 + "0-1")
    found = containers.run(["--shared", "shared_a", "--", report], {"SHARED_CPUS": "0-1"})
    assert found.status == 125
    assert "a shared pool's file holds no CPU list" in found.stderr


def test_the_message_comes_after_the_timeout(containers: Containers, report: Path) -> None:
    found = containers.run(["--", report], {"EXCLUSIVE_CPUS": "1"}, cpus="0", timeout_s=1)
    assert (found.status, found.started) == (125, ())
    assert re.fullmatch(
        r"process-starter: not on the container's CPUs after 1 s: expected 1, found 0; .*\n",
        found.stderr,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_as_ever(
    containers: Containers, report: Path, number: signal.Signals
) -> None:
    # Tests in the background are started with SIGINT or SIGHUP ignored.
    usual = ("env", "--default-signal")
    process = containers.start(["--", report], {"EXCLUSIVE_CPUS": "1"}, cpus="0", before=usual)
    await_starter(process, containers.starter)
    process.send_signal(number)
    assert ended(process).status == -number


@pytest.mark.parametrize("how", ["--ignore-signal=TERM", "--block-signal=TERM"])
def test_a_signal_that_is_not_to_come_does_not_end_the_wait(
    containers: Containers, report: Path, how: str
) -> None:
    argv: list[str | Path] = ["--", report]
    process = containers.start(argv, {"EXCLUSIVE_CPUS": "1"}, cpus="0", before=("env", how))
    await_starter(process, containers.starter)
    process.send_signal(signal.SIGTERM)
    os.sched_setaffinity(process.pid, {1})
    assert ended(process).started == (Started(ONE, (str(report),)),)


@needs_namespaces
def test_a_containers_first_process_can_be_ended_while_it_waits(
    containers: Containers, report: Path
) -> None:
    alone = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    process = containers.start(["--", report], {"EXCLUSIVE_CPUS": "1"}, cpus="0", before=alone)
    os.kill(first_process(process, containers.starter), signal.SIGTERM)
    assert ended(process).status == 128 + signal.SIGTERM


@needs_namespaces
def test_an_empty_root(containers: Containers, report: Path, folder: Path) -> None:
    """Without /proc, /sys and a shell, with the pool's file where the kubelet mounts it."""
    root = folder / "root"
    (root / "run/cpupool/shared_a").mkdir(parents=True)
    (root / "run/cpupool/shared_a/cpus").write_text("0-1\n")
    shutil.copy(report, root / "report")
    shutil.copy(containers.starter, root / "process-starter")
    command = ["unshare", "--user", "--map-root-user", f"--root={root}", "/process-starter"]
    command += ["--shared", "shared_a"]
    command += ["--process", "0:all:0:1", "/report", "--process", "1:all:0:1", "/report"]
    found = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "SHARED_CPUS": "5", "CPUPOOL_START_TIMEOUT": "0"},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout == b"0,1\x001\x00/report\x00" * 2


def first_process(unshare: subprocess.Popen[bytes], starter: Path) -> int:
    """Wait until the child of unshare(1), process 1 of its namespace, is the starter."""
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")

    found: list[int] = []

    def _found() -> bool:
        pids = [int(pid) for pid in children.read_text().split()]
        found[:] = [pid for pid in pids if is_waiting(pid, starter)]
        return bool(found)

    eventually(_found, "the starter is process 1")
    return found[0]
