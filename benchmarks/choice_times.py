"""The time of a choice of CPUs, from one call to a whole gRPC conversation."""

from __future__ import annotations

import random
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.documents import Times, table
from cpupool.api import deviceplugin_pb2 as pb
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.manager.manager import Manager
from cpupool.policies import hints
from cpupool.policies.accumulators import koordinator
from cpupool.policies.accumulators.koordinator import OccupiedCPUs
from cpupool.policies.accumulators.kubelet import take_distributed, take_packed
from cpupool.policies.layout import Layout
from cpupool.policies.pools import preferred_cpus
from cpupool.rpc.serving import ServingLoop
from tests import builders
from tests.kubelets import dial
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.core.topology import CPUTopology
    from cpupool.policies.accumulators.kubelet import Taken
    from cpupool.policies.base import Choice

    _Take = Callable[[CPUSet, int], Taken | Choice]

SEED: Final = 6
CHOICES: Final = 200
MERGES: Final = 100
CALLS: Final = 500
PROVIDERS: Final = 4
MERGE_AIM_MS: Final = 100.0
CALL_AIM_MS: Final = 10.0
AIMS_MS: Final = {128: 2.0, 512: 10.0, 2048: 50.0}
"""CPUs of a machine, at most → what 99 of 100 choices take at most."""

LARGE: Final = Machine(sockets=2, nodes=4, l3=4, cores=8, threads=2)
MACHINES: Final = (
    Machine(cores=4, threads=2),
    Machine(sockets=2, cores=8, threads=2),
    Machine(sockets=2, nodes=2, l3=2, cores=8, threads=2),
    Machine(sockets=2, nodes=4, l3=2, cores=8, threads=2),
    LARGE,
    Machine(sockets=4, nodes=16, cores=4, threads=2),
    Machine(sockets=4, nodes=4, l3=4, cores=8, threads=2),
    Machine(sockets=8, nodes=8, l3=2, cores=8, threads=2),
)


def topology_of(machine: Machine) -> CPUTopology:
    """Read a machine whose NUMA nodes are nearer to each other on a socket than across."""
    topology = machine.topology()
    socket = {node: topology.cpus[cpus.first].socket for node, cpus in topology.nodes.items()}

    def distance(one: int, other: int) -> int:
        if one == other:
            return 10
        return 12 if socket[one] == socket[other] else 32

    return replace(
        topology,
        distances={one: tuple(distance(one, other) for other in socket) for one in socket},
    )


@dataclass(frozen=True, slots=True)
class Taker:
    """A way to take CPUs.

    Attributes:
        offered: the CPUs that it may be asked for.
        take: takes so many of the free CPUs.
        unit: of how many CPUs a request has to be a multiple; whole cores are free then.
    """

    offered: CPUSet
    take: _Take
    unit: int = 1


def choices(tell: Callable[[str], None]) -> str:
    """Time single choices on small and large machines."""
    rows = []
    names: list[str] = []
    for machine in MACHINES:
        topology = topology_of(machine)
        cpus, nodes = len(topology.online), len(topology.nodes)
        tell(f"choices on {cpus} CPUs, {nodes} NUMA nodes")
        aim_ms = next(aim_ms for most, aim_ms in AIMS_MS.items() if cpus <= most)
        takers = _takers(topology)
        names = list(takers)
        cells = (Times.of(_choices(topology, one)).shown(aim_ms) for one in takers.values())
        rows.append((str(cpus), str(nodes), f"{aim_ms:.0f}", *cells))
    return table(("CPUs", "NUMA nodes", "aim", *names), rows)


