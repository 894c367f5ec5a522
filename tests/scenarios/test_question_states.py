"""Something dies while a question is in a state of the table (`qrm/question_table.py`).

The agent, the plugin or the container runtime ends in each state that a call of a plugin can show.
Whatever ends, a container begins with its answer, no CPU has two owners, and a plugin holds nothing
of a pod that has gone.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, suppress
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pytest

from cpupool.api.resourceplugin_pb2 import ResourceAllocationInfo, ResourceHintsResponse
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_resource_plugins import (
    DEDICATED,
    Plugin,
    agent,
    cpus,
    right,
    run,
    started,
)
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.scenarios.test_agent_process import World

POOLS = (
    'pools: {default: {cpus: "0-7"}}\nnodeSelector: {role: worker}\n'
    'cpuManager: {policy: qrm, reserved: "0-0", topologyPolicy: restricted}\n'
)
OWN, LATER = "5-6", "1-2"
REQUESTS = {"cpu": "2", "memory": "1Gi"}
HINTS, ALLOCATE, PREPARE = "GetTopologyHints", "Allocate", "PreStartContainer"
LIST, REMOVE = "GetResourcesAllocation", "RemovePod"
_Part = TypeVar("_Part")


class Dies(Enum):
    """What ends, and comes back."""

    AGENT = "agent"
    PLUGIN = "plugin"
    RUNTIME = "runtime"


class At(NamedTuple):
    """A state of the table, and how it is reached.

    Attributes:
        method: the call that has no answer while something dies; empty for none.
        resource: the resource of that call.
        runs: whether the container runs before.
        goes: whether its pod is deleted meanwhile, or before if it runs.
    """

    method: str
    resource: str = "cpu"
    runs: bool = False
    goes: bool = False


STATES = {
    "HINTS_ASKED": At(HINTS),
    "HINTED": At(HINTS, "memory"),
    "ASKED": At(ALLOCATE),
    "VALID, the other ASKED": At(ALLOCATE, "memory"),
    "PREPARING": At(PREPARE),
    "LEFT of HINTS_ASKED": At(HINTS, goes=True),
    "LEFT of ASKED": At(ALLOCATE, goes=True),
    "LEFT of PREPARING": At(PREPARE, goes=True),
    "USED": At("", runs=True),
    "confirmed": At(LIST, runs=True),
    "ENDING": At(REMOVE, runs=True, goes=True),
}


class Holding(Plugin):
    """A plugin that keeps a call waiting.

    Args:
        world: the node.
        resource: what it serves.
        before: the one whose place it takes, with its state.
    """

    def __init__(self, world: World, resource: str, before: Holding | None = None) -> None:
        options = {"need_reconcile": True, "with_topology_alignment": True}
        super().__init__(world, resource, pre_start_required=resource == "cpu", **options)
        self.gives = {"own": _given(resource, OWN), "later": _given(resource, LATER)}
        self.answers(PREPARE, b"")
        self.answers(HINTS, ResourceHintsResponse())
        self.known = before.known if before else {}
        self.method = ""
        self.reached, self.free = threading.Event(), threading.Event()

    def answer(self, method: str, request: bytes) -> bytes:
        answer = super().answer(method, request)
        if method == self.method:
            self.reached.set()
            self.free.wait(DEADLINE_S)
        return answer


def _given(resource: str, text: str) -> ResourceAllocationInfo:
    if resource == "cpu":
        return cpus(text)
    return ResourceAllocationInfo(
        oci_property_name="CpusetMems", allocation_result="0", is_scalar_resource=True
    )


class Node:
    """A node with two plugins, of which the one for CPUs prepares starts.

    Attributes:
        plugins: resource → its plugin.
        recorded: the agent's record of answers when the agent died.
    """

    def __init__(self, world: World, running: ExitStack) -> None:
        self._world = world
        self._running = running
        self._parts: dict[str, ExitStack] = {}
        self.plugins: dict[str, Holding] = {}
        self.recorded = ""
        for resource in ("cpu", "memory"):
            self._start_plugin(resource)
        self.start_agent()

    def start_agent(self) -> None:
        """Start the agent, until the runtime asks it."""
        self._enter("agent", agent(self._world, end=signal.SIGKILL))
        eventually(lambda: self._world.node.plugged, "the runtime asks the agent")

    def dies(self, what: Dies, resource: str) -> None:
        """End a part of the node, and start it again."""
        match what:
            case Dies.AGENT:
                self._parts["agent"].close()
                with suppress(FileNotFoundError):
                    self.recorded = self._world.node.root.answers.read_text()
                self.plugins[resource].free.set()
                self.start_agent()
            case Dies.PLUGIN:
                self.plugins[resource].free.set()
                self._parts[resource].close()
                self.plugins[resource].socket.unlink(missing_ok=True)
                self._start_plugin(resource)
            case Dies.RUNTIME:
                self._world.node.restart_runtime()
                self.plugins[resource].free.set()

    def _start_plugin(self, resource: str) -> None:
        plugin = Holding(self._world, resource, self.plugins.get(resource))
        self.plugins[resource] = self._enter(resource, plugin)

    def _enter(self, name: str, part: AbstractContextManager[_Part]) -> _Part:
        self._parts[name] = self._running.enter_context(ExitStack())
        return self._parts[name].enter_context(part)


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


@pytest.mark.parametrize("dies", Dies, ids=lambda dies: dies.value)
@pytest.mark.parametrize("at", STATES.values(), ids=STATES.keys())
def test_what_dies_in_a_state_loses_nothing(world: World, at: At, dies: Dies) -> None:
    with ExitStack() as running:
        node = Node(world, running)
        own = run(world, "own", DEDICATED, **REQUESTS) if at.runs else None
        if own:
            started(world, own)
            right(world, "0-4,7", own=OWN)
        plugin = node.plugins[at.resource]
        plugin.method = at.method
        if own and at.goes:
            world.node.delete_pod(own.uid)
        own = own or run(world, "own", DEDICATED, **REQUESTS)
        if at.method:
            eventually(plugin.reached.is_set, f"the plugin has heard {at.method}")
        if at.goes and not at.runs:
            world.node.delete_pod(own.uid)
        plugin.method = ""
        node.dies(dies, at.resource)

        if not at.goes:
            started(world, own)
            right(world, "0-4,7", own=OWN)
        later = run(world, "later", DEDICATED, **REQUESTS)
        started(world, later)
        if at.goes:
            right(world, "0,3-7", later=LATER)
            # An agent that dies before its first record of a pod knows nothing of it, as a kubelet.
            if dies is not Dies.AGENT or own.uid in node.recorded:
                eventually(
                    lambda: all(own.uid not in each.known for each in node.plugins.values()),
                    "the plugins have forgotten the pod",
                )
        else:
            right(world, "0,3-4,7", own=OWN, later=LATER)
        heard = node.plugins["cpu"].allocated()
        assert heard.count("later") == 1
