"""An agent, or a plugin of ours, that is killed at one step: `python -m tests.dying agent`.

The variable DIES says at which step: `chosen`, before the file is written; `recorded`, before the
container runtime, or the agent, has its answer; `answered`, after the runtime has it; `started`,
when the container runs; `written`, after a container has got the CPUs that are VICTIM. VICTIM is
the pod's UID, or another text of the file. SIGNAL is another signal than SIGKILL: with SIGSTOP the
agent halts, so that another process can be killed at this step; DIES may then name several steps,
in order: `planned,chosen`. With ARMED nothing happens before there is a file of this name.

A resize is `answered` with the CPUs that are VICTIM. A notice is `noticed` at its end; then its
CPUs are `narrowed` in the agent's decisions, and `left` when the kernel has reported it.

A plugin that decides is asked before, at the step `planned`; it has answered at the step `chosen`.
A plugin of ours (`python -m tests.dying resource-plugin cpu`) is `asked` before it chooses, and has
`listed` what containers have before the agent hears it; VICTIM is the pod's name, or a text of the
file or the list.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpupool import cli
from cpupool.host import files
from cpupool.host.cgroupfs import CgroupFS
from cpupool.manager.manager import Manager
from cpupool.plugins.server import KeptPlugin
from cpupool.qrm.plugin_client import ResourcePlugin
from cpupool.runtime.nri.adapter import NRIRuntime
from cpupool.runtime.nri.messages import Started

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.cpu_manager import TopologyHint
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import ContainerID, ContainerRef
    from cpupool.policies.qrm.questions import Question
    from cpupool.runtime.nri.messages import (
        Adjustment,
        CreateContainer,
        Message,
        Update,
        UpdateContainer,
    )

DIES, VICTIM, SIGNAL, ARMED = "DIES", "VICTIM", "SIGNAL", "ARMED"
STEPS = ("chosen", "recorded", "answered")
PLANNED, STARTED, WRITTEN = "planned", "started", "written"
NOTICED, NARROWED, LEFT = "noticed", "narrowed", "left"
ASKED, LISTED = "asked", "listed"

_write, _answer, _note = files.write_atomically, NRIRuntime.answer_create, NRIRuntime.note
_allocate = ResourcePlugin.allocate
_write_cpus, _update_all = CgroupFS.write, NRIRuntime.update_all
_answer_update, _update = NRIRuntime.answer_update, NRIRuntime.update
_narrow, _settle = Manager.narrow, Manager.settle
_decide, _list = KeptPlugin.allocate, KeptPlugin.allocations
_reaching = threading.Lock()


def _reach(step: str) -> None:
    # Plugins are asked in a thread each: two at one step would halt the process twice.
    with _reaching:
        first, _, later = os.environ.get(DIES, "").partition(",")
        if first == step and Path(os.environ.get(ARMED, "/")).exists():
            os.environ[DIES] = later
            # A thread that signals its process runs on until another one has the signal, and may
            # be at the next step by then: the process would halt once for both.
            signal.pthread_kill(threading.get_ident(), int(os.environ.get(SIGNAL, signal.SIGKILL)))


def write(path: Path, data: bytes, *rest: Any, **options: Any) -> None:
    """Write a file, and die before or after that if it has the choice."""
    chosen = os.environ[VICTIM].encode() in data
    if chosen:
        _reach("chosen")
    _write(path, data, *rest, **options)
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


def answer_update(
    self: NRIRuntime,
    message: UpdateContainer,
    update: Update | None,
    others: Iterable[Update] = (),
) -> None:
    """Answer an update, and die as soon as the runtime has the answer with the victim's CPUs."""
    _answer_update(self, message, update, others)
    if update and str(update.cpus) == os.environ[VICTIM]:
        self.flush()
        _reach("answered")


def note(self: NRIRuntime, message: Message) -> None:
    """Hear a message, and die before that if it says that the victim runs."""
    known = message.container.known if isinstance(message, Started) else None
    if known and known.pod == os.environ[VICTIM]:
        _reach(STARTED)
    _note(self, message)


def allocate(
    self: ResourcePlugin, question: Question, hint: TopologyHint | None = None
) -> AnswerParts:
    """Ask a plugin, and die before that if it is about the victim."""
    if question.container.pod == os.environ[VICTIM]:
        _reach(PLANNED)
    return _allocate(self, question, hint)


def write_cpus(self: CgroupFS, path: str, cpus: CPUSet) -> None:
    """Write a cgroup's CPUs, and die after that if they are the victim."""
    _write_cpus(self, path, cpus)
    if str(cpus) == os.environ[VICTIM]:
        _reach(WRITTEN)


def update(self: NRIRuntime, container: ContainerID, cpus: CPUSet) -> None:
    """Let the runtime write a container's CPUs, and die after that if they are the victim."""
    _update(self, container, cpus)
    if str(cpus) == os.environ[VICTIM]:
        _reach(WRITTEN)


def narrow(self: Manager, ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
    """End a notice, and die before or after that."""
    _reach(NOTICED)
    narrowed = _narrow(self, ref, assigned, leaving)
    _reach(NARROWED)
    return narrowed


def settle(self: Manager, found: Mapping[ContainerRef, CPUSet]) -> bool:
    """Free the CPUs that a container has left, and die after that."""
    freed = _settle(self, found)
    if freed:
        _reach(LEFT)
    return freed


def update_all(self: NRIRuntime, wanted: Mapping[ContainerID, CPUSet]) -> None:
    """Let the runtime write containers' CPUs, and die after that if the victim is among them."""
    _update_all(self, wanted)
    if os.environ[VICTIM] in map(str, wanted.values()):
        _reach(WRITTEN)


def decide(self: KeptPlugin, question: Question, hint: TopologyHint | None) -> AnswerParts:
    """Decide about a container, and die before that if it is the victim."""
    if question.pod_name == os.environ[VICTIM]:
        _reach(ASKED)
    return _decide(self, question, hint)


def allocations(self: KeptPlugin) -> Mapping[ContainerRef, AnswerParts]:
    """List what containers have, and die after that if the victim is in the list."""
    found = _list(self)
    if os.environ[VICTIM] in str(found):
        _reach(LISTED)
    return found


if __name__ == "__main__":
    files.write_atomically = write
    NRIRuntime.answer_create = answer  # type: ignore[method-assign]
    NRIRuntime.answer_update = answer_update  # type: ignore[method-assign]
    NRIRuntime.update = update  # type: ignore[method-assign]
    Manager.narrow = narrow  # type: ignore[method-assign]
    Manager.settle = settle  # type: ignore[method-assign]
    NRIRuntime.note = note  # type: ignore[method-assign]
    ResourcePlugin.allocate = allocate  # type: ignore[method-assign]
    CgroupFS.write = write_cpus  # type: ignore[method-assign]
    NRIRuntime.update_all = update_all  # type: ignore[method-assign]
    KeptPlugin.allocate = decide  # type: ignore[method-assign]
    KeptPlugin.allocations = allocations  # type: ignore[method-assign]
    sys.exit(cli.main(sys.argv[1:]))
