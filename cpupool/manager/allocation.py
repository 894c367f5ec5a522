"""The response to Allocate: the CPUs, variables and annotations for a container with devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core import devices, environment
from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cpupool.core.devices import Offer
    from cpupool.core.names import Names


@dataclass(frozen=True, slots=True)
class Allocation:
    """The response to Allocate.

    Attributes:
        cpus: the CPUs that it announces to the container; offline CPUs only of a shared pool.
        environment: variables of the container.
        annotations: annotations by which the agent recognises the container.
    """

    cpus: CPUSet
    environment: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, offer: Offer, ids: Sequence[str], names: Names, *, mixed: bool) -> Allocation:
        """Return the answer for the devices `ids` of an offer.

        Args:
            offer: the pool's offer.
            ids: free devices.
            names: the public names.
            mixed: whether the agent offers OpenShift's resource. The kubelet does not say whether
                the container requests it, too.
        """
        resource, pool = offer.resource.name, offer.pool
        exclusive = shared = CPUSet()
        if resource.kind.exclusive:
            granted = pool.granted(devices.exclusive_cpus(ids), offer.topology)
            exclusive = granted & offer.topology.online
        else:
            shared = pool.cpus
        cpus = exclusive | shared
        return cls(
            cpus,
            environment.variables(exclusive, shared, {resource: cpus}, isolated=mixed),
            {names.allocated(resource): devices.describe_ids(ids)},
        )
