"""The CPU manager policy of a pool file, on machines that are whole or not."""

from __future__ import annotations

from cpupool.commands.shell import cpu_manager
from cpupool.core.cpu_manager import CPUManager, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from tests.machines import MACHINES

TELCO = MACHINES["telco_2s_2n_16c32t"].topology()


def test_a_policy_says_why_it_refuses_a_machine() -> None:
    options = StaticOptions(full_pcpus_only=True)
    manager = CPUManager("static", CPUSet.of(0), options)
    pools = NodePools.of(Pool.named("default", "0-3"), cpu_manager=manager)
    (problem,) = cpu_manager.refusal(pools, TELCO)
    assert problem.path == "cpuManager.options.full-pcpus-only"
    assert "lacks CPUs 16-19" in problem.what


def test_a_configuration_that_fits_the_machine_has_no_problem() -> None:
    manager = CPUManager("static", CPUSet.of(0), StaticOptions(full_pcpus_only=True))
    assert cpu_manager.refusal(NodePools(cpu_manager=manager), TELCO) == ()
