"""Laws of a pool's choice, on small machines of every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import SMTAlignmentError
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import Pool
from cpupool.policies.pools.preferred_cpus import prefer
from tests.machines import MACHINES, Machine
from tests.searching import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.topology import CPUInfo, CPUTopology
    from cpupool.policies.base import Choice

T = TypeVar("T")

FULL, SPREAD = CPUBindPolicy.FULL_PHYSICAL_CORES, CPUBindPolicy.SPREAD_ACROSS_CORES
NOT_DISTRIBUTED = [policy for policy in NUMAPolicy if policy is not NUMAPolicy.DISTRIBUTED]


def with_infos(topology: CPUTopology, change: Callable[[CPUInfo], CPUInfo]) -> CPUTopology:
    return replace(topology, cpus={cpu: change(info) for cpu, info in topology.cpus.items()})


def distant(topology: CPUTopology) -> CPUTopology:
    """Put the nodes in a row."""
    order = sorted(topology.nodes)
    rows = {one: tuple(10 + 5 * abs(one - other) for other in order) for one in order}
    return replace(topology, distances=rows)


EPYC, HYBRID = MACHINES["epyc_like"], MACHINES["hybrid"].topology()
SMALL = [
    *(
        machine.topology()
        for name, machine in sorted(MACHINES.items())
        if name not in ("single_cpu", "epyc_256")
    ),
    EPYC.having_lost(CPUSet.parse("3,8,32-34")),
    distant(EPYC.topology()),
    distant(Machine(sockets=2, nodes=4, cores=2, threads=2).topology()),
    # One cache for all nodes of a socket.
    with_infos(EPYC.topology(), lambda info: replace(info, l3=info.socket)),
    # Cores without a cache, and some without a node.
    with_infos(HYBRID, lambda info: replace(info, l3=info.l3 if info.cpu < 8 else None)),
    replace(
        with_infos(EPYC.topology(), lambda info: replace(info, node=info.node or None)),
        nodes={node: cpus for node, cpus in EPYC.topology().nodes.items() if node},
    ),
]


@dataclass(frozen=True)
class Request:
    """What is asked of a pool."""

    topology: CPUTopology
    pool: Pool
    free: CPUSet
    count: int
    required: CPUSet
    held: CPUSet

    def chosen(self) -> Choice:
        return prefer(
            self.pool,
            self.topology,
            self.free,
            self.count,
            required=self.required,
            held=self.held,
        )

    def by_node(self, cpus: CPUSet) -> Mapping[int | None, CPUSet]:
        """Group CPUs; those without a node are together."""
        nodes: dict[int | None, CPUSet] = {
            node: found & cpus for node, found in self.topology.nodes.items()
        }
        nodes[None] = cpus - CPUSet.union(nodes.values())
        return {node: members for node, members in nodes.items() if members}

    def per_core(self) -> int:
        return max(map(len, self.cores()))

    def cores(self) -> set[CPUSet]:
        """Return the pool's cores, as a machine without the offline CPUs has them."""
        online = self.pool.cpus & self.topology.online
        return {self.topology.running_core_of(cpu) & online for cpu in online}


@st.composite
def requests(
    draw: st.DrawFn,
    bind: st.SearchStrategy[CPUBindPolicy | None] = st.sampled_from([None, *CPUBindPolicy]),  # noqa: B008
    numa: st.SearchStrategy[NUMAPolicy] = st.sampled_from(NUMAPolicy),  # noqa: B008
    *,
    required: bool = True,
    exclusive: bool = False,
) -> Request:
    """Ask a pool of some of a machine's cores, or of one CPU of each, for what it has."""
    topology = draw(st.sampled_from(SMALL))
    policy = PoolPolicy(
        bind=draw(bind),
        numa=draw(numa),
        exclusive=draw(st.sampled_from(ExclusivePolicy)) if exclusive else ExclusivePolicy.NONE,
    )
    listed = draw(st.sets(st.sampled_from(topology.cores), min_size=1))
    cpus = CPUSet.union(topology.core_of(core.first) for core in listed)
    if policy.bind is None:
        cpus = CPUSet(core.first for core in listed)
    running = cpus & topology.online
    # Full cores are rare where each thread is free or not by itself.
    pieces = sorted(map(tuple, listed)) if draw(st.booleans()) else [(cpu,) for cpu in running]
    chosen = draw(st.sets(st.sampled_from(pieces), min_size=1))
    free = CPUSet.union(map(CPUSet, chosen)) & running
    count = draw(st.integers(1, len(free)))
    some = st.sets(st.sampled_from(list(free)), max_size=min(count, 3))
    must = CPUSet(draw(some)) if required else CPUSet()
    pool = replace(Pool.named("exclusive_a", str(cpus)), policy=policy)
    return Request(topology, pool, free, count, must, pool.cpus - free)


@given(requests(exclusive=True))
@examples(200)
def test_as_many_free_cpus_are_chosen_as_are_wanted_with_the_required_ones(
    request: Request,
) -> None:
    try:
        choice = request.chosen()
    except SMTAlignmentError:
        assert request.pool.policy.whole_cores
        return

    assert len(choice.cpus) == request.count
    assert request.required <= choice.cpus <= request.free
    assert choice.steps[-1].left == choice.cpus
    for earlier, later in zip(choice.steps, choice.steps[1:], strict=False):
        assert later.left <= earlier.left


