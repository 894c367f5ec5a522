"""The time until an LSR pod has its CPUs to itself: `python -m benchmarks.koordinator`.

The agent is a process on a machine of 512 CPUs in a folder, with the policy koordinator. It speaks
NRI over a real socket with a runtime that this process plays.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.choice_times import LARGE
from benchmarks.documents import table
from benchmarks.played_runtime import PlayedPod, connected
from benchmarks.processes import cpu_s
from cpupool.core.cpuset import CPUSet
from cpupool.policies.koordinator.pod_annotations import QOS_CLASS, RESOURCE_STATUS
from tests.nri_runtime import FakeRuntime, Refused
from tests.scenarios.test_agent_process import living
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cpupool.api import nri_pb2
    from tests.nri_runtime import Plugin
    from tests.scenarios.test_agent_process import World

SHARING: Final = 250
OWN: Final = CPUSet.parse("8-15")
SLOW_S: Final = 0.02
ROUNDS: Final = 3
PERIOD_S: Final = 10.0
RETRY_S: Final = 1.0
_LOOK_S: Final = 0.1
_POOL_FILE: Final = """
cpuManager: {policy: koordinator, reserved: "0-3"}
nodeSelector: {role: worker}
"""


def main() -> None:
    """Print the table."""
    print(arrivals(lambda what: print(what, file=sys.stderr, flush=True)))


@dataclass(frozen=True, slots=True)
class _Change:
    """The cost of moving the containers that share.

    Attributes:
        moved_ms: until the last of them was moved.
        started_ms: until the owner may run; 0 where an owner ends.
        refused: starts of the owner that the agent refused before.
        updates: of containers, by the runtime.
        cpu_ms: the agent's CPU time.
    """

    moved_ms: float
    started_ms: float
    refused: int
    updates: int
    cpu_ms: float


def arrivals(tell: Callable[[str], None]) -> str:
    """Return a table: an LSR pod arrives and ends beside pods that share, by the runtime's pace."""
    columns = []
    for update_s in (0.0, SLOW_S):
        tell(f"an LSR pod beside {SHARING} pods, {update_s * 1000:g} ms for an update")
        begun, ended = [], []
        for arrival, end in _changes(update_s):
            tell(f"{arrival}, {end}")
            begun.append(arrival)
            ended.append(end)
        columns.append([*_figures(begun), *_figures(ended)[2:]])
    cost = ("updates by the runtime", "the agent's CPU time, ms")
    names = (
        "an LSR pod arrives: it may run, ms",
        "its starts that the agent refused",
        "all others are off its CPUs, ms",
        *cost,
    )
    after = ("it ends: all others are back, ms", *cost)
    header = ("what", "a fast runtime", f"{SLOW_S * 1000:g} ms for an update")
    return table(header, zip((*names, *after), *columns, strict=True))


def _figures(changes: Sequence[_Change]) -> list[str]:
    return [
        f"{statistics.median(values):.0f}"
        for values in zip(
            *(
                (one.started_ms, one.refused, one.moved_ms, one.updates, one.cpu_ms)
                for one in changes
            ),
            strict=True,
        )
    ]


def _changes(update_s: float) -> Iterator[tuple[_Change, _Change]]:
    """Yield the cost of the arrival and of the end of an LSR pod, round by round."""
    sharing = [PlayedPod(number, 0, {QOS_CLASS: "LS"}) for number in range(SHARING)]
    status = {RESOURCE_STATUS: json.dumps({"cpuset": str(OWN)})}
    owners = [
        PlayedPod(SHARING + number, len(OWN), {QOS_CLASS: "LSR"}, status)
        for number in range(ROUNDS)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="cpl-", dir="/tmp") as folder,
        living(Path(folder), LARGE.write(Path(folder)), {"role": "worker"}) as world,
    ):
        world.mount.show(worker=_POOL_FILE)
        world.api.set_pods([pod.body() for pod in sharing])
        for number, pod in enumerate(sharing):
            world.place.make(pod.path)
            # The sandbox.
            world.place.make(f"{pod.cgroup}/{SHARING * 2 + number:064x}")
        world.node.root.nri_socket.parent.mkdir(parents=True, exist_ok=True)
        with FakeRuntime(world.node.root.nri_socket) as runtime, world.agent() as agent:
            plugin = connected(world, runtime, LARGE, sharing, owners, update_s=update_s)
            node = _Node(world, plugin, sharing, agent.process.pid)
            for owner in owners:
                # The agent may make the runtime wait for a part of that time.
                time.sleep(PERIOD_S)
                yield node.arrival(owner), node.end(owner)


