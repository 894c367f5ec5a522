"""The writer of the agent's status file.

`cpupool status`, `explain` and `doctor` read the file. Its age tells whether the agent lives.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from cpupool.core.errors import HostError
from cpupool.host import files
from cpupool.manager import report, status_json
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.cgroups import FoundContainer, Writer
    from cpupool.core.workloads import ContainerRef
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.report import PluginReport
    from cpupool.manager.resolve import Resolution
    from cpupool.policies.base import Choice

log = logs.get(__name__)


class StatusFile:
    """The writer of the status file; only one thread publishes.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._published: object = None
        self._failures = Failures()

    def publish(
        self,
        facts: NodeFacts,
        resolution: Resolution,
        found: tuple[FoundContainer, ...],
        waiting_for: str,
        enforcement: Writer,
        *,
        nri: str = "",
        choices: Mapping[tuple[str, int], Choice] | None = None,
        plugins: PluginReport | None = None,
        notices: Mapping[ContainerRef, float] | None = None,
    ) -> None:
        """Write the status if it is new; else set only the file's time: the agent is alive."""
        seen = (facts, resolution, found, waiting_for, enforcement)
        news = (seen, nri, choices, plugins, notices)
        try:
            if self._published != news:
                status = report.describe(
                    *seen, nri=nri, choices=choices, plugins=plugins, notices=notices
                )
                self._path.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps(status_json.to_json(status))
                # After a power failure another agent writes another status.
                files.write_atomically(self._path, text.encode(), durable=False)
                self._published = news
            os.utime(self._path)
            self._failures.ends()
        except (OSError, HostError) as error:
            # A full disk must not keep a container from its CPUs.
            if self._failures.begins(error):
                log.warning("status file cannot be written", path=self._path, error=error)
            self._published = None
