"""The policy `dynamic`: as `static`, and a container's own CPUs follow an in-place resize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cpupool.core.cpu_manager import MAX_NOTICE
from cpupool.policies.dynamic import pod_words
from cpupool.policies.static.policy import StaticPolicy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.core.errors import Problem
    from cpupool.core.names import Names


@dataclass(frozen=True, slots=True)
class DynamicPolicy(StaticPolicy):
    """The policy on one machine."""

    settings: ClassVar[frozenset[str]] = StaticPolicy.settings | {MAX_NOTICE}
    resizes: ClassVar[bool] = True

    @classmethod
    def pod_problems(
        cls,
        annotations: Mapping[str, str],
        _requested: Mapping[str, Collection[str]],
        names: Names,
        max_notice_s: int,
    ) -> Iterator[Problem]:
        """Find words about changes of CPUs that no node can follow."""
        return pod_words.problems(annotations, names, max_notice_s)
