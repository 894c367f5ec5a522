"""Pods of Koordinator's classes under its policy, asked through the Manager."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Cause, Placement
from cpupool.core.cpu_manager import CPUManager, Misfit, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import TopologyAffinityError
from cpupool.core.grants import WHOLE_POD, Sharing
from cpupool.core.orchestration import (
    BindPolicy,
    NodeRules,
    Orchestration,
    QoS,
    Reservation,
    SystemCPUs,
)
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind, QoSClass, RuntimeContainer
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES
from tests.unit.manager.choosing.nodes import on

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

MACHINE = MACHINES[
    "telco_2s_2n_16c32t"
]  # cores 0,16 to 7,23 on node 0, and 8,24 to 15,31 on node 1
DEFAULT = "0-3,8-11,16-19,24-27"
LINES = (Pool.named("exclusive_a", "4-7"), Pool.named("default", DEFAULT))
POLICY = CPUManager("koordinator", reserved=CPUSet.parse("0,16"))
POOLS = NodePools.of(*LINES, cpu_manager=POLICY)


def node(*pods: Pod, pools: NodePools = POOLS, rules: NodeRules | None = None) -> Manager:
    made = Manager()
    made.reconfigure(pools, MACHINE.topology())
    made.observe(pods=pods, rules=rules)
    made.adopt(())
    return made


def pod(
    name: str,
    qos: QoS | None = QoS.LSR,
    cpu: int = 2000,
    cpus: str = "",
    *,
    kube: QoSClass = QoSClass.GUARANTEED,
    **told: object,
) -> Pod:
    container = replace(builders.container(f"{name}-main", cpu=cpu), request_milli=cpu)
    orchestration = Orchestration(qos, prod=True, cpus=CPUSet.parse(cpus))
    return replace(
        builders.pod(name, container),
        qos=kube,
        orchestration=replace(orchestration, **told),  # type: ignore[arg-type]
    )


def cpus_of(manager: Manager, pod: Pod) -> str:
    key = (pod.cgroup_uid, ContainerID(f"{pod.name}-main-id"))
    return str(manager.snapshot().assignment(key).cpus)


def own(manager: Manager) -> dict[str, str]:
    chosen = manager.snapshot().resolution.grants.chosen
    return {uid.removesuffix("-uid"): str(grant.cpus) for uid, grant in chosen.items()}


LS = pod("ls", QoS.LS, 500)
BE = pod("be", QoS.BE, 0, kube=QoSClass.BEST_EFFORT)
PLAIN = replace(pod("plain", None, 1500, kube=QoSClass.BURSTABLE), orchestration=None)
WHOLE = replace(pod("whole", None, 2000), orchestration=None)


class TestSets:
    def test_an_lsr_pod_lends_its_cpus_to_best_effort_pods_alone(self) -> None:
        lsr = pod("lsr", QoS.LSR, cpus="2,18")
        manager = node(lsr, LS, BE, PLAIN, WHOLE)

        assert cpus_of(manager, lsr) == "2,18"
        for shared in (LS, PLAIN, WHOLE):
            assert cpus_of(manager, shared) == "0-1,3,8-11,16-17,19,24-27"
        assert cpus_of(manager, BE) == DEFAULT

    def test_an_lse_pod_lends_them_to_no_pod(self) -> None:
        manager = node(pod("lse", QoS.LSE, cpus="2,18"), LS, BE)

        assert cpus_of(manager, LS) == cpus_of(manager, BE) == "0-1,3,8-11,16-17,19,24-27"

    def test_the_sets_are_as_before_once_the_pod_has_ended(self) -> None:
        lse = pod("lse", QoS.LSE, cpus="2,18")
        manager = node(lse, LS, BE)

        manager.observe(pods=(LS, BE), idle=frozenset({"lse-uid"}))

        assert cpus_of(manager, LS) == cpus_of(manager, BE) == DEFAULT

    def test_all_containers_and_the_sandbox_of_a_pod_share_its_set(self) -> None:
        lsr = pod("lsr", cpus="2,18")
        side = builders.container("side", ContainerKind.SIDECAR)
        lsr = replace(lsr, containers=(side, *lsr.containers))
        manager = node(lsr)

        snapshot = manager.snapshot()
        for container in ("side-id", "lsr-main-id", "the sandbox"):
            placed = snapshot.assignment((lsr.cgroup_uid, ContainerID(container)))
            assert str(placed.exclusive) == "2,18"
        assert own(manager) == {"lsr": "2,18"}

    def test_a_pod_on_numa_nodes_has_the_shared_cpus_there(self) -> None:
        near = pod("near", QoS.LS, 500, nodes=frozenset({1}))

        assert cpus_of(node(near), near) == "8-11,24-27"

    def test_no_pod_runs_on_what_an_admin_withholds(self) -> None:
        rules = NodeRules(
            Reservation(CPUSet.parse("3,19")), SystemCPUs(CPUSet.parse("8"), exclusive=True)
        )
        system = pod("system", QoS.SYSTEM, 500)
        manager = node(LS, BE, system, rules=rules)

        assert cpus_of(manager, LS) == cpus_of(manager, BE) == "0-2,9-11,16-18,24-27"
        assert cpus_of(manager, system) == "8"

    @pytest.mark.parametrize(
        ("cpus", "left"),
        [
            pytest.param("2,8,18", "8", id="some are left"),
            pytest.param("2,18", "0-1,3,8-11,16-17,19,24-27", id="none is left: the shared CPUs"),
        ],
    )
    @pytest.mark.parametrize("qos", [QoS.LSE, QoS.LSR])
    def test_a_system_pod_leaves_out_the_cpus_of_an_owner(
        self, qos: QoS, cpus: str, left: str
    ) -> None:
        owner, system = pod("owner", qos, cpus="2,18"), pod("system", QoS.SYSTEM, 500)
        manager = node(owner, system)

        manager.observe(rules=NodeRules(system=SystemCPUs(CPUSet.parse(cpus))))

        assert cpus_of(manager, owner) == "2,18"
        assert cpus_of(manager, system) == left

    def test_a_container_with_devices_of_a_pool_is_outside_the_policy(self) -> None:
        lsr = pod("lsr", cpus="2,18")
        (main,) = lsr.containers
        asking = replace(main, requests=builders.asking({"exclusive_a": 2}))
        lsr = replace(lsr, containers=(asking,))
        manager = node(lsr)
        manager.accept(builders.given(lsr, "lsr-main", exclusive_a="4,5"))

        assert cpus_of(manager, lsr) == "4-5"
        assert own(manager) == {}


class TestAssigned:
    @pytest.mark.parametrize(
        ("cpus", "why"),
        [
            pytest.param("4-5", "4-5 are not the CPU manager's", id="a pool's"),
            pytest.param("40-41", "40-41 are not the CPU manager's", id="not the machine's"),
            pytest.param("1-3", "the pod requests 2", id="too many"),
            pytest.param("1", "the pod requests 2", id="too few"),
            pytest.param("0-1", "0 are reserved", id="reserved"),
        ],
    )
    def test_a_forged_set_is_confined_and_told(self, cpus: str, why: str) -> None:
        forged = pod("forged", cpus=cpus)
        manager = node(forged, LS)

        snapshot = manager.snapshot()
        placed = snapshot.assignment((forged.cgroup_uid, ContainerID("forged-main-id")))
        refusal = snapshot.resolution.view.refused[forged.cgroup_uid]
        assert (placed.placement, placed.cause) == (Placement.CONFINED, Cause.MISFIT)
        assert str(placed.cpus) == cpus_of(manager, LS) == DEFAULT
        assert why in placed.reason
        assert not refusal.holds

    def test_of_two_pods_with_one_cpu_the_older_has_it(self) -> None:
        older = replace(pod("older", cpus="2,18"), created="2026-01-01T00:00:00Z")
        later = replace(pod("later", cpus="3,18"), created="2026-01-02T00:00:00Z")
        manager = node(later, older)

        assert own(manager) == {"older": "2,18"}
        manager.observe(pods=(later,), idle=frozenset({"older-uid"}))
        assert own(manager) == {"later": "3,18"}

    def test_a_pod_whose_cpus_are_not_free_yet_is_held_unless_it_may_share(self) -> None:
        first, second = pod("first", cpus="2,18"), pod("second", cpus="2,18")
        for misfit, holds in ((Misfit.HOLD, True), (Misfit.SHARE, False)):
            pools = NodePools.of(*LINES, cpu_manager=replace(POLICY, on_misfit=misfit))
            manager = node(first, pools=pools)
            waiting = replace(second, containers=(replace(second.containers[0], id=None),))
            manager.observe(pods=(first, waiting))
            manager.observe_containers([_sandbox(second)])

            assert manager.snapshot().resolution.view.refused["second-uid"].holds is holds

    def test_an_annotation_that_changes_later_moves_no_pod(self) -> None:
        lsr = pod("lsr", cpus="2,18")
        manager = node(lsr)

        manager.observe(pods=(pod("lsr", cpus="3,19"),))

        assert own(manager) == {"lsr": "2,18"}

    def test_a_damaged_annotation_confines_the_pod(self) -> None:
        broken = pod("broken", fault="resource-status is '{'")
        manager = node(broken)

        snapshot = manager.snapshot()
        placed = snapshot.assignment((broken.cgroup_uid, ContainerID("broken-main-id")))
        assert (placed.cause, str(placed.cpus)) == (Cause.ANNOTATION, DEFAULT)


class TestBoundLate:
    @pytest.mark.parametrize(
        ("bind", "required", "of_node", "cpus"),
        [
            pytest.param(None, False, None, "1,17", id="the default: a whole core"),
            pytest.param(BindPolicy.SPREAD_BY_PCPUS, False, None, "1-2", id="spread"),
            pytest.param(None, False, BindPolicy.SPREAD_BY_PCPUS, "1-2", id="the node spreads"),
            pytest.param(
                BindPolicy.FULL_PCPUS, True, BindPolicy.SPREAD_BY_PCPUS, "1,17", id="required"
            ),
        ],
    )
    def test_cores_are_filled_or_spread_over(
        self, bind: BindPolicy | None, required: bool, of_node: BindPolicy | None, cpus: str
    ) -> None:
        one_node = NodePools.of(Pool.named("default", "0-3,16-19"), cpu_manager=POLICY)
        lsr = pod("lsr", bind=bind, required=required)

        assert own(node(lsr, pools=one_node, rules=NodeRules(bind=of_node))) == {"lsr": cpus}

    @pytest.mark.parametrize(
        ("strategy", "node_of_second"),
        [(NUMAPolicy.MOST_ALLOCATED, 0), (NUMAPolicy.LEAST_ALLOCATED, 1)],
    )
    def test_the_strategy_says_on_which_numa_node_to_begin(
        self, strategy: NUMAPolicy, node_of_second: int
    ) -> None:
        first = pod("first", cpus="1,17")

        manager = node(first, pod("second"), rules=NodeRules(strategy=strategy))

        on_nodes = MACHINE.topology().nodes
        assert CPUSet.parse(own(manager)["second"]) <= on_nodes[node_of_second]

    def test_evenly_is_the_same_number_on_each_numa_node_that_is_needed(self) -> None:
        rules = NodeRules(strategy=NUMAPolicy.DISTRIBUTED)

        found = CPUSet.parse(own(node(pod("lsr", cpu=12_000), rules=rules))["lsr"])

        on_nodes = MACHINE.topology().nodes
        assert [len(found & on_nodes[each]) for each in (0, 1)] == [6, 6]

    def test_a_node_with_full_cores_only_refuses_parts_of_cores(self) -> None:
        rules = NodeRules(bind=BindPolicy.FULL_PCPUS, full_cores_only=True)
        manager = node(pod("lsr", cpu=3000), rules=rules)

        refusal = manager.snapshot().resolution.view.refused["lsr-uid"]
        assert "3" in str(refusal.error)
        assert own(manager) == {}

    def test_pods_with_the_same_wish_avoid_each_others_numa_node_or_else_cores(self) -> None:
        pods = [
            pod(
                name,
                cpu=1000,
                exclusive=ExclusivePolicy.NUMA_NODE,
                bind=BindPolicy.SPREAD_BY_PCPUS,
            )
            for name in ("a", "b", "c")
        ]

        found = {name: CPUSet.parse(cpus) for name, cpus in own(node(*pods)).items()}

        topology = MACHINE.topology()
        nodes = {name: topology.node_of(cpus.first) for name, cpus in found.items()}
        assert nodes["a"] != nodes["b"]
        cores = [topology.with_siblings(cpus) for cpus in found.values()]
        assert CPUSet.union(cores) == CPUSet.union(cores[:2]) | cores[2]
        assert cores[2].isdisjoint(cores[0] | cores[1])

    @pytest.mark.parametrize(
        ("of_pod", "of_node", "on_nodes"),
        [
            (TopologyPolicy.SINGLE_NUMA_NODE, None, None),
            (None, TopologyPolicy.SINGLE_NUMA_NODE, None),
            (TopologyPolicy.BEST_EFFORT, TopologyPolicy.SINGLE_NUMA_NODE, 2),
            (None, None, 2),
        ],
    )
    def test_the_pods_topology_policy_counts_before_the_nodes(
        self, of_pod: TopologyPolicy | None, of_node: TopologyPolicy | None, on_nodes: int | None
    ) -> None:
        large = pod("large", cpu=10_000, topology=of_pod)
        manager = node(rules=NodeRules(topology=of_node))
        manager.observe(pods=(large,), device_nodes={"large-uid": {}})

        refused = manager.snapshot().resolution.view.refused
        if on_nodes is None:
            assert isinstance(refused["large-uid"].error, TopologyAffinityError)
        else:
            cpus = CPUSet.parse(own(manager)["large"])
            assert {MACHINE.topology().node_of(cpu) for cpu in cpus} == {0, 1}

    def test_a_topology_policy_knows_which_cpus_the_bind_policy_leaves(self) -> None:
        # Node 0 has three free CPUs, but no whole core.
        held = pod("held", QoS.LSE, 3000, "1-3")
        rules = NodeRules(topology=TopologyPolicy.SINGLE_NUMA_NODE)
        strict = pod("strict", cpu=2000, bind=BindPolicy.FULL_PCPUS, required=True)
        near_0 = {"strict-main": frozenset({frozenset({frozenset({0})})})}
        manager = node(held, rules=rules)
        manager.observe(pods=(held, strict), device_nodes={"strict-uid": near_0, "held-uid": {}})

        refusal = manager.snapshot().resolution.view.refused["strict-uid"]
        assert isinstance(refusal.error, TopologyAffinityError)

    def test_a_pod_that_requests_no_whole_cpus_shares(self) -> None:
        fraction = pod("fraction", cpu=1500)

        assert cpus_of(node(fraction), fraction) == DEFAULT

    def test_the_reserved_cpus_are_the_floor_of_the_shared_set(self) -> None:
        lse = pod("lse", QoS.LSE, cpu=14_000)
        manager = node(lse, LS, BE)

        assert cpus_of(manager, LS) == cpus_of(manager, BE) == "0,16"
        assert own(node(pod("lse", QoS.LSE, cpu=15_000))) == {}


class TestRestart:
    def test_the_record_keeps_the_set_of_a_pod(self) -> None:
        lsr = pod("lsr")
        entries = {"lsr-uid": {WHOLE_POD: CPUSet.parse("9,25")}}
        manager = Manager()
        manager.reconfigure(POOLS, MACHINE.topology())
        manager.observe(pods=(lsr,))
        manager.adopt((), State("koordinator", entries=entries))

        assert own(manager) == {"lsr": "9,25"}
        assert manager.snapshot().resolution.grants.chosen["lsr-uid"].sharing is Sharing.BEST_EFFORT

    @pytest.mark.parametrize(
        "told",
        [
            pytest.param(None, id="all labels and annotations are removed"),
            pytest.param(Orchestration(QoS.LS), id="the class is another one"),
            pytest.param(Orchestration(QoS.LSR, prod=True, fault="is '{'"), id="damaged"),
        ],
    )
    def test_labels_and_annotations_that_have_changed_take_no_cpu_from_a_pod(
        self, told: Orchestration | None
    ) -> None:
        lsr = replace(pod("lsr"), orchestration=told)
        entries = {"lsr-uid": {WHOLE_POD: CPUSet.parse("9,25")}}
        manager = Manager()
        manager.reconfigure(POOLS, MACHINE.topology())
        manager.observe(pods=(lsr,))
        manager.adopt((), State("koordinator", entries=entries))

        assert own(manager) == {"lsr": "9,25"}
        assert cpus_of(manager, lsr) == "9,25"

    @pytest.mark.parametrize(
        ("cpu", "now"), [(4000, "cpu 4"), (1000, "cpu 1"), (1500, "no whole number of CPUs")]
    )
    def test_a_resized_pod_keeps_its_set_and_the_reason_is_reported(
        self, cpu: int, now: str
    ) -> None:
        manager = node(pod("lsr", cpus="9,25"))
        resized = pod("lsr", cpu=cpu, cpus="9,25")
        manager.observe(pods=(resized,))
        again = Manager()
        again.reconfigure(POOLS, MACHINE.topology())
        again.observe(pods=(resized,))
        entries = {"lsr-uid": {WHOLE_POD: CPUSet.parse("9,25")}}
        again.adopt((), State("koordinator", entries=entries))

        for agent in (manager, again):
            placed = agent.snapshot().assignment(("lsr-uid", ContainerID("lsr-main-id")))
            assert str(placed.cpus) == "9,25"
            assert placed.reason == (
                f"its pod requests {now} since a resize, and keeps CPUs 9,25 until the pod ends"
            )

    def test_a_class_that_an_owner_gets_while_no_agent_runs_lends_none_of_its_cpus(self) -> None:
        manager = Manager()
        manager.reconfigure(POOLS, MACHINE.topology())
        manager.observe(pods=(lsr := pod("lsr"), BE))
        # Its CPUs are from the policy static, under which nobody shares those of owners.
        manager.adopt((), State("static", entries={"lsr-uid": {"lsr-main": CPUSet.parse("9,25")}}))

        assert cpus_of(manager, lsr) == "9,25"
        assert CPUSet.parse("9,25").isdisjoint(CPUSet.parse(cpus_of(manager, BE)))

    @pytest.mark.parametrize("sharing", [Sharing.NONE, Sharing.BEST_EFFORT])
    @pytest.mark.parametrize("qos", [QoS.LSE, QoS.LSR, QoS.LS])
    @pytest.mark.parametrize("policy", ["koordinator", "static"])
    def test_who_may_share_the_cpus_of_a_pod_is_recorded(
        self, policy: str, qos: QoS, sharing: Sharing
    ) -> None:
        changed = pod("changed", qos)
        pools = NodePools.of(*LINES, cpu_manager=replace(POLICY, policy=policy))
        entries = {"changed-uid": {WHOLE_POD: CPUSet.parse("9,25")}}
        manager = Manager()
        manager.reconfigure(pools, MACHINE.topology())
        manager.observe(pods=(changed,))
        recorded = State("koordinator", entries=entries, sharing={"changed-uid": sharing})
        manager.adopt((), recorded)

        assert manager.snapshot().resolution.grants.chosen["changed-uid"].sharing is sharing

    def test_the_cpus_on_which_a_pod_runs_are_recognised(self) -> None:
        lsr = pod("lsr")
        manager = Manager()
        manager.reconfigure(POOLS, MACHINE.topology())
        manager.observe(pods=(lsr,))
        manager.adopt([on(lsr, "9,25")])

        assert own(manager) == {"lsr": "9,25"}

    def test_a_pod_that_shares_the_last_cpus_does_not_own_them_after_a_restart(self) -> None:
        most = pod("most", QoS.LSE, 12_000, "1-2,8-11,17-19,24-26")
        sharing = pod("sharing")
        manager = Manager()
        # The reserved CPUs are offline.
        manager.reconfigure(POOLS, MACHINE.without("0,16").topology())
        manager.observe(pods=(most, sharing, LS))
        manager.adopt([on(most, "1-2,8-11,17-19,24-26"), on(sharing, "3,27"), on(LS, "3,27")])

        assert own(manager) == {"most": "1-2,8-11,17-19,24-26"}
        assert cpus_of(manager, sharing) == cpus_of(manager, LS) == "3,27"

    def test_a_pod_keeps_its_cpus_under_another_policy(self) -> None:
        lse = pod("lse", QoS.LSE, cpus="2,18")
        manager = node(lse)

        for policy in (CPUManager("static", reserved=CPUSet.of(0)), CPUManager(), POLICY):
            pools = NodePools.of(*LINES, cpu_manager=policy)
            manager.reconfigure(pools, MACHINE.topology())
            assert own(manager) == {"lse": "2,18"}
            assert cpus_of(manager, lse) == "2,18"


def _sandbox(pod: Pod) -> RuntimeContainer:
    return RuntimeContainer(
        ContainerID(f"{pod.name}-sandbox"), pod.cgroup_uid, pod.namespace, pod.name
    )
