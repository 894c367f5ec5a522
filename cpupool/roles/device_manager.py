"""Advertises the pools to the kubelet and keeps them advertised.

Nothing here is remembered for longer than it is true. Each look compares what should be (a plugin
per pool, its socket in place, registered with the kubelet that runs now) with what is, and mends
the difference; events only make it look sooner. So a kubelet that restarts (it wipes every socket
first), a socket that somebody deletes, a stream that breaks and a kubelet that is not ready are all
the same case.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import CPUPoolError
from cpupool.host.files import DirectoryWatch
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.kubelet.registration import register
from cpupool.kubelet.serving import ServingLoop
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.core.requests import Resource
    from cpupool.host.mounts import Mounts
    from cpupool.host.root import HostRoot
    from cpupool.manager.manager import Manager
    from cpupool.manager.ports import Mount
    from cpupool.telemetry.health import Health
    from cpupool.telemetry.metrics import Metrics

log = logs.get(__name__)

NAME: Final = "device manager"

_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 10.0
CONDITION: Final = "kubelet"
_DIAL_S: Final = 10.0
"""How long the kubelet may take to dial a plugin that it has accepted: its own timeout
(kubernetes pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go)."""

_KubeletIdentity = tuple[int, int]
"""Inode and birth of kubelet.sock: inode numbers alone are used again."""


@dataclass(slots=True)
class _Plugin:
    """One pool's plugin and how far it is.

    Attributes:
        server: its socket.
        resource: the name it is registered under.
        kubelet: the kubelet that accepted it.
        failures: attempts that failed since it last worked.
        why: the last of them.
        due_s: no attempt before this time of the monotonic clock; 0 once it works.
    """

    server: DevicePluginServer
    resource: str
    kubelet: _KubeletIdentity | None = None
    failures: int = 0
    why: str = ""
    due_s: float = 0.0

    def serves(self, kubelet: _KubeletIdentity) -> bool:
        """Tell whether this kubelet knows the plugin and is listening to it."""
        return self.kubelet == kubelet and self.server.watched


class DeviceManager:
    """The role that is the kubelet's device plugin.

    Args:
        manager: the node's state; its advertised pools are served.
        root: where the kubelet's folder is.
        mounts: what containers get mounted; a pool is offered once its mounts are provided.
        metrics: counts the registrations.
        health: hears that the loop turns, and whether the kubelet knows every pool.
        kubelet_changed: called when another kubelet listens than before, or none.
        ready: whether it is known who owns which CPU, and nobody else gives CPUs out; while not,
            nothing is offered.
        look_s: how often to look without an event.
    """

    def __init__(
        self,
        manager: Manager,
        root: HostRoot,
        mounts: Mounts,
        *,
        metrics: Metrics,
        health: Health,
        kubelet_changed: Callable[[], None] = lambda: None,
        ready: Callable[[], bool] = lambda: True,
        look_s: float = 2.0,
    ) -> None:
        self._manager = manager
        self._folder = root.device_plugins
        self._kubelet_socket = root.kubelet_socket
        self._mounts = mounts
        self._metrics = metrics
        self._health = health
        self._kubelet_changed = kubelet_changed
        self._ready = ready
        self._look_s = look_s
        self._plugins: dict[str, _Plugin] = {}
        self._loop = ServingLoop(self.wake)
        self._kubelet: _KubeletIdentity | None = None
        self._wake = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, then end every stream and remove every socket."""
        watch = DirectoryWatch(self._folder, self._changed)
        with self._loop, ExitStack() as ending:
            try:
                while not stop.is_set():
                    watch.ensure()
                    self._loop.check()
                    self._look(stop)
                    why = self._missing()
                    self._health.set(CONDITION, ok=not why, message=why)
                    self._wake.wait(self._pause_s())
                    self._wake.clear()
            finally:
                watch.stop()
                # Each, also where the loop that serves them has ended.
                for plugin in self._plugins.values():
                    ending.callback(plugin.server.stop)

    def wake(self) -> None:
        """Look now: the pools have changed, or `run` is to notice that it shall stop."""
        self._wake.set()

    def _changed(self, path: Path) -> None:
        # Other plugins' sockets and the checkpoint, which is replaced at every admission, are not
        # ours to look at.
        if path in {self._folder, self._kubelet_socket} or path.name.startswith("cpupool-"):
            self.wake()

    def _look(self, stop: threading.Event) -> None:
        self._health.beat(NAME)
        self._follow_pools()
        self._follow_kubelet()
        for plugin in self._plugins.values():
            # A kubelet that hangs costs a timeout for each; a stop does not wait for them all.
            if not stop.is_set() and self._attend(plugin):
                self._health.beat(NAME)

    def _pause_s(self) -> float:
        now = time.monotonic()
        # What has come due since it was attended to is not to wait for the next look.
        waits = (max(plugin.due_s - now, 0.0) for plugin in self._plugins.values() if plugin.due_s)
        return min((self._look_s, *waits))

    def _follow_pools(self) -> None:
        # In this order: pools that come may end the readiness.
        resources = self._manager.advertised()
        ready = self._ready()
        advertised = [resource.name for resource in resources] if ready else []
        for name in self._plugins.keys() - set(advertised):
            self._plugins.pop(name).server.stop()
            log.info("pool no longer advertised", pool=name)
        # A container of a pool that is offered too soon would lack its mounts for life.
        for name in advertised if self._mountable() else ():
            if name not in self._plugins:
                self._plugins[name] = _Plugin(
                    DevicePluginServer(
                        self._manager,
                        name,
                        self._folder,
                        self._loop,
                        partial(self._mounts_of, name),
                    ),
                    self._manager.names.resource(name),
                )

    def _mountable(self) -> bool:
        """Return whether there are the mounts of every pool."""
        provided = self._mounts.provided
        shared = self._manager.snapshot().resolution.shared
        return provided is not None and provided >= shared.keys()

    def _mounts_of(self, resource: Resource) -> tuple[Mount, ...]:
        """Return what a container gets mounted with a resource: what its pool now has."""
        return self._mounts.of(self._manager.devices(resource).offer.pool)

    def _follow_kubelet(self) -> None:
        kubelet = _identity(self._kubelet_socket)
        if kubelet == self._kubelet:
            return
        log.info("kubelet socket changed", present=kubelet is not None)
        self._kubelet = kubelet
        self._kubelet_changed()
        for plugin in self._plugins.values():
            if plugin.kubelet != kubelet:
                plugin.failures, plugin.due_s = 0, 0.0

    def _attend(self, plugin: _Plugin) -> bool:
        """Mend what is wrong with a plugin, and tell whether there was something to do."""
        settled = self._kubelet is None or plugin.serves(self._kubelet)
        if settled and plugin.server.listening:
            plugin.failures, plugin.why, plugin.due_s = 0, "", 0.0
            return False
        vanished = not plugin.server.listening and not plugin.failures
        if time.monotonic() < plugin.due_s and not vanished:
            return False
        try:
            if not plugin.server.listening:
                plugin.server.stop()
                plugin.kubelet = None
                plugin.server.start()
            if self._kubelet is not None:
                self._register(plugin)
        except CPUPoolError as error:
            why, delay_s = str(error), _retry_s(plugin.failures)
            # Attempts go on for as long as it takes; each new reason is told once.
            tell = log.debug if why == plugin.why else log.warning
            tell(
                "device plugin not registered",
                resource=plugin.resource,
                retry_s=f"{delay_s:.2f}",
                reason=why,
            )
            plugin.failures += 1
            plugin.why = why
            plugin.due_s = time.monotonic() + delay_s
        return True

    def _register(self, plugin: _Plugin) -> None:
        # Asked once more: another kubelet may have come since this look began.
        kubelet = _identity(self._kubelet_socket)
        if kubelet is not None and kubelet == plugin.kubelet:
            if not self._is_advertised(plugin):
                # The stream has ended with the pool; the next look stops the plugin.
                return
            log.warning("kubelet stopped listening", resource=plugin.resource)
            plugin.kubelet = None
        register(
            self._kubelet_socket,
            endpoint=plugin.server.endpoint,
            resource=plugin.resource,
            options=plugin.server.options,
        )
        plugin.kubelet, plugin.why = kubelet, ""
        plugin.due_s = time.monotonic() + _DIAL_S
        self._metrics.registered(plugin.resource)
        log.info("device plugin registered", resource=plugin.resource)

    def _is_advertised(self, plugin: _Plugin) -> bool:
        resource = self._manager.names.resource
        return any(resource(one.name) == plugin.resource for one in self._manager.advertised())

    def _missing(self) -> str:
        """Say what keeps the kubelet from knowing and watching every pool; empty where nothing."""
        if self._kubelet is None:
            return f"{self._kubelet_socket} is not there; start the kubelet"
        if not self._ready():
            return "no pool is offered while the cpusetter waits; see there"
        if not self._mountable():
            return "what containers of the pools mount is being written; wait"
        for plugin in self._plugins.values():
            if not plugin.serves(self._kubelet):
                why = plugin.why or "it has not asked for its devices yet"
                return f"the kubelet does not know {plugin.resource}: {why}"
        return ""


def _retry_s(failures: int) -> float:
    delay_s = min(_FIRST_RETRY_S * 2.0 ** min(failures, 16), _LAST_RETRY_S)
    # Jitter keeps the nodes of a cluster, and the plugins of a node, from asking in step.
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311  # it needs no secrecy


def _identity(socket: Path) -> _KubeletIdentity | None:
    try:
        status = socket.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
