"""Pods that request CPUs natively, on a simulated node with a CPU manager policy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import (
    DYNAMIC,
    STATIC,
    Compaction,
    CPUManager,
    Eligible,
    Misfit,
    Scope,
    StaticOptions,
    SystemPods,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerKind, CPUMoves
from cpupool.policies.koordinator.policy import KOORDINATOR
from cpupool.simulate import simulation, workload
from cpupool.simulate.cpu_manager import SimulatedCPUManager
from cpupool.simulate.simulation import KUBELET_PACKED
from cpupool.simulate.workload import Event
from tests import builders
from tests.machines import MACHINES
from tests.policies import TellingCPUs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Container
    from cpupool.simulate.simulation import SimulationResult

# Cores 0 to 7 with siblings 16 to 23 are NUMA node 0, the others node 1; 28 CPUs can be given.
TELCO = MACHINES["telco_2s_2n_16c32t"].topology()
POLICY = CPUManager(
    "static", CPUSet.parse("0,8,16,24"), topology_policy=TopologyPolicy.SINGLE_NUMA_NODE
)
POOLS = NodePools.of(cpu_manager=POLICY)
ODD = "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
APART = "Resources cannot be allocated with Topology locality"


def container(cpu: float, name: str = "c", kind: ContainerKind = ContainerKind.APP) -> Container:
    milli = round(1000 * cpu)
    return replace(builders.container(name, kind, cpu=milli, running=False), request_milli=milli)


def comes(name: str, at_s: float, *containers: Container | float) -> Event:
    made = [container(one) if isinstance(one, int | float) else one for one in containers]
    return Event(at_s, workload.pod_of(f"ns/{name}", made))


def goes(name: str, at_s: float) -> Event:
    return Event(at_s, workload.pod_of(f"ns/{name}", ()), ends=True)


def simulate(*events: Event, pools: NodePools = POOLS, policy: str = STATIC) -> SimulationResult:
    return simulation.compare(TELCO, pools, events, [policy])[policy]


def cpus(outcome: SimulationResult) -> dict[str, str]:
    """Give pod/container → its CPUs at the end, without the namespace."""
    return {one.container[3:]: str(one.cpus) for one in outcome.running}


def waits(outcome: SimulationResult) -> dict[str, tuple[float, str]]:
    """Give pod/container → how long it waited, and why it still waits, of all that waited."""
    return {
        one.container[3:]: (one.waited_s, one.held)
        for one in outcome.placements
        if one.waited_s or one.held
    }


def test_a_container_of_whole_cpus_gets_its_own_and_a_part_of_a_cpu_shares() -> None:
    outcome = simulate(comes("p", 0, container(2), container(1.5, "part")), comes("q", 0, 0.5))
    assert cpus(outcome) == {"p/c": "1,17"}
    assert (outcome.summary.admitted, outcome.summary.waited) == (2, 0)
    (placed,) = outcome.placements
    assert (placed.requested, placed.nodes, placed.steps[-1].rule) == (2, (0,), "cpuManager")
    assert outcome.summary.utilisation == 2 / 28


def test_a_container_may_be_eligible_alone_and_a_system_pod_owns_nothing() -> None:
    pools = NodePools.of(
        cpu_manager=CPUManager(
            "static",
            CPUSet.of(0, 16),
            eligible=Eligible.CONTAINER,
            system_pods=SystemPods(("kube-system",), CPUSet.of(1, 17)),
        )
    )
    database = replace(container(2, "db"), whole_cpus=0, equal_cpus=2)
    system = workload.pod_of("kube-system/dns", [container(2)])
    pod = comes("p", 0, database, container(0.5, "logs"))
    events = (pod, workload.arrival(0, system, {}, {}))

    outcome = simulate(*events, pools=pools)
    assert cpus(outcome) == {"p/db": "2,18"}
    # The kubelet has no such settings.
    outcome = simulate(*events, pools=pools, policy=simulation.KUBELET_PACKED)
    assert [(one.container, str(one.cpus)) for one in outcome.running] == [
        ("kube-system/dns/c", "1,17")
    ]


@pytest.mark.parametrize(
    ("scope", "own"),
    [
        (Scope.POD, {"web/db": "1,17", "web/logs": "2,18", "web/proxy": "2,18"}),
        (Scope.CONTAINER, {"web/db": "1,17"}),
        (None, {}),
    ],
)
def test_a_pod_with_cpu_of_its_own_has_a_bubble_by_the_setting(
    scope: Scope | None, own: dict[str, str]
) -> None:
    named = [{"name": "db", "cpu": 2}, {"name": "logs"}, {"name": "proxy", "cpu": 0.5}]
    line = {"at_s": 1, "pod": "ns/web", "cpu": 4, "containers": named}
    events = workload.read("trace.jsonl", json.dumps(line))
    assert workload.read("trace.jsonl", workload.write(events)) == events
    manager = replace(POLICY, pod_level=scope is not None, topology_scope=scope or Scope.POD)
    assert cpus(simulate(*events, pools=NodePools.of(cpu_manager=manager))) == own


def test_the_reasons_of_the_policy_are_those_of_each_container() -> None:
    pools = NodePools.of(cpu_manager=CPUManager("telling", installed=TellingCPUs))
    pod = comes("p", 0, container(2, "main"), container(1, "last"))

    outcome = simulate(pod, pools=pools, policy=simulation.POOL)

    assert {
        one.container: [(step.rule, str(step.left)) for step in one.steps]
        for one in outcome.placements
    } == {
        "ns/p/main": [("telling", "0-1"), ("cpuManager", "0-1")],
        "ns/p/last": [("telling", "2"), ("cpuManager", "2")],
    }


def test_the_scheduler_counts_the_cpus_that_kubelet_config_makes_allocatable() -> None:
    # With whole cores only, CPU 16 is the rest of a core that is partly reserved.
    whole = CPUManager("static", CPUSet.of(0), StaticOptions(full_pcpus_only=True))
    pools = NodePools.of(cpu_manager=whole)
    outcome = simulate(comes("fits", 0, 30), comes("late", 1, 0.5), pools=pools)
    assert [one.why for one in outcome.refusals] == [
        "ns/late: Unschedulable: cpu: 500m requested, 0 free of 30"
    ]


def test_a_pod_waits_for_cpus_on_one_node_and_has_them_once_others_have_left() -> None:
    # After the first two 4 CPUs are free on each node.
    events = [comes("a", 0, 10), comes("b", 1, 10), comes("wide", 2, 6), comes("small", 3, 2)]
    waiting = simulate(*events)
    assert waits(waiting) == {"wide/c": (1, APART)}
    assert (waiting.summary.waited, waiting.summary.waiting_at_end) == (1, 1)
    assert cpus(waiting)["wide/c"] == ""

    served = simulate(*events, goes("a", 12), goes("b", 13))
    assert waits(served) == {"wide/c": (10, "")}
    assert (served.summary.waited_s, served.summary.waiting_at_end) == (10, 0)
    assert len(CPUSet.parse(cpus(served)["wide/c"])) == 6
    (wide,) = [one for one in served.placements if one.container == "ns/wide/c"]
    assert [step.rule for step in wide.steps] == ["onMisfit", "cpuManager"]
    assert wide.steps[0].why == f"its pod waits 10 s: {APART}"
    # All that was given is free again.
    assert (
        simulate(*events, *(goes(name, 20) for name in ("a", "b", "wide", "small")))
        .series[-1]
        .utilisation
        == 0
    )


def test_a_pod_that_ends_while_it_waits_has_waited_until_then() -> None:
    outcome = simulate(
        comes("a", 0, 10), comes("b", 0, 10), comes("wide", 2, 6), goes("wide", 9), goes("a", 10)
    )
    assert waits(outcome) == {"wide/c": (7, APART)}
    assert (outcome.summary.waited, outcome.summary.waiting_at_end) == (1, 0)


@pytest.mark.parametrize(
    ("policy", "misfit"), [(KUBELET_PACKED, Misfit.HOLD), (STATIC, Misfit.FAIL)]
)
def test_what_the_kubelet_or_the_pool_file_fails_is_refused_and_never_comes(
    policy: str, misfit: Misfit
) -> None:
    options = StaticOptions(full_pcpus_only=True)
    pools = NodePools.of(cpu_manager=replace(POLICY, options=options, on_misfit=misfit))
    outcome = simulate(
        comes("odd", 1, 3), comes("even", 2, 2), goes("odd", 3), pools=pools, policy=policy
    )
    assert [one.why for one in outcome.refusals] == [f"ns/odd: SMTAlignmentError: {ODD}"]
    assert [(one.container, one.requested) for one in outcome.placements if one.refused] == [
        ("ns/odd/c", 3)
    ]
    assert cpus(outcome) == {"even/c": "1,17"}
    assert outcome.summary.waited == 0


def test_the_scheduler_counts_whole_and_shared_cpus_of_pods_that_came_and_no_others() -> None:
    init = container(20, "init", ContainerKind.INIT)
    outcome = simulate(
        comes("p", 0, init, container(0.5)),
        comes("q", 1, 9),
        comes("r", 2, 8),
        goes("p", 3),
        comes("s", 4, 20.5),
    )
    assert [one.why for one in outcome.refusals] == [
        "ns/q: Unschedulable: cpu: 9 requested, 8 free of 28",
        "ns/s: Unschedulable: cpu: 20500m requested, 20 free of 28",
    ]


def test_what_the_scheduler_counts_for_a_pod_with_an_init_container_is_what_it_owns() -> None:
    init = container(1, "init", ContainerKind.INIT)
    outcome = simulate(
        comes("p", 0, init, container(2)),
        comes("q", 1, 15),
        comes("r", 2, 13),
        pools=NodePools.of(cpu_manager=replace(POLICY, reserved=CPUSet.parse("0,8"))),
    )
    assert cpus(outcome) == {
        "p/init": "1",
        "p/c": "1,17",
        "q/c": "9-15,24-31",
        "r/c": "2-7,16,18-23",
    }


def test_a_move_that_becomes_possible_at_a_time_is_not_awaited_any_more_at_that_time() -> None:
    created_s = 1977.481
    assert created_s + 600 - created_s < 600
    compacted = replace(POLICY, policy=DYNAMIC, compaction=Compaction(minimum_age_s=600))
    manager = SimulatedCPUManager(TELCO, NodePools.of(cpu_manager=compacted))
    pod = replace(comes("p", created_s, 2).pod, cpu_moves=CPUMoves.ANY)
    assert len(list(manager.start(pod, created_s))) == 1
    assert list(manager.compact(created_s)) == []
    assert manager.next_change_s == created_s + 600

    assert list(manager.compact(created_s + 600)) == []
    assert manager.next_change_s == math.inf


def test_pools_and_native_cpus_stand_beside_each_other() -> None:
    pools = NodePools.of(
        Pool.named("default", "0-7,16-23"),
        Pool.named("exclusive_a", "8-15"),
        cpu_manager=CPUManager("static", CPUSet.parse("0,16")),
    )
    both = replace(container(2, "both"), requests=builders.asking({"exclusive_a": 2}))
    outcome = simulate(comes("p", 0, container(2), both), pools=pools)
    assert {(one.container, one.pool): str(one.cpus) for one in outcome.running} == {
        ("ns/p/c", "policy/cpu"): "1,17",
        ("ns/p/both", "exclusive_a"): "8-9",
    }
    assert outcome.series[-1].utilisation == 4 / (14 + 8)


@pytest.mark.parametrize("policy", [STATIC, KOORDINATOR])
def test_a_pool_file_without_a_cpu_manager_has_no_policy_of_one_to_compare(policy: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy is none, not {policy}; write cpuManager: \{{"):
        simulate(comes("p", 0, 1), pools=NodePools.of(Pool.named("default", "0-7")), policy=policy)


def assigned(cpus: str) -> dict[str, str]:
    return {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})}


def of_class(
    name: str,
    at_s: float,
    *containers: Container | float,
    qos: str = "LSR",
    annotations: Mapping[str, str] | None = None,
) -> Event:
    pod = comes(name, at_s, *containers).pod
    return workload.arrival(at_s, pod, {"koordinator.sh/qosClass": qos}, annotations or {})


def test_all_containers_of_an_owner_of_koordinators_classes_have_the_cpus_of_the_pod() -> None:
    outcome = simulate(
        of_class("lsr", 0, container(1.5), container(0.5, "part")),
        of_class("split", 1, 1, container(2, "two"), annotations={"cpus-per-container": "true"}),
        of_class("ls", 2, 2, qos="LS"),
        comes("plain", 3, 2),
        of_class("told", 4, 2, annotations=assigned("9,25")),
        policy=KOORDINATOR,
    )
    assert cpus(outcome) == {
        "lsr/c": "1,17",
        "lsr/part": "1,17",
        "split/c": "3",
        "split/two": "2,18",
        "told/c": "9,25",
    }
    assert {one.container: one.requested for one in outcome.placements}["ns/split/two"] == 2
    assert outcome.series[-1].utilisation == 7 / 28


def test_under_koordinator_a_pod_waits_for_cpus_of_a_scheduler_and_with_forged_ones_shares() -> (
    None
):
    events = [
        of_class("first", 0, 2, annotations=assigned("2,3")),
        of_class("late", 1, 2, annotations=assigned("3-4")),
        of_class("forged", 2, 2, annotations=assigned("0,2"), qos="LSE"),
    ]
    outcome = simulate(*events, goes("first", 8), goes("forged", 9), policy=KOORDINATOR)
    assert waits(outcome) == {"late/c": (7, "")}
    assert cpus(outcome) == {"late/c": "3-4"}
    assert (outcome.summary.admitted, outcome.summary.waited) == (3, 1)
    shares = {one.container: one.shares for one in outcome.placements if one.shares}
    assert shares == {"ns/forged/c": "the scheduler has assigned CPUs 0,2, but 0 are reserved"}
    # static gives the same pods CPUs that it chooses.
    assert waits(simulate(*events)) == {}


def test_what_koordinator_never_serves_is_not_failed_and_what_it_cannot_serve_now_is() -> None:
    pools = NodePools.of(cpu_manager=replace(POLICY, on_misfit=Misfit.FAIL))
    events = [
        of_class("a", 0, 2, annotations=assigned("2,3")),
        of_class("forged", 1, 2, annotations=assigned("0,4")),
        of_class("late", 2, container(1.5), container(0.5, "d"), annotations=assigned("3-4")),
    ]
    outcome = simulate(*events, pools=pools, policy=KOORDINATOR)
    assert [one.why for one in outcome.refusals] == [
        "ns/late: UnexpectedAdmissionError: the scheduler has assigned CPUs 3-4, but 3 are not free"
    ]
    refused = [(one.container, one.requested) for one in outcome.placements if one.refused]
    assert refused == [("ns/late/c", 2), ("ns/late/d", 2)]
    assert [one.container for one in outcome.running if one.shares] == ["ns/forged/c"]


def test_the_kubelet_knows_no_classes() -> None:
    pools = NodePools.of(cpu_manager=replace(POLICY, policy=KOORDINATOR))
    outcome = simulate(of_class("ls", 0, 2, qos="LS"), pools=pools, policy=KUBELET_PACKED)
    assert cpus(outcome) == {"ls/c": "1,17"}


def test_a_trace_keeps_labels_and_annotations() -> None:
    events = (of_class("p", 0, 2, annotations=assigned("2-3") | {"cpus-per-container": "true"}),)
    told = events[0].pod.orchestration
    assert told
    assert (told.cpus, told.split) == (CPUSet.parse("2-3"), True)
    assert workload.read("trace.jsonl", workload.write(events))[0].pod.orchestration == told


def test_random_pods_own_as_many_cpus_under_koordinator_as_under_static() -> None:
    events = list(workload.made_up(TELCO, POOLS, 60, seed=2, load=2))
    runs = [simulate(*events, policy=policy) for policy in (STATIC, KOORDINATOR)]
    assert len({run.summary.admitted for run in runs}) == 1
    assert all(run.series[-1].utilisation > 0.5 for run in runs)


def test_random_pods_request_cpus_natively_and_in_whole_cores_where_these_are_promised() -> None:
    pools = NodePools.of(cpu_manager=replace(POLICY, options=StaticOptions(full_pcpus_only=True)))
    events = list(workload.made_up(TELCO, pools, 60, seed=2, load=2))
    asked = {one.whole_cpus for event in events for one in event.pod.containers}
    assert asked == {2, 4, 8}
    outcome = simulate(*events, pools=pools)
    assert outcome.summary.admitted + outcome.summary.refused == 60
    assert workload.read("trace.jsonl", workload.write(events)) == tuple(events)
