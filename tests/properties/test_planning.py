"""A pod owns as many CPUs as it uses at one time, whatever init containers and sidecars it has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import CPUManager, Scope, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools
from cpupool.core.workloads import ContainerKind
from cpupool.manager import choosing
from cpupool.manager.choosing import Choices
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import Machine
from tests.searching import examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, Pod

MACHINES = [
    machine.topology()
    for machine in (
        Machine(cores=4, threads=2),
        Machine(sockets=2, cores=8),
        Machine(sockets=2, l3=2, cores=2, threads=2),
        Machine(sockets=2, nodes=2, cores=3, threads=2, adjacent=True),
    )
]
POLICIES = (
    TopologyPolicy.NONE,
    TopologyPolicy.BEST_EFFORT,
    TopologyPolicy.RESTRICTED,
    TopologyPolicy.SINGLE_NUMA_NODE,
)
KINDS = (ContainerKind.INIT, ContainerKind.SIDECAR)


@dataclass(frozen=True)
class Node:
    """A machine and what its pool file says."""

    topology: CPUTopology = field(repr=False)
    configured: CPUManager


@st.composite
def nodes(draw: st.DrawFn, *policies: TopologyPolicy) -> Node:
    topology = draw(st.sampled_from(MACHINES))
    policy = draw(st.sampled_from(policies))
    options = draw(
        st.builds(StaticOptions, *[st.booleans()] * 6).filter(
            lambda options: not list(options.contradictions(policy))
        )
    )
    scope = draw(st.sampled_from(Scope))
    reserved = CPUSet(draw(st.sets(st.sampled_from(list(topology.online)), min_size=1, max_size=3)))
    if options.full_pcpus_only:
        # With others the kubelet distributes parts of cores over NUMA nodes.
        reserved = topology.with_siblings(reserved)
    configured = CPUManager(
        "static", reserved, options, topology_policy=policy, topology_scope=scope
    )
    return Node(topology, configured)


@st.composite
def containers(draw: st.DrawFn) -> list[Container]:
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=4))
    kinds += [ContainerKind.APP] * draw(st.integers(1, 3))
    counts = draw(st.sampled_from([st.integers(0, 5), st.sampled_from([0, 2, 4])]))
    return [
        builders.container(f"c{number}", kind, cpu=1000 * draw(counts) or 500)
        for number, kind in enumerate(kinds)
    ]


pods = st.lists(containers(), min_size=1, max_size=4).map(
    lambda found: [
        replace(builders.pod(f"pod-{number}", *each), created=str(number))
        for number, each in enumerate(found)
    ]
)


def moments(pod: Pod) -> Iterator[list[Container]]:
    """Yield the containers that run at one time, from the start of a pod to its end."""
    lasting: list[Container] = []
    for container in pod.containers:
        if container.kind is ContainerKind.INIT:
            yield [*lasting, container]
        else:
            lasting.append(container)
    yield lasting


def most(pod: Pod) -> int:
    return max(sum(one.whole_cpus for one in moment) for moment in moments(pod))


def parts(manager: Manager, pod: Pod) -> Mapping[str, CPUSet]:
    return manager.snapshot().resolution.grants.parts(pod.cgroup_uid, POLICY_CPUS)


def started(node: Node, of: list[Pod], entries: Mapping[str, Mapping[str, CPUSet]]) -> Manager:
    """Start an agent with the record of an earlier one."""
    manager = Manager()
    manager.reconfigure(NodePools.of(cpu_manager=node.configured), node.topology)
    observe(manager, of)
    manager.adopt((), State("static", entries=entries))
    return manager


def observe(manager: Manager, of: list[Pod]) -> None:
    """Observe pods without devices."""
    manager.observe(pods=of, device_nodes={pod.cgroup_uid: {} for pod in of})


def fits(node: Node, pod: Pod, free: CPUSet) -> bool:
    """Return whether free CPUs serve a pod, and leave one to share."""
    options, cores = node.configured.options, node.topology.cores
    if options.strict_cpu_reservation and most(pod) == len(free):
        return False
    if not options.full_pcpus_only:
        return most(pod) <= len(free)
    threads = max(map(len, cores))
    whole = CPUSet.union(core for core in cores if core <= free)
    return most(pod) <= len(whole) and all(one.whole_cpus % threads == 0 for one in pod.containers)


def without_init_containers(manager: Manager, pod: Pod) -> Mapping[str, CPUSet]:
    """Return what a pod would have without its init containers."""
    facts, resolution = manager.snapshot()
    lasting = tuple(one for one in pod.containers if one.kind is not ContainerKind.INIT)
    twin = replace(pod, containers=lasting)
    facts = replace(facts, device_nodes={pod.cgroup_uid: {}})
    made = choosing.choose(facts, (twin,), Choices(resolution.grants))
    return made.grants.parts(pod.cgroup_uid, POLICY_CPUS)


@examples(300)
@given(nodes(*POLICIES), pods)
def test_a_pod_owns_what_it_uses_at_one_time(node: Node, of: list[Pod]) -> None:
    manager = started(node, [], {})
    unaligned = node.configured.topology_policy is TopologyPolicy.NONE
    for number, pod in enumerate(of):
        facts, resolution = manager.snapshot()
        free = facts.policy.available(resolution.view)
        bare = without_init_containers(manager, pod)
        observe(manager, of[: number + 1])
        has = parts(manager, pod)
        if has:
            assert {name: len(cpus) for name, cpus in has.items()} == {
                one.name: one.whole_cpus for one in pod.containers if one.whole_cpus
            }
        for moment in moments(pod) if has else ():
            used = [has[one.name] for one in moment if one.whole_cpus]
            assert sum(map(len, used)) == len(CPUSet.union(used))
        size = len(CPUSet.union(has.values()))
        roomy = any(len(free & cpus) >= most(pod) for cpus in node.topology.nodes.values())
        if has and (unaligned or node.configured.topology_scope is Scope.POD or roomy):
            assert size == most(pod)
        if node.configured.topology_policy is TopologyPolicy.SINGLE_NUMA_NODE:
            by_node = node.topology.nodes.values()
            assert all(any(own <= cpus for cpus in by_node) for own in has.values())
        if node.configured.options.full_pcpus_only:
            assert all(node.topology.with_siblings(own) == own for own in has.values())
        if has and unaligned:
            assert bare.items() <= has.items()
        if unaligned and most(pod):
            assert bool(has) == fits(node, pod, free)

    had = {pod.cgroup_uid: parts(manager, pod) for pod in of}
    again = started(node, of, had)
    assert {pod.cgroup_uid: parts(again, pod) for pod in of} == had


@examples(100)
@given(nodes(TopologyPolicy.NONE), containers(), st.data())
def test_an_agent_that_finds_half_of_a_pod_plans_the_rest(
    node: Node, of: list[Container], data: st.DataObject
) -> None:
    pod = builders.pod("pod", *of)
    whole = parts(started(node, [pod], {}), pod)
    found = data.draw(st.sampled_from(list(moments(pod))))
    runs = {one.name: whole[one.name] for one in found if one.name in whole}
    has = parts(started(node, [pod], {pod.cgroup_uid: runs}), pod)
    assert runs.items() <= has.items()
    if whole:
        assert len(CPUSet.union(has.values())) <= most(pod)
