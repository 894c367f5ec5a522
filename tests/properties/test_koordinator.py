"""Koordinator's classes in any order of pods: who may run where, and nothing is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.assignments import Placement
from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.core.orchestration import BindPolicy, NodeRules, Orchestration, QoS, Reservation
from cpupool.core.pool_policy import NUMAPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from cpupool.manager.manager import Manager
from cpupool.policies.view import BEST_EFFORT, DEFAULT
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.workloads import Container, Pod
    from cpupool.policies.view import NodeView

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()
OURS = CPUSet.parse("0-3,8-11,16-19,24-27")
RESERVED = CPUSet.parse("0,16")
MORE = OURS | CPUSet.parse("12,28")
CLASSES = (QoS.LSE, QoS.LSR, QoS.LS, QoS.BE, None)


@dataclass(frozen=True)
class Arrives:
    """A pod: its class, how many CPUs it requests, and what its annotations say.

    Attributes:
        qos: its class.
        count: how many CPUs its containers request.
        assigned: the CPUs that a scheduler has assigned.
        bind: its bind policy.
        required: whether it requires the bind policy.
        split: whether each of its containers has a part of its CPUs.
    """

    qos: QoS | None
    count: tuple[int, ...]
    assigned: CPUSet
    bind: BindPolicy | None
    required: bool
    split: bool


@dataclass(frozen=True)
class Ends:
    """One of the pods."""

    which: int


@dataclass(frozen=True)
class Restarts:
    """The agent, with its record."""


@dataclass(frozen=True)
class Labels:
    """An admin's labels and annotations of the node."""

    rules: NodeRules


@dataclass(frozen=True)
class Edits:
    """An admin's edit of the pool file."""

    default: CPUSet


cpu_sets = st.frozensets(st.integers(0, 31), max_size=6).map(CPUSet)
arrivals = st.builds(
    Arrives,
    st.sampled_from(CLASSES),
    st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
    st.one_of(st.just(CPUSet()), cpu_sets),
    st.sampled_from([None, *BindPolicy]),
    st.booleans(),
    st.booleans(),
)
events = st.one_of(
    arrivals,
    st.builds(Ends, st.integers(0, 20)),
    st.builds(Restarts),
    st.builds(
        Labels,
        st.builds(
            NodeRules,
            st.frozensets(st.sampled_from([*OURS]), max_size=4).map(CPUSet).map(Reservation),
            bind=st.sampled_from([None, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS]),
            full_cores_only=st.booleans(),
            strategy=st.sampled_from([None, *NUMAPolicy]),
            arm=st.booleans(),
        ),
    ),
    st.builds(Edits, st.sampled_from([OURS, OURS - CPUSet.parse("3,19"), MORE])),
)


def pool_file(default: CPUSet) -> NodePools:
    return NodePools.of(
        Pool.named("exclusive_a", "4-7"),
        Pool.named("default", str(default)),
        cpu_manager=CPUManager("koordinator", reserved=RESERVED),
    )


def arriving(number: int, arrives: Arrives) -> Pod:
    containers = (
        replace(
            builders.container(f"main-{number}-{index}", cpu=count * 1000 or None),
            request_milli=count * 1000,
        )
        for index, count in enumerate(arrives.count)
    )
    best_effort = arrives.qos is QoS.BE
    return replace(
        builders.pod(f"pod-{number}", *containers, cpu=sum(arrives.count) * 1000 or None),
        qos=QoSClass.BEST_EFFORT if best_effort else QoSClass.GUARANTEED,
        created=f"2026-01-01T00:{number:02}:00Z",
        orchestration=Orchestration(
            arrives.qos,
            prod=True,
            cpus=arrives.assigned,
            bind=arrives.bind,
            required=arrives.required and arrives.bind is not None,
            split=arrives.split,
        ),
    )


@dataclass(frozen=True)
class Settings:
    """What an admin says."""

    default: CPUSet = OURS
    rules: NodeRules = field(default_factory=NodeRules)


def _node(pods: list[Pod], settings: Settings, before: Manager | None = None) -> Manager:
    """Start an agent, with what an earlier one has left."""
    node = Manager()
    node.reconfigure(pool_file(settings.default), MACHINE)
    node.observe(pods=pods, rules=settings.rules)
    node.adopt(_sharing(before) if before else (), _recorded(before) if before else None)
    return node


