"""The examples of KEP-5554 and KEP-6122 in virtual time: the manager, the keeper and the folder.

The machine has 12 CPUs, two threads a core, and NUMA nodes of CPUs 0-5 and 6-11.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.own_cpus_keeper import OwnCPUsKeeper
from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager, Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerRef, CPUMoves, RuntimeContainer
from cpupool.host.own_folders import OwnFolders
from cpupool.host.root import HostRoot
from cpupool.manager import resizing
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.events import Heard
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod

MACHINE = Machine(sockets=2, cores=3, threads=2, adjacent=True).topology()
DYNAMIC = CPUManager("dynamic", reserved=CPUSet.of(0), max_notice_s=10, on_misfit=Misfit.FAIL)
APP = ContainerRef("app-uid", "app")
KEY = ("app-uid", ContainerID("app-id"))
LATE = ContainerRef("late-uid", "late")


class Life:
    """A node with one application, and the time on it; it has the `Owners` of its keeper."""

    def __init__(self, folder: Path, begins: int, settings: CPUManager, pod: Pod) -> None:
        self.now_s = 0.0
        root = HostRoot.under(folder)
        self.folder = root.own_folders / APP.pod / APP.name
        self.folders = OwnFolders(root, Heard(), wall_s=lambda: 1e9 + self.now_s)
        self.settings, self.app = settings, pod
        self.pods = [pod]
        self.runs: dict[ContainerRef, CPUSet] = {}
        self.narrowed: list[tuple[float, int]] = []
        self.told: list[int] = []
        self.start(State("dynamic"))
        self.baseline = self.wanted
        self.keeper.prepare(APP)
        self.sweep()
        assert len(self.wanted) == begins

    def start(self, recorded: State) -> None:
        """Start an agent."""
        self.manager = manager = Manager()
        pools = NodePools.of(Pool.named("default", "0-11"), cpu_manager=self.settings)
        manager.reconfigure(pools, MACHINE)
        manager.observe(pods=self.pods, device_nodes={"app-uid": {}})
        found = [
            FoundContainer(ref.pod, f"{ref.name}-id", f"kubepods/{ref.pod}", str(cpus))
            for ref, cpus in self.runs.items()
        ]
        manager.adopt(found, recorded)
        self.keeper = OwnCPUsKeeper(
            self,
            self.folders,
            telemetry=builders.telemetry(events=Heard()),
            announced=lambda: None,
            now_s=lambda: self.now_s,
            wall_s=lambda: 1e9 + self.now_s,
        )

    def kill(self) -> None:
        """Kill the agent, and start another."""
        chosen = self.manager.snapshot().resolution.view.chosen.items()
        entries = {uid: grant.parts for uid, grant in chosen}
        changes = {uid: grant.changes for uid, grant in chosen if grant.changes}
        self.start(State("dynamic", entries=entries, changes=changes))

    @property
    def wanted(self) -> CPUSet:
        return self.manager.snapshot().assignment(KEY).cpus

    def own_cpus(self) -> Mapping[ContainerRef, resizing.OwnCPUs]:
        return resizing.own_cpus(self.manager.snapshot(), self.runs)

    def narrow(self, ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        return self.manager.narrow(ref, assigned, leaving)

    def needs(self, _ref: ContainerRef, _cpus: CPUSet) -> bool | None:
        return None

    def pod(self, _uid: str) -> Pod:
        return self.app

    def remaining(self) -> None:
        return None

    @property
    def own(self) -> resizing.OwnCPUs:
        return self.own_cpus()[APP]

    @property
    def owners(self) -> dict[str, int]:
        """Give pod → the number of its own CPUs."""
        chosen = self.manager.snapshot().resolution.view.chosen.items()
        return {uid: len(grant.assigned) for uid, grant in chosen}

    def resize(self, count: int) -> None:
        self.manager.resize(APP, count)
        self.sweep()

    def another(self, count: int) -> None:
        """Let the kubelet start another pod of so many CPUs."""
        made = builders.container("late", cpu=1000 * count, running=False)
        pod = replace(builders.pod("late", made), created="2026-01-01T00:00:00Z")
        self.pods.append(pod)
        self.manager.observe(pods=self.pods)
        sandbox = RuntimeContainer(ContainerID("box"), pod.cgroup_uid, "default", "late")
        self.manager.observe_containers([sandbox])
        self.sweep()

    def sweep(self) -> None:
        """Let the kernel move the containers, and the agent read them back and tell them."""
        self.keeper.step()
        while (wanted := self.wanted) != self.runs.get(APP):
            if wanted < self.runs.get(APP, wanted):
                self.narrowed.append((self.now_s, len(wanted)))
            self.runs = {APP: wanted}
            self.manager.settle(self.runs)
            self.keeper.step()
        document = json.loads((self.folder / "cpus.json").read_text())
        self.told.append(document["generation"])
        assert CPUSet.parse(document["cpus"]) == wanted
        # Without a notice there is nothing to tell before the CPUs have left.
        if self.own.notice_s:
            assert CPUSet.parse(document["assigned"]) == self.own.assigned

    def until(self, at_s: float) -> None:
        """Let time pass."""
        while (due_s := self.now_s + self.keeper.step()) <= at_s:
            self.now_s = max(due_s, self.now_s + 0.01)
            self.keeper.step()
            self.sweep()
        self.now_s = at_s


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        begins: the CPUs at creation.
        steps: what happens: time → the number requested, or something else.
        narrowed: when the kernel has taken CPUs, and how many are left.
        ends: the CPUs in the end.
        refused: whether the last request is.
    """

    begins: int
    steps: tuple[tuple[float, int | Callable[[Life], None]], ...]
    narrowed: tuple[tuple[float, int], ...] = ()
    ends: int = 0
    refused: str = ""
    settings: CPUManager = DYNAMIC
    moves: CPUMoves = CPUMoves.NEVER
    notice_s: int | None = None


