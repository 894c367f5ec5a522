"""Laws of the simulated node, whatever comes and goes."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import advertised
from cpupool.core.errors import PodRefused
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool, PoolKind
from cpupool.core.requests import Resource
from cpupool.core.workloads import Container, ContainerKind
from cpupool.local import devices
from cpupool.policies.pools import preferred_cpus
from cpupool.simulate import simulation, workload
from cpupool.simulate.node import SimulatedNode
from tests import builders
from tests.machines import MACHINES
from tests.searching import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.policies.base import Choice
    from cpupool.simulate.node import Chooser
    from cpupool.simulate.workload import Event

TOPOLOGIES = {
    name: MACHINES[name].topology() for name in ("telco_2s_2n_16c32t", "sparse_nodes", "epyc_like")
}


def first_threads(topology: CPUTopology) -> NodePools:
    """Give pools of one CPU per core, and one that is shared."""
    shared, *cores = topology.cores
    odd = CPUSet(core.first for core in cores[::2])
    even = CPUSet(core.first for core in cores[1::2])
    return NodePools.of(
        Pool.named("exclusive_a", str(odd)),
        Pool.named("exclusive_b", str(even), multi_threaded=True),
        Pool.named("shared_c", str(shared)),
    )


def whole_cores(topology: CPUTopology) -> NodePools:
    """Give a pool that promises whole cores."""
    cpus = CPUSet.union(topology.cores[1:])
    policy = PoolPolicy(bind=CPUBindPolicy.FULL_PHYSICAL_CORES)
    return NodePools.of(Pool("exclusive_a", PoolKind.EXCLUSIVE, cpus, policy=policy))


requests = st.dictionaries(
    st.sampled_from(["exclusive_a", "exclusive_b", "shared_c"]),
    st.integers(1, 6),
    max_size=2,
)


@st.composite
def pods(draw: st.DrawFn) -> list[Container]:
    kinds = draw(st.lists(st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR]), max_size=3))
    kinds += [ContainerKind.APP] * draw(st.integers(1, 2))
    return [
        Container(f"c{i}", kind, builders.asking(draw(requests))) for i, kind in enumerate(kinds)
    ]


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Give pods that come, and go in any order."""
    events: list[Event] = []
    running: list[Pod] = []
    for number, containers in enumerate(draw(st.lists(pods(), min_size=1, max_size=12))):
        for _ in range(draw(st.integers(0, len(running)))):
            ending = running.pop(draw(st.integers(0, len(running) - 1)))
            events.append(workload.Event(number, ending, ends=True))
        running.append(workload.pod_of(f"ns/pod-{number}", containers))
        events.append(workload.Event(number, running[-1]))
    return events


machines = st.sampled_from(sorted(TOPOLOGIES)).map(TOPOLOGIES.__getitem__)
choosers = st.sampled_from([preferred_cpus.prefer, simulation.first_fit, simulation.kubelet_packed])
managers = st.sampled_from(TopologyPolicy)


def exclusive_cpus_of(node: SimulatedNode) -> dict[tuple[str, str], CPUSet]:
    """Give what each container has of exclusive pools, siblings included."""
    found: dict[tuple[str, str], CPUSet] = {}
    for one in node.placements():
        if one.pool.startswith("exclusive"):
            pod, _, container = one.container.rpartition("/")
            found[pod, container] = found.get((pod, container), CPUSet()) | one.cpus
    return found


@examples(60)
@given(machines, traces(), choosers, managers)
def test_no_two_owners_share_a_cpu_and_everything_is_given_back(
    topology: CPUTopology, events: Sequence[Event], chooser: Chooser, manager: TopologyPolicy
) -> None:
    node = SimulatedNode(topology, first_threads(topology), chooser, manager)
    running: dict[str, Pod] = {}
    for event in events:
        if event.ends:
            node.end(event.pod, event.at_s)
            running.pop(event.pod.uid, None)
            continue
        try:
            node.admit(event.pod, event.at_s)
            running[event.pod.uid] = event.pod
        except PodRefused:
            continue
        held = exclusive_cpus_of(node)
        # Plain init containers are over when the others start, so these may have their CPUs.
        over = {
            (uid, one.name)
            for uid, pod in running.items()
            for one in pod.containers
            if one.kind is ContainerKind.INIT
        }
        for (one, cpus), (other, others) in combinations(held.items(), 2):
            if one[0] != other[0] or (one not in over and other not in over):
                assert cpus.isdisjoint(others), (one, other)
    for pod in running.values():
        node.end(pod, 0)
    assert node.moment(0).utilisation == 0
    assert node.moment(0).on_one_node is None
    everything = {
        one.name: workload.capacity_of(one, topology) for one in advertised(first_threads(topology))
    }
    if manager is TopologyPolicy.NONE:
        node.admit(workload.pod_of("ns/all", [Container("c", requests=everything)]), 0)


