"""Count the modules that a walk through the agent meets: `python -m tools.walks`.

A walk is what one role does about one cause, from the cause until the agent rests: functions that
the role's thread enters, by their module. The agent is the real one, on the embedded node, with an
API server; only the two sides of a walk are substitutes. What a role passes to others by a signal
is their walk, not its own: `Signals.tell` ends a walk. A module whose constants or types alone are
used is not met: the methods that a dataclass generates have no line to read.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from cpupool.agent import configurator, cpusetter
from cpupool.agent.changes import Signals
from cpupool.local.nri import NRIServer
from cpupool.runtime.nri import plugin as nri_plugin
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import POOLS, World, living
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from cpupool.api import nri_pb2

STATIC: Final = 'cpuManager: {policy: static, reserved: "0-1"}\nnodeSelector: {role: worker}\n'
_OWN: Final = {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
_QUIET_S: Final = 0.5
"""An agent that enters no function for so long rests."""
_GENERATED: Final = "<string>"
"""The file of a function that a dataclass makes."""


class Tracer:
    """Sees every function that a thread enters; threads that run already are not seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._role = ""
        self._met: set[str] = set()
        self._last_s = time.monotonic()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace the threads that start within."""
        threading.setprofile(self._entered)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextmanager
    def walk(self, role: str) -> Iterator[set[str]]:
        """Give the modules that a role's thread meets within, and then until the agent rests."""
        self._await_rest()
        self._role, self._met = role, set()
        yield self._met
        self._await_rest()
        self._role = ""

    def _entered(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        # The body of a module runs once, whoever imports it first.
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        if module.startswith("cpupool.") and not module.startswith("cpupool.local."):
            self._last_s = time.monotonic()
            if threading.current_thread().name == self._role and not _beyond(frame):
                self._met.add(module)

    def _await_rest(self) -> None:
        self._last_s = time.monotonic()
        eventually(lambda: time.monotonic() - self._last_s > _QUIET_S, "the agent rests")


def _beyond(frame: FrameType) -> bool:
    """Return whether a function is generated, or belongs to the role that a signal wakes."""
    caller = frame.f_back
    while caller is not None and caller.f_code is not Signals.tell.__code__:
        caller = caller.f_back
    return caller is not None or frame.f_code.co_filename == _GENERATED


def walks() -> dict[str, list[str]]:
    """Take the three walks; give their modules, sorted."""
    tracer = Tracer()
    with tempfile.TemporaryDirectory(prefix="cpl-") as folder, tracer.tracing():
        met = dict(_by_cgroups(tracer, Path(folder, "a"))) | {
            "NRI create": _by_nri(tracer, Path(folder, "b"))
        }
    return {name: sorted(modules) for name, modules in met.items()}


def _by_cgroups(tracer: Tracer, folder: Path) -> Iterator[tuple[str, set[str]]]:
    """Move a container of two exclusive CPUs away; then edit the pools while it runs."""
    with _node(folder, POOLS) as world, world.agent_here():
        world.await_pool("exclusive_a", 4)
        world.run("owner", exclusive_a=2)
        world.run("plain")
        world.await_cpus(owner="2-3", plain="0-1")
        with tracer.walk(cpusetter.NAME) as met:
            world.disturb("owner", "0-15")
            world.await_cpus(owner="2-3", plain="0-1")
        yield "sweep", met
        with tracer.walk(configurator.NAME) as met:
            world.mount.show(worker=POOLS.replace('"0-1"', '"0-1,9"'))
            world.await_cpus(owner="2-3", plain="0-1,9")
        yield "edit", met


def _by_nri(tracer: Tracer, folder: Path) -> set[str]:
    """Create a container with two static CPUs, whose pod the agent has seen."""
    met = []
    ask = NRIServer.create

    def create(runtime: NRIServer, container: nri_pb2.Container) -> nri_pb2.CreateContainerResponse:
        with tracer.walk(nri_plugin.NAME) as modules:
            answer = ask(runtime, container)
        met.append(modules)
        return answer

    with _node(folder, STATIC, nri=True) as world, world.agent_here():
        eventually(lambda: world.node.plugged, "NRI is connected")
        with patch.object(NRIServer, "create", create):
            world.node.run_pod(
                {
                    "kind": "Pod",
                    "metadata": {"name": "owner"},
                    "spec": {"containers": [{"name": "main", **_OWN}]},
                }
            )
        world.await_cpus(owner="2-3")
    (modules,) = met
    return modules


@contextmanager
def _node(folder: Path, pools: str, *, nri: bool = False) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=nri) as world:
        world.mount.show(worker=pools)
        yield world


def main() -> int:
    """Print each walk: how many modules it meets, and which."""
    for name, modules in walks().items():
        print(f"{name}: {len(modules)} modules")
        for module in modules:
            print(f"    {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
