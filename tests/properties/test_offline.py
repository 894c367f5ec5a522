"""A machine with CPUs offline answers as the same machine without them, whenever they went off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cpupool.config.kubelet_settings import KubeletNeeds
from cpupool.core.cpu_manager import CPUManager, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.names import POLICY_CPUS
from cpupool.core.node_topology import KubeletAmounts
from cpupool.core.orchestration import Orchestration, QoS
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import QoSClass
from cpupool.host.sysfs import RecordedTree, Sysfs
from cpupool.manager import zones
from cpupool.manager.manager import Manager
from cpupool.manager.report import describe
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.built_in import assignable
from tests import builders
from tests.drawn_machines import machines
from tests.machines import Machine
from tests.searching import examples

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod

CPU = "devices/system/cpu"
TWO_SOCKETS = Machine(sockets=2, cores=4, threads=2)
SMT = Machine(cores=8, threads=2)
HYBRID = Machine(cores=4, threads=2, adjacent=True, efficiency_cores=4)


@dataclass(frozen=True)
class Story:
    """A node and its pods.

    Attributes:
        machine: with every CPU online.
        off: the CPUs that are offline.
        pools: the pool file.
        asks: how many CPUs each pod requests; None for a pod that owns none.
    """

    machine: Machine
    off: CPUSet
    pools: NodePools
    asks: tuple[int | None, ...]

    @property
    def online(self) -> CPUSet:
        return self.machine.topology().online - self.off

    @property
    def there(self) -> NodePools:
        """The pool file for a machine without the CPUs."""
        cut = [replace(pool, cpus=pool.cpus - self.off) for pool in self.pools]
        manager = self.pools.cpu_manager
        if isinstance(manager.reserved, CPUSet):
            manager = replace(manager, reserved=manager.reserved - self.off)
        return replace(self.pools, pools=tuple(cut), cpu_manager=manager)

    def from_the_start(self) -> CPUTopology:
        return self.machine.without(str(self.off)).topology()

    def without_them(self) -> CPUTopology:
        """Read the machine that does not have the CPUs."""
        files = {
            path: text
            for path, text in self.machine.files(self.off).items()
            if not any(path.startswith(f"{CPU}/cpu{cpu}/") for cpu in self.off)
        }
        files |= {f"{CPU}/{name}": str(self.online) for name in ("present", "possible", "online")}
        return Sysfs(RecordedTree("synthesised", files)).topology()

    def pods(self) -> list[Pod]:
        found = []
        for number, count in enumerate(self.asks):
            container = replace(
                builders.container(f"main-{number}", cpu=1000 * count if count else None),
                request_milli=1000 * (count or 0),
            )
            pod = builders.pod(f"pod-{number}", container)
            qos = QoS.LSR if count else QoS.LS
            found.append(
                replace(
                    pod,
                    qos=QoSClass.GUARANTEED if count else QoSClass.BURSTABLE,
                    created=f"2026-01-01T00:00:{number:02}Z",
                    orchestration=Orchestration(qos, prod=True),
                )
            )
        return found


options = st.builds(
    StaticOptions, *[st.sampled_from((False, False, True))] * len(StaticOptions.names())
)
few = st.sampled_from([CPUSet.parse_or_empty(cpus) for cpus in ("", "0", "8-9", "1-3", "8-15")])


@st.composite
def offline(draw: st.DrawFn, machine: Machine) -> CPUSet:
    """Draw CPUs as they go off: some, all from one on, or each core's last threads."""
    topology = machine.topology()
    every, threads = list(topology.online), draw(st.integers(1, 3))
    kept = CPUSet(cpu for core in topology.cores for cpu in list(core)[:threads])
    off = draw(
        st.sets(st.sampled_from(every), min_size=1).map(CPUSet)
        | st.integers(1, len(every) - 1).map(lambda first: CPUSet(every[first:]))
        | st.just(topology.online - kept)
    )
    # The kernel keeps a CPU.
    return off if off < topology.online else off - CPUSet.of(every[0])


@st.composite
def stories(draw: st.DrawFn) -> Story:
    machine = draw(machines())
    every = machine.topology().online
    off = draw(offline(machine))
    cores = sorted({machine.topology().core_of(cpu) for cpu in every}, key=lambda core: core.first)
    room = st.lists(st.sampled_from(("", "whole", "single", "shared")), max_size=len(cores) // 3)
    kinds = draw(room)
    lines = []
    for number, kind in enumerate(kinds):
        ours = cores[-2 * number - 2 :][:2]
        listed = CPUSet.union(ours) if kind == "whole" else CPUSet(core.first for core in ours)
        # A pool has a CPU on both machines.
        if kind and not (listed <= off):
            name = f"{'shared' if kind == 'shared' else 'exclusive'}_{number}"
            policy = PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES if kind == "whole" else None)
            lines.append(replace(Pool.named(name, str(listed)), policy=policy))
    default = every - CPUSet.union(pool.cpus for pool in lines)
    topology_policy = draw(st.sampled_from(TopologyPolicy))
    manager = CPUManager(
        draw(st.sampled_from((*["static"] * 4, "koordinator", "koordinator", "qrm", "none"))),
        draw(st.integers(1, 4) | st.sets(st.sampled_from(list(default)), max_size=3).map(CPUSet)),
        draw(options.filter(lambda one: not list(one.contradictions(topology_policy)))),
        topology_policy,
    )
    asks = draw(st.lists(st.integers(1, 6) | st.none(), min_size=1, max_size=4).map(tuple))
    return Story(machine, off, NodePools.of(*lines, cpu_manager=manager), asks)


