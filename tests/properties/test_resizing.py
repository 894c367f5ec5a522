"""In-place resizes: whatever comes in any order, no CPU has two owners or is taken unannounced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerRef, CPUMoves, RuntimeContainer
from cpupool.manager import resizing
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import Machine
from tests.searching import examples

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

MACHINE = Machine(sockets=2, cores=8, threads=2).topology()
NAMES = ("a", "b", "c")
MOVES, AT_ONCE = "c", "b"
"""The pod whose CPUs may all move, and the one that has no notice."""

names = st.sampled_from(NAMES)
more = st.sampled_from([2, 1, 4])


def ref(name: str) -> ContainerRef:
    return ContainerRef(f"{name}-uid", name)


class Resizes(RuleBasedStateMachine):
    """A node with three owners, its kernel, and an agent that may restart at any time."""

    @initialize(
        first=st.fixed_dictionaries(
            {name: st.integers(1, 4).map(lambda n: 2 * n) for name in "ab"}
        ),
        whole=st.booleans(),
    )
    def begin(self, first: dict[str, int], *, whole: bool) -> None:
        options = StaticOptions(full_pcpus_only=whole)
        self.settings = CPUManager("dynamic", reserved=CPUSet.of(0), options=options)
        self.asked = {**first, "c": 2}
        self.kernel: dict[str, CPUSet] = {}
        self.told: dict[str, tuple[CPUSet, CPUSet]] = {}
        self.start(State("dynamic"))
        self.kernel = {name: self.runs_on(name) for name in self.asked}
        self.baselines = {name: self.own(name).baseline for name in self.owners()}

    def pods(self) -> list[Pod]:
        return [
            replace(
                builders.pod(name, builders.container(name, cpu=1000 * count)),
                cpu_moves=CPUMoves.ANY if name == MOVES else CPUMoves.NEVER,
                notice_s=0 if name == AT_ONCE else None,
            )
            for name, count in self.asked.items()
        ]

    def start(self, recorded: State) -> None:
        """Start an agent."""
        self.manager = Manager()
        pools = NodePools.of(Pool.named("default", "0-31"), cpu_manager=self.settings)
        self.manager.reconfigure(pools, MACHINE)
        self.manager.observe(pods=self.pods())
        self.manager.observe_containers(
            RuntimeContainer(
                ContainerID(f"{name}-id"), f"{name}-uid", "default", name, name, owns=count
            )
            for name, count in self.asked.items()
        )
        found = [
            FoundContainer(f"{name}-uid", ContainerID(f"{name}-id"), f"kubepods/{name}", str(cpus))
            for name, cpus in self.kernel.items()
        ]
        self.manager.adopt(found, recorded)

    def runs_on(self, name: str) -> CPUSet:
        placed = self.manager.snapshot().assignment((f"{name}-uid", ContainerID(f"{name}-id")))
        return placed.cpus

    def all_own(self) -> dict[ContainerRef, resizing.OwnCPUs]:
        return dict(resizing.own_cpus(self.manager.snapshot(), {}))

    def owners(self) -> list[str]:
        found = self.all_own()
        return [name for name in self.asked if ref(name) in found]

    def own(self, name: str) -> resizing.OwnCPUs:
        return self.all_own()[ref(name)]

    @rule(name=names, count=more)
    def grow(self, name: str, count: int) -> None:
        self.resize(name, self.asked[name] + count)
        self.move(name)

    @rule(name=names, count=more)
    def shrink(self, name: str, count: int) -> None:
        self.resize(name, max(1, self.asked[name] - count))

    def resize(self, name: str, count: int) -> None:
        before = self.manager.snapshot()
        runs = self.runs_on(name)
        try:
            self.manager.resize(ref(name), count)
        except PlacementError:
            assert self.manager.snapshot() == before, "a refusal changes nothing"
            return
        self.asked[name] = count
        own = self.own(name)
        assert len(own.assigned) == count
        if name == AT_ONCE:
            assert own.in_force == own.assigned
        else:
            assert own.in_force >= runs, "nothing is taken without a notice"

    @rule(name=names, late=st.booleans(), moved=st.booleans(), killed=st.booleans())
    def end_notice(self, name: str, *, late: bool, moved: bool, killed: bool) -> None:
        """End a notice; a late one has told of CPUs that are no longer the right ones, perhaps."""
        if name not in self.owners():
            return
        before = self.own(name)
        now = before.assigned, before.leaving
        told = self.told.get(name, now) if late else now
        self.told[name] = now
        ended = self.manager.narrow(ref(name), *told)
        if before.leaving:
            assert ended == (now == told)
            assert self.own(name).in_force == (before.assigned if ended else before.in_force)
        if moved:
            self.move(name)
        if killed:
            self.restart()
        self.read_back()

    @rule(name=names)
    def move(self, name: str) -> None:
        """The kernel moves a container onto its CPUs."""
        self.kernel[name] = self.runs_on(name)

    @rule()
    def read_back(self) -> None:
        self.manager.settle({ref(name): cpus for name, cpus in self.kernel.items()})

    @rule()
    def restart(self) -> None:
        view = self.manager.snapshot().resolution.view
        before, owned = self.all_own(), view.grants.cpus
        runs = {name: self.runs_on(name) for name in self.owners()}
        chosen = view.chosen.items()
        self.start(
            State(
                "dynamic",
                entries={uid: grant.parts for uid, grant in chosen},
                changes={uid: grant.changes for uid, grant in chosen if grant.changes},
            )
        )
        self.told.clear()
        for name, cpus in runs.items():
            now = self.own(name)
            assert (now.assigned, now.baseline) == (
                before[ref(name)].assigned,
                before[ref(name)].baseline,
            )
            # What the kernel has still to take away is announced anew; nothing comes back.
            assert now.assigned | cpus & self.kernel[name] <= self.runs_on(name)
            assert self.runs_on(name) <= cpus | self.kernel[name]
        assert self.manager.snapshot().resolution.grants.cpus <= owned

    @invariant()
    def holds(self) -> None:
        view = self.manager.snapshot().resolution.view
        for name in self.owners():
            own = self.own(name)
            assert own.baseline <= own.assigned
            if name != MOVES:
                assert own.baseline == self.baselines[name]
            owned = view.chosen[f"{name}-uid"].cpus
            assert self.kernel[name] <= owned, "CPUs are its own until it has left them"
        assert view.free, "those without CPUs of their own have some"


TestResizes = Resizes.TestCase
TestResizes.settings = examples(60, stateful_step_count=25)
