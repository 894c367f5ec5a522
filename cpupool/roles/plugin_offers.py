"""Asks resource plugins what the node has, for the node's status.

The last good answer stays until its plugin has been gone for some minutes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.core.resource_plugins import PluginError
from cpupool.kubelet.resource_plugin import ResourcePlugin
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from cpupool.roles.plugin_worker import PluginWorker

log = logs.get(__name__)

GRACE_S: Final = 300.0
"""How long a plugin that is gone counts (endpointStopGracePeriod)."""
_PERIOD_S: Final = 10.0
"""As often as the kubelet makes the node's status."""


class Offers(NamedTuple):
    """What plugins say that the node has.

    Attributes:
        by_plugin: the resource of each plugin → resource → how much pods can have.
        complete: whether all plugins have had time to register.
    """

    by_plugin: Mapping[str, Mapping[str, float]]
    complete: bool = False


class PluginOffers:
    """Only one thread calls it; any thread may read `known`.

    Args:
        changed: called after plugins say something else.

    Attributes:
        known: what they say.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.known = Offers({})
        self._changed = changed
        self._plugins: Mapping[str, PluginWorker] = {}
        self._due_s: dict[str, float] = {}
        self._asked: set[str] = set()
        self._failures = Failures()
        self._complete_s: float | None = None

    def ask(
        self, plugins: Mapping[str, PluginWorker], lost: Collection[str], now_s: float
    ) -> float:
        """Ask the plugins that are due; return when one is due next.

        Args:
            plugins: resource → the plugin that serves it now.
            lost: the resources whose plugin has not been gone for long.
            now_s: the time.
        """
        if self._complete_s is None:
            self._complete_s = now_s + GRACE_S
        by_plugin = self.known.by_plugin
        kept = {name: by_plugin[name] for name in by_plugin if name in plugins or name in lost}
        self._take(Offers(kept, now_s >= self._complete_s))
        for resource, worker in plugins.items():
            if self._plugins.get(resource) is not worker:
                self._asked.discard(resource)
                self._due_s[resource] = now_s
            if resource not in self._asked and now_s >= self._due_s[resource]:
                self._asked.add(resource)
                self._due_s[resource] = now_s + _PERIOD_S
                worker.ask(ResourcePlugin.node_resources, partial(self._answered, resource))
        self._plugins = dict(plugins)
        # The answer to an earlier question wakes the loop.
        waits = [self._due_s[name] for name in plugins if name not in self._asked]
        return min(waits, default=now_s + _PERIOD_S)

    def _answered(self, resource: str, found: Mapping[str, float] | PluginError) -> None:
        self._asked.discard(resource)
        if isinstance(found, PluginError):
            if self._failures.begins(found, resource):
                log.warning(
                    "plugin does not say what the node has", resource=resource, reason=found
                )
            return
        self._failures.ends(resource)
        # NaN differs from itself, as if the plugin said something new each time; this one object
        # does not, within a mapping. What is no amount is refused for the node's status, by name.
        found = {name: math.nan if math.isnan(amount) else amount for name, amount in found.items()}
        self._take(self.known._replace(by_plugin={**self.known.by_plugin, resource: found}))

    def _take(self, offers: Offers) -> None:
        if offers != self.known:
            self.known = offers
            self._changed()
