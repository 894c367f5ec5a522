"""What the starter's processes find, and what supervision does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.starter.containers import Containers, ended, needs_namespaces
from tests.starter.test_waiting import first_process
from tests.waiting import DEADLINE_S, eventually

ON_BOTH = {"EXCLUSIVE_CPUS": "0-1"}
PYTHON = (sys.executable, "-ISc")
NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")

# An unusual beginning, and a look at all that a program is given.
BEGIN = """
import os, signal, sys
os.umask(0o137)
os.chdir("/usr")
os.dup2(os.open("/dev/zero", os.O_RDONLY), 9)
os.close(0)
signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR1, signal.SIGTERM})
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.sched_setaffinity(0, {0, 1})
os.execv(sys.argv[1], sys.argv[1:])
"""
LOOK = """
import os, re
status = open("/proc/self/status").read()
print(re.findall("^(?:Sig[^Q]|Shd|Cap|Umask|NoNew|Groups|Uid|Cpus_allowed_list).*", status, re.M))
print(open("/proc/self/environ", "rb").read())
links = {fd: f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
print({fd: os.readlink(link) for fd, link in links.items() if os.path.exists(link) and fd != "1"})
print(os.getcwd())
"""


def _look(*before: str | Path, after: tuple[str, ...] = ()) -> str:
    """Look from inside a process that these words start."""
    return subprocess.run(
        [*PYTHON, BEGIN, *before, *PYTHON, LOOK, *after],
        env={**ON_BOTH, "PATH": os.environ["PATH"], "ODD": "a\nb =c\x01", "EMPTY": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    ("options", "after"),
    [
        (["--"], ()),
        (["--supervise", "last", "--"], ()),
        (["--process", "0:all:0:1", "/bin/true", "--process", "1:all:0:3"], ()),
        (["--process", "0:all:0:3"], ("--process", "1:all:0:1", "/bin/true")),
    ],
    ids=["alone", "supervised", "last", "child"],
)
def test_what_is_started_finds_all_as_it_was(
    starter: Path, options: list[str], after: tuple[str, ...]
) -> None:
    assert _look(starter, *options, after=after) == _look()


def test_an_argument_as_long_as_the_kernel_takes(containers: Containers, report: Path) -> None:
    long = "x" * 131_071
    found = containers.run(["--process", "0:all:0:3", report, long, "\n$(A)$$"], ON_BOTH)
    assert [one.argv for one in found.started] == [(str(report), long, "\n$(A)$$")]


def test_the_last_process_keeps_the_starters_id(containers: Containers) -> None:
    argv = ["--process", "0:all:0:1", "true", "--process", "1:all:0:3", "sh", "-c", "kill -9 $$"]
    assert containers.run(argv, ON_BOTH).status == -signal.SIGKILL


def test_a_failure_leaves_nothing_running(containers: Containers) -> None:
    argv = ["--process", "0:all:0:2", "sleep", "1000", "--process", "1:all:0:1", "no-such-command"]
    # The end of the output is the end of the sleeping process.
    found = containers.run(argv, ON_BOTH)
    assert (found.status, found.stderr.count("\n")) == (127, 1)


def test_supervision_ends_with_any_process(containers: Containers) -> None:
    argv = ["--supervise", "any", "--process", "0:all:0:3", "sh", "-c", "exit 3"]
    found = containers.run([*argv, "--process", "1:all:0:2", "sleep", "1000"], ON_BOTH)
    assert found.status == 3


def test_supervision_ends_with_the_last_process_only(containers: Containers) -> None:
    argv = ["--supervise", "last", "--process", "0:all:0:3", "sh", "-c", "exit 3"]
    process = containers.start(
        [*argv, "--process", "1:all:0:3", "sh", "-c", "read -r _; exit 4"], ON_BOTH
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    eventually(lambda: len(children.read_text().split()) == 1, "the first one has been reaped")
    assert process.poll() is None
    assert process.stdin
    process.stdin.write(b"\n")
    assert ended(process).status == 4


def test_of_processes_that_end_together_the_first_counts(containers: Containers) -> None:
    argv = ["--supervise", "any"]
    for index in range(2):
        argv += ["--process", f"{index}:all:0:3", "sh", "-c", f"read -r _; exit {3 + index}"]
    process = containers.start(argv, ON_BOTH)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    eventually(lambda: len(children.read_text().split()) == 2, "both run")
    process.send_signal(signal.SIGSTOP)
    assert process.stdin
    process.stdin.write(b"\n\n")
    process.stdin.flush()
    stats = [Path(f"/proc/{pid}/stat") for pid in children.read_text().split()]
    eventually(lambda: all(") Z " in stat.read_text() for stat in stats), "both have ended")
    process.send_signal(signal.SIGCONT)
    assert ended(process).status == 3


@needs_namespaces
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGABRT, signal.SIGWINCH, signal.SIGRTMAX]
)
def test_signals_reach_every_supervised_process(
    containers: Containers, number: signal.Signals
) -> None:
    script = f"trap 'echo got; exit 5' {number.value}; echo ready; while :; do sleep 0.01; done"
    argv = ["--supervise", "last"]
    for index in range(2):
        argv += ["--process", f"{index}:all:0:3", "sh", "-c", script]
    # Process 1 is spared by the kernel what it has no handler for.
    process = containers.start(argv, ON_BOTH, before=NAMESPACE)
    assert process.stdout
    assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
    os.kill(first_process(process, containers.starter), number)
    assert process.wait(DEADLINE_S) == 5


@needs_namespaces
def test_orphans_are_reaped(containers: Containers) -> None:
    """Process 1 inherits an orphan; its folder in /proc is there until it has been reaped."""
    script = (
        "orphan=$(sh -c 'sleep 1000 >/dev/null 2>&1 & echo $!');"
        " kill -9 $orphan; while [ -d /proc/$orphan ]; do sleep 0.01; done; exit 6"
    )
    argv = ["--supervise", "last", "--", "sh", "-c", script]
    assert ended(containers.start(argv, ON_BOTH, before=NAMESPACE)).status == 6


def test_a_terminals_interrupt_is_not_forwarded(containers: Containers) -> None:
    """The kernel gives it to the whole foreground group, which this process is not in."""
    script = """
import os, signal
os.setpgrp()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
print("ready", flush=True)
raise SystemExit(signal.sigwait({signal.SIGINT, signal.SIGTERM}))
"""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", containers.starter, "--supervise", "last", "--", *PYTHON, script],
        env={**ON_BOTH, "PATH": os.environ["PATH"]},
        stdin=theirs,
        stdout=theirs,
    )
    os.close(theirs)
    with os.fdopen(ours, "r+b", buffering=0) as terminal, process:
        assert terminal.readline() == b"ready\r\n"
        terminal.write(b"\x03")
        # The echo comes after the signal; of two signals that wait the lower number is taken first.
        assert terminal.read(1) == b"^"
        process.terminate()
        assert process.wait(DEADLINE_S) == signal.SIGTERM