@given(requests(exclusive=True))
@examples(100)
def test_the_order_of_a_machines_cpus_changes_nothing(request: Request) -> None:
    def backwards(mapping: Mapping[int, T]) -> dict[int, T]:
        return {key: mapping[key] for key in reversed(list(mapping))}

    machine = request.topology
    mirrored = replace(
        machine,
        cpus=backwards(machine.cpus),
        nodes=backwards(machine.nodes),
        distances=backwards(machine.distances),
        offline=backwards(machine.offline),
    )

    def answer(topology: CPUTopology) -> Choice | str:
        try:
            return replace(request, topology=topology).chosen()
        except SMTAlignmentError as error:
            return str(error)

    assert answer(machine) == answer(machine) == answer(mirrored)


@given(requests(st.just(FULL), required=False))
@examples(150)
def test_promised_cores_are_whole(request: Request) -> None:
    per_core = request.per_core()
    whole = [core for core in request.cores() if core <= request.free and len(core) == per_core]
    if request.count % per_core or request.count > per_core * len(whole):
        with pytest.raises(SMTAlignmentError):
            request.chosen()
        return

    chosen = request.chosen().cpus

    assert request.topology.with_running_siblings(chosen) == chosen


@given(requests(numa=st.sampled_from(NOT_DISTRIBUTED)))
@examples(200)
def test_no_choice_has_more_numa_nodes_than_it_needs(request: Request) -> None:
    try:
        chosen = request.chosen().cpus
    except SMTAlignmentError:
        return

    usable = request.free
    if request.pool.policy.whole_cores:
        cores = {request.topology.core_of(cpu) for cpu in usable}
        whole = [core for core in cores if core <= usable and len(core) == request.per_core()]
        usable = CPUSet.union(whole) | request.required
    nodes = request.by_node(usable).values()
    fewer = (
        some
        for some in combinations(nodes, len(request.by_node(chosen)) - 1)
        if request.required <= (held := CPUSet.union(some)) and len(held) >= request.count
    )
    assert next(fewer, None) is None


@given(requests(numa=st.just(NUMAPolicy.DISTRIBUTED), bind=st.sampled_from([None, FULL])))
@examples(200)
def test_distributed_cpus_are_even_over_the_fewest_nodes_that_can_share_them(
    request: Request,
) -> None:
    usable, group, required = request.free, 1, request.required
    if request.pool.policy.whole_cores:
        group = request.per_core()
        cores = {request.topology.core_of(cpu) for cpu in usable}
        whole = [core for core in cores if core <= usable and len(core) == group]
        usable = CPUSet.union(whole)
        required = CPUSet.union(core for core in whole if core <= required)
    try:
        chosen = replace(request, required=required).chosen().cpus
    except SMTAlignmentError:
        return
    nodes = request.by_node(usable)
    given_ = {node: len(cpus & required) for node, cpus in nodes.items()}

    def can_share(some: tuple[int | None, ...]) -> bool:
        even, rest = divmod(request.count // group, len(some))
        room = sum(len(nodes[node]) >= (even + 1) * group for node in some)
        eager = sum(given_[node] > even * group for node in some)
        return (
            all(len(nodes[node]) >= even * group for node in some)
            and all(given_[node] <= (even + 1) * group for node in some)
            and not any(has for node, has in given_.items() if node not in some)
            and eager <= rest <= room
        )

    sizes = range(1, min(len(nodes), request.count // group) + 1)
    possible = next(
        (size for size in sizes if any(map(can_share, combinations(nodes, size)))), None
    )
    if possible is not None:
        shares = [len(cpus) for cpus in request.by_node(chosen).values()]
        # As in the kubelet, one node may give several groups of what does not divide: fewer do.
        assert len(shares) <= possible
        assert min(shares) >= request.count // group // len(shares) * group
        if required:
            assert max(shares) - min(shares) <= group


@given(requests(st.just(SPREAD), st.sampled_from(NOT_DISTRIBUTED)))
@examples(200)
def test_no_core_gives_a_thread_while_one_with_fewer_could(request: Request) -> None:
    choice = request.chosen()

    def used(cpu: int) -> int:
        return len(request.topology.core_of(cpu) & choice.cpus)

    unused = choice.steps[-2].left - choice.cpus
    most = max(map(used, choice.cpus - request.required), default=0)
    assert all(used(cpu) >= most - 1 for cpu in unused)


@given(
    requests(
        st.sampled_from([None, FULL]),
        st.sampled_from([NUMAPolicy.MOST_ALLOCATED, NUMAPolicy.LEAST_ALLOCATED]),
        required=False,
    )
)
@examples(200)
def test_one_node_after_the_other_is_used_up(request: Request) -> None:
    try:
        choice = request.chosen()
    except SMTAlignmentError:
        return

    left = request.by_node(choice.steps[-2].left)
    split = [node for node, cpus in left.items() if not cpus <= choice.cpus]
    free = {node: len(cpus) for node, cpus in request.by_node(request.free).items()}
    assert len(split) <= 1
    for node in split:
        if request.pool.policy.numa is NUMAPolicy.MOST_ALLOCATED:
            assert free[node] == max(free[other] for other in left)
        else:
            assert free[node] == min(free[other] for other in left)
