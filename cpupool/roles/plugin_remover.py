"""Lets plugins of the QoS Resource Manager forget the pods that have ended.

A plugin that refuses, or hangs, is asked later and later, for some minutes: a dead one must cost
nothing, and one that only hangs here must not hold up what containers wait for.
"""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.roles.attempts import Attempt
from cpupool.roles.plugin_offers import GRACE_S
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from cpupool.core.resource_plugins import PluginError
    from cpupool.kubelet.resource_plugin import ResourcePlugin
    from cpupool.roles.plugin_worker import PluginWorker

log = logs.get(__name__)

_TURN_S: Final = 1.0
"""For how long a plugin forgets ended pods before other questions have their turn."""


class PluginRemover:
    """Only one thread calls it; pods are ids in the names of their cgroups.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._ended_s: dict[str, float] = {}
        self._forgotten: defaultdict[str, set[str]] = defaultdict(set)
        self._asked: set[str] = set()
        self._next: dict[str, Attempt] = {}
        self._failures = Failures()

    def remove(
        self,
        ended: Mapping[str, Collection[str]],
        plugins: Mapping[str, PluginWorker],
        lost: Collection[str],
    ) -> tuple[set[str], float]:
        """Let plugins forget ended pods; return those that need no plugin, and when a try is due.

        Args:
            ended: pod → the resources with an answer.
            plugins: resource → the plugin that serves it now.
            lost: the resources whose plugin may return.
        """
        now_s = self._now_s()
        for pod in ended.keys() - self._ended_s.keys():
            self._ended_s[pod] = now_s
        done = {
            pod
            for pod, given in ended.items()
            if (plugins.keys() | (set(given).intersection(lost))) <= self._forgotten[pod]
            or now_s - self._ended_s[pod] >= GRACE_S
        }
        for pod in done | (self._ended_s.keys() - ended.keys()):
            self._ended_s.pop(pod, None)
            self._forgotten.pop(pod, None)
        waits = [at_s + GRACE_S for at_s in self._ended_s.values()]
        for resource, worker in plugins.items():
            pods = [pod for pod in self._ended_s if resource not in self._forgotten[pod]]
            if not pods or resource in self._asked:
                continue
            due_s = self._next[resource].due_s if resource in self._next else now_s
            if now_s < due_s:
                waits.append(due_s)
                continue
            self._asked.add(resource)
            gone: list[str] = []
            worker.ask(partial(_remove, pods, gone), partial(self._answered, resource, pods, gone))
        return done, min(waits, default=now_s + GRACE_S)

    def lost(self, resource: str) -> None:
        """Note that another plugin serves a resource, or none: its next try is due at once."""
        self._asked.discard(resource)
        self._next.pop(resource, None)
        self._failures.ends(resource)

    def _answered(
        self, resource: str, pods: Sequence[str], gone: Sequence[str], failure: PluginError | None
    ) -> None:
        self._asked.discard(resource)
        for pod in self._ended_s.keys() & set(gone):
            self._forgotten[pod].add(resource)
        if failure is None:
            self._next.pop(resource, None)
            self._failures.ends(resource)
            return
        # Another pod comes first the next time: the plugin may refuse only this one.
        failed = pods[len(gone)]
        if (at_s := self._ended_s.pop(failed, None)) is not None:
            self._ended_s[failed] = at_s
        now_s = self._now_s()
        self._next[resource] = self._next.get(resource, Attempt(now_s)).refused(now_s)
        if self._failures.begins(failure, resource):
            log.warning("plugin forgets no pod", resource=resource, reason=failure)


def _remove(pods: Sequence[str], gone: list[str], plugin: ResourcePlugin) -> None:
    """Let a plugin forget ended pods, until a call fails or its turn is over.

    Raises:
        PluginError: it does not forget the pod that follows those in `gone`.
    """
    until_s = time.monotonic() + _TURN_S
    for pod in pods:
        plugin.remove(pod)
        gone.append(pod)
        if time.monotonic() > until_s:
            break