def answers(node: Manager, online: CPUSet) -> dict[str, object]:
    """Return what a node says of numbers, and of the CPUs behind them."""
    facts, resolution = node.snapshot()
    view = resolution.view
    free = facts.policy.available(view)
    kubelet = KubeletAmounts({}, CPUSet())
    status = describe(facts, resolution, ())
    return {
        "owners": {uid: grant.parts for uid, grant in view.chosen.items()},
        "refused": {uid: refusal.error.as_kubelet for uid, refusal in view.refused.items()},
        "available": free,
        "extents": {name: cpus & online for name, cpus in view.extents.items()},
        "hints": [
            facts.policy.hints(ChoiceRequest(POLICY_CPUS, count, free)) for count in range(1, 9)
        ],
        "zones": zones.zones(facts, resolution, node.names, {}, kubelet),
        "reserved": status.reserved,
        "offered": {pool.name: status.offered(pool) for pool in facts.pools},
        "devices": {
            resource.name: [
                each
                for each in node.devices(resource.name).offer
                # For its hints the kubelet counts unhealthy devices that have a node.
                if each.healthy or each.node is not None
            ]
            for resource in node.advertised()
            # A shared pool keeps its devices, so that pods keep theirs.
            if resource.name.kind.exclusive
        },
    }


def started(pools: NodePools, topology: CPUTopology) -> Manager:
    node = Manager()
    node.reconfigure(pools, topology)
    node.adopt(())
    return node


def needs(pools: NodePools, topology: CPUTopology) -> KubeletNeeds:
    return KubeletNeeds.of(pools, topology, 0, assignable(pools, topology))


def two_pods(machine: Machine, off: str, manager: CPUManager, *pools: Pool) -> Story:
    """Make a node with pods of three and of two CPUs."""
    return Story(machine, CPUSet.parse(off), NodePools.of(*pools, cpu_manager=manager), (3, 2))


WHOLE_CORES = CPUManager("static", 1, StaticOptions(full_pcpus_only=True))
SHARED = Pool.named("shared_a", "4,6"), Pool.named("shared_b", "8-11")


@example(two_pods(SMT, "12-15", WHOLE_CORES))
@example(two_pods(SMT, "0", CPUManager("static", 1), Pool.named("shared_a", "0-1")))
@example(two_pods(HYBRID, "8", CPUManager("static", 2), *SHARED))
@examples(300)
@given(stories())
def test_offline_cpus_are_absent(story: Story) -> None:
    start, without = story.from_the_start(), story.without_them()
    try:
        expected = started(story.there, without)
    except ConfigError:
        with pytest.raises(ConfigError):
            started(story.pools, start)
        return
    nodes = [started(story.pools, start)]
    try:
        nodes.append(started(story.pools, story.machine.topology()))
    except ConfigError:
        # With every CPU on, a pool takes too much.
        pass
    else:
        nodes[-1].update_topology(start)
    pods = story.pods()
    for node in (expected, *nodes):
        node.observe(pods=pods, device_nodes={pod.cgroup_uid: {} for pod in pods})
    for node in nodes:
        assert answers(node, story.online) == answers(expected, story.online)
    assert needs(story.pools, start) == needs(story.there, without)


@given(
    st.sampled_from(("static", "koordinator")),
    st.integers(1, 4),
    st.lists(st.one_of(st.integers(1, 4), few, few, st.just("end")), max_size=8),
)
def test_a_number_is_reserved_beside_the_owners(
    policy: str, count: int, story: list[int | CPUSet | str]
) -> None:
    """Whatever went offline and returned, and whenever owners came."""
    machine = TWO_SOCKETS
    node = started(NodePools.of(cpu_manager=CPUManager(policy, reserved=count)), machine.topology())
    pods: list[Pod] = []
    for number, event in enumerate(story):
        before = node.snapshot().resolution.view.chosen
        match event:
            case int():
                ask = Story(machine, CPUSet(), NodePools(), (*[None] * number, event))
                pods.append(ask.pods()[-1])
                node.observe(pods=pods)
            case CPUSet():
                node.update_topology(machine.without(str(event)).topology())
            case _:
                gone = {pods.pop(0).cgroup_uid} if pods else set()
                before = {uid: grant for uid, grant in before.items() if uid not in gone}
                node.observe(pods=pods, idle=frozenset(gone))
        facts, resolution = node.snapshot()
        view = resolution.view
        assert {uid: view.chosen[uid].parts for uid in before} == {
            uid: grant.parts for uid, grant in before.items()
        }
        kept = view.free - facts.policy.available(view)
        assert len(kept) == min(count, len(view.free))
