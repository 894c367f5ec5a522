"""The CPU manager policy `none`: no container gets CPUs of its own, all share the default pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.base import CPUManagerPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod
    from cpupool.policies.base import Choice, ChoiceRequest
    from cpupool.policies.view import NodeView


@dataclass(frozen=True, slots=True)
class NonePolicy(CPUManagerPolicy):
    """The policy `none`."""

    settings: ClassVar[frozenset[str]] = frozenset()
    sharers_stay: ClassVar[bool] = True

    def requests(self, _pod: Pod) -> Mapping[str, int]:
        """Return nothing: no container gets CPUs of its own."""
        return {}

    def available(self, _view: NodeView) -> CPUSet:
        """Return no CPUs."""
        return CPUSet()

    def choose(self, _view: NodeView, request: ChoiceRequest) -> Choice:
        """Refuse every request.

        Raises:
            NotEnoughCPUs: always.
        """
        raise NotEnoughCPUs(request.count, 0)
