"""Compaction: whatever pods come, wait and go, and wherever the agent dies.

* The budget and the age are kept.
* No move makes the node worse by the score of the policy.
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
from cpupool.manager import choosing
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
names = st.sampled_from(list("abcdefgh"))


def score(facts: NodeFacts, view: NodeView) -> tuple[object, ...]:
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


class Compacting(RuleBasedStateMachine):
    """A node with pods whose CPUs may move."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.moved: list[tuple[float, str]] = []
        self.since: dict[str, float] = {}

    def teardown(self) -> None:
        self._folder.cleanup()

    @initialize(
        whole=st.booleans(),
        aligned=st.sampled_from([TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.NONE]),
    )
    def begin(self, aligned: TopologyPolicy, *, whole: bool) -> None:
        settings = CPUManager(
            "dynamic",
            CPUSet.parse("0,16"),
            StaticOptions(full_pcpus_only=whole),
            aligned,
            max_notice_s=NOTICE_S,
            compaction=Compaction(MOVES_PER_HOUR, AGE_S),
        )
        self.node = Node(Path(self._folder.name), settings, TOPOLOGY)

    @rule(
        name=names,
        cpu=st.integers(1, 12),
        moves=st.sampled_from([CPUMoves.ANY, *CPUMoves]),
        near=st.sampled_from([frozenset(), frozenset({0}), frozenset({1})]),
        at_once=st.booleans(),
    )
    def run(
        self, name: str, cpu: int, moves: CPUMoves, near: frozenset[int], *, at_once: bool
    ) -> None:
        if name not in self.node.pods:
            self.node.ended = frozenset()
            notice_s = 0 if at_once else None
            self.node.run(name, cpu, moves, notice_s=notice_s, near=near)
            self.since[name] = self.node.now_s

    @rule(name=names)
    def end(self, name: str) -> None:
        if name in self.node.pods:
            self.node.end(name)

    @rule(wait_s=st.sampled_from([1, NOTICE_S + 1, AGE_S, 1200]))
    def wait(self, wait_s: int) -> None:
        self.node.now_s += wait_s
        self.node.keeper.step()

    @rule(moved=st.booleans())
    def look(self, *, moved: bool) -> None:
        """Let the compactor look, and the kernel follow, perhaps."""
        node = self.node
        before = node.manager.snapshot()
        node.compactor.step()
        now = node.manager.snapshot()
        if now.resolution.grants != before.resolution.grants:
            self.check_move(before.facts, before.resolution.view, now.resolution.view)
            assert score(now.facts, now.resolution.view) < score(
                before.facts, before.resolution.view
            )
        node.keeper.step()
        if moved:
            self.sweep()

    def check_move(self, facts: NodeFacts, before: NodeView, now: NodeView) -> None:
        """Check whom a move concerns, and that it may be now."""
        node = self.node
        (uid,) = (uid for uid, has in now.chosen.items() if has != before.chosen[uid])
        name = uid.removesuffix("-uid")
        assert not any(grant.leaving for grant in before.chosen.values())
        assert node.now_s - self.since[name] >= AGE_S
        self.since[name] = node.now_s
        self.moved.append((node.now_s, name))
        recent = [at_s for at_s, _ in self.moved if at_s > node.now_s - 3600]
        assert len(recent) <= MOVES_PER_HOUR
        policy, pod = facts.policy, node.pods[name]
        assert isinstance(policy, DynamicPolicy)
        had, has = before.chosen[uid].part(name), now.chosen[uid].part(name)
        assert len(had) == len(has)
        assert pod.cpu_moves is not CPUMoves.NEVER
        level = Level.UNCORE if pod.cpu_moves is CPUMoves.SAME_L3 else Level.NODE
        if pod.cpu_moves is not CPUMoves.ANY or node.device_nodes[uid][name]:
            assert has <= compaction.reach(policy.layout, had, level)

    @rule()
    def sweep(self) -> None:
        self.node._try()
        self.node.sweep()
        self.node.keeper.step()

    @rule()
    def kill(self) -> None:
        before = dict(self.node.kernel)
        self.node.kill()
        for ref, cpus in before.items():
            assert cpus <= self.node.wanted(ref.name) | cpus

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
TestCompacting.settings = examples(60, stateful_step_count=30)
