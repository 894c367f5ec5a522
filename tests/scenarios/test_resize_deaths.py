"""The agent is killed at each step of a change of a container's own CPUs, and another one starts.

Wherever it dies, no CPU has two owners, the container ends on the CPUs that it requests, and its
folder tells so with a generation that has not gone back. Nothing else changes.
"""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cpupool.core.cpuset import CPUSet
from tests import dying
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from tests.processes import Process
    from tests.scenarios.test_agent_process import World

POOLS = """
pools:
  default: {cpus: "0-7"}
nodeSelector: {role: worker}
cpuManager: {policy: dynamic, reserved: "0-0", maxNoticeSeconds: 1}
"""
FEW, MANY = "1-2", "1-4"
OTHER, FREED = "5-6", "3-4"
CPUS = {2: FEW, 4: MANY}


class At(NamedTuple):
    """A step of a change.

    Attributes:
        cpus: how many CPUs the container requests.
        step: the step, as `tests.dying` names it.
        victim: what that is about: the CPUs, or a text of the file.
        daily: whether each run of the tests has it: the next agent finds another mixture of old and
            new than after each other step.
    """

    cpus: int
    step: str
    victim: str
    daily: bool = False


def recorded(cpus: str) -> str:
    return f'"main":"{cpus}"'


def told(cpus: str) -> str:
    return f'"cpus": "{cpus}", "assigned": "{cpus}"'


ANNOUNCED = f'"cpus": "{MANY}", "assigned": "{FEW}"'
STEPS = (
    # The choice is recorded,
    At(4, "chosen", recorded(MANY), daily=True),
    At(2, "chosen", recorded(FEW)),
    At(4, "recorded", recorded(MANY)),
    At(2, "recorded", recorded(FEW), daily=True),
    # the runtime has the answer,
    At(4, "answered", MANY, daily=True),
    At(2, "answered", MANY),
    # the folder tells what has come, or announces what leaves,
    At(4, "chosen", told(MANY)),
    At(2, "chosen", ANNOUNCED),
    At(4, "recorded", told(MANY)),
    At(2, "recorded", ANNOUNCED, daily=True),
    # and the notice ends.
    At(2, dying.NOTICED, FEW),
    At(2, dying.NARROWED, FEW),
    At(2, dying.WRITTEN, FEW, daily=True),
    At(2, dying.LEFT, FEW, daily=True),
    At(2, "chosen", told(FEW)),
    At(2, "recorded", told(FEW)),
)
AT_ONCE = (
    At(2, "recorded", recorded(FEW)),
    At(2, "answered", FEW),
    At(2, dying.LEFT, FEW),
    At(2, "chosen", told(FEW)),
)
"""The steps that differ without a notice."""


