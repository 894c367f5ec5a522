"""The keys of an exclusive pool, in addition to `cpus`, that say how its CPUs are chosen.

Without these keys a pool lists one CPU per core, as CPU-Pooler's pools do. With `cpuBindPolicy` it
lists CPUs, siblings included, and the policy says how containers get them. The words come from the
kubelet's static CPU manager policy options and from schedulers that assign CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU_BIND_POLICY: Final = "cpuBindPolicy"
NUMA_POLICY: Final = "numaPolicy"
ALIGN_BY_UNCORE_CACHE: Final = "alignByUncoreCache"
EXCLUSIVE_POLICY: Final = "exclusivePolicy"
RESERVED: Final = "reserved"


class CPUBindPolicy(Enum):
    """The way in which a container's CPUs lie on cores, in a pool that lists siblings."""

    FULL_PHYSICAL_CORES = "fullPhysicalCores"
    SPREAD_ACROSS_CORES = "spreadAcrossCores"


class NUMAPolicy(Enum):
    """The choice of the NUMA nodes on which a container's CPUs lie.

    PACKED takes the fewest nodes: the fullest that suffice, and whole nodes first. DISTRIBUTED
    takes the same number from each node where it needs several. MOST_ALLOCATED takes the fewest
    nodes, the fullest first; LEAST_ALLOCATED takes the fewest nodes, the emptiest first.
    """

    PACKED = "packed"
    DISTRIBUTED = "distributed"
    MOST_ALLOCATED = "mostAllocated"
    LEAST_ALLOCATED = "leastAllocated"


class ExclusivePolicy(Enum):
    """The units that a pod prefers, without a promise, not to share with other pods of the pool."""

    NONE = "none"
    PHYSICAL_CORE = "physicalCore"
    NUMA_NODE = "numaNode"


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The keys of an exclusive pool that say how its CPUs are chosen.

    Attributes:
        bind: how CPUs lie on cores; None where the pool lists one CPU per core.
        numa: on which NUMA nodes they lie.
        align_by_uncore_cache: whether they lie behind the fewest uncore (L3) caches; None where
            the file says nothing: they do wherever the other keys allow it.
        exclusive: the units that pods prefer not to share.
        reserved: CPUs of the pool that no container gets.
    """

    bind: CPUBindPolicy | None = None
    numa: NUMAPolicy = NUMAPolicy.PACKED
    align_by_uncore_cache: bool | None = None
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    reserved: CPUSet = field(default_factory=CPUSet)

    @property
    def whole_cores(self) -> bool:
        """Whether each container gets only whole cores of the CPUs that the pool lists."""
        return self.bind is CPUBindPolicy.FULL_PHYSICAL_CORES

    @property
    def spreads(self) -> bool:
        """Whether each CPU of a container must lie on a core of its own."""
        return self.bind is CPUBindPolicy.SPREAD_ACROSS_CORES

    @property
    def by_uncore_cache(self) -> bool:
        """Whether the choice looks for the fewest uncore caches."""
        if self.align_by_uncore_cache is None:
            return self.numa is not NUMAPolicy.DISTRIBUTED and not self.spreads
        return self.align_by_uncore_cache

    def written(self) -> dict[str, str]:
        """Return the policy as in a pool file: key → value, without default values."""
        found = {}
        if self.bind is not None:
            found[CPU_BIND_POLICY] = self.bind.value
        if self.numa is not NUMAPolicy.PACKED:
            found[NUMA_POLICY] = self.numa.value
        if self.align_by_uncore_cache is not None:
            found[ALIGN_BY_UNCORE_CACHE] = str(self.align_by_uncore_cache).lower()
        if self.exclusive is not ExclusivePolicy.NONE:
            found[EXCLUSIVE_POLICY] = self.exclusive.value
        if self.reserved:
            found[RESERVED] = str(self.reserved)
        return found

    @classmethod
    def read(cls, written: Mapping[str, str]) -> Self:
        """Read the output of `written`.

        Raises:
            ValueError: a key does not allow its value.
        """
        bind, aligned = written.get(CPU_BIND_POLICY), written.get(ALIGN_BY_UNCORE_CACHE)
        if aligned not in (None, "true", "false"):
            raise ValueError(f"{aligned[:60]!r} is neither true nor false")
        return cls(
            bind=None if bind is None else CPUBindPolicy(bind),
            numa=NUMAPolicy(written.get(NUMA_POLICY, NUMAPolicy.PACKED)),
            align_by_uncore_cache=None if aligned is None else aligned == "true",
            exclusive=ExclusivePolicy(written.get(EXCLUSIVE_POLICY, ExclusivePolicy.NONE)),
            reserved=CPUSet.parse(written.get(RESERVED, "")),
        )
