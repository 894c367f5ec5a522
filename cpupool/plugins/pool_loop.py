"""The loop that sizes pools, and the CPUs of reclaimed pods, by their load, and writes why.

A reading that fails, and a file that cannot be written, change nothing.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import CPUPoolError
from cpupool.host import files
from cpupool.plugins.config import RECLAIM
from cpupool.plugins.cpu import CPUPlugin
from cpupool.plugins.load_sizing import PERIOD_S
from cpupool.plugins.pool_sizer import PoolSizer
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.core.cpu_time import CPUTime
    from cpupool.plugins.base import Plugin
    from cpupool.plugins.config import PoolSize
    from cpupool.plugins.headroom import Headroom
    from cpupool.plugins.load_sizing import NextSize
    from cpupool.plugins.state import PluginState

log = logs.get(__name__)

SCHEMA: Final = "cpupool-pools/1"
WRITER: Final = "cpupool resource-plugin cpu"
"""The command that writes the file for `cpupool explain --pools`."""


class PoolLoop:
    """Sizes pools, when it is asked; one thread asks.

    Args:
        read: reads the CPU time of pods; raises CPUPoolError if it cannot.
        status: the file for `cpupool explain --pools`.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        read: Callable[[], CPUTime],
        status: Path,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._status = status
        self._now_s = now_s
        self._sizer = PoolSizer()
        self._due_s = now_s()
        self._written: object = None
        self._failures = Failures()

    def sized(self, plugin: Plugin, state: PluginState) -> PluginState:
        """Return a settled state with the pools as their load needs them, once in a period."""
        if not isinstance(plugin, CPUPlugin):
            return state
        now_s = self._now_s()
        if now_s >= self._due_s:
            self._due_s = now_s + PERIOD_S
            pools = plugin.config.pools
            follow = any(size.at_least is not None for size in pools.values())
            looks = follow or RECLAIM in pools
            self._sizer = self._measured(plugin, state, now_s) if looks else PoolSizer()
            found = self._sizer.headroom
            state = replace(
                plugin.resized(state, self._sizer.sizes),
                headroom_cpus=None if found is None else found.cpus,
            )
        return state

    def publish(self, plugin: Plugin, state: PluginState) -> None:
        """Write the pools if they are new; else set only the file's time: the plugin is alive."""
        if not isinstance(plugin, CPUPlugin):
            return
        pools, headroom = plugin.pools(state), self._sizer.headroom
        seen = (pools, state.pools, self._sizer.decisions, headroom)
        reason = ""
        try:
            if self._written != seen:
                document = {
                    "schema": SCHEMA,
                    "pools": [
                        {
                            "pool": name,
                            "cpus": str(state.pools[name]),
                            **_why(size, self._sizer.decisions.get(name)),
                        }
                        for name, size in pools.items()
                    ],
                    "headroom": None if headroom is None else _of_headroom(headroom),
                }
                files.make_folder(self._status.parent)
                data = json.dumps(document).encode()
                files.write_atomically(self._status, data, durable=False)
                self._written = seen
            os.utime(self._status)
        except (OSError, CPUPoolError) as error:
            # A full disk must not keep a pool from its CPUs.
            reason, self._written = str(error), None
        self._complain("file for `cpupool explain --pools` cannot be written", reason)

    def _measured(self, plugin: CPUPlugin, state: PluginState, now_s: float) -> PoolSizer:
        reading, reason = None, ""
        try:
            reading = self._read()
        except CPUPoolError as error:
            reason = str(error)
        self._complain("load not measured, pools keep their sizes", reason)
        sizer = self._sizer.after(plugin, state, reading, now_s)
        for name, decision in sizer.decisions.items():
            moves = decision.size != decision.before.size
            (log.info if moves else log.debug)("pool follows its load", pool=name, why=decision)
        if (found := sizer.headroom) is not None:
            moves = found.cpus != found.before
            (log.info if moves else log.debug)("headroom follows the use", why=found)
        return sizer

    def _complain(self, what: str, reason: str) -> None:
        if not reason:
            self._failures.ends(what)
        elif self._failures.begins(reason, what):
            log.warning(what, reason=reason)


def _of_headroom(headroom: Headroom) -> dict[str, Any]:
    return {"why": str(headroom), **asdict(headroom)}


def _why(size: PoolSize, decision: NextSize | None) -> dict[str, Any]:
    """Return why a pool has so many CPUs: a sentence, and its numbers if it follows the load."""
    if size.at_least is None:
        if size.node is not None:
            return {"why": f"its pods on NUMA node {size.node} request {size.cpus} CPUs"}
        if size.cpus is not None:
            return {"why": f"the file says {size.cpus} CPUs"}
        return {"why": f"the part {size.weight} of what the other pools leave"}
    if decision is None:
        return {"why": "not measured yet"}
    load = decision.before.load
    return {
        "why": str(decision),
        "at_least": decision.before.floor,
        "before": decision.before.size,
        "used_cpus": None if load is None else load.used_cpus,
        "waiting": None if load is None else load.waiting,
        "most": decision.before.most,
        "needed": decision.needed,
        "share": decision.share,
        "size": decision.size,
    }
