"""CPUs that the node chooses for LSE and LSR pods: requirements, preferences, and reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import CPUManager, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs, SMTAlignmentError
from cpupool.core.grants import WHOLE_POD, Grants
from cpupool.core.names import POLICY_CPUS
from cpupool.core.orchestration import BindPolicy, NodeRules, Orchestration, QoS, Reservation
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.host.sysfs import open_topology
from cpupool.policies.base import Choice, ChoiceRequest
from cpupool.policies.koordinator.late_binding import BindPolicyUnmet, FloorReached
from cpupool.policies.koordinator.policy import KoordinatorPolicy
from cpupool.policies.view import NodeView
from tests import builders, testdata
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
CORE, NODE = ExclusivePolicy.PHYSICAL_CORE, ExclusivePolicy.NUMA_NODE
SMT = MACHINES["telco_2s_2n_16c32t"].topology()  # core n is n,n+16; cores 0-7 on node 0
ARM = NodeRules(arm=True)


def choose(
    count: int,
    machine: CPUTopology = SMT,
    *,
    rules: NodeRules | None = None,
    options: StaticOptions | None = None,
    held: dict[str, ExclusivePolicy] | None = None,
    nodes: frozenset[int] | None = None,
    **told: object,
) -> Choice:
    """Choose CPUs for a pod; CPU 0 is reserved.

    Args:
        count: how many.
        machine: the node.
        rules: what the node's labels say.
        options: those of the pool file.
        held: the CPUs of other pods → their exclusive policy.
        nodes: the NUMA nodes that come first.
        told: what the pod's annotations say.
    """
    pods = [
        replace(
            builders.pod(f"other-{cpus}"),
            orchestration=Orchestration(QoS.LSR, prod=True, exclusive=preference),
        )
        for cpus, preference in (held or {}).items()
    ]
    grants = Grants().adding(
        builders.chosen(pod.cgroup_uid, WHOLE_POD, CPUSet.parse(cpus))
        for pod, cpus in zip(pods, held or {}, strict=True)
    )
    manager = CPUManager("koordinator", CPUSet.of(0), options or StaticOptions())
    pools = NodePools.of(Pool.named("default", str(machine.online)), cpu_manager=manager)
    policy = KoordinatorPolicy.of_pools(pools, machine)
    view = NodeView(
        machine,
        pools,
        machine.online,
        grants,
        barred=grants.cpus,
        pods=tuple(pods),
        rules=rules or NodeRules(),
    )
    orchestration = Orchestration(QoS.LSR, prod=True, **told)  # type: ignore[arg-type]
    pod = replace(builders.pod("pod"), orchestration=orchestration)
    request = ChoiceRequest(POLICY_CPUS, count, policy.available(view), nodes=nodes, pod=pod)
    request = policy.narrowed(view, request)
    choice = policy.choose(view, request)
    assert choice.cpus <= request.available
    return choice


def reasons(choice: Choice) -> str:
    return "\n".join(f"{step.rule}: {step.why}" for step in choice.steps)


def cores(cpus: CPUSet) -> set[int]:
    return {cpu % 16 for cpu in cpus}


class TestRequired:
    def test_spread_takes_a_core_for_each_cpu_even_over_numa_nodes(self) -> None:
        choice = choose(12, bind=SPREAD, required=True)

        assert len(cores(choice.cpus)) == 12

    def test_spread_as_a_wish_stays_on_a_numa_node_and_says_so(self) -> None:
        choice = choose(12, bind=SPREAD)

        assert len(cores(choice.cpus)) < 12
        assert "bind policy: SpreadByPCPUs: the pod prefers it" in reasons(choice)
        assert "SpreadByPCPUs is not kept: CPUs of one core are among them" in reasons(choice)

    def test_spread_counts_as_required_by_the_nodes_label(self) -> None:
        assert len(cores(choose(12, rules=NodeRules(bind=SPREAD)).cpus)) == 12

    def test_spread_over_more_cores_than_are_free_waits_for_them(self) -> None:
        with pytest.raises(BindPolicyUnmet, match="3 CPUs requested, 2 cores have a free") as waits:
            choose(3, held={"2-15,18-31": ExclusivePolicy.NONE}, bind=SPREAD, required=True)
        assert waits.value.heals

    def test_spread_over_more_cores_than_there_are_is_refused_at_once(self) -> None:
        with pytest.raises(BindPolicyUnmet, match="SpreadByPCPUs cannot be kept") as refused:
            choose(17, bind=SPREAD, required=True)
        assert not refused.value.heals

    @pytest.mark.parametrize(
        ("rules", "options"),
        [
            (NodeRules(bind=FULL, full_cores_only=True), StaticOptions()),
            (NodeRules(), StaticOptions(full_pcpus_only=True)),
        ],
    )
    def test_spread_on_a_node_with_whole_cores_only_is_refused(
        self, rules: NodeRules, options: StaticOptions
    ) -> None:
        with pytest.raises(BindPolicyUnmet, match="the node gives whole cores only"):
            choose(2, rules=rules, options=options, bind=SPREAD, required=True)
        assert len(cores(choose(2, rules=rules, options=options, bind=SPREAD).cpus)) == 1

    def test_whole_cores_are_taken_where_they_are(self) -> None:
        halves = "1-6,16"

        choice = choose(4, held={halves: ExclusivePolicy.NONE}, nodes=frozenset({0}), bind=FULL)
        assert "FullPCPUs is not kept" in reasons(choice)

        choice = choose(
            4, held={halves: ExclusivePolicy.NONE}, nodes=frozenset({0}), bind=FULL, required=True
        )
        assert choice.cpus == choice.cpus & SMT.with_siblings(choice.cpus)
        assert len(cores(choice.cpus)) == 2
        assert "NUMA nodes 0 have too few CPUs, so others count, too" in reasons(choice)

    def test_too_few_whole_cores_are_refused(self) -> None:
        busy = {"1-15": ExclusivePolicy.NONE}

        with pytest.raises(SMTAlignmentError, match="0 free on whole cores"):
            choose(2, held=busy, bind=FULL, required=True)
        with pytest.raises(SMTAlignmentError, match="request a multiple of 2"):
            choose(3, held=busy, bind=FULL, required=True)

    def test_the_end_verifies_it_on_a_machine_with_cores_of_two_sizes(self) -> None:
        # Four cores of two threads and eight of one: on average a core has one CPU.
        with pytest.raises(BindPolicyUnmet, match="are the best choice"):
            choose(3, MACHINES["hybrid"].topology(), bind=FULL, required=True)


class TestWishes:
    def test_what_the_nodes_label_says_counts_before_a_wish(self) -> None:
        choice = choose(2, rules=NodeRules(bind=SPREAD), bind=FULL)

        assert len(cores(choice.cpus)) == 2
        assert "the Node's label says so, although the pod prefers FullPCPUs" in reasons(choice)

    def test_no_numa_node_of_its_own_becomes_a_core_of_its_own(self) -> None:
        choice = choose(1, held={"17": NODE, "24": NODE}, exclusive=NODE, bind=SPREAD)

        assert cores(choice.cpus).isdisjoint({1, 8})
        assert "has room: PCPULevel applies" in reasons(choice)

    def test_no_core_of_its_own_is_said(self) -> None:
        choice = choose(1, held={"1-15": CORE}, exclusive=CORE, bind=SPREAD)

        # CPU 16 shares its core with the reserved CPU 0.
        assert choice.cpus == CPUSet.of(16)
        choice = choose(2, held={"1-15": CORE}, exclusive=CORE, bind=SPREAD)
        assert "PCPULevel is not kept: pods of the same preference have CPUs" in reasons(choice)

    @pytest.mark.parametrize(
        ("rules", "options"),
        [
            (NodeRules(strategy=NUMAPolicy.DISTRIBUTED), StaticOptions()),
            (NodeRules(), StaticOptions(distribute_cpus_across_numa=True)),
        ],
    )
    def test_an_even_share_of_each_numa_node(
        self, rules: NodeRules, options: StaticOptions
    ) -> None:
        choice = choose(20, rules=rules, options=options)

        assert [len(choice.cpus & SMT.nodes[node]) for node in (0, 1)] == [10, 10]
        assert "allocate strategy: distributed" in reasons(choice)

    def test_kept_wishes_need_no_words(self) -> None:
        choice = choose(2, held={"1": NODE}, exclusive=NODE, rules=NodeRules(bind=FULL))

        assert choice.cpus <= SMT.nodes[1]
        assert "not kept" not in reasons(choice)
        assert choice.steps[-1].why == NUMAPolicy.LEAST_ALLOCATED.value

    def test_the_numa_nodes_of_the_pods_devices_come_first(self) -> None:
        choice = choose(2, nodes=frozenset({1}))

        assert choice.cpus <= SMT.nodes[1]
        assert "NUMA nodes 1 serve all its resources" in reasons(choice)


class TestFloor:
    def test_the_reserved_cpus_are_named(self) -> None:
        with pytest.raises(FloorReached) as refused:
            choose(32)
        assert "available=31" in refused.value.as_kubelet
        assert "CPUs 0 stay with the pods that share" in refused.value.as_kubelet
        assert len(choose(31).cpus) == 31

    def test_without_reserved_cpus_each_numa_node_keeps_a_cpu(self) -> None:
        withheld = NodeRules(Reservation(CPUSet.of(0)))

        assert choose(29, rules=withheld).cpus == SMT.online - CPUSet.of(0, 1, 8)
        with pytest.raises(FloorReached) as refused:
            choose(30, rules=withheld)
        assert "CPUs 1,8 stay" in refused.value.as_kubelet

    def test_without_any_cpu_none_is_kept(self) -> None:
        with pytest.raises(NotEnoughCPUs, match="1 CPUs requested, 0 free"):
            choose(1, rules=NodeRules(Reservation(SMT.online)))

    def test_a_scheduler_must_leave_a_cpu_of_each_numa_node_too(self) -> None:
        withheld = NodeRules(Reservation(CPUSet.of(0)))
        theirs = SMT.nodes[1]

        with pytest.raises(Exception, match="NUMA nodes 1 would have no CPU for the pods that"):
            choose(16, rules=withheld, cpus=theirs)
        assert choose(15, rules=withheld, cpus=theirs - CPUSet.of(31)).cpus == theirs - CPUSet.of(
            31
        )
        assert choose(16, cpus=theirs).cpus == theirs


class TestARM:
    @pytest.mark.parametrize("name", ["kunpeng-128", "gb10-arm-20"])
    def test_recorded_machines_bind_alike_in_each_way(self, name: str) -> None:
        machine = open_topology(str(testdata.folder() / "topologies" / f"{name}.tar.gz"))

        found = {
            choose(6, machine, rules=rules, bind=bind, required=True, exclusive=preference).cpus
            for rules in (ARM, NodeRules())
            for bind in (FULL, SPREAD)
            for preference in (ExclusivePolicy.NONE, CORE)
        }

        assert len(found) == 1

    def test_with_threads_cores_are_filled(self) -> None:
        choice = choose(2, rules=ARM, bind=SPREAD)

        assert len(cores(choice.cpus)) == 1
        assert "FullPCPUs: on arm64 there is no other, although the pod prefers" in reasons(choice)
        assert choose(2, rules=replace(ARM, bind=SPREAD)).cpus == choice.cpus

    def test_with_threads_a_pod_that_requires_otherwise_is_refused(self) -> None:
        with pytest.raises(BindPolicyUnmet, match="on arm64 there is FullPCPUs only"):
            choose(2, rules=ARM, bind=SPREAD, required=True)

    def test_a_core_of_its_own_is_no_wish_there(self) -> None:
        held = {"1,8": CORE}

        choice = choose(1, rules=ARM, held=held, exclusive=CORE)

        assert "on arm64 there is NUMANodeLevel only" in reasons(choice)
        assert choose(1, rules=ARM, held={"1": NODE}, exclusive=NODE).cpus <= SMT.nodes[1]
