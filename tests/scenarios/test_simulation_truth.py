"""What `cpupool simulate` tells is what happens: the same pods on the embedded node get the same.

There the production roles decide: the kubelet stand-in asks the device plugin over its socket, and
the agent sets cgroups, also for the CPU manager policy.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from cpupool.config import poolconfig
from cpupool.core.cpu_manager import STATIC, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import advertised
from cpupool.core.errors import PodRefused
from cpupool.core.names import Names, pool_variable
from cpupool.core.workloads import Container, ContainerKind, ContainerRef, PodUID
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.policies.built_in import assignable
from cpupool.simulate import simulation, workload
from tests.machines import MACHINES
from tests.scenarios import test_embedded_node
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_embedded_node import manifest
from tests.scenarios.test_static_policy import WORKER, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from cpupool.simulate.simulation import SimulationResult
    from cpupool.simulate.workload import Event
    from tests.scenarios.test_embedded_node import World

TELCO = """
pools:
  exclusive_a: {cpus: "1-5,9-12"}
  exclusive_smt: {cpus: "6,13", hyperThreadingPolicy: multiThreaded}
  exclusive_whole: {cpus: "7,14-15,23,30-31", cpuBindPolicy: fullPhysicalCores}
  shared_s: {cpus: "8,24"}
  default: {cpus: "0,16"}
"""
EPYC = """
pools:
  exclusive_near: {cpus: "2-7,9-13", alignByUncoreCache: true}
  exclusive_spread:
    cpus: "14-19,46-51"
    cpuBindPolicy: spreadAcrossCores
    exclusivePolicy: physicalCore
  exclusive_wide: {cpus: "20-31", numaPolicy: leastAllocated, exclusivePolicy: numaNode}
  shared_s: {cpus: "1,33,8,40"}
  default: {cpus: "0,32"}
