"""The three sinks for a loop's reports, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpupool.core.events import EventSink
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The sinks for the reports of a process. Any thread may use each of them.

    Attributes:
        events: sends Events to pods' authors and the node's admin.
        metrics: the numbers that Prometheus reads.
        health: the beats of loops, and the conditions of the process, for probes.
    """

    events: EventSink
    metrics: Metrics
    health: Health
