"""The pods of a demo fit the pool file for which they are made, whatever is in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import assume, given
from hypothesis import strategies as st

from cpupool.commands.demo import koordinator_pods
from cpupool.commands.demo.samples import Samples
from cpupool.commands.shell import cpu_manager
from cpupool.config import poolconfig
from cpupool.core.cpu_manager import STATIC, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, errors_in
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, PoolKind
from cpupool.policies import built_in
from cpupool.policies.koordinator.policy import KOORDINATOR
from cpupool.policies.pools import preferred_cpus
from cpupool.policies.qrm.policy import QRM
from cpupool.simulate import workload
from cpupool.simulate.cpu_manager import SimulatedCPUManager
from cpupool.simulate.node import SimulatedNode
from tests.machines import MACHINES
from tests.searching import examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod

NAMES = Names()
KINDS = ("exclusive_one", "exclusive_smt", "exclusive_whole", "exclusive_spread", "shared", "rest")
STATIC_OPTIONS = ("full-pcpus-only", "align-by-socket", "strict-cpu-reservation")
OPTIONS = {STATIC: STATIC_OPTIONS, KOORDINATOR: STATIC_OPTIONS[:1], QRM: ()}


@st.composite
def files(draw: st.DrawFn) -> tuple[CPUTopology, str]:
    """Give a machine, and a pool file that may fit it."""
    name = draw(st.sampled_from(("laptop_4c8t", "hybrid", "telco_2s_2n_16c32t", "sparse_nodes")))
    machine = MACHINES[name]
    everything = machine.topology().present
    off = draw(st.sets(st.sampled_from([cpu for cpu in everything if cpu]), max_size=2))
    topology = machine.without(str(CPUSet(off))).topology()
    places = [draw(st.sampled_from((*KINDS, "rest"))) for _ in topology.cores]
    pools: dict[str, object] = {}
    for kind in set(places) - {"rest"}:
        cores = [core for core, at in zip(topology.cores, places, strict=True) if at == kind]
        first = CPUSet(core.first for core in cores)
        whole = CPUSet.union(cores)
        pools[kind] = {
            "exclusive_one": {"cpus": str(first)},
            "exclusive_smt": {"cpus": str(first), "hyperThreadingPolicy": "multiThreaded"},
            "exclusive_whole": {"cpus": str(whole), "cpuBindPolicy": "fullPhysicalCores"},
            "exclusive_spread": {"cpus": str(whole), "cpuBindPolicy": "spreadAcrossCores"},
            "shared": {"cpus": str(whole)},
        }[kind]
    rest = CPUSet.union(
        core for core, at in zip(topology.cores, places, strict=True) if at == "rest"
    )
    if rest and draw(st.booleans()):
        pools["default"] = {"cpus": str(rest)}
    policy = draw(st.sampled_from((STATIC, KOORDINATOR, QRM, "")))
    file: dict[str, object] = {"pools": pools}
    if policy:
        topology_policies = [each.value for each in TopologyPolicy if each.of_kubelet]
        file["cpuManager"] = {
            "policy": policy,
            "reserved": draw(st.integers(1, max(1, len(rest) - 1))),
            "options": {key: draw(st.booleans()) for key in OPTIONS[policy]},
            "topologyPolicy": draw(st.sampled_from(topology_policies)),
            "onMisfit": draw(st.sampled_from(("hold", "share", "fail"))),
        }
    return topology, json.dumps(file)


def valid(topology: CPUTopology, text: str) -> NodePools:
    """Give the pools of a file that the machine can have."""
    try:
        file = poolconfig.parse("mine.yaml", text, NAMES)
    except ConfigError:
        assume(False)
    assume(not errors_in(cpu_manager.problems(file, topology)))
    return file.pools


@examples(150)
@given(files())
def test_the_pods_of_a_demo_fit(made: tuple[CPUTopology, str]) -> None:
    topology, text = made
    pools = valid(topology, text)
    shown = Samples.of(pools, topology, NAMES)
    if built_in.kind(pools.cpu_manager).reads_classes:
        koordinator_pods.add(shown)
    names = [body["metadata"]["name"] for body in shown.bodies]
    assert len(set(names)) == len(names)
    # The last CPU of the policy has no owner, and neither has a part of the last core.
    options = pools.cpu_manager.options
    tight = options.strict_cpu_reservation or (
        options.full_pcpus_only and not built_in.assignable(pools, topology)
    )
    if topology.online == topology.present and not tight:
        assert shown.left_out == []

    pods = {body["metadata"]["name"]: workload.arrival_of(body, NAMES).pod for body in shown.bodies}
    without = NodePools.of(*pools)
    node = SimulatedNode(topology, without, preferred_cpus.prefer, TopologyPolicy.BEST_EFFORT)
    for name in {"poller", "sharer", "plain"} & pods.keys():
        node.admit(pods[name], 0)
    assert_that_all_pools_are_shown(pools, pods, shown.left_out)
    if pools.cpu_manager.policy in {STATIC, KOORDINATOR}:
        assert_that_owners_come_and_go(topology, pools, pods)


def assert_that_all_pools_are_shown(
    pools: NodePools, pods: Mapping[str, Pod], left_out: list[str]
) -> None:
    """See that the first pool of each kind has a pod, or is left out."""
    for kind in (PoolKind.EXCLUSIVE, PoolKind.SHARED):
        named = [pool.name for pool in pools.of_kind(kind)]
        asked = {name for pod in pods.values() for each in pod.containers for name in each.requests}
        missing = {name for name in named if any(f"pool {name}:" in line for line in left_out)}
        assert not named or asked & set(named) or missing == set(named)


def assert_that_owners_come_and_go(
    topology: CPUTopology, pools: NodePools, pods: Mapping[str, Pod]
) -> None:
    """See that each owner has CPUs of its own once those before it have ended."""
    for name in {"early", "assigned", "late", "sole"} & pods.keys():
        manager = SimulatedCPUManager(topology, pools)
        served = list(manager.start(pods[name], 0))
        assert served, name