def _check(node: Manager, settings: Settings) -> None:
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
    # `Grants` refuses a CPU with two owners; no owner has a reserved CPU or a pool's. A pod keeps
    # CPUs that the default pool has lost.
    assert own <= MORE - RESERVED
    assert shared.isdisjoint(own)
    assert best_effort.isdisjoint(by_sharing[Sharing.NONE])
    assert shared
    assert best_effort
    assert shared <= settings.default
    withheld = view.rules.withheld
    if settings.default - own - withheld:
        assert shared | own | withheld >= settings.default
        assert shared.isdisjoint(withheld)
    for placed in resolution.containers.values():
        cpus, chosen = placed.assignment.cpus, view.chosen.get(placed.pod.cgroup_uid)
        assert cpus
        if chosen:
            assert len(chosen.cpus) == placed.pod.whole_cpus
            _check_part(placed.pod, placed.container, cpus, chosen.cpus)
        else:
            assert cpus.isdisjoint(by_sharing[Sharing.NONE])
            if placed.pod.qos is not QoSClass.BEST_EFFORT:
                assert cpus.isdisjoint(own)
                _check_home(view, placed.pod, placed.assignment)


def _check_part(pod: Pod, container: Container, cpus: CPUSet, of_pod: CPUSet) -> None:
    """Check the CPUs of a container whose pod owns some."""
    told = pod.orchestration
    assert told
    if told.split and container.request_milli:
        assert len(cpus) * 1000 == container.request_milli
        assert cpus <= of_pod
    else:
        assert cpus == of_pod
    if told.cpus:
        assert of_pod == told.cpus
    elif told.required:
        cores = {MACHINE.core_of(cpu) for cpu in of_pod}
        full = told.bind is BindPolicy.FULL_PCPUS
        assert len(cores) * (2 if full else 1) == len(of_pod)


def _check_home(view: NodeView, pod: Pod, assignment: CPUAssignment) -> None:
    """Check the CPUs of a pod that shares."""
    home = view.homes.get(pod.cgroup_uid)
    if home is None:
        bursts = pod.orchestration and pod.orchestration.bursts
        confined = assignment.placement is Placement.CONFINED
        assert assignment.cpus == view.extents[DEFAULT]
        assert bool(assignment.reason) is (confined or bool(bursts))
    else:
        assert assignment.cpus == view.extents[DEFAULT] & MACHINE.nodes[home]
        assert len(assignment.cpus) * 1000 >= (pod.limit_milli or 0)


@given(st.lists(events, max_size=14))
def test_classes_keep_to_their_cpus_and_history_is_not_in_the_sets(story: list[object]) -> None:
    pods: list[Pod] = []
    settings = Settings()
    node = _node(pods, settings)
    for number, event in enumerate(story):
        parts, homes = _parts(node), _homes(node)
        match event:
            case Arrives():
                pods.append(arriving(number, event))
                node.observe(pods=pods)
            case Ends(which) if pods:
                ended = pods.pop(which % len(pods))
                node.observe(pods=pods, idle=frozenset({ended.cgroup_uid}))
            case Labels(rules):
                settings = replace(settings, rules=rules)
                node.observe(rules=rules)
            case Edits(default):
                settings = replace(settings, default=default)
                node.reconfigure(pool_file(default), MACHINE)
            case Restarts():
                node = _node(pods, settings, node)
            case _:
                pass
        _check(node, settings)
        _check_kept(node, parts, homes)
    again = _node(pods, settings, node).snapshot().resolution.view
    seen = node.snapshot().resolution.view
    assert (again.extents, again.chosen, again.homes) == (seen.extents, seen.chosen, seen.homes)


def _check_kept(
    node: Manager, parts: Mapping[str, Mapping[str, CPUSet]], homes: Mapping[str, int]
) -> None:
    """Check that an owner keeps its CPUs, and another pod its NUMA node while that suffices."""
    view = node.snapshot().resolution.view
    pods = {pod.cgroup_uid: pod for pod in view.pods}
    assert {uid: has for uid, has in parts.items() if uid in pods}.items() <= _parts(node).items()
    for uid, home in homes.items():
        if uid in pods and not _parts(node).get(uid):
            left = view.extents[DEFAULT] & MACHINE.nodes[home]
            suffices = len(left) * 1000 >= (pods[uid].limit_milli or 0)
            assert (view.homes.get(uid) == home) is suffices


def _parts(node: Manager) -> Mapping[str, Mapping[str, CPUSet]]:
    chosen = node.snapshot().resolution.view.chosen
    return {uid: dict(grant.parts) for uid, grant in chosen.items()}


def _homes(node: Manager) -> Mapping[str, int]:
    return node.snapshot().resolution.view.homes


def _recorded(node: Manager) -> State:
    return State("koordinator", entries=_parts(node))


def _sharing(node: Manager) -> list[FoundContainer]:
    """Return the containers that own no CPUs, on their CPUs."""
    resolution = node.snapshot().resolution
    return [
        FoundContainer(uid, identifier, f"kubepods/{uid}/{identifier}", str(placed.assignment.cpus))
        for (uid, identifier), placed in resolution.containers.items()
        if uid not in resolution.view.chosen
    ]
