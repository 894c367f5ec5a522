"""An agent that is killed at one step of a choice: `python -m tests.dying agent`.

It knows the policy of `tests.round_robin`.

The variable DIES says at which step: `chosen`, before the file is written; `recorded`, before the
container runtime has its answer; `answered`, after it; `started`, when the container runs. VICTIM
is the pod's UID, or another text of the file. SIGNAL is another signal than SIGKILL: with SIGSTOP
the agent halts once, so that another process can be killed at this step.

A plugin that decides is asked before, at the step `planned`; it has answered at the step `chosen`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from cpupool.host import files
from cpupool.kubelet.resource_plugin import ResourcePlugin
from cpupool.runtime.nri import NRIRuntime
from cpupool.runtime.nri_messages import Started
from tests import round_robin

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.resource_plugins import Answers, Question
    from cpupool.runtime.nri_messages import Adjustment, CreateContainer, Message, Update

DIES, VICTIM, SIGNAL = "DIES", "VICTIM", "SIGNAL"
STEPS = ("chosen", "recorded", "answered")
PLANNED, STARTED = "planned", "started"

_write, _answer, _note = files.write_atomically, NRIRuntime.answer_create, NRIRuntime.note
_allocate = ResourcePlugin.allocate


def _reach(step: str) -> None:
    if os.environ.get(DIES) == step:
        del os.environ[DIES]
        os.kill(os.getpid(), int(os.environ.get(SIGNAL, signal.SIGKILL)))


def write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file, and die before or after that if it has the choice."""
    chosen = os.environ[VICTIM].encode() in data
    if chosen:
        _reach("chosen")
    _write(path, data, durable=durable)
    if chosen:
        _reach("recorded")


def answer(
    self: NRIRuntime,
    message: CreateContainer,
    adjustment: Adjustment | None,
    updates: Iterable[Update] = (),
) -> None:
    """Answer, and die as soon as the runtime has the answer about the victim."""
    _answer(self, message, adjustment, updates)
    known = message.container.known
    if known and known.pod == os.environ[VICTIM]:
        self.flush()
        _reach("answered")


def note(self: NRIRuntime, message: Message) -> None:
    """Hear a message, and die before that if it says that the victim runs."""
    known = message.container.known if isinstance(message, Started) else None
    if known and known.pod == os.environ[VICTIM]:
        _reach(STARTED)
    _note(self, message)


def allocate(self: ResourcePlugin, question: Question, hint: TopologyHint | None = None) -> Answers:
    """Ask a plugin, and die before that if it is about the victim."""
    if question.container.pod == os.environ[VICTIM]:
        _reach(PLANNED)
    return _allocate(self, question, hint)


if __name__ == "__main__":
    files.write_atomically = write  # type: ignore[assignment]
    NRIRuntime.answer_create = answer  # type: ignore[method-assign]
    NRIRuntime.note = note  # type: ignore[method-assign]
    ResourcePlugin.allocate = allocate  # type: ignore[method-assign]
    sys.exit(round_robin.main())
