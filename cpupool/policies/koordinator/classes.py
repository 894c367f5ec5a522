"""The rules of Koordinator's classes that admission enforces, for pods that run all the same.

Source: pkg/webhook/pod/validating/cluster_colocation_profile.go in Koordinator 1.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.orchestration import QoS

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod


def irregular(pod: Pod) -> str:
    """Return which rule of admission a pod of the class LSE or LSR breaks; empty for none.

    The kubelet runs a static pod from its file, whatever admission says of the mirror.
    """
    told = pod.orchestration
    pooled = any(container.requests for container in pod.containers)
    if told is None or told.qos not in {QoS.LSE, QoS.LSR} or pooled or pod.cgroup_uid != pod.uid:
        return ""
    a_pod = f"a pod of the class {told.qos.value}"
    if told.qos is QoS.LSR and not told.prod:
        return f"{a_pod} owns CPUs only with the priority class koord-prod, so this one shares"
    if not pod.whole_cpus:
        return f"{a_pod} owns whole CPUs, and this one requests {pod.request_milli}m and shares"
    if pod.unequal:
        return f"{pod.unequal}: {a_pod} is to have equal requests and limits"
    return ""
