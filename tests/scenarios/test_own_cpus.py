"""A container's own folder, read by applications: the samples, and a reader that is never idle."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.own_cpus_keeper import OwnCPUsKeeper
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerRef
from cpupool.host.own_folders import OwnFolders
from cpupool.host.root import HostRoot
from cpupool.manager.resizing import OwnCPUs
from tests import builders
from tests.events import Heard
from tests.loops import running
from tests.processes import Process
from tests.scenarios.test_examples import EXAMPLES, SANITIZED, Polling, compiled
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod

REF = ContainerRef("own-uid", "main")
FOLLOWER, FOLLOW = EXAMPLES / "own-cpus/follower.c", EXAMPLES / "own-cpus/follow.py"
needs_two_cpus = pytest.mark.skipif(
    not os.sched_getaffinity(0) >= {0, 1}, reason="CPUs 0 and 1 are needed"
)
_READER = """
import itertools, json, os, sys, time

os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

seen, newest = {}, 0
for reads in itertools.count(1):
    with open("cpus.json") as file:
        text = file.read()
    told = json.loads(text)
    assert text.endswith("}" + chr(10)), text
    generation, change = told["generation"], told["change"]
    assert generation >= newest, (text, newest)
    assert seen.setdefault(generation, text) == text, (text, seen[generation])
    newest = generation
    for name in ("cpus", "assigned"):
        with open(name) as file:
            assert file.read().endswith(chr(10))
    if change and "notBefore" in change:
        assert told["cpus"] != told["assigned"], text
    else:
        assert told["cpus"] == told["assigned"], text
    if reads >= 10_000 and len(seen) >= 50:
        break
sys.stderr.write(f"{reads} reads, {len(seen)} generations")
"""
"""Reads as an application does, and as nobody."""


class Node:
    """A node with one container, real clocks, and a kernel that follows at once.

    It has the `Owners` of its keeper.
    """

    def __init__(self, folder: Path, cpus: str, notice_s: float) -> None:
        self.ends = 0
        self._lock = threading.Lock()
        root = HostRoot.under(folder)
        self.folder = root.own_folders / REF.pod / REF.name
        own = CPUSet.parse(cpus)
        self._own = OwnCPUs(own, own, own, CPUSet(), notice_s)
        self.keeper = OwnCPUsKeeper(
            self,
            OwnFolders(root, Heard()),
            telemetry=builders.telemetry(events=Heard()),
            announced=lambda: None,
        )
        assert self.keeper.prepare(REF)

    def resize(self, cpus: str) -> None:
        """Decide that the container must have these CPUs; those that come are there."""
        assigned = CPUSet.parse(cpus)
        with self._lock:
            in_force = self._own.in_force | assigned
            self._own = replace(
                self._own, assigned=assigned, in_force=in_force, leaving=in_force - assigned
            )
        self.keeper.wake()

    def own_cpus(self) -> Mapping[ContainerRef, OwnCPUs]:
        return {REF: self._own}

    def needs(self, _ref: ContainerRef, _cpus: CPUSet) -> bool | None:
        return None

    def pod(self, _uid: str) -> Pod | None:
        return None

    def remaining(self) -> set[str]:
        return {REF.pod}

    def narrow(self, _ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        with self._lock:
            if (self._own.assigned, self._own.leaving) != (assigned, leaving):
                return False
            self._own = replace(self._own, in_force=assigned, leaving=CPUSet())
            self.ends += 1
        self.keeper.wake()
        return True


def test_no_reader_ever_sees_a_file_in_part_or_a_generation_that_goes_back(folder: Path) -> None:
    node = Node(folder, "0-7", notice_s=0.001)
    with (
        running(node.keeper.run, wake=node.keeper.wake),
        Process(sys.executable, "-c", _READER, node.folder).collecting() as reader,
    ):
        for number in itertools.count(1):
            node.resize("0-5" if number % 2 else "0-7" if number % 4 else "0-3,6-7")
            # Now and then a request comes while the notice lasts.
            eventually(lambda ends=number // 4: node.ends >= ends, "the end of a notice")  # type: ignore[misc]
            if reader.process.poll() is not None:
                break
    assert reader.process.returncode == 0, reader.log


@pytest.fixture(scope="module", params=[("-O2", "-static"), SANITIZED], ids=["static", "sanitized"])
def follower(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the sample, as its pod does and so that undefined behaviour ends it."""
    return compiled(FOLLOWER, request.param, tmp_path_factory.mktemp("follower"))