"""
_NAMES = Names()
_PODS = 24
_KINDS = {"init": ContainerKind.INIT, "sidecar": ContainerKind.SIDECAR, "main": ContainerKind.APP}


def trace(pools: NodePools, topology: CPUTopology) -> Iterator[Event]:
    """Let pods of every shape come, and go in any order; together they ask for more than is."""
    dice = random.Random(7)
    capacity = {one.name: workload.capacity_of(one, topology) for one in advertised(pools)}
    running: list[Pod] = []
    for number in range(_PODS):
        containers = [
            Container(
                name,
                kind,
                {
                    pool: dice.randint(1, max(1, capacity[pool] // 3))
                    for pool in dice.sample(sorted(capacity), dice.randint(1, 2))
                },
            )
            for name, kind in _KINDS.items()
            if kind is ContainerKind.APP or dice.random() < 0.3
        ]
        if running and dice.random() < 0.6:
            yield workload.Event(number, running.pop(dice.randrange(len(running))), ends=True)
        running.append(workload.pod_of(f"default/pod-{number}", containers))
        yield workload.Event(number, running[-1])


def really(world: World, events: list[Event]) -> tuple[dict[str, str], dict[str, str]]:
    """Let the pods come and go on the embedded node.

    Returns:
        `pod/container/pool` → the CPUs that the container was told, and pod → why it was refused.
    """
    told: dict[str, str] = {}
    refused: dict[str, str] = {}
    here: dict[str, PodUID] = {}
    for event in events:
        pod = event.pod
        if event.ends:
            if uid := here.pop(pod.name, None):
                world.node.delete_pod(uid)
            continue
        asked = {
            one.name: {str(asks): n for asks, n in one.requests.items()} for one in pod.containers
        }
        try:
            uid = here[pod.name] = world.node.run_pod(manifest(pod.name, asked)).uid
        except PodRefused as error:
            refused[pod.name] = error.reason
            continue
        for one in pod.containers:
            given = world.node.kubelet.run_options(ContainerRef(uid, one.name)).environment
            told |= {f"{pod.name}/{one.name}/{p}": given[pool_variable(p)] for p in one.requests}
    return told, refused


def simulated(outcome: SimulationResult) -> tuple[dict[str, str], dict[str, str]]:
    """Give the same of a simulation."""
    told = {
        f"{one.container.removeprefix('default/')}/{one.pool}": str(one.cpus)
        for one in outcome.placements
        if not one.refused
    }
    refused = [refusal.why.split(": ")[:2] for refusal in outcome.refusals]
    return told, {pod.removeprefix("default/"): reason for pod, reason in refused}


@pytest.mark.parametrize("manager", [TopologyPolicy.NONE, TopologyPolicy.RESTRICTED])
@pytest.mark.parametrize(("machine", "text"), [("telco_2s_2n_16c32t", TELCO), ("epyc_like", EPYC)])
def test_containers_get_the_cpus_that_the_simulation_gives_them(
    machine: str, text: str, manager: TopologyPolicy, folder: Path
) -> None:
    written = MACHINES[machine].write(folder)
    topology = written.topology()
    pools = poolconfig.parse("pools.yaml", text, _NAMES).pools
    events = list(trace(pools, topology))
    outcome = simulation.compare(topology, pools, events, [simulation.POOL], manager=manager)
    expected = outcome[simulation.POOL]
    with (
        EmulatedCgroups(folder, topology.online, "") as home,
        test_embedded_node.living(folder, home, text, written.sys, manager) as world,
    ):
        world.settled(**{p.name: workload.capacity_of(p, topology) for p in advertised(pools)})
        told, refused = really(world, events)
        assert (told, refused) == simulated(expected)
        assert len(told) > _PODS / 2
        assert refused
        cpus: dict[str, CPUSet] = {}
        for one in expected.running:
            cpus[one.container] = cpus.get(one.container, CPUSet()) | one.cpus
        for container, wanted in cpus.items():
            _, pod, name = container.split("/")
            if name != "init":
                world.eventually(pod, **{name: str(wanted)})


STATIC_FILE = f"""
cpuManager:
  policy: static
  reserved: "0,16"
  options: {{full-pcpus-only: "true"}}
  topologyPolicy: single-numa-node
{WORKER}"""
_STAYS_MILLI = 500


def natively(topology: CPUTopology, pools: NodePools) -> Iterator[Event]:
    """Let pods come that fit the node's allocatable cpu, be resized, and go in any order.

    The first pod stays: its CPUs show that the agent has released those of a pod that has gone.
    """
    dice = random.Random(5)
    running: list[Pod] = []
    stays = Container("main", request_milli=_STAYS_MILLI)
    yield workload.Event(0, workload.pod_of("default/stays", [stays]))
    for number in range(_PODS):
        while running and dice.random() < 0.4:
            yield workload.Event(number, running.pop(dice.randrange(len(running))), ends=True)
        milli = dice.choice((500, 3000, 4000, 6000, 8000, 10000))
        whole = 0 if milli % 1000 else milli // 1000
        asking = Container("main", request_milli=milli, whole_cpus=whole)
        pod = workload.pod_of(f"default/pod-{number:02}", [asking])
        owners = [at for at, one in enumerate(running) if one.containers[0].whole_cpus]
        if owners and dice.random() < 0.3:
            at = dice.choice(owners)
            less = workload.resizing(number, running[at], {"main": dice.choice((500, 2000))})
            running[at] = less.pod
            yield less
        taken = _STAYS_MILLI + sum(one.containers[0].request_milli for one in running)
        if taken + milli <= 1000 * len(assignable(pools, topology) or ()):
            running.append(pod)
            yield workload.Event(number, pod)


def test_pods_own_the_cpus_of_the_policy_that_the_simulation_gives_them(folder: Path) -> None:
    written = MACHINES["telco_2s_2n_16c32t"].write(folder)
    topology = written.topology()
    pools = poolconfig.parse("pools.yaml", STATIC_FILE, _NAMES).pools
    events = list(natively(topology, pools))
    with living(folder, written, {"role": "worker"}) as world:
        world.mount.show(worker=STATIC_FILE)
        with world.agent():
            here: dict[str, PodUID] = {}
            for number, event in enumerate(events, start=1):
                name = event.pod.name
                milli = event.pod.containers[0].request_milli
                if event.ends:
                    world.node.delete_pod(here.pop(name))
                elif event.resize:
                    world.node.resize(here[name], {"main": f"{milli}m"})
                else:
                    here[name] = run(world, name, main=f"{milli}m").uid
                outcome = simulation.compare(topology, pools, events[:number], [STATIC])[STATIC]
                assert not outcome.refusals
                own = {one.container.removeprefix("default/"): one.cpus for one in outcome.running}
                shared = topology.online - CPUSet.union(own.values())
                everyone = dict.fromkeys(world.containers(), str(shared))
                owners = {pod: str(cpus) for pod, cpus in own.items() if cpus}
                world.await_containers(everyone | owners)
    assert outcome.summary.resizes_ignored > 1
    # Some waited and got their CPUs, some waited for nothing.
    assert {bool(one.held) for one in outcome.placements if one.waited_s} == {True, False}
