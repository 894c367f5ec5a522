"""Asks plugins, for podresources, what containers and the node have, and waits for none for long.

All plugins are asked at one time, each over one connection, apart from the questions of the
manager: a program that reads podresources does not hold up an admission, nor a slow plugin the
answers of others. What a plugin does not say in time, or says wrong, is as it was said last.
"""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from cpupool.core.errors import without_frames
from cpupool.qrm.plugin_client import OF_CONTAINER, OF_NODE, PluginError
from cpupool.qrm.question_table import GRACE_S
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cpupool.core import plugin_facts
    from cpupool.core.plugin_facts import Record
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import ContainerRef
    from cpupool.qrm.plugin_client import ResourcePlugin
    from cpupool.qrm.plugin_messages import Placed, Stock

log = logs.get(__name__)

ANSWER_S: Final = 1.0
"""How long one question waits. A plugin answers from memory, but may hold a lock while it
allocates. The programs that read podresources wait for ten seconds in all, and the kubelet takes
a part of them."""
_ROUND_S: Final = 1.0
"""How long a round begins questions: it ends within this time and that of one question."""
_PUT_OFF_S: Final = 10.0
"""How long a plugin that has not answered is not asked: as long as it may take by the protocol, so
that no second question reaches it while it works on the first."""

_T = TypeVar("_T")


class _Said(NamedTuple):
    """The last words of a plugin about a container.

    Attributes:
        beside: the answer of the manager's record at that time.
        given: what it has said.
    """

    beside: plugin_facts.RecordedAnswer
    given: Placed


class PluginInquiry:
    """Any thread may call it; one round of each kind runs at a time.

    Args:
        plugins: returns resource → the plugin that serves it now.
        answer_s: how long one question waits.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        plugins: Callable[[], Mapping[str, ResourcePlugin]],
        *,
        answer_s: float = ANSWER_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plugins = plugins
        self._answer_s = answer_s
        self._now_s = now_s
        self._of_containers, self._of_node = threading.Lock(), threading.Lock()
        # The longest known comes first.
        self._said: dict[tuple[ContainerRef, str], _Said] = {}
        self._stocks: dict[str, tuple[float, Stock]] = {}
        self._put_off: WeakKeyDictionary[ResourcePlugin, float] = WeakKeyDictionary()
        self._failures = Failures()

    def given(
        self, record: Record, topology: CPUTopology
    ) -> Mapping[ContainerRef, Mapping[str, Placed]]:
        """Return container → resource of a plugin → what the plugin says that the container has.

        A plugin is asked for the containers for which it has given a valid answer. Its last words
        about one stand for as long as that answer.
        """
        known = {
            (ref, resource): each
            for ref, by_resource in record.items()
            for resource, each in by_resource.items()
            if not each.refused
        }
        with self._of_containers:
            self._said = {
                key: said for key, said in self._said.items() if known.get(key) == said.beside
            }
            # What is not known yet first, then what has been known the longest: a slow plugin is
            # heard about all of its containers in some rounds.
            heard = {key: number for number, key in enumerate(self._said)}
            wanted: dict[str, list[ContainerRef]] = {}
            for ref, resource in sorted(known, key=lambda key: heard.get(key, -1)):
                wanted.setdefault(resource, []).append(ref)
            until_s = self._now_s() + _ROUND_S

            said = self._all(
                OF_CONTAINER,
                wanted,
                lambda plugin: self._containers(plugin, wanted[plugin.resource], topology, until_s),
            )
            for resource, found in said.items():
                for ref, given in found.items():
                    self._said.pop((ref, resource), None)
                    self._said[ref, resource] = _Said(known[ref, resource], given)
            by_container: dict[ContainerRef, dict[str, Placed]] = {}
            for (ref, resource), each in self._said.items():
                by_container.setdefault(ref, {})[resource] = each.given
            return by_container

    def stocks(self, topology: CPUTopology) -> Mapping[str, Stock]:
        """Return resource of a plugin → what the plugin says that the node has.

        Its last words stand for some minutes, as in the node's status.
        """

        def ask(plugin: ResourcePlugin) -> tuple[Stock | None, PluginError | None]:
            try:
                return plugin.stock(topology, self._answer_s), None
            except PluginError as error:
                return None, without_frames(error)

        with self._of_node:
            found, now_s = self._all(OF_NODE, self._plugins(), ask), self._now_s()
            self._stocks = {
                resource: (said_s, stock)
                for resource, (said_s, stock) in self._stocks.items()
                if said_s > now_s - GRACE_S
            } | {resource: (now_s, stock) for resource, stock in found.items() if stock is not None}
            return {resource: stock for resource, (_, stock) in self._stocks.items()}

    def _containers(
        self,
        plugin: ResourcePlugin,
        containers: Iterable[ContainerRef],
        topology: CPUTopology,
        until_s: float,
    ) -> tuple[Mapping[ContainerRef, Placed], PluginError | None]:
        """Ask a plugin about containers, one after the other, until it is too late."""
        found: dict[ContainerRef, Placed] = {}
        failure: PluginError | None = None
        with plugin.connected() as channel:
            for ref in containers:
                if OF_CONTAINER in plugin.lacks or self._now_s() >= until_s:
                    break
                try:
                    found[ref] = plugin.given(
                        ref, topology, channel=channel, timeout_s=self._answer_s
                    )
                except PluginError as error:
                    failure = without_frames(error)
                    # One that refuses may have words about the others.
                    if not error.refused:
                        break
        return found, failure

    def _all(
        self,
        method: str,
        wanted: Iterable[str],
        ask: Callable[[ResourcePlugin], tuple[_T, PluginError | None]],
    ) -> Mapping[str, _T]:
        """Ask the plugins of resources at one time; those that do not answer are put off."""
        now_s, there = self._now_s(), self._plugins()
        asked = [
            plugin
            for resource in wanted
            if (plugin := there.get(resource))
            and method not in plugin.lacks
            and now_s >= self._put_off.get(plugin, -math.inf)
        ]
        if not asked:
            return {}
        found: dict[str, _T] = {}
        with ThreadPoolExecutor(len(asked), "podresources") as pool:
            for plugin, (said, failure) in zip(asked, pool.map(ask, asked), strict=True):
                found[plugin.resource] = said
                self._note(method, plugin, failure)
        return found

    def _note(self, method: str, plugin: ResourcePlugin, failure: PluginError | None) -> None:
        """Log a failure once, and put a plugin off that does not answer."""
        about = f"{method} {plugin.resource}"
        if failure is None:
            self._failures.ends(about)
            return
        if not failure.refused:
            self._put_off[plugin] = self._now_s() + _PUT_OFF_S
        # Not by its words, which name another container each time.
        if self._failures.begins(failure.refused, about):
            log.warning(
                "plugin says nothing for podresources", resource=plugin.resource, reason=failure
            )