def _takers(topology: CPUTopology) -> Mapping[str, Taker]:
    layout = Layout.of_topology(topology)
    everything, one_per_core = topology.online, CPUSet(core.first for core in topology.cores)
    full, spread = CPUBindPolicy.FULL_PHYSICAL_CORES, CPUBindPolicy.SPREAD_ACROSS_CORES
    most, least = NUMAPolicy.MOST_ALLOCATED, NUMAPolicy.LEAST_ALLOCATED
    # Some pod that others do not want beside them.
    held = topology.cores[0]
    neighbour = OccupiedCPUs(held, exclusive=ExclusivePolicy.PHYSICAL_CORE)

    def koordinators(*, full_cores: bool, strategy: NUMAPolicy) -> _Take:
        return partial(
            koordinator.take,
            layout,
            full_cores=full_cores,
            strategy=strategy,
            exclusive=neighbour.exclusive,
            held=(neighbour,),
        )

    def of_pool(cpus: CPUSet, policy: PoolPolicy) -> Taker:
        pool = replace(Pool.named("exclusive_a", str(cpus)), policy=policy)
        unit = max(map(len, topology.cores)) if policy.whole_cores else 1
        return Taker(cpus, partial(preferred_cpus.prefer, pool, topology, held=held), unit)

    apart = PoolPolicy(bind=full, numa=least, exclusive=ExclusivePolicy.NUMA_NODE)
    distributed = PoolPolicy(bind=full, numa=NUMAPolicy.DISTRIBUTED)
    return {
        "kubelet, packed": Taker(everything, partial(take_packed, layout)),
        "kubelet, packed by L3": Taker(everything, partial(take_packed, layout, by_uncore=True)),
        "kubelet, distributed": Taker(everything, partial(take_distributed, layout)),
        "Koordinator, full cores": Taker(everything, koordinators(full_cores=True, strategy=most)),
        "Koordinator, spread": Taker(everything, koordinators(full_cores=False, strategy=least)),
        "pool without a policy": of_pool(one_per_core, PoolPolicy()),
        "pool of full cores, apart": of_pool(everything, apart),
        "pool, distributed": of_pool(everything, distributed),
        "pool, spread": of_pool(everything, PoolPolicy(bind=spread)),
    }


def _choices(topology: CPUTopology, taker: Taker) -> Iterator[Callable[[], None]]:
    """Ask for 1 to all CPUs of machines that are empty, or full here and there."""
    dice = random.Random(SEED)
    layout = Layout.of_topology(topology, taker.offered)
    for number in range(CHOICES):
        free = _fragmented(topology, dice, number) & taker.offered
        if taker.unit > 1:
            free = layout.whole_cores(free)
        most = len(free) // taker.unit
        if most:
            count = taker.unit * _count(most, dice, number)
            yield partial(_check, taker.take, free, count)


def _check(take: _Take, free: CPUSet, count: int) -> None:
    taken = take(free, count).cpus
    assert len(taken) == count
    assert taken <= free


def _fragmented(topology: CPUTopology, dice: random.Random, number: int) -> CPUSet:
    """Make the free CPUs: all, some cores, some of each node, some threads, in turn."""
    free = dice.random()
    match number % 4:
        case 0:
            return topology.online
        case 1:
            return CPUSet.union(core for core in topology.cores if dice.random() < free)
        case 2:
            by_node = {node: dice.random() for node in topology.nodes}
            return CPUSet(
                cpu
                for node, cpus in topology.nodes.items()
                for cpu in cpus
                if dice.random() < by_node[node]
            )
        case _:
            return CPUSet(cpu for cpu in topology.online if dice.random() < free)


def _count(most: int, dice: random.Random, number: int) -> int:
    """Give a size: any, a small one, or nearly all, in turn."""
    match number // 4 % 3:
        case 0:
            return dice.randint(1, most)
        case 1:
            return dice.randint(1, min(most, 32))
        case _:
            return dice.randint(max(1, most - 4), most)


