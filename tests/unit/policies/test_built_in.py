"""What the policies of a pool file can give on an empty node, on machines that are whole or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpu_manager import CPUManager, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.policies import built_in
from tests.machines import MACHINES, Machine

MACHINE = MACHINES["telco_2s_2n_16c32t"]
TELCO = MACHINE.topology()
DEFAULT = Pool.named("default", "0-3,16-19")


@pytest.mark.parametrize(
    ("pools", "assignable"),
    [
        (NodePools.of(DEFAULT, cpu_manager=CPUManager("static", 2)), "1-3,17-19"),
        (NodePools.of(DEFAULT, cpu_manager=CPUManager("static", CPUSet.of(3))), "0-2,16-19"),
        (NodePools(cpu_manager=CPUManager("static", 30)), "15,31"),
        (
            NodePools.of(
                Pool.named("exclusive_a", "1-15"), cpu_manager=CPUManager("static", CPUSet.of(0))
            ),
            "16",
        ),
    ],
)
def test_a_policy_can_give_the_default_pool_without_its_reserved_cpus(
    pools: NodePools, assignable: str
) -> None:
    assert built_in.assignable(pools, TELCO) == CPUSet.parse(assignable)


def test_a_core_with_a_reserved_cpu_is_never_given_as_a_whole() -> None:
    whole = StaticOptions(full_pcpus_only=True)
    pools = NodePools.of(DEFAULT, cpu_manager=CPUManager("static", CPUSet.of(0), whole))
    assert built_in.assignable(pools, TELCO) == CPUSet.parse("1-3,17-19")


def test_offline_cpus_cannot_be_given() -> None:
    pools = NodePools.of(DEFAULT, cpu_manager=CPUManager("static", CPUSet.of(0)))
    topology = MACHINE.having_lost(CPUSet.of(0, 2))
    assert built_in.assignable(pools, topology) == CPUSet.parse("1,3,16-19")


ONE_SOCKET = Machine(sockets=2, cores=28, threads=2, offline="28-55,84-111")
NO_SMT = Machine(cores=16, threads=2, offline="16-31")
ONE_OFF = Machine(cores=48, threads=2, offline="95")


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("machine", "policy", "count", "reserved"),
    [
        pytest.param(NO_SMT, "static", 2, "0-1", id="nosmt"),
        pytest.param(NO_SMT, "koordinator", 4, "0-3", id="nosmt, koordinator"),
        pytest.param(ONE_OFF, "static", 4, "0-1,48-49", id="one thread"),
        pytest.param(ONE_OFF, "qrm", 4, "0-1,48-49", id="one thread, qrm"),
        pytest.param(ONE_SOCKET, "static", 4, "0-1,56-57", id="one socket"),
    ],
)
def test_a_number_reserves_cpus_that_run(
    machine: Machine, policy: str, count: int, reserved: str, *, later: bool
) -> None:
    off = CPUSet.parse(machine.offline)
    topology = replace(machine, offline="").having_lost(off) if later else machine.topology()
    given = built_in.assignable(NodePools.of(cpu_manager=CPUManager(policy, count)), topology)
    assert given is not None
    assert str(topology.online - given) == reserved


@pytest.mark.parametrize("option", StaticOptions.names().values())
def test_with_any_option_a_number_reserves_cpus_that_run(option: str) -> None:
    options = StaticOptions(**{option: True})
    pools = NodePools.of(cpu_manager=CPUManager("static", 4, options))
    for machine in (ONE_SOCKET, NO_SMT):
        given = built_in.assignable(pools, machine.topology())
        assert given is not None
        assert len(machine.topology().online - given) == 4


@pytest.mark.parametrize("policy", ["none", "of another agent"])
def test_there_is_nothing_to_give_without_a_policy_that_is_known_here(policy: str) -> None:
    pools = NodePools.of(DEFAULT, cpu_manager=CPUManager(policy))
    assert built_in.assignable(pools, TELCO) is None
