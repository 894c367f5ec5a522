"""The configuration of our plugins for the QoS Resource Manager, as values.

An admin divides the shared CPUs into pools, and says by roles which pool a pod runs in, or whether
it gets CPUs of its own. `config_file` reads it from the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.plugins.nics import NIC

RECLAIM: Final = "reclaim"
"""The pool for reclaimed pods, which run on CPUs that other pods do not use."""
_ON_NODE: Final = re.compile(r".+-NUMA\d+", re.ASCII)


def pool_on_node(pool: str, node: int) -> str:
    """Return the name of the pool on a NUMA node for pods of a pool, as Katalyst names it."""
    return f"{pool}-NUMA{node}"


def is_on_node(name: str) -> bool:
    """Return whether a name is one of a pool on a NUMA node."""
    return _ON_NODE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The size that a pool should have.

    Attributes:
        cpus: how many CPUs; None for a part of what the pools with a number leave.
        weight: the part, in proportion to the other weights.
        at_least: how many CPUs it has at least if its size follows its load; else None. It begins
            with `cpus`, or with these.
        node: the NUMA node that has all its CPUs; None for a pool of the file.
        most: how many CPUs it can have there.
    """

    cpus: int | None = None
    weight: int = 1
    at_least: int | None = None
    node: int | None = None
    most: int | None = None

    @property
    def fewest(self) -> int:
        """The fewest CPUs that it has beside others; on a NUMA node as many as it should have."""
        return self.at_least or (self.cpus if self.node is not None else None) or 1


@dataclass(frozen=True, slots=True)
class Aims:
    """The limits for a pool whose size follows its load: how busy it may be, how fast it changes.

    Attributes:
        use: how much of its CPUs' time it uses, more than 0, at most 1.
        waiting: the share of the time in which a thread of it waits for a CPU, more than 0.
        most_up: the most CPUs that it grows in a period.
        most_down: the most CPUs that it shrinks at once.
        pause_s: how long a pool that has shrunk does not shrink again, and how long it has needed
            fewer CPUs before it shrinks.
    """

    use: float = 0.8
    waiting: float = 0.1
    most_up: int = 10
    most_down: int = 2
    pause_s: float = 30.0


class Neighbours(Enum):
    """The other pods that may be bound to the NUMA node of a pod."""

    NONE = "alone"
    SAME_ROLE = "same-role"
    ANY = "shared"


@dataclass(frozen=True, slots=True)
class Role:
    """The CPUs that pods of a role get.

    Attributes:
        pool: the pool on whose CPUs they run; empty for CPUs of their own.
        neighbours: the other pods that may be bound to the NUMA node where they own CPUs.
    """

    pool: str = ""
    neighbours: Neighbours = Neighbours.SAME_ROLE


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """The file.

    Attributes:
        reserved: CPUs that no plugin gives to a container.
        pools: the pools, in the order of the file.
        roles: role → what its pods get.
        reserved_memory_bytes: the memory of each NUMA node that no plugin gives to a container.
        nics: the network interfaces; empty for those that the machine shows.
        aims: those of the pools whose sizes follow their load.
    """

    reserved: CPUSet = field(default_factory=CPUSet)
    pools: Mapping[str, PoolSize] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    reserved_memory_bytes: int = 0
    nics: tuple[NIC, ...] = ()
    aims: Aims = field(default_factory=Aims)
