"""What every test relies on: its children can be interrupted, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import guard
from tests.waiting import DEADLINE, DEADLINE_S, eventually

ROOT = Path(__file__).parents[1]
LEAVES_A_PROCESS = """
import subprocess

def test():
    subprocess.Popen(["sleep", "1000"]).returncode = 0
"""
LEAVES_A_FORKED_PROCESS = """
from tests.forking import Forked

def test():
    Forked("timeit", ["-n1", "import time; time.sleep(1000)"]).stderr.close()
"""
LEAVES_A_THREAD = """
import threading

def test():
    threading.Thread(target=threading.Event().wait, args=(5,)).start()
"""
KILLED = """
import os, signal, subprocess
from tests import guard

with guard.guarding():
    print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
UNMARKED = """
import subprocess
from tests import guard

with guard.guarding():
    child = subprocess.Popen(["sleep", "1000"], env=guard.unmarked())
child.terminate()
print(child.wait())
"""


def run(*arguments: str | Path, before: tuple[str, ...] = (), deadline_s: float) -> str:
    """Run tests in a pytest of their own and return what it prints."""
    pytest_ = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = subprocess.run(
        [*before, *pytest_, *arguments],
        cwd=ROOT,
        env={**guard.unmarked(), DEADLINE: str(deadline_s)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.stdout


def test_a_child_can_be_interrupted() -> None:
    script = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    child = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=DEADLINE_S, check=True
    )
    assert child.stdout == b"False\n"


def test_a_child_can_be_interrupted_where_the_run_is_in_the_background() -> None:
    background = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    inner = f"{__file__}::{test_a_child_can_be_interrupted.__name__}"
    assert "1 passed" in run(inner, before=background, deadline_s=DEADLINE_S)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(LEAVES_A_PROCESS, "the end of ['sleep 1000 ']", id="process"),
        pytest.param(LEAVES_A_FORKED_PROCESS, f"the end of ['{sys.executable}", id="forked"),
        pytest.param(LEAVES_A_THREAD, "the end of {<Thread(Thread-", id="thread"),
    ],
)
def test_a_test_that_leaves_something_fails(tmp_path: Path, text: str, left: str) -> None:
    (tmp_path / "test_inner.py").write_text(text)
    printed = run("-c", "/dev/null", "-p", "tests.conftest", tmp_path, deadline_s=0.1)
    assert f"not within 0.1 s: {left}" in printed
    assert "1 passed, 1 error" in printed


def test_what_a_killed_run_has_started_is_ended() -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        env=guard.unmarked(),
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )
    status = Path(f"/proc/{int(killed.stdout)}/status")

    def ended() -> bool:
        # Whatever adopts it may leave it a zombie.
        return not status.exists() or "State:\tZ" in status.read_text()

    eventually(ended, "the child has ended")


def test_what_does_not_belong_to_a_run_outlives_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNMARKED],
        cwd=ROOT,
        env=guard.unmarked(),
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=True,
    )
    assert int(done.stdout) == -signal.SIGTERM
