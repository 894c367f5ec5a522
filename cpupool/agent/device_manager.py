"""The device manager advertises the pools to the kubelet: one device plugin per pool.

It is level-triggered: each look compares the plugins that there must be (one per pool, known to the
kubelet that runs now) with those that there are, and repairs the difference. An event only makes it
look sooner.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.host.files import DirectoryWatch
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.kubelet.registrar import Registrar
from cpupool.loops.step_loop import StepLoop
from cpupool.rpc.serving import ServingLoop
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.core.mounts import Mount
    from cpupool.core.requests import Resource
    from cpupool.host.mounts import Mounts
    from cpupool.host.root import HostRoot
    from cpupool.kubelet.registrar import Plugin
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.manager import Manager

log = logs.get(__name__)

NAME: Final = "device manager"
_LOOK_S: Final = 30.0
_LOOK_WITHOUT_EVENTS_S: Final = 2.0
CONDITION: Final = "kubelet"


class DeviceManager(StepLoop):
    """The role that is the kubelet's device plugin.

    Args:
        manager: the node's state; its advertised pools are served.
        root: where the kubelet's folder is.
        mounts: what containers get mounted; a pool is offered once its mounts are provided.
        telemetry: takes registrations, the beats of the loop, and whether the kubelet knows every
            pool.
        kubelet_changed: called when another kubelet listens than before, or none.
        ready: returns whether the owner of each CPU is known, and only cpupool gives CPUs out; no
            pool is offered before.
        look_s: the longest time between two looks; shorter while the kubelet's folder cannot be
            watched.
    """

    def __init__(
        self,
        manager: Manager,
        root: HostRoot,
        mounts: Mounts,
        *,
        telemetry: Telemetry,
        kubelet_changed: Callable[[], None] = lambda: None,
        ready: Callable[[], bool] = lambda: True,
        look_s: float = _LOOK_S,
    ) -> None:
        self._watch = DirectoryWatch(root.device_plugins, self._changed)
        super().__init__(partial(telemetry.health.beat, NAME), [self._watch])
        self._manager = manager
        self._folder = root.device_plugins
        self._kubelet_socket = root.kubelet_socket
        self._mounts = mounts
        self._health = telemetry.health
        self._ready = ready
        self._look_s = look_s
        self._plugins: dict[str, DevicePluginServer] = {}
        self._registrar = Registrar(
            root.kubelet_socket,
            wanted=self._is_advertised,
            kubelet_changed=kubelet_changed,
            registered=telemetry.metrics.registered,
        )
        self._loop = ServingLoop(self.wake)

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, then end every stream and remove every socket."""
        with self._loop, ExitStack() as ending:
            self._health.watch(self._loop.thread)
            try:
                super().run(stop)
            finally:
                # Each, also where the loop that serves them has ended.
                for plugin in self._plugins.values():
                    ending.callback(plugin.stop)

    def step(self) -> float:
        """Serve the pools, and register them; return the seconds to the next step."""
        self._loop.check()
        self._look()
        often_s = self._look_s if self._watch.watching else _LOOK_WITHOUT_EVENTS_S
        return self._registrar.pause_s(min(often_s, self._look_s))

    def _changed(self, path: Path) -> None:
        # Other plugins make sockets there, and the kubelet replaces its checkpoint at every
        # admission.
        if path in {self._folder, self._kubelet_socket} or path.name.startswith("cpupool-"):
            self.wake()

    def _look(self) -> None:
        self._follow_pools()
        self._registrar.follow()
        # Before the plugins, too: with a kubelet that hangs each of them takes a timeout.
        self._show_condition()
        for plugin in self._plugins.values():
            # A kubelet that hangs costs a timeout for each; a stop does not wait for them all.
            if not self._stop.is_set() and self._registrar.attend(plugin):
                self._beat()
        self._show_condition()

    def _show_condition(self) -> None:
        why = self._missing()
        self._health.set(CONDITION, ok=not why, message=why)

    def _follow_pools(self) -> None:
        # In this order: pools that come may end the readiness.
        resources = self._manager.advertised()
        advertised = [resource.name for resource in resources] if self._ready() else []
        for name in self._plugins.keys() - set(advertised):
            plugin = self._plugins.pop(name)
            plugin.stop()
            self._registrar.forget(plugin)
            log.info("pool no longer advertised", pool=name)
        # A container of a pool that is offered too soon would lack its mounts for life.
        for resource in advertised if self._mountable() else ():
            if resource not in self._plugins:
                self._plugins[resource] = DevicePluginServer(
                    self._manager,
                    resource,
                    self._folder,
                    self._loop,
                    partial(self._mounts_of, resource),
                )

    def _mountable(self) -> bool:
        """Return whether every pool has its mounts."""
        provided = self._mounts.provided
        shared = self._manager.snapshot().resolution.shared
        return provided is not None and provided.keys() >= shared.keys()

    def _mounts_of(self, resource: Resource) -> tuple[Mount, ...]:
        """Return the mounts of a container with a resource: those of the pool now."""
        return self._mounts.of(self._manager.devices(resource).offer.pool)

    def _is_advertised(self, plugin: Plugin) -> bool:
        extended = self._manager.names.resource
        return any(plugin.name == extended(pool.name) for pool in self._manager.advertised())

    def _missing(self) -> str:
        """Return why the kubelet does not know and watch every pool; empty if it does."""
        if why := self._registrar.absent:
            return why
        if not self._ready():
            return "no pool is offered while the cpusetter waits; see there"
        if not self._mountable():
            return "what containers of the pools mount is being written; wait"
        for resource in self._manager.advertised():
            # The pool may have got its mounts since this look began.
            if resource.name not in self._plugins:
                return f"{resource.name} is not offered yet; wait"
        return next(filter(None, map(self._registrar.missing, self._plugins.values())), "")