@examples(60)
@given(machines, traces(), choosers)
def test_pods_are_refused_exactly_when_the_counts_say_so(
    topology: CPUTopology, events: Sequence[Event], chooser: Chooser
) -> None:
    node_pools = first_threads(topology)
    capacity = {one.name: workload.capacity_of(one, topology) for one in advertised(node_pools)}
    node = SimulatedNode(topology, node_pools, chooser, TopologyPolicy.NONE)
    running: dict[str, Counter[Resource]] = {}
    for event in events:
        if event.ends:
            node.end(event.pod, event.at_s)
            running.pop(event.pod.uid, None)
            continue
        wanted = devices.total_requests(event.pod)
        used = sum(running.values(), Counter[Resource]())
        fits = all(used[pool] + count <= capacity[pool] for pool, count in wanted.items())
        try:
            node.admit(event.pod, event.at_s)
            admitted = True
            running[event.pod.uid] = wanted
        except PodRefused:
            admitted = False
        assert admitted is fits


@examples(40)
@given(machines, st.lists(st.integers(1, 8), min_size=1, max_size=20))
def test_a_pool_of_whole_cores_gives_whole_cores_or_says_why_not(
    topology: CPUTopology, sizes: Sequence[int]
) -> None:
    node = SimulatedNode(
        topology, whole_cores(topology), preferred_cpus.prefer, TopologyPolicy.NONE
    )
    (pool,) = whole_cores(topology)
    per_core = max(map(len, topology.cores))
    left = len(pool.cpus)
    for number, size in enumerate(sizes):
        pod = workload.pod_of(
            f"ns/pod-{number}", [Container("c", requests=builders.asking({pool.name: size}))]
        )
        try:
            (placement,) = node.admit(pod, 0).placements
        except PodRefused:
            assert size > left or size % per_core
        else:
            assert len(placement.cpus) == size
            assert topology.with_siblings(placement.cpus) == placement.cpus
            left -= size


@examples(40)
@given(machines, traces())
def test_the_pools_own_policy_never_takes_more_numa_nodes_than_it_must(
    topology: CPUTopology, events: Sequence[Event]
) -> None:
    def checked(
        pool: Pool,
        topology: CPUTopology,
        free: CPUSet,
        count: int,
        *,
        required: CPUSet | None = None,
        held: CPUSet | None = None,
    ) -> Choice:
        choice = preferred_cpus.prefer(pool, topology, free, count, required=required, held=held)
        used = {topology.node_of(cpu) for cpu in choice.cpus}
        nodes = [cpus & (free | (required or CPUSet())) for cpus in topology.nodes.values()]
        fewest = next(
            size
            for size in range(1, len(nodes) + 1)
            for several in combinations(nodes, size)
            if len(together := CPUSet.union(several)) >= count
            and (required or CPUSet()) <= together
        )
        assert len(used) == fewest
        return choice

    simulation.run(topology, first_threads(topology), checked, events)


@examples(30)
@given(machines, st.integers(0, 2**32), st.integers(1, 60), st.floats(0.1, 2), managers)
def test_the_same_seed_makes_the_same_run_and_a_written_trace_reads_back(
    topology: CPUTopology, seed: int, count: int, load: float, manager: TopologyPolicy
) -> None:
    node_pools = first_threads(topology)
    events = tuple(workload.made_up(topology, node_pools, count, seed=seed, load=load))
    again = workload.made_up(topology, node_pools, count, seed=seed, load=load)
    read = workload.read("trace.jsonl", workload.write(again))

    assert read == events
    names = (simulation.POOL, simulation.FIRST_FIT)
    once = simulation.compare(topology, node_pools, events, names, manager=manager)
    assert once == simulation.compare(topology, node_pools, read, names, manager=manager)
    for outcome in once.values():
        assert outcome.summary.admitted + outcome.summary.refused == count
        assert 0 <= outcome.summary.utilisation <= 1
