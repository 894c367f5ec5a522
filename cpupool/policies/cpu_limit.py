"""The CPU time of a container that has what it requests.

Its own CPUs limit a container already: a quota of as many CPUs could only throttle it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.bandwidth import Limit
from cpupool.core.names import KUBELET_CPUS
from cpupool.core.pools import MILLI_PER_CPU

if TYPE_CHECKING:
    from collections.abc import Collection

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.grants import Grant
    from cpupool.core.requests import CPURequest
    from cpupool.core.workloads import Container, Pod


def of_pools(pod: Pod, container: Container, request: CPURequest, shared: CPUSet) -> Limit | None:
    """Return the CPU time of a container with CPUs of pools; None to leave it alone.

    Where the kubelet gives the own CPUs, the limit is the kubelet's plus the shared CPUs
    (openshift/enhancements, node-tuning/mixed-cpu-node-plugin.md).

    Args:
        pod: the container's pod.
        container: the container.
        request: the pools that it requests.
        shared: the CPUs of its shared pools.
    """
    own_milli = container.limit_milli
    if KUBELET_CPUS in request.amounts:
        if own_milli is None:
            return None
        shared_milli = len(shared) * MILLI_PER_CPU
        return Limit(own_milli + shared_milli, or_unlimited=True, own_milli=own_milli)
    if request.exclusive:
        return Limit(None)
    limits = (sum(request.amounts.values()), own_milli, pod.limit_milli)
    return Limit(min(limit for limit in limits if limit is not None), own_milli=own_milli)


def of_policy(grant: Grant, container: Container, requested: Collection[str]) -> Limit | None:
    """Return the CPU time of a container with CPUs of the CPU manager policy; None as above.

    The CPUs stand for a whole request. A policy that gives some to another container leaves it the
    CPU time that its own limit says, and the kubelet's limits keep those that share the rest of a
    bubble from using it up (KEP-5526).

    Args:
        grant: the CPUs of its pod.
        container: the container.
        requested: the containers of its pod for which the policy chooses CPUs.
    """
    shares = grant.bubble and not grant.owns_part(container)
    unasked = container.name in requested and not container.ownable_cpus
    return None if shares or unasked else Limit(None)
