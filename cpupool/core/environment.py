"""The environment variables in which a container sees its CPUs.

They are `EXCLUSIVE_CPUS`, `SHARED_CPUS`, and one for each pool.
Allocate answers with them, and with NRI the agent adds them to a container at its creation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import (
    EXCLUSIVE_CPUS,
    OPENSHIFT_ISOLATED_CPUS,
    SHARED_CPUS,
    pool_variable,
)
from cpupool.core.requests import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.assignments import CPUAssignment
    from cpupool.core.requests import Resource


def of_container(assignment: CPUAssignment) -> Mapping[str, str]:
    """Return the variables of a container on its CPUs; none unless it has what it requests.

    `EXCLUSIVE_CPUS` and `SHARED_CPUS` join all pools of a kind: the kubelet calls Allocate once for
    each resource, and keeps these variables from the first answer.
    """
    if assignment.placement is Placement.PLUGIN:
        # It has not requested the CPUs that others may have, too, and a plugin changes them.
        return variables(assignment.exclusive, CPUSet(), {}, isolated=False)
    if assignment.placement not in {Placement.POOLS, Placement.POLICY}:
        return {}
    resources = assignment.resources
    isolated = any(resource.kind is ResourceKind.ADDITIONAL for resource in resources)
    return variables(assignment.exclusive, assignment.shared, resources, isolated=isolated)


def variables(
    exclusive: CPUSet,
    shared: CPUSet,
    by_resource: Mapping[Resource, CPUSet],
    *,
    isolated: bool,
) -> dict[str, str]:
    """Return the environment variables with a container's CPUs; none for an empty set.

    Args:
        exclusive: its own CPUs.
        shared: the CPUs of its shared pools.
        by_resource: resource → the CPUs that come with it.
        isolated: whether to set OpenShift's variable for exclusive CPUs, too.
    """
    joined = {EXCLUSIVE_CPUS: exclusive, SHARED_CPUS: shared}
    if isolated:
        joined[OPENSHIFT_ISOLATED_CPUS] = exclusive
    for resource, cpus in by_resource.items():
        if not resource.kind.native:
            joined[pool_variable(resource)] = cpus
    return {name: str(joined[name]) for name in sorted(joined) if joined[name]}
