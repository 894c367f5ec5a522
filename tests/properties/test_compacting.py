"""Compaction: whatever pods come, wait and go, and wherever the agent dies.

* The budget and the age are kept.
* No plan makes the node worse by the score of the policy, and no move of it harms a container.
* No CPU has two owners, and only one container changes at a time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cpupool.core.cpu_manager import Compaction, CPUManager, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import CPUMoves
from cpupool.manager import choosing, compacting
from cpupool.policies.dynamic import compaction
from cpupool.policies.dynamic.policy import DynamicPolicy
from cpupool.policies.layout import Level
from tests.machines import Machine
from tests.moving import NOTICE_S, Node
from tests.searching import examples

if TYPE_CHECKING:
    from cpupool.manager.facts import NodeFacts
    from cpupool.policies.view import NodeView

TOPOLOGY = Machine(sockets=2, l3=2, cores=4, threads=2).topology()
MOVES_PER_HOUR, AGE_S = 3, 60
names = st.sampled_from(list("abcdefghij"))
waits_s = st.sampled_from([AGE_S, 0, 1, NOTICE_S + 1, 1200])


def score(facts: NodeFacts, view: NodeView) -> tuple[int, ...]:
    """Measure a node as if each change were complete."""
    policy = facts.policy
    assert isinstance(policy, DynamicPolicy)
    grants = view.grants.relieved()
    waiting = [pod for pod in view.pods if pod.cgroup_uid in view.refused]
    parts = [cpus for grant in grants.chosen.values() for cpus in grant.parts.values()]
    free = policy.layout.cpus - policy.reserved - CPUSet.union(parts)
    blocks = (
        -sum(len(block) ** 2 for block in policy.layout.free(level, free).values())
        for level in (Level.NODE, Level.UNCORE, Level.CORE)
    )
    return (
        len(choosing.unserved(facts, view.pods, grants, waiting)),
        *compaction.spread(policy.layout, parts),
        *blocks,
    )


class Measured(Node):
    """A node that checks each move when it begins."""

    def __post_init__(self) -> None:
        self.moved_s: list[float] = []
        self.since: dict[str, float] = {}
        self.plan: tuple[int, ...] | None = None
        """The score before a plan of two moves, until the second has begun."""
        super().__post_init__()

    def look(self) -> float:
        before = self.manager.snapshot()
        facts, view = before.facts, before.resolution.view
        pause_s = super().look()
        now = self.manager.snapshot()
        if now.resolution.grants != before.resolution.grants:
            self.check_move(facts, view, now.resolution.view)
            was, new = score(facts, view), score(now.facts, now.resolution.view)
            planned = [
                len(compacting.outlook(facts, view, self.unix_s(), released=released).moves)
                for released in (True, False)
            ]
            if 2 in planned:
                assert new[:4] <= was[:4]
                self.plan = was
            elif self.plan and was[:1] == self.plan[:1]:
                assert new < self.plan
                self.plan = None
            else:
                assert new < was
        return pause_s

    def check_move(self, facts: NodeFacts, before: NodeView, now: NodeView) -> None:
        """Check whom a move concerns, and that it may be now."""
        (uid,) = (uid for uid, has in now.chosen.items() if has != before.chosen[uid])
        name = uid.removesuffix("-uid")
        assert not any(grant.leaving for grant in before.chosen.values())
        assert self.now_s - self.since[name] >= AGE_S
        self.since[name] = self.now_s
        self.moved_s.append(self.now_s)
        assert sum(at_s > self.now_s - 3600 for at_s in self.moved_s) <= MOVES_PER_HOUR
        policy, pod = facts.policy, self.pods[name]
        assert isinstance(policy, DynamicPolicy)
        had, has = before.chosen[uid].part(name), now.chosen[uid].part(name)
        assert len(had) == len(has)
        assert pod.cpu_moves is not CPUMoves.NEVER
        level = Level.UNCORE if pod.cpu_moves is CPUMoves.SAME_L3 else Level.NODE
        if pod.cpu_moves is not CPUMoves.ANY or self.device_nodes[uid][name]:
            assert has <= compaction.reach(policy.layout, had, level)
        shapes = (compaction.shape(policy.layout, cpus) for cpus in (had, has))
        assert all(then >= later for then, later in zip(*shapes, strict=True))

    def come(
        self, name: str, cpu: int, moves: CPUMoves, near: frozenset[int], notice_s: int | None
    ) -> None:
        """Run a pod unless it is there."""
        if name not in self.pods:
            self.ended = frozenset()
            self.plan = None
            self.run(name, cpu, moves, notice_s=notice_s, near=near)
            self.since[name] = self.now_s


class Compacting(RuleBasedStateMachine):
    """A node with pods whose CPUs may move."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()

    def teardown(self) -> None:
        self._folder.cleanup()

    @initialize(
        whole=st.booleans(),
        aligned=st.sampled_from([TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.NONE]),
        sizes=st.lists(st.integers(1, 6), min_size=8, max_size=8),
        ends=st.sets(st.sampled_from("abcdefgh"), min_size=2, max_size=4),
    )
    def begin(
        self, aligned: TopologyPolicy, sizes: list[int], ends: set[str], *, whole: bool
    ) -> None:
        settings = CPUManager(
            "dynamic",
            CPUSet.parse("0,16"),
            StaticOptions(full_pcpus_only=whole),
            aligned,
            max_notice_s=NOTICE_S,
            compaction=Compaction(MOVES_PER_HOUR, AGE_S),
        )
        self.node = Measured(Path(self._folder.name), settings, TOPOLOGY)
        for name, size in zip("abcdefgh", sizes, strict=False):
            self.node.come(name, size, CPUMoves.ANY, frozenset(), None)
        self.node.settle()
        for name in sorted(ends):
            self.end(name, AGE_S)

    @rule(
        name=names,
        cpu=st.integers(1, 12),
        moves=st.sampled_from([CPUMoves.ANY, *CPUMoves]),
        near=st.sampled_from([frozenset(), frozenset({0}), frozenset({1})]),
        notice_s=st.sampled_from([None, 0]),
        wait_s=waits_s,
    )
    def run(
        self,
        name: str,
        cpu: int,
        moves: CPUMoves,
        near: frozenset[int],
        notice_s: int | None,
        *,
        wait_s: int,
    ) -> None:
        self.node.come(name, cpu, moves, near, notice_s)
        self.wait(wait_s)

    @rule(name=names, wait_s=waits_s)
    def end(self, name: str, wait_s: int) -> None:
        if name in self.node.pods:
            self.node.plan = None
            self.node.end(name)
            self.wait(wait_s)

    @rule(wait_s=waits_s)
    def wait(self, wait_s: int) -> None:
        if wait_s:
            self.node.until(self.node.now_s + wait_s)

    @rule()
    def look(self) -> None:
        self.node.look()
        self.node.keeper.step()

    @rule()
    def sweep(self) -> None:
        self.node.try_again()
        self.node.sweep()
        self.node.keeper.step()

    @rule()
    def kill(self) -> None:
        assigned = {ref: own.assigned for ref, own in self.node.own_cpus().items()}
        self.node.kill()
        now = {ref: own.assigned for ref, own in self.node.own_cpus().items()}
        for ref in self.node.kernel:
            assert now[ref] == assigned[ref]

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "node"):
            return
        view = self.node.manager.snapshot().resolution.view
        seen = CPUSet()
        for ref, cpus in self.node.kernel.items():
            assert seen.isdisjoint(cpus), "no CPU has two owners"
            assert cpus <= view.chosen[ref.pod].cpus, "CPUs are its own until it has left them"
            seen |= cpus
        leaving = [name for grant in view.chosen.values() for name in grant.leaving]
        assert len(leaving) <= 1
        assert view.free, "those without CPUs of their own have some"


TestCompacting = Compacting.TestCase
TestCompacting.settings = examples(80, stateful_step_count=15)
