"""A process that is forked is like one that Python has begun."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.forking import Forked
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, signal, sys

print(__name__, os.environ["GIVEN"], *sys.argv[1:], *sys.warnoptions, file=sys.stderr, flush=True)
inherited = [number for number in range(3, 100) if os.path.exists(f"/proc/self/fd/{number}")]
print(*inherited, file=sys.stderr, flush=True)
signal.pause() if sys.argv[1] == "waits" else sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shown.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "shown"


def test_it_has_its_own_arguments_variables_files_and_exit_code(program: str) -> None:
    with (
        Forked(program, ["waits"], {"GIVEN": "a"}) as first,
        Forked(program, ["7"], {"GIVEN": "b"}) as second,
    ):
        assert second.wait(DEADLINE_S) == 7
        assert second.stderr
        assert second.stderr.read() == "__main__ b 7 error\n\n"
        assert first.poll() is None
        first.kill()
        assert first.wait(DEADLINE_S) == -signal.SIGKILL
        assert first.stderr
        assert first.stderr.read() == "__main__ a waits error\n\n"


def test_it_can_be_interrupted(program: str) -> None:
    with Forked(program, ["waits"], {"GIVEN": "a"}) as process:
        assert process.stderr
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        eventually(lambda: process.poll() is not None, "its end")
        assert "KeyboardInterrupt" in process.stderr.read()
        assert process.returncode
