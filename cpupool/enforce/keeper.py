"""What the cpusetter lets keep something of containers in each sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cpupool.enforce.notices import Notice, NoticeKey
    from cpupool.manager.ports import FoundContainer
    from cpupool.manager.resolve import Resolution


class Keeper(Protocol):
    """Keeps something of containers as it must be, beside the CPUs that they run on.

    Attributes:
        due_s: when to look again without an event, by the clock of `keep`; infinite for never.
    """

    due_s: float

    def keep(
        self, found: Sequence[FoundContainer], resolution: Resolution, now_s: float
    ) -> Mapping[NoticeKey, Notice]:
        """Put right what differs; never raises for what one container or cgroup does.

        Args:
            found: every container directory, each on its CPUs if that was possible.
            resolution: where everything belongs.
            now_s: the time on a monotonic clock.

        Returns:
            What pods' owners must know, as long as it lasts.
        """
        ...
