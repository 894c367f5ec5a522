"""The announcements of a sweep: metrics of containers' states, and notices for pods' owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.enforce.notices import Notices
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from cpupool.core.events import EventSink
    from cpupool.enforce.notices import Notice, NoticeKey
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)


class Announcer:
    """Announces the changes since the last sweep; only the sweeping thread calls it.

    Args:
        events: takes notices for pods' owners.
        metrics: counts the states of containers.
    """

    def __init__(self, events: EventSink, metrics: Metrics) -> None:
        self._events = events
        self._metrics = metrics
        self._notices = Notices(events)
        self._kept: Mapping[NoticeKey, Notice] = {}
        self._states: Counter[str] | None = None
        self._causes: Counter[str] | None = None

    def conflict(self, why: str, *, known: bool) -> None:
        """Report that the kubelet's static CPU manager works; `why` is empty if it does not.

        Args:
            why: the setting that must change.
            known: whether it is reported already.
        """
        self._metrics.cpu_manager_conflict(found=bool(why))
        if why and not known:
            log.error("kubelet places containers itself", waiting_for=why)
            self._events.node("KubeletCPUManagerStatic", f"nothing is placed; waiting for {why}")

    def containers(self, states: Counter[str], causes: Counter[str]) -> None:
        """Show how many containers there are, by state and by cause."""
        if states != self._states:
            self._states = states
            self._metrics.containers(states)
        if causes != self._causes:
            self._causes = causes
            self._metrics.confined(causes)

    def notices(
        self,
        kept: Mapping[NoticeKey, Notice],
        others: Callable[[], Mapping[NoticeKey, Notice]],
        now_s: float,
        *,
        changed: bool,
    ) -> None:
        """Publish notices for pods' owners, as far as they may have changed.

        Args:
            kept: the notices of the goals.
            others: returns the other notices.
            now_s: the time.
            changed: whether the other notices may have changed.
        """
        if changed or kept != self._kept or now_s >= self._notices.due_s:
            self._kept = kept
            self._notices.publish({**kept, **others()}, now_s)
