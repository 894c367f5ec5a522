from __future__ import annotations

import os
import subprocess
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.root import HostRoot
from cpupool.local import cgroups
from cpupool.local.cgroups import EmulatedCgroups, RealCgroups
from cpupool.local.process import Process, cpus_allowed
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.local.cgroups import Cgroups

HERE = CPUSet(os.sched_getaffinity(0))
FIRST = CPUSet.of(HERE.first)
PATH = "kubepods/burstable/pod1/c1"


@pytest.fixture(params=["real", "emulated"])
def home(request: pytest.FixtureRequest, folder: Path) -> Iterator[Cgroups]:
    if request.param == "emulated":
        with EmulatedCgroups(folder, HERE, "because the test says so") as emulated:
            yield emulated
        return
    try:
        real = RealCgroups.open(f"test-{uuid.uuid4().hex[:8]}", HERE)
    except HostError as error:
        pytest.skip(f"this machine's cgroups cannot be used: {error}")
    with real:
        yield real


@pytest.fixture
def process() -> Iterator[Process]:
    with Process("cpupool test", {}) as made:
        yield made


def tree(home: Cgroups) -> CgroupFS:
    return CgroupFS(home.root, home.cgroup_root)


def found(home: Cgroups) -> dict[str, str]:
    """Find the containers with what cpupool finds them with: path → CPUs."""
    return {one.path: one.cpus for one in tree(home).containers()}


def test_a_container_is_made_with_the_cpus_of_its_parents(home: Cgroups) -> None:
    home.make(PATH)
    place = f"{home.cgroup_root}/{PATH}".lstrip("/")
    assert found(home) == {place: str(HERE)}


def test_a_process_in_a_cgroup_runs_on_its_cpus(home: Cgroups, process: Process) -> None:
    home.make(PATH)
    (path,) = found(home)
    tree(home).write(path, FIRST)
    home.enter(PATH, process.pid)
    assert cpus_allowed(process.pid) == FIRST
    tree(home).write(path, HERE)
    eventually(lambda: cpus_allowed(process.pid) == HERE, "the process follows its cgroup")


def test_a_removed_cgroup_is_gone_with_what_lies_below(home: Cgroups) -> None:
    home.make(f"{PATH}/nested")
    home.make("kubepods/pod2/c2")
    home.remove("kubepods/burstable/pod1")
    assert [path.rpartition("/")[2] for path in found(home)] == ["c2"]
    home.remove("kubepods/burstable/pod1")


def test_a_real_cgroup_is_removed_with_the_processes_in_it() -> None:
    with ExitStack() as opened:
        try:
            home = opened.enter_context(RealCgroups.open(f"test-{uuid.uuid4().hex[:8]}", HERE))
        except HostError as error:
            pytest.skip(f"this machine's cgroups cannot be used: {error}")
        process = opened.enter_context(subprocess.Popen(["sleep", "300"]))
        name = home.cgroup_root.rpartition("/")[2]
        assert _named(home.root, name)
        home.make(PATH)
        home.enter(PATH, process.pid)
        home.remove(PATH)
        assert process.wait(DEADLINE_S) == -9
        assert found(home) == {}
    assert not _named(home.root, name)


def _named(root: Path, name: str) -> list[str]:
    # Other tests remove their cgroups meanwhile: `os.walk` passes over a folder that has gone.
    return [above for above, folders, _ in os.walk(root) if name in folders]


def test_cpus_that_the_machine_lacks_are_passed_over_in_an_emulated_cgroup(
    folder: Path, process: Process
) -> None:
    absent = CPUSet.parse("4000-4095")
    with EmulatedCgroups(folder, HERE | absent, "") as home:
        home.make(PATH)
        home.enter(PATH, process.pid)
        (path,) = found(home)
        tree(home).write(path, FIRST | absent)
        eventually(lambda: cpus_allowed(process.pid) == FIRST, "the CPUs that there are")
        tree(home).write(path, absent)
        tree(home).write(path, HERE)
        eventually(lambda: cpus_allowed(process.pid) == HERE, "and all of them again")


def test_an_empty_file_moves_no_container_in_an_emulated_cgroup(
    folder: Path, process: Process
) -> None:
    with EmulatedCgroups(folder, HERE, "") as home:
        home.make(PATH)
        home.make("kubepods/pod2/c2")
        with Process("witness", {}) as witness:
            home.enter(PATH, process.pid)
            home.enter("kubepods/pod2/c2", witness.pid)
            (home.root / "cpuset" / PATH / "cpuset.cpus").write_text("")
            (home.root / "cpuset/kubepods/pod2/c2/cpuset.cpus").write_text(str(FIRST))
            eventually(lambda: cpus_allowed(witness.pid) == FIRST, "the change seen after it")
        assert cpus_allowed(process.pid) == HERE


def test_a_file_in_which_two_writes_have_mixed_is_put_right_in_an_emulated_cgroup(
    folder: Path, process: Process
) -> None:
    with EmulatedCgroups(folder, HERE, "") as home:
        home.make(PATH)
        file = home.root / "cpuset" / PATH / "cpuset.cpus"
        file.write_text("0-63\n-15,32")
        home.enter(PATH, process.pid)
        eventually(lambda: file.read_text() == str(HERE), file.read_text)
        tree(home).write(found(home).popitem()[0], FIRST)
        eventually(lambda: cpus_allowed(process.pid) == FIRST, "the process follows its cgroup")


def test_cgroups_are_emulated_for_cpus_that_the_machine_lacks_and_it_says_so(folder: Path) -> None:
    with cgroups.opened(folder, f"test-{uuid.uuid4().hex[:8]}", CPUSet.of(4000)) as home:
        assert home.cgroup_root == "/"
        assert "emulated" in home.described
        assert home.root.is_relative_to(folder)


def test_a_machine_without_a_cpuset_controller_is_refused_with_the_reason(folder: Path) -> None:
    with pytest.raises(HostError, match="cpuset controller"):
        RealCgroups.open("test", HERE, HostRoot.under(folder))


def test_a_hierarchy_that_cannot_be_written_is_refused_with_the_reason(folder: Path) -> None:
    root = HostRoot.under(folder)
    (root.cgroup / "cpuset").mkdir(parents=True)
    (root.cgroup / "cpuset" / "cpuset.cpus").write_text("0")
    (root.proc / "self").mkdir(parents=True)
    (root.proc / "self" / "cgroup").write_text("3:cpuset:/docker/abc\n")
    with pytest.raises(HostError, match=r"cpuset\.mems: No such file"):
        RealCgroups.open("test", HERE, root)
