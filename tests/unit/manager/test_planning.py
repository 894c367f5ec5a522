"""A pod is planned as a whole: init containers have CPUs of the containers that start later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpu_manager import CPUManager, Scope, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools
from cpupool.core.workloads import ContainerKind, Pod
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES, Machine
from tests.unit.manager.choosing.nodes import owned

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
LAPTOP = Machine(cores=4, threads=2)  # siblings 0 and 4, 1 and 5, 2 and 6, 3 and 7
TWO_NODES = MACHINES["arm_no_smt"]  # CPUs 0-7 and 8-15
STATIC = CPUManager("static", reserved=CPUSet.of(0))
SINGLE = replace(STATIC, topology_policy=TopologyPolicy.SINGLE_NUMA_NODE)

Asked = tuple[ContainerKind, float]


def pod(name: str, *asked: Asked) -> Pod:
    """Make a pod whose containers are called a, b, c and so on."""
    made = (
        builders.container(each, kind, cpu=round(1000 * cpus))
        for each, (kind, cpus) in zip("abcde", asked, strict=False)
    )
    return replace(builders.pod(name, *made), created=name)


def node(
    *pods: Pod,
    machine: Machine = LAPTOP,
    configured: CPUManager = STATIC,
    recorded: dict[str, dict[str, CPUSet]] | None = None,
) -> Manager:
    """Make a node with pods that have no devices, and with what an earlier agent has recorded."""
    made = Manager()
    made.reconfigure(NodePools.of(cpu_manager=configured), machine.topology())
    made.observe(pods=pods, device_nodes={each.cgroup_uid: {} for each in pods})
    made.adopt((), State("static", entries=recorded or {}))
    return made


def parts(of: Pod, at: Manager) -> dict[str, str]:
    found = at.snapshot().resolution.grants.parts(of.cgroup_uid, POLICY_CPUS)
    return {name: str(found[name]) for name in sorted(found)}


def why(of: Pod, at: Manager) -> str:
    return at.snapshot().resolution.view.refused[of.cgroup_uid].error.as_kubelet


def test_a_pod_that_the_scheduler_counts_as_fitting_fits() -> None:
    first, second = pod("1", (INIT, 1), (APP, 2)), pod("2", (APP, 5))
    at = node(first, second)
    assert parts(first, at) == {"a": "1", "b": "1,5"}
    assert owned(at) == {"1-uid": "1,5", "2-uid": "2-4,6-7"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(((INIT, 4), (APP, 2)), ("1-2,5-6", "1,5"), id="larger than the rest"),
        pytest.param(((INIT, 3), (INIT, 5), (APP, 2)), ("1,4-5", "1-2,4-6", "1,5"), id="two"),
        pytest.param(((INIT, 2), (APP, 1), (APP, 2)), ("1,5", "4", "1,5"), id="of one of several"),
        pytest.param(((INIT, 3), (APP, 1), (APP, 2)), ("1,4-5", "4", "1,5"), id="of several"),
        pytest.param(((SIDECAR, 2), (INIT, 2), (APP, 2)), ("1,5", "2,6", "2,6"), id="sidecar"),
        pytest.param(
            ((INIT, 4), (SIDECAR, 2), (INIT, 2), (APP, 2)),
            ("1-2,5-6", "1,5", "2,6", "2,6"),
            id="before and after a sidecar",
        ),
        pytest.param(((INIT, 1.5), (APP, 2)), (None, "1,5"), id="a share"),
        pytest.param(((INIT, 2), (APP, 0.5)), ("1,5", None), id="alone"),
    ],
)
def test_what_runs_at_different_times_has_the_same_cpus(
    asked: tuple[Asked, ...], expected: tuple[str | None, ...]
) -> None:
    of = pod("1", *asked)
    named = zip("abcde", expected, strict=False)
    assert parts(of, node(of)) == {name: cpus for name, cpus in named if cpus}


def test_what_is_missing_is_told_for_the_whole_request() -> None:
    of = pod("1", (INIT, 8), (APP, 2))
    assert "requested=8, available=7" in why(of, node(of))
    whole = replace(STATIC, reserved=CPUSet.parse("0,4"), options=StaticOptions(True))
    assert "physical CPUs = 6, requested CPUs = 8" in why(of, node(of, configured=whole))


def test_the_last_shared_cpu_stays_shared() -> None:
    strict = replace(STATIC, options=StaticOptions(strict_cpu_reservation=True))
    of = pod("1", (INIT, 7), (APP, 2))
    assert "requested=7, available=6" in why(of, node(of, configured=strict))


def test_whole_cores_serve_an_init_container_although_no_other_is_free() -> None:
    whole = replace(STATIC, reserved=CPUSet.parse("0,4"), options=StaticOptions(True))
    of = pod("1", (INIT, 4), (APP, 6))
    assert parts(of, node(of, configured=whole)) == {"a": "1-2,5-6", "b": "1-3,5-7"}


def test_a_pod_lies_where_it_owns_the_fewest_cpus() -> None:
    first = pod("1", (APP, 4))
    # App containers go to CPUs 5-7 first, where the init container has no room.
    alone, of = pod("2", (APP, 2)), pod("2", (INIT, 4), (APP, 2))
    assert parts(alone, node(first, alone, machine=TWO_NODES, configured=SINGLE)) == {"a": "5-6"}
    at = node(first, of, machine=TWO_NODES, configured=SINGLE)
    assert parts(of, at) == {"a": "8-11", "b": "8-9"}


def test_a_pod_lies_on_one_node_rather_than_own_more() -> None:
    reserved = replace(SINGLE, reserved=CPUSet.parse("0-1"))
    of = pod("1", (SIDECAR, 3), (INIT, 3), (SIDECAR, 2), (APP, 2))
    at = node(of, machine=TWO_NODES, configured=reserved)
    assert parts(of, at) == {"a": "8-10", "b": "11-13", "c": "11-12", "d": "13-14"}


def test_the_init_container_that_needs_the_most_is_the_first_of_them() -> None:
    first, of = pod("1", (APP, 4)), pod("2", (INIT, 3), (INIT, 6))
    at = node(first, of, machine=TWO_NODES, configured=SINGLE)
    assert parts(of, at) == {"a": "8-10", "b": "8-13"}


def test_a_pod_that_no_numa_node_holds_starts_with_more() -> None:
    of = pod("1", (INIT, 8), (APP, 5), (APP, 5))
    at = node(of, machine=TWO_NODES, configured=SINGLE)
    assert parts(of, at) == {"a": "8-15", "b": "1-5", "c": "8-12"}


def test_a_pod_that_is_aligned_at_once_has_its_cpus_on_one_node() -> None:
    once = replace(SINGLE, topology_scope=Scope.POD)
    of = pod("1", (INIT, 8), (APP, 2))
    at = node(of, machine=TWO_NODES, configured=once)
    assert parts(of, at) == {"a": "8-15", "b": "8-9"}


def test_a_wish_for_one_node_costs_the_pod_no_more_cpus() -> None:
    best = replace(STATIC, topology_policy=TopologyPolicy.BEST_EFFORT)
    of = pod("1", (INIT, 8), (APP, 5), (APP, 5))
    assert owned(node(of, machine=TWO_NODES, configured=best)) == {"1-uid": "1-5,8-12"}


def test_a_choice_of_an_earlier_agent_stays() -> None:
    """Until then the init container chose first."""
    recorded = {"1-uid": {"a": CPUSet.of(1), "b": CPUSet.parse("2-3")}}
    of = pod("1", (INIT, 1), (APP, 2))
    assert parts(of, node(of, recorded=recorded)) == {"a": "1", "b": "2-3"}


def test_an_init_container_that_has_ended_gets_no_more() -> None:
    recorded = {"1-uid": {"b": CPUSet.parse("1,5")}}
    of = pod("1", (INIT, 4), (APP, 2))
    assert parts(of, node(of, recorded=recorded)) == {"b": "1,5"}


def test_an_agent_that_finds_the_init_container_alone_chooses_as_before() -> None:
    of = pod("1", (INIT, 1), (APP, 2))
    before = node(of).snapshot().resolution.grants.parts(of.cgroup_uid, POLICY_CPUS)
    assert parts(of, node(of, recorded={"1-uid": {"a": before["a"]}})) == {"a": "1", "b": "1,5"}


def test_a_container_that_comes_late_has_what_the_pod_leaves_to_it_first() -> None:
    recorded = {"1-uid": {"a": CPUSet.parse("3,6")}}
    of = pod("1", (INIT, 2), (APP, 3))
    assert parts(of, node(of, recorded=recorded)) == {"a": "3,6", "b": "3-4,6"}


def test_a_cpu_that_is_offline_is_left_to_no_container() -> None:
    recorded = {"1-uid": {"a": CPUSet.parse("3,6")}}
    of = pod("1", (INIT, 2), (APP, 2))
    at = node(of, machine=replace(LAPTOP, offline="6"), recorded=recorded)
    assert parts(of, at) == {"a": "3,6", "b": "3-4"}
