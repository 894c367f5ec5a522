"""Best-effort pods under any load and beside any owners: who is touched, and how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import CPUManager, Suppression
from cpupool.core.cpu_time import CPUUse
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.core.orchestration import NodeRules, Orchestration, QoS, Reservation
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from cpupool.manager.manager import Manager
from cpupool.policies.view import BEST_EFFORT, DEFAULT
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Resolution

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()
OURS = CPUSet.parse("0-3,8-11,16-19,24-27")
RESERVED = CPUSet.parse("0,16")
FEWEST, GROWTH = 2, 2
"""A tenth of the 16 CPUs is 1.6."""


@dataclass(frozen=True)
class Owner:
    """A pod of a class that owns CPUs."""

    qos: QoS
    count: int


@dataclass(frozen=True)
class Ends:
    """One of the owners."""

    which: int


@dataclass(frozen=True)
class Works:
    """What the other pods, the best-effort pods and the system use, in milli-CPUs."""

    others: int
    best_effort: int = 0
    system: int = 0


@dataclass(frozen=True)
class Withholds:
    """An admin's reservation."""

    cpus: CPUSet


def pods_of(*owners: tuple[int, Owner]) -> list[Pod]:
    best_effort = replace(
        builders.pod("be", builders.container("main")),
        qos=QoSClass.BEST_EFFORT,
        orchestration=Orchestration(QoS.BE, prod=False),
    )
    burstable = replace(
        builders.pod("ls", builders.container("main-ls")),
        qos=QoSClass.BURSTABLE,
        orchestration=Orchestration(QoS.LS, prod=True),
    )
    made = [best_effort, burstable]
    for number, owner in owners:
        milli = owner.count * 1000
        container = replace(builders.container(f"own-{number}", cpu=milli), request_milli=milli)
        pod = builders.pod(f"owner-{number}", container)
        told = Orchestration(owner.qos, prod=True)
        made.append(replace(pod, qos=QoSClass.GUARANTEED, orchestration=told))
    return made


def node(suppression: Suppression) -> Manager:
    manager = CPUManager("koordinator", reserved=RESERVED, suppression=suppression)
    lines = (Pool.named("exclusive_a", "4-7"), Pool.named("default", str(OURS)))
    made = Manager()
    made.reconfigure(NodePools.of(*lines, cpu_manager=manager), MACHINE)
    made.observe(pods=pods_of())
    made.adopt(())
    return made


def measured(manager: Manager, load: Works) -> bool:
    by_cpu = {0: load.others + load.best_effort + load.system, 4: 1000}
    return manager.measure(CPUUse(by_cpu, {"ls-uid": load.others, "be-uid": load.best_effort}))


def whole(resolution: Resolution) -> CPUSet:
    """Return the CPUs that best-effort pods could have without a load."""
    view = resolution.view
    lent = CPUSet.union(
        grant.cpus for grant in view.chosen.values() if grant.sharing is Sharing.BEST_EFFORT
    )
    return (OURS - view.grants.cpus | lent) - view.rules.withheld


suppressions = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(
    lambda percents: Suppression(max(percents), min(percents))
)
loads = st.builds(Works, *(st.integers(0, 20_000) for _ in range(3)))
events = st.one_of(
    loads,
    st.builds(Owner, st.sampled_from((QoS.LSE, QoS.LSR)), st.integers(1, 6)),
    st.builds(Ends, st.integers(0, 9)),
    st.builds(Withholds, st.frozensets(st.sampled_from([*OURS]), max_size=6).map(CPUSet)),
)


@given(suppressions, st.lists(events, max_size=14))
def test_owners_pools_and_withheld_cpus_are_never_taken_and_the_floor_holds(
    suppression: Suppression, story: list[object]
) -> None:
    manager = node(suppression)
    owners: list[tuple[int, Owner]] = []
    for number, event in enumerate(story):
        before = len(manager.snapshot().resolution.view.extents[BEST_EFFORT])
        match event:
            case Works():
                measured(manager, event)
            case Owner():
                owners.append((number, event))
                manager.observe(pods=pods_of(*owners))
            case Ends(which) if owners:
                ended, _ = owners.pop(which % len(owners))
                idle = frozenset({f"owner-{ended}-uid"})
                manager.observe(pods=pods_of(*owners), idle=idle)
            case Withholds(cpus):
                manager.observe(rules=NodeRules(Reservation(cpus)))
            case _:
                pass
        resolution = manager.snapshot().resolution
        possible, has = whole(resolution), resolution.view.extents[BEST_EFFORT]
        assert has <= possible
        assert len(has) >= min(FEWEST, len(possible))
        if isinstance(event, Works):
            assert len(has) <= before + GROWTH
        if has < possible:
            first = RESERVED & possible - resolution.view.rules.withheld
            assert len(has & first) == min(len(has), len(first))
        for placed in resolution.containers.values():
            assert placed.assignment.cpus
            if placed.pod.name == "ls" and resolution.view.extents[DEFAULT] <= OURS:
                assert placed.assignment.cpus == resolution.view.extents[DEFAULT]


@given(suppressions, loads, loads)
def test_a_constant_load_is_decided_once(
    suppression: Suppression, before: Works, load: Works
) -> None:
    manager = node(suppression)
    measured(manager, before)
    while measured(manager, load):
        pass
    settled = manager.snapshot().resolution

    for _ in range(3):
        assert not measured(manager, load)

    assert manager.snapshot().resolution is settled


@given(st.integers(0, 12_000), st.lists(st.integers(0, 499), min_size=1, max_size=30))
def test_a_noise_of_less_than_half_a_cpu_does_not_move_the_set_to_and_fro(
    others: int, noise: list[int]
) -> None:
    manager = node(Suppression())
    while measured(manager, Works(others + noise[0])):
        pass
    sizes = []
    for more in noise:
        measured(manager, Works(others + more))
        sizes.append(len(manager.snapshot().resolution.view.extents[BEST_EFFORT]))

    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
