"""Koordinator's classes in any order of pods: who may run where, and nothing is remembered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.core.koordinator import NodeRules, Orchestration, QoS, Reservation
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from cpupool.manager.manager import Manager
from cpupool.policies.base import BEST_EFFORT, DEFAULT
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()
OURS = CPUSet.parse("0-3,8-11,16-19,24-27")
RESERVED = CPUSet.parse("0,16")
POOLS = NodePools.of(
    Pool.named("exclusive_a", "4-7"),
    Pool.named("default", str(OURS)),
    cpu_manager=CPUManager("koordinator", reserved=RESERVED),
)
CLASSES = (QoS.LSE, QoS.LSR, QoS.LS, QoS.BE, None)


@dataclass(frozen=True)
class Arrives:
    """A pod: its class, how many CPUs it requests, and the CPUs that a scheduler has assigned."""

    qos: QoS | None
    count: int
    assigned: CPUSet


@dataclass(frozen=True)
class Ends:
    """One of the pods."""

    which: int


@dataclass(frozen=True)
class Restarts:
    """The agent, with its record."""


@dataclass(frozen=True)
class Withholds:
    """An admin's reservation."""

    cpus: CPUSet


cpu_sets = st.frozensets(st.integers(0, 31), max_size=6).map(CPUSet)
events = st.one_of(
    st.builds(Arrives, st.sampled_from(CLASSES), st.integers(0, 6), cpu_sets),
    st.builds(Ends, st.integers(0, 20)),
    st.builds(Restarts),
    st.builds(Withholds, st.frozensets(st.sampled_from([*OURS]), max_size=4).map(CPUSet)),
)


def _pod(number: int, arrives: Arrives) -> Pod:
    milli = arrives.count * 1000
    container = replace(
        builders.container(f"main-{number}", cpu=milli or None), request_milli=milli
    )
    best_effort = arrives.qos is QoS.BE
    return replace(
        builders.pod(f"pod-{number}", container),
        qos=QoSClass.BEST_EFFORT if best_effort else QoSClass.GUARANTEED,
        created=f"2026-01-01T00:{number:02}:00Z",
        orchestration=Orchestration(arrives.qos, prod=True, cpus=arrives.assigned),
    )


def _node(pods: list[Pod], rules: NodeRules, record: State | None = None) -> Manager:
    node = Manager()
    node.reconfigure(POOLS, MACHINE)
    node.observe(pods=pods, rules=rules)
    node.adopt((), record)
    return node


def _check(node: Manager) -> None:
    resolution = node.snapshot().resolution
    view = resolution.view
    by_sharing = {
        sharing: CPUSet.union(
            grant.cpus for grant in view.chosen.values() if grant.sharing is sharing
        )
        for sharing in Sharing
    }
    own = by_sharing[Sharing.NONE] | by_sharing[Sharing.BEST_EFFORT]
    shared, best_effort = view.extents[DEFAULT], view.extents[BEST_EFFORT]
    # `Grants` refuses a CPU with two owners; no owner has a reserved CPU or a pool's.
    assert own <= OURS - RESERVED
    assert shared.isdisjoint(own)
    assert best_effort.isdisjoint(by_sharing[Sharing.NONE])
    assert shared
    assert best_effort
    assert shared <= OURS
    withheld = view.rules.withheld
    if OURS - own - withheld:
        assert shared | own | withheld >= OURS
        assert shared.isdisjoint(withheld)
    for placed in resolution.containers.values():
        cpus, chosen = placed.assignment.cpus, view.chosen.get(placed.pod.cgroup_uid)
        assert cpus
        if chosen:
            assert cpus == chosen.cpus
            assert len(cpus) == placed.pod.whole_cpus
        else:
            assert cpus.isdisjoint(by_sharing[Sharing.NONE])
            if placed.pod.qos is not QoSClass.BEST_EFFORT:
                assert cpus.isdisjoint(own)


@given(st.lists(events, max_size=14))
def test_classes_keep_to_their_cpus_and_history_is_not_in_the_sets(story: list[object]) -> None:
    pods: list[Pod] = []
    rules = NodeRules()
    node = _node(pods, rules)
    for number, event in enumerate(story):
        match event:
            case Arrives():
                pods.append(_pod(number, event))
                node.observe(pods=pods)
            case Ends(which) if pods:
                ended = pods.pop(which % len(pods))
                node.observe(pods=pods, idle=frozenset({ended.cgroup_uid}))
            case Withholds(cpus):
                rules = NodeRules(Reservation(cpus))
                node.observe(rules=rules)
            case Restarts():
                node = _node(pods, rules, _recorded(node))
            case _:
                pass
        _check(node)
    again = _node(pods, rules, _recorded(node)).snapshot().resolution.view
    assert again.extents == node.snapshot().resolution.view.extents
    assert again.chosen == node.snapshot().resolution.view.chosen


def _recorded(node: Manager) -> State:
    chosen = node.snapshot().resolution.grants.chosen
    return State("koordinator", entries={uid: dict(grant.parts) for uid, grant in chosen.items()})
