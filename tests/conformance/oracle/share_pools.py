"""Koordinator's shared sets of CPUs, and the pods whose CPUs the kubelet manages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Sharing
from cpupool.policies.koordinator import node_rules, topology_annotations
from cpupool.policies.koordinator.shared_sets import shared_pools
from cpupool.policies.koordinator.topology_annotations import PodCPUs
from tests.conformance.oracle.verdicts import Verdict, machine_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.oracle.verdicts import Case, Machines

_SHARERS: Final = ("LS", "BE")


def check(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Publish the case's pods and pools; it brings its own machine."""
    topology = machine_of(case["cpus"])
    kubelet = list(_of_kubelet(case))
    owned = [(pod.cpus, Sharing.NONE) for pod in kubelet]
    owned += [
        (
            CPUSet.parse(pod["cpuset"]),
            Sharing.NONE if pod["qos"] == "LSE" else Sharing.BEST_EFFORT,
        )
        for pod in case["pods"] or ()
        if pod.get("cpuset")
    ]
    withheld = CPUSet.parse(case["reserved_cpus"])
    withheld |= node_rules.system_cpus(case["system_qos"]).withheld
    pools = shared_pools(topology, topology.online, owned, withheld)
    answers = {
        "pod_cpu_allocs": topology_annotations.pod_cpu_allocs(kubelet),
        "cpu_shared_pools": topology_annotations.cpu_shared_pools(pools.shared),
        "be_cpu_shared_pools": topology_annotations.cpu_shared_pools(pools.best_effort),
    }
    for name, answer in answers.items():
        # Go's nil list is null, and an empty one []; koord-scheduler reads both as no pools.
        if (answer or None) != (case[name] or None):
            return Verdict.DIFFERENT, f"{name}: {answer} instead of {case[name]}"
    return Verdict.EQUAL, ""


def _of_kubelet(case: Case) -> Iterator[PodCPUs]:
    managed = {
        pod["uid"] for pod in case["pods"] or () if pod.get("cpuset") or pod["qos"] in _SHARERS
    }
    entries: dict[str, dict[str, str]] = case.get("checkpoint", {}).get("entries", {})
    for uid, containers in entries.items():
        cpus = CPUSet.union(CPUSet.parse_or_empty(text) for text in containers.values())
        if uid not in managed and cpus:
            yield PodCPUs("d", f"n-{uid}", uid, cpus)
