"""Which cores and NUMA nodes a pod's CPUs avoid, and what is said where they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import ExclusivePolicy
from cpupool.policies.accumulators.koordinator import OccupiedCPUs
from cpupool.policies.koordinator.exclusivity import Apart, apart
from cpupool.policies.layout import Layout
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology

NONE = ExclusivePolicy.NONE
CORE, NODE = ExclusivePolicy.PHYSICAL_CORE, ExclusivePolicy.NUMA_NODE
SMT = MACHINES["telco_2s_2n_16c32t"].topology()  # core n is n,n+16; cores 0-7 on node 0


def found(
    preference: ExclusivePolicy,
    held: dict[str, ExclusivePolicy],
    machine: CPUTopology = SMT,
    *,
    free: str = "0-31",
    arm: bool = False,
) -> Apart:
    """Give what two CPUs of a pod avoid, beside the CPUs of other pods."""
    others = [OccupiedCPUs(CPUSet.parse(cpus), exclusive=each) for cpus, each in held.items()]
    layout = Layout.of_topology(machine)
    return apart(layout, preference, others, count=2, free=CPUSet.parse(free), arm=arm)


def preferences(made: Apart) -> list[ExclusivePolicy]:
    """Give the preferences of the other pods."""
    return [each.exclusive for each in made.held]


@pytest.mark.parametrize("preference", [NONE, CORE])
def test_a_wish_that_the_machine_can_keep_counts_as_it_is(preference: ExclusivePolicy) -> None:
    made = found(preference, {"1": CORE})
    assert (made.preference, preferences(made), made.why) == (preference, [CORE], "")


def test_a_node_without_pods_of_the_same_wish_counts_if_it_has_room() -> None:
    made = found(NODE, {"8": NODE, "1": CORE})
    assert (made.preference, made.why) == (NODE, "")


@pytest.mark.parametrize(
    ("held", "free"),
    [
        pytest.param({"1": NODE, "8": NODE}, "0-31", id="each node has a pod of the preference"),
        pytest.param({"8": NODE}, "0,8-15", id="the other node has too few free CPUs"),
    ],
)
def test_without_such_a_node_cores_are_avoided_those_of_the_same_wish_too(
    held: dict[str, ExclusivePolicy], free: str
) -> None:
    made = found(NODE, held, free=free)
    assert (made.preference, set(preferences(made))) == (CORE, {CORE})
    assert [step.why for step in made.explained(CPUSet())] == [
        "no NUMA node without pods of the same preference has room: PCPULevel applies"
    ]


def test_where_a_core_is_a_cpu_cores_are_no_wish() -> None:
    single = MACHINES["telco_2s_2n_16c32t"].without("16-31").topology()
    made = found(CORE, {"1": CORE}, single)
    assert (made.preference, made.why) == (NONE, "")


def test_on_arm64_cores_are_no_wish_and_nodes_are() -> None:
    assert found(CORE, {}, arm=True).why == "on arm64 there is NUMANodeLevel only"
    assert found(NODE, {}, arm=True).preference is NODE


@pytest.mark.parametrize(
    ("preference", "cpus", "near"),
    [
        pytest.param(CORE, "1,5", "17", id="a sibling"),
        pytest.param(CORE, "2,5", "", id="other cores"),
        pytest.param(NODE, "2,5", "17", id="a CPU of the same node"),
        pytest.param(NODE, "8,9", "", id="another node"),
        pytest.param(NONE, "1,17", "", id="no preference"),
    ],
)
def test_what_is_not_kept_is_said(preference: ExclusivePolicy, cpus: str, near: str) -> None:
    made = Apart(preference, [OccupiedCPUs(CPUSet.of(17), exclusive=preference)])
    steps = list(made.unkept(Layout.of_topology(SMT), CPUSet.parse(cpus)))
    ends = [f"pods of the same preference have CPUs {near}"] if near else []
    assert [step.why.partition(": ")[2] for step in steps] == ends
