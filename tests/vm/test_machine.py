"""The harness itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.vm.boot import Kernel, boot_files
from tests.vm.machine import PROJECT, PYTHON, TIMEOUT_S, MachineFailed, Topology, booted
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(TIMEOUT_S)

BOOTS_AND_WAITS = """
from tests.vm.machine import Topology, booted
with booted(Topology()) as guest:
    print(guest.folder, flush=True)
    input()
"""


def test_a_command_runs_on_the_machine_and_what_it_printed_comes_back() -> None:
    with booted(Topology(cores=2), memory_mib=512) as guest:
        done = guest.run("sh", "-c", "pwd; nproc; echo 'no good' >&2; exit 3")
        assert (done.returncode, done.stderr) == (3, "no good\n")
        assert done.stdout == f"{PROJECT}\n2\n"
        assert guest.run("sleep", "60", timeout_s=1).returncode == 137
        (guest.folder / "from-host").write_text("hello")
        guest.output("cp", str(guest.folder / "from-host"), str(guest.folder / "from-guest"))
        assert (guest.folder / "from-guest").read_text() == "hello"
        with pytest.raises(pytest.fail.Exception, match="exit code 1"):
            guest.output("false")
        with pytest.raises(MachineFailed, match="died"):
            guest.run("sh", "-c", "echo b > /proc/sysrq-trigger; sleep 60")


def test_nothing_is_left_of_a_machine_whose_test_is_killed() -> None:
    boot_files(Kernel.TRIXIE)  # skips where none can boot
    with subprocess.Popen(
        [PYTHON, "-c", BOOTS_AND_WAITS],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        assert (folder / "console").exists()
        process.kill()
    # It is the last that goes, when the machine has ended.
    eventually(lambda: not folder.exists(), f"{folder} is removed")