@contextmanager
def following(command: list[str | Path], told: Path) -> Iterator[Polling]:
    """Run a sample until it is asked to end, and let it tell what it has done."""
    with (
        told.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, text=True) as process,
    ):
        try:
            yield Polling(process, told)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def await_line(app: Polling, pattern: str) -> re.Match[str]:
    """Give the first line that matches, once there is one."""
    found: list[re.Match[str]] = []

    def look() -> bool:
        found[:] = filter(None, (re.fullmatch(pattern, line) for line in app.told))
        return bool(found)

    eventually(look, lambda: f"{pattern}: {app.told}")
    return found[0]


@needs_two_cpus
def test_the_follower_leaves_a_cpu_before_it_is_taken_and_takes_what_comes(
    follower: Path, folder: Path
) -> None:
    node = Node(folder, "0-1", notice_s=DEADLINE_S)
    with (
        running(node.keeper.run, wake=node.keeper.wake),
        following([follower, node.folder], folder / "told") as app,
    ):
        await_line(app, r"generation \d+: cpus 0-1, assigned 0-1, pinned")
        eventually(lambda: app.threads()[1] == {"0", "1"}, "both work")

        # The announcement alone makes it leave, long before the end of the notice.
        node.resize("0")
        left = await_line(app, r"generation \d+: cpus 0-1, assigned 0, pinned, left (.*) s early")
        assert 0 < float(left[1]) <= DEADLINE_S
        assert app.threads()[1] == {"0"}
        assert node.ends == 0

        # As where the kernel has forgotten what is pinned: the next generation pins it again.
        app.loosen()
        node.keeper.repaired([REF])
        eventually(lambda: app.threads()[1] == {"0"}, lambda: str(app.told))

        node.resize("0-1")
        eventually(lambda: app.threads()[1] == {"0", "1"}, lambda: str(app.told))
    assert app.process.returncode == 0
    assert [line.partition(":")[0] for line in app.told if "rounds" in line] == [
        *("CPU 1", "CPU 0", "CPU 1"),
    ]


@needs_two_cpus
def test_the_follower_waits_for_a_cpu_that_the_kernel_does_not_give_yet(
    follower: Path, folder: Path
) -> None:
    node = Node(folder, "0", notice_s=0)
    with (
        running(node.keeper.run, wake=node.keeper.wake),
        following([follower, node.folder], folder / "told") as app,
    ):
        await_line(app, r"generation \d+: cpus 0, assigned 0, pinned")
        node.resize("0,1000")
        await_line(app, r".*: cpus 0,1000, assigned 0,1000, not all can be pinned yet")
        node.resize("1")
        await_line(app, r".*: cpus 1, assigned 1, pinned")
        assert app.threads()[1] == {"1"}
    assert app.process.returncode == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "cannot be watched: No such file", id="no folder"),
        pytest.param("", "cpus.json cannot be read", id="empty"),
        pytest.param("{}", "has no CPUs or no generation: {}", id="nothing told"),
        pytest.param(
            json.dumps({"generation": 1, "cpus": "0,4096", "assigned": "0"}),
            "CPUs below 1024",
            id="too many",
        ),
    ],
)
def test_a_follower_that_cannot_begin_says_why(
    follower: Path, folder: Path, content: str | None, said: str
) -> None:
    own = folder / "own"
    if content is not None:
        own.mkdir()
        (own / "cpus.json").write_text(content)
    done = subprocess.run(
        [follower, own], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr


def test_a_follower_refuses_a_second_word(follower: Path) -> None:
    done = subprocess.run(
        [follower, "self", "x"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 2
    assert "'x' is one word too many; usage: follower [FOLDER]" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "nosuch has no file cpus.json\n"),
        (["self", "x"], "usage: follow.py [FOLDER]\n"),
    ],
)
def test_the_lines_of_python_say_why_they_cannot_begin(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, FOLLOW, *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, said)


@needs_two_cpus
def test_the_lines_of_python_follow_too(folder: Path) -> None:
    node = Node(folder, "0-1", notice_s=DEADLINE_S)
    with (
        running(node.keeper.run, wake=node.keeper.wake),
        following([sys.executable, FOLLOW, node.folder], folder / "told") as app,
    ):
        await_line(app, r"generation \d+: \[0, 1\], None")
        assert app.threads()[0] == "0-1"
        node.resize("1")
        told = await_line(app, r"generation \d+: \[1\], (.*)")
        assert "'reason': 'shrink', 'removed': '0'" in told[1]
        assert app.threads()[0] == "1"