def merges(tell: Callable[[str], None]) -> str:
    """Time the Topology Manager: four resources offer NUMA nodes, and one set is chosen."""
    policies = [policy for policy in TopologyPolicy if policy is not TopologyPolicy.NONE]
    rows = []
    for nodes in (2, 4, 8, 16, 32, 64):
        tell(f"hints on {nodes} NUMA nodes")
        dice = random.Random(SEED)
        offers = [
            [hints.generate(*_request(nodes, dice)).hints for _ in range(PROVIDERS)]
            for _ in range(MERGES)
        ]
        requests = [_request(nodes, dice) for _ in range(MERGES)]
        generated = Times.of(partial(hints.generate, *request) for request in requests)
        merged = (
            Times.of(partial(hints.merge, policy, range(nodes), four) for four in offers)
            for policy in policies
        )
        cells = (one.shown(MERGE_AIM_MS) for one in (generated, *merged))
        rows.append((str(nodes), f"{MERGE_AIM_MS:.0f}", *cells))
    header = ("NUMA nodes", "aim", "one resource's hints")
    return table((*header, *(f"merge, {policy.value}" for policy in policies)), rows)


def _request(nodes: int, dice: random.Random) -> tuple[int, dict[int, int], dict[int, int]]:
    """Make a request of one resource: CPUs of all nodes, or devices of some."""
    size = dice.choice((1, 2, 8, 32))
    with_it = dice.choice((1.0, 1.0, 0.5))
    capacity = {node: size if dice.random() < with_it else 0 for node in range(nodes)}
    available = {node: dice.randint(0, all_) for node, all_ in capacity.items()}
    most = sum(available.values())
    return (
        dice.randint(1, max(1, min(most, dice.choice((size, 2 * size, most))))),
        capacity,
        available,
    )


def calls(tell: Callable[[str], None]) -> str:
    """Time GetPreferredAllocation as the kubelet sees it, on a unix socket."""
    topology = topology_of(LARGE)
    full = CPUBindPolicy.FULL_PHYSICAL_CORES
    policies = {
        "packed": PoolPolicy(bind=full),
        "distributed": PoolPolicy(bind=full, numa=NUMAPolicy.DISTRIBUTED),
        "spread": PoolPolicy(bind=CPUBindPolicy.SPREAD_ACROSS_CORES),
    }
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="cpl-") as folder,
        ServingLoop() as loop,
        ExitStack() as stack,
    ):
        for name, policy in policies.items():
            tell(f"GetPreferredAllocation, {name}")
            pool = replace(Pool.named(f"exclusive_{name}", str(topology.online)), policy=policy)
            manager = Manager(Names())
            manager.reconfigure(NodePools.of(pool), topology)
            server = DevicePluginServer(manager, builders.resource(pool.name), Path(folder), loop)
            server.start()
            stack.callback(server.stop)
            socket = Path(folder) / server.endpoint
            plugin = DevicePluginStub(stack.enter_context(dial(socket)))
            plugin.GetDevicePluginOptions(pb.Empty())
            cells = (
                Times.of(_preferred(plugin, topology, policy), clock_ns).shown(CALL_AIM_MS)
                for clock_ns in (time.perf_counter_ns, time.process_time_ns)
            )
            rows.append((f"{len(pool.cpus)} CPUs, {name}", f"{CALL_AIM_MS:.0f}", *cells))
    return table(("pool", "aim", "elapsed", "CPU time of both sides"), rows)


def _preferred(
    plugin: DevicePluginStub, topology: CPUTopology, policy: PoolPolicy
) -> Iterator[Callable[[], object]]:
    """Ask for 1 to all CPUs of the cores that are free."""
    dice = random.Random(SEED)
    layout = Layout.of_topology(topology)
    unit = max(map(len, topology.cores)) if policy.whole_cores else 1
    for number in range(CALLS):
        free = layout.whole_cores(_fragmented(topology, dice, number))
        most = len(free) // unit
        if most:
            request = pb.PreferredAllocationRequest()
            asked = request.container_requests.add()
            asked.available_deviceIDs.extend(map(str, free))
            asked.allocation_size = unit * _count(most, dice, number)
            yield partial(plugin.GetPreferredAllocation, request)
