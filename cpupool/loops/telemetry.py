"""What a loop reports with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpupool.core.events import EventSink
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Whom a process tells about itself. Any thread may use each of them.

    Attributes:
        events: hears what pods' authors and the node's admin must know.
        metrics: counts and measures.
        health: answers the probes: loops beat there, and conditions are set.
    """

    events: EventSink
    metrics: Metrics
    health: Health
