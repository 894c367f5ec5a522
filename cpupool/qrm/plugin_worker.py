"""Asks one plugin of the QoS Resource Manager, in a thread of its own.

A plugin that is slow, hangs or dies keeps only its own thread waiting.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core.errors import CPUPoolError, without_frames
from cpupool.loops.threads import OwnedThread
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm import plugin_client
from cpupool.qrm.plugin_client import PluginError, ResourcePlugin
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.qrm.plugin_client import Introduction, PluginCall

log = logs.get(__name__)

_T = TypeVar("_T")
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""How long to wait after each attempt to ask for a plugin's name."""


_SILENT_S: Final = 40.0
"""The longest call, which a plugin that hangs may take, is shorter."""


class PluginWorker:
    """One plugin, by its socket.

    Args:
        socket: where it listens.
        post: takes what is to run in the thread of the role; any thread may call it.
        introduced: called in that thread once the plugin has introduced itself.
        observe: called after each call, in the thread of the plugin; not after one that `close`
            has ended, which says nothing of the plugin that has the place by then.
        known: what it has said already, at the door; None to ask.

    Attributes:
        socket: where it listens.
        introduction: what it has said of itself; None before, and for another kind of plugin.
        plugin: asks it, for a thread that does not wait for other questions; None before that.
        complaint: why it is not registered; empty if it is, or has not been asked.
        refused: whether it is not registered because of its resource.
        thread: its thread.
    """

    def __init__(
        self,
        socket: Path,
        post: Callable[[Callable[[], None]], None],
        introduced: Callable[[PluginWorker], None],
        observe: Callable[[PluginCall], None],
        known: Introduction | None = None,
    ) -> None:
        self.socket: Final = socket
        self.introduction = known
        self._post = post
        self._introduced = introduced
        self._discovered = known is None
        self._observe = observe
        self.complaint = ""
        self.refused = False
        self.plugin: ResourcePlugin | None = None
        self._work: SimpleQueue[Callable[[ResourcePlugin], None] | None] = SimpleQueue()
        self._closed = threading.Event()
        self.thread: Final = OwnedThread(
            f"plugin {socket.name}",
            self._run,
            ask=lambda: self._work.put(None),
            failed=lambda: post(self.thread.check),
            silent_s=_SILENT_S,
            late_s=_SILENT_S,
        )
        self.thread.start()

    @property
    def resource(self) -> str:
        """The resource that it serves; empty before that is known."""
        return self.introduction.resource if self.introduction else ""

    @property
    def closed(self) -> bool:
        """Whether no more questions reach it."""
        return self._closed.is_set()

    @property
    def options(self) -> PluginOptions:
        """The questions that it wants."""
        return self.introduction.options if self.introduction else PluginOptions()

    def ask(
        self, call: Callable[[ResourcePlugin], _T], done: Callable[[_T | PluginError], None]
    ) -> None:
        """Ask the plugin after all that it was asked before.

        Args:
            call: asks it; runs in the thread of the plugin.
            done: takes the answer in the thread of the role; not called after `close`.
        """

        def work(plugin: ResourcePlugin) -> None:
            try:
                found: _T | PluginError = call(plugin)
            except PluginError as error:
                # Others keep it, but not the frames of the call.
                found = without_frames(error)
            self._post(lambda: None if self._closed.is_set() else done(found))

        self._work.put(work)

    def notify(self, refused: str = "") -> None:
        """Tell the plugin that it is registered, or why not, unless it has registered by a call.

        A plugin that the notice does not reach is registered, as in the kubelet: it may answer
        questions all the same.
        """
        self.complaint, self.refused = refused, bool(refused)
        if self._discovered:
            self._work.put(lambda _plugin: self._notified())

    def _notified(self) -> None:
        try:
            plugin_client.notify(self.socket, self.complaint)
        except CPUPoolError as failure:
            log.warning("plugin not notified", socket=self.socket, reason=failure)

    def close(self) -> None:
        """End all calls; the plugin is not asked again."""
        self._closed.set()
        self._work.put(None)
        if self.plugin is not None:
            self.plugin.close()

    def _run(self) -> None:
        self.introduction = self.introduction or self._asked_for_name()
        if self.introduction is None:
            return
        plugin = self.plugin = ResourcePlugin(self.introduction, self._called)
        self._post(lambda: None if self._closed.is_set() else self._introduced(self))
        try:
            while not self._closed.is_set():
                work = self._work.get()
                # After each call: a queue of calls that each take long is no thread that hangs.
                self.thread.answer()
                if work is not None and not self._closed.is_set():
                    work(plugin)
        finally:
            plugin.close()

    def _called(self, call: PluginCall) -> None:
        """Tell of a call, unless it has failed because `close` has ended it."""
        if call.failure is None or not self._closed.is_set():
            self._observe(call)

    def _asked_for_name(self) -> Introduction | None:
        """Ask for the name until the plugin answers; None for another kind of plugin."""
        tries = 0
        while not self._closed.is_set():
            self.thread.answer()
            try:
                found = plugin_client.introduced(self.socket)
            except CPUPoolError as error:
                if str(error) != self.complaint:
                    self.complaint = str(error)
                    log.info("plugin not registered", socket=self.socket, reason=error)
                    # Without news the role does not look before half a minute has passed.
                    self._post(self.thread.check)
            else:
                other = f"is no {plugin_client.TYPE}: its GetInfo has another type"
                self.complaint = "" if found else other
                if not found:
                    self._post(self.thread.check)
                return found
            self._closed.wait(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1
        return None