def another(life: Life) -> None:
    life.another(5)
    refusal = life.manager.snapshot().resolution.view.refused["late-uid"]
    assert (refusal.holds, refusal.reachable) == (True, True), "held, and never failed"


ROWS = {
    "a grow keeps the baseline, on its node": Row(2, ((0, 4),), ends=4),
    "a single node that is too small": Row(
        2,
        ((0, 8),),
        ends=2,
        refused="NUMA",
        settings=replace(DYNAMIC, topology_policy=TopologyPolicy.SINGLE_NUMA_NODE),
    ),
    "a shrink after a grow": Row(4, ((0, 8), (1, 6)), ((11, 6),), ends=6),
    "the chain of KEP-5554": Row(4, ((0, 8), (1, 11), (2, 6)), ((12, 6),), ends=6),
    "below the baseline": Row(4, ((0, 2),), ends=4, refused="began"),
    "below the baseline by the pod's word": Row(
        4, ((0, 2),), ((10, 2),), ends=2, moves=CPUMoves.ANY
    ),
    "two shrinks in one notice": Row(4, ((0, 8), (1, 6), (5, 5)), ((15, 5),), ends=5),
    "a grow takes a shrink back": Row(4, ((0, 8), (1, 6), (5, 8)), (), ends=8),
    "a grow takes a part of it back": Row(4, ((0, 8), (1, 6), (5, 7)), ((15, 7),), ends=7),
    "a restart in the notice": Row(4, ((0, 8), (1, 6), (5, Life.kill)), ((15, 6),), ends=6),
    "no notice": Row(4, ((0, 8), (1, 6)), ((1, 6),), ends=6, notice_s=0),
    "a new pod waits for the CPUs": Row(4, ((0, 8), (1, 6), (3, another)), ((11, 6),), ends=6),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_examples_of_the_keps(folder: Path, row: Row) -> None:
    pod = replace(
        builders.pod("app", builders.container("app", cpu=1000 * row.begins)),
        cpu_moves=row.moves,
        notice_s=row.notice_s,
    )
    life = Life(folder, row.begins, row.settings, pod)
    for number, (at_s, step) in enumerate(row.steps, 1):
        life.until(at_s)
        if not isinstance(step, int):
            step(life)
        elif row.refused and number == len(row.steps):
            before = life.manager.snapshot()
            with pytest.raises(PlacementError, match=row.refused):
                life.resize(step)
            assert life.manager.snapshot() == before
        else:
            life.resize(step)
            assert len(life.own.assigned) == step
    life.until(60)
    assert tuple(life.narrowed) == row.narrowed
    assert life.owners["app-uid"] == len(life.wanted) == row.ends
    if row.moves is CPUMoves.NEVER:
        assert life.baseline <= life.wanted
    assert life.told == sorted(life.told), "no generation goes back"
    if another in dict(row.steps).values():
        grants = life.manager.snapshot().resolution.grants
        assert len(grants.part(LATE.pod, POLICY_CPUS, LATE.name)) == 5