class Node:
    """A node with a container whose CPUs change, another owner, and one that shares."""

    def __init__(self, world: World, running: ExitStack, notice_s: int) -> None:
        self.world, self._agent = world, running.enter_context(ExitStack())
        self.armed = world.folder / "armed"
        self._newest = 0
        self.start()
        self.own = self.run("own", "2", notice_s)
        self.settled(2)
        self.resize(4)
        self.settled(4)
        self.run("other", "2")
        self.run("plain", "500m")
        self.settled(4)

    def start(self, at: At | None = None) -> Process:
        """Kill the agent, and start another, which is killed at a step once it is armed."""
        self._agent.close()
        self.armed.unlink(missing_ok=True)
        eventually(lambda: not self.world.node.plugged, "the runtime knows that it is gone")
        dies = {dying.DIES: at.step, dying.VICTIM: at.victim, dying.ARMED: self.armed} if at else {}
        env = ("env", *(f"{name}={value}" for name, value in dies.items()))
        program = "tests.dying" if at else "cpupool"
        process = self._agent.enter_context(
            self.world.agent(before=env, program=program, end=signal.SIGKILL)
        )
        eventually(lambda: self.world.node.plugged, "the runtime asks the agent")
        return process

    def run(self, name: str, cpu: str, notice_s: int = 0) -> Pod:
        limits = {"cpu": cpu, "memory": "1Gi"}
        container = {"name": "main", "resources": {"limits": limits}}
        words = {"nokia.k8s.io/cpu-notice-seconds": str(notice_s)}
        return self.world.node.run_pod(
            {
                "kind": "Pod",
                "metadata": {"name": name, "annotations": words},
                "spec": {"containers": [container]},
            }
        )

    def resize(self, count: int) -> None:
        self.world.node.resize(self.own.uid, {"main": str(count)})

    def await_(self, condition: Callable[[], object], what: str) -> None:
        """Let the kubelet try again what the agent has refused, until a condition holds."""

        def holds() -> object:
            self.world.node.try_again()
            return condition()

        eventually(holds, lambda: f"{what}: {self.world.cpus()}, {self.world.node.resizing()}")

    def has(self, name: str) -> CPUSet:
        """Return the CPUs of a pod's container in the kernel."""
        return CPUSet.parse_or_empty(self.world.cpus().get(name, ""))

    def told(self) -> dict[str, Any]:
        """Return what the container reads; no generation goes back."""
        (mount,) = (
            one.instance.mounts["/run/cpupool/self"]
            for one in self.world.node.processes()
            if (one.pod.name, one.container) == ("own", "main")
        )
        found: dict[str, Any] = json.loads((mount / "cpus.json").read_text())
        assert found["generation"] >= self._newest
        self._newest = found["generation"]
        return found

    def settled(self, count: int) -> None:
        """Wait until the container has so many CPUs, and knows it; the others have theirs."""
        cpus, names = CPUS[count], {pod.name for pod in self.world.node.pods()}
        left = CPUSet.parse("0-7") - CPUSet.parse(cpus) - CPUSet.parse(OTHER)
        expected = {"own": cpus, "other": OTHER, "plain": str(left)}
        expected = {name: has for name, has in expected.items() if name in names}

        def done() -> bool:
            if names - self.world.cpus().keys():
                return False
            own, plain, again = self.has("own"), self.has("plain"), self.has("own")
            # Between two equal readings of one container the other may be anywhere else.
            assert own != again or own.isdisjoint(plain)
            now = self.told()
            complete = "notBefore" not in (now["change"] or {})
            right = (now["cpus"], now["assigned"], now["baseline"]) == (cpus, cpus, FEW)
            return complete and right and self.world.cpus() == expected

        self.await_(done, f"{expected}")


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    machine = MACHINES["arm_no_smt"].write(folder)
    with living(folder, machine, {"role": "worker"}, nri=True) as world:
        world.mount.show(worker=POOLS)
        yield world


@pytest.mark.parametrize(
    ("notice_s", "steps"),
    [
        pytest.param(1, [at for at in STEPS if at.daily], id="daily"),
        pytest.param(1, STEPS, id="each", marks=pytest.mark.soak),
        pytest.param(0, AT_ONCE, id="at once", marks=pytest.mark.soak),
    ],
)
def test_an_agent_that_is_killed_at_any_step_leaves_the_change_to_the_next(
    world: World, notice_s: int, steps: Sequence[At]
) -> None:
    with ExitStack() as running:
        node, count = Node(world, running, notice_s), 4
        for at in steps:
            process = node.start(at)
            node.settled(count)
            if at.cpus == count:
                node.resize(6 - count)
                node.settled(6 - count)
            node.armed.touch()
            node.resize(at.cpus)
            node.await_(lambda ended=process: ended.process.poll() is not None, str(at))  # type: ignore[misc]
            count = at.cpus
        node.start()
        node.settled(count)

        # Who waits for the CPUs gets them, and a restart changes nothing.
        node.run("late", "2")
        node.await_(lambda: str(node.has("late")) == FREED, f"late has CPUs {FREED}")
        before, generation = world.cpus(), node.told()["generation"]
        node.start()
        eventually(lambda: world.cpus() == before, lambda: str(world.cpus()))
        assert node.told()["generation"] == generation
