"""The cluster that the embedded node is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.local.cluster import EventLog
from tests import builders

if TYPE_CHECKING:
    import pytest


def test_events_are_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    heard = EventLog()
    heard.pod(builders.pod("web"), "CPUOffline", "CPU 3 is offline; switch it on")
    heard.node("CPUPoolConfigApplied", "added exclusive_a", warning=False)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            'event about=default/web reason=CPUOffline said="CPU 3 is offline; switch it on"',
        ),
        (
            "INFO",
            'event about=node reason=CPUPoolConfigApplied said="added exclusive_a"',
        ),
    ]
