"""The CPUs that koordlet gives to a container, by its pod's class and what a scheduler assigned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from cpupool.core.assignments import Cause, Placement
from cpupool.core.bandwidth import Limit
from cpupool.core.cpu_manager import STATIC, CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.orchestration import NodeRules, Orchestration, QoS, Reservation, SystemCPUs
from cpupool.core.pools import NodePools
from cpupool.core.workloads import Container, ContainerID, Pod, PodUID, QoSClass
from cpupool.manager.manager import Manager
from cpupool.policies.koordinator import pod_annotations
from cpupool.policies.koordinator.policy import KOORDINATOR, KoordinatorPolicy, Koordlet
from tests.conformance.oracle.verdicts import Verdict, machine_of

if TYPE_CHECKING:
    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.topology import CPUTopology
    from tests.conformance.oracle.verdicts import Case, Machines

_KUBE_QOS: Final = {qos.value.lower(): qos for qos in QoSClass}
_KEEPS_TO_NODES: Final = "BECPUManager, off by default: BE pods keep to their NUMA nodes"


def check(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Place the case's container; it brings its own sets of CPUs.

    Koordlet leaves a container to the static kubelet, on all CPUs that the kubelet shares; cpupool
    keeps it from those that LSE and LSR pods own, which leaves the shared CPUs of the case.
    """
    differs = _difference(case, None)
    keeps = case["be_cpu_manager"] and case["qos"] == QoS.BE.value
    if differs and keeps and not _difference(case, _koordlet(case)):
        return Verdict.ON_PURPOSE, _KEEPS_TO_NODES
    return (Verdict.DIFFERENT, differs) if differs else (Verdict.EQUAL, "")


def check_as_koordinator(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Place the case's container as the koordlet of the case does."""
    differs = _difference(case, _koordlet(case))
    return (Verdict.DIFFERENT, differs) if differs else (Verdict.EQUAL, "")


def _koordlet(case: Case) -> Koordlet:
    return Koordlet(case["be_cpu_manager"], kubelet_static=case["kubelet_policy"] == STATIC)


def _difference(case: Case, like: Koordlet | None) -> str:
    given = _placed(case, like)
    if case.get("error"):
        return "" if given.cause is Cause.ANNOTATION else f"{given.cpus} instead of an error"
    if given.cause:
        return f"{given.cause.value} instead of {case['cpuset']}"
    shared, best_effort = _pools(case, "cpu_shared_pools"), _pools(case, "be_cpu_shared_pools")
    if case["cpuset"] is None:
        left = given.placement is Placement.KUBELET
        right = left if like else given.cpus == shared
    else:
        # An empty set clears the container's own: it has those of its cgroup's class.
        usual = best_effort if case["kube_qos"] == "besteffort" else shared
        right = given.cpus == (CPUSet.parse(case["cpuset"]) or usual)
    if not right:
        return f"{given.cpus} ({given.placement.value}) instead of {case['cpuset']!r}"
    unlimited = given.limit == Limit(None)
    return "" if unlimited == bool(case.get("unset_quota")) else f"the quota is {given.limit}"


def _placed(case: Case, like: Koordlet | None) -> CPUAssignment:
    """Place the container on a node whose shared sets are those of the case.

    An LSR pod has the CPUs that only best-effort pods share, and nobody those of no set.
    """
    shared, best_effort = _pools(case, "cpu_shared_pools"), _pools(case, "be_cpu_shared_pools")
    system = CPUSet.parse(case["system_qos_cpus"])
    topology = _machine(case, best_effort | system)
    withheld = topology.online - best_effort - system

    class Like(KoordinatorPolicy):
        @classmethod
        def of_pools(cls, pools: NodePools, machine: CPUTopology) -> Self:
            return replace(super().of_pools(pools, machine), like=like)

    annotations = {pod_annotations.RESOURCE_STATUS: case["resource_status"]}
    told = pod_annotations.of_pod({pod_annotations.QOS_CLASS: case["qos"]}, annotations, None)
    own = told.cpus if told else CPUSet()
    owner = Orchestration(QoS.LSR, prod=True, cpus=best_effort - shared)
    pods = (
        _pod("owner", owner, QoSClass.GUARANTEED, len(owner.cpus)),
        _pod("pod", told, _KUBE_QOS[case["kube_qos"]], len(own)),
    )
    reserved = CPUSet([max(shared - own)])
    node = Manager()
    node.reconfigure(
        NodePools.of(cpu_manager=CPUManager(KOORDINATOR, reserved, installed=Like)), topology
    )
    node.observe(
        rules=NodeRules(Reservation(withheld), SystemCPUs(system)),
        static_cpus=topology.online - reserved if case["kubelet_policy"] == STATIC else CPUSet(),
        pods=pods,
    )
    node.adopt(())
    return node.snapshot().assignment((pods[1].cgroup_uid, ContainerID("pod-main")))


def _pod(name: str, told: Orchestration | None, qos: QoSClass, cpus: int) -> Pod:
    """Make a pod that requests as many CPUs as were assigned, with no container a whole number."""
    side_milli = 500 if cpus else 0
    main = Container("main", id=ContainerID(f"{name}-main"), request_milli=cpus * 1000 - side_milli)
    side = Container("side", id=ContainerID(f"{name}-side"), request_milli=side_milli)
    return Pod(PodUID(name), "d", name, qos, (main, side), orchestration=told)


def _pools(case: Case, key: str) -> CPUSet:
    return CPUSet.union(CPUSet.parse(pool["cpuset"]) for pool in case[key])


def _machine(case: Case, cpus: CPUSet) -> CPUTopology:
    """Make a machine with the pools' NUMA nodes; the first one has the CPUs of no pool."""
    pools = case["be_cpu_shared_pools"]
    places = {
        cpu: (pool["socket"], pool["node"])
        for pool in pools
        for cpu in CPUSet.parse(pool["cpuset"])
    }
    rest = (pools[0]["socket"], pools[0]["node"])
    return machine_of([[cpu, cpu, *places.get(cpu, rest)] for cpu in range(max(cpus) + 1)])
