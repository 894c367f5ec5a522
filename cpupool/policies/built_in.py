"""The CPU manager policies that a pool file can choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import NONE, STATIC
from cpupool.policies.none import NonePolicy
from cpupool.policies.static import StaticPolicy

if TYPE_CHECKING:
    from cpupool.policies.base import CPUManagerPolicies

BUILT_IN: Final[CPUManagerPolicies] = {
    NONE: lambda _pools, _machine: NonePolicy(),
    STATIC: StaticPolicy.of_pools,
}
