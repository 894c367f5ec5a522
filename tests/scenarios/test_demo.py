"""`cpupool demo` as a newcomer runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kubelets import short_folder
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = sorted(os.sched_getaffinity(0))
POD = """
kind: Pod
metadata: {name: greedy}
spec:
  containers:
    - name: main
      resources: {limits: {nokia.k8s.io/exclusive_demo: 999}}
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files, to see what a demo leaves in it."""
    with short_folder() as folder:
        yield folder


def demo(scratch: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "cpupool", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )


def left_behind(scratch: Path, pid: int) -> list[str]:
    """List a demo's temporary files and cgroups."""
    cgroups = Path("/sys/fs/cgroup").glob(f"**/cpupool-demo-{pid}")
    return [str(path) for path in (*scratch.iterdir(), *cgroups)]


def test_every_process_is_where_it_belongs_and_nothing_is_left(scratch: Path) -> None:
    process = demo(scratch, "--json")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    result = json.loads(printed)
    assert result["verified"] is True
    assert {row["name"] for row in result["processes"]} >= {
        "poller/poll",
        "sharer/work",
        "plain (sandbox)",
    }
    assert all(row["runs"] == row["belongs"] for row in result["processes"])
    if len(HERE) > 1:
        assert result["disturbed"]["name"] == "poller/poll"
        assert result["disturbed"]["back_on"] != result["disturbed"]["moved_to"]
    assert left_behind(scratch, process.pid) == []


def test_the_picture_and_the_table_are_for_people(scratch: Path) -> None:
    process = demo(scratch, "--svg", str(scratch / "picture.svg"))
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    assert "processes run where they belong." in printed
    assert "WRONG" not in printed
    assert "demo/poller/poll" in (scratch / "picture.svg").read_text().replace("&#160;", " ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_middle_leaves_nothing(scratch: Path, number: int) -> None:
    process = demo(scratch)
    for line in process.stdout:
        if line.startswith("Pod "):
            break
    process.send_signal(number)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=DEADLINE_S)

    said = "cpupool: interrupted; everything is cleaned up\n"
    assert (process.returncode, complaints) == (130, said)
    assert left_behind(scratch, process.pid) == []


def test_a_pod_that_does_not_fit_is_said_and_fails_the_demo(scratch: Path) -> None:
    (scratch / "pod.yaml").write_text(POD)

    process = demo(scratch, "--pods", str(scratch / "pod.yaml"))
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (1, "")
    assert "greedy" in printed
    assert "1 pods did not start: see above." in printed


def test_pools_that_do_not_fit_this_machine_are_refused_by_the_users_own_file(
    scratch: Path,
) -> None:
    mine = scratch / "poolconfig-mine.yaml"
    mine.write_text('pools:\n  exclusive_x: {cpus: "8000"}\n')

    process = demo(scratch, "--config", str(mine))
    _, complaints = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 1
    assert f"{mine}:2:23: pools.exclusive_x.cpus: this machine has no CPUs 8000" in complaints


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as somebody else")
def test_an_ordinary_user_gets_emulated_cgroups_and_the_kernels_own_word(scratch: Path) -> None:
    scratch.chmod(0o777)
    # Imported first: the tests' interpreter may lie in a folder that is root's alone.
    program = (
        "import os, sys, encodings.utf_8_sig, cpupool.commands.demo\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from cpupool import cli; sys.exit(cli.main(['demo', '--json']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={
            **os.environ,
            "TMPDIR": str(scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            # The command itself sets this before it imports grpc.
            "GRPC_VERBOSITY": "NONE",
        },
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert "emulated" in document["cgroups"]
    assert document["verified"] is True