@dataclass(slots=True)
class _Node:
    world: World
    plugin: Plugin
    sharing: list[PlayedPod]
    pid: int
    updates: int = 0

    def __post_init__(self) -> None:
        obey = self.plugin.obey

        def counted(update: nri_pb2.ContainerUpdate) -> None:
            self.updates += 1
            obey(update)

        self.plugin.obey = counted

    def arrival(self, owner: PlayedPod) -> _Change:
        """Create and start an owner's container as a runtime does."""
        self.world.api.set_pods(pod.body() for pod in (*self.sharing, owner))
        updates, before_s, began_ns = self.updates, cpu_s(self.pid), time.time_ns()
        self.plugin.run_sandbox(owner.container.pod)
        refused = 0
        while not self._starts(owner):
            self.plugin.remove(owner.container)
            refused += 1
            # The kubelet tries again later, and not at once.
            time.sleep(RETRY_S)
        started_ns = time.time_ns()
        self.plugin.start(owner.container)
        everything = LARGE.topology().online
        moved_ns = self._moved_ns(everything - OWN)
        return _Change(
            (moved_ns - began_ns) / 1e6,
            (started_ns - began_ns) / 1e6,
            refused,
            self.updates - updates,
            (cpu_s(self.pid) - before_s) * 1000,
        )

    def end(self, owner: PlayedPod) -> _Change:
        """End an owner's container as a runtime does."""
        updates, before_s, began_ns = self.updates, cpu_s(self.pid), time.time_ns()
        self.plugin.stop(owner.container)
        self.world.place.remove(owner.cgroup)
        self.plugin.remove(owner.container)
        self.plugin.remove_sandbox(owner.container.pod)
        self.world.api.set_pods(pod.body() for pod in self.sharing)
        moved_ns = self._moved_ns(LARGE.topology().online)
        return _Change(
            (moved_ns - began_ns) / 1e6,
            0.0,
            0,
            self.updates - updates,
            (cpu_s(self.pid) - before_s) * 1000,
        )

    def _starts(self, owner: PlayedPod) -> bool:
        """Create an owner's container as a runtime does; return whether it may run."""
        answer = self.plugin.creating(owner.container).result(DEADLINE_S)
        for update in answer.update:
            self.plugin.obey(update)
        own = answer.adjust.linux.resources.cpu.cpus
        assert own == str(OWN), own
        self.world.place.make(owner.path)
        self.world.overwrite(owner.path, own)
        error = self.plugin.starting(owner.container).exception(DEADLINE_S)
        assert error is None or isinstance(error, Refused), error
        return error is None

    def _moved_ns(self, cpus: CPUSet) -> int:
        """Wait until the containers that share have these CPUs; return when the last got them."""
        base = self.world.place.root / "cpuset"
        files = [file for pod in self.sharing for file in (base / pod.cgroup).glob("*/cpuset.cpus")]
        text, deadline_s = str(cpus), time.monotonic() + DEADLINE_S
        while any(file.read_text().strip() != text for file in files):
            assert time.monotonic() < deadline_s, "the agent has not moved the containers"
            # A look costs the agent time.
            time.sleep(_LOOK_S)
        return max(file.stat().st_mtime_ns for file in files)


if __name__ == "__main__":
    main()
