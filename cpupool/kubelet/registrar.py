"""Keeps plugins registered with the kubelet that runs now, also when kubelet or agent restarts.

Each look compares the actual state with the wanted state, and repairs the difference. In the wanted
state the plugin's socket is in place, and the kubelet has registered the plugin and watches it. So
four faults need only one repair: the kubelet restarts and removes every socket, somebody deletes a
socket, a stream breaks, or the kubelet is not ready.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.core.errors import CPUPoolError
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logs.get(__name__)

_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 10.0
_DIAL_S: Final = 10.0
"""The time that the kubelet may take to dial a plugin that it has accepted: its own timeout
(kubernetes pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go)."""

_KubeletIdentity = tuple[int, int]
"""Inode and birth of kubelet.sock: inode numbers alone are used again."""


class Plugin(Protocol):
    """A plugin of the kubelet's with a socket of its own, which the kubelet dials."""

    @property
    def name(self) -> str:
        """The name that the kubelet knows it by."""
        ...

    @property
    def listening(self) -> bool:
        """Whether the kubelet can dial the socket."""
        ...

    @property
    def watched(self) -> bool:
        """Whether the kubelet listens to the plugin."""
        ...

    def start(self) -> None:
        """Bind the socket and serve.

        Raises:
            CPUPoolError: it cannot be bound.
        """
        ...

    def stop(self) -> None:
        """End every stream and remove the socket."""
        ...

    def register(self, kubelet_socket: Path) -> None:
        """Ask the kubelet to use the plugin.

        Raises:
            RemoteProtocolError: the kubelet is not there, does not answer, or refuses.
        """
        ...


@dataclass(slots=True)
class _Registration:
    """The state of the registration of a plugin.

    Attributes:
        kubelet: the kubelet that accepted it.
        failures: attempts that failed since it last worked.
        why: the last of them.
        due_s: no attempt before this time of the monotonic clock; 0 once it works.
    """

    kubelet: _KubeletIdentity | None = None
    failures: int = 0
    why: str = ""
    due_s: float = 0.0


class Registrar:
    """Registers plugins with one kubelet; only one thread calls it.

    Args:
        kubelet_socket: where the kubelet takes registrations.
        wanted: whether a plugin is still to be registered: its stream may have ended with what it
            serves.
        kubelet_changed: called when another kubelet listens than before, or none.
        registered: called with the name of a plugin that the kubelet has accepted.
    """

    def __init__(
        self,
        kubelet_socket: Path,
        *,
        wanted: Callable[[Plugin], bool],
        kubelet_changed: Callable[[], None],
        registered: Callable[[str], None],
    ) -> None:
        self._socket = kubelet_socket
        self._wanted = wanted
        self._kubelet_changed = kubelet_changed
        self._registered = registered
        self._kubelet: _KubeletIdentity | None = None
        self._registrations: dict[str, _Registration] = {}

    def follow(self) -> None:
        """Look which kubelet runs; the plugins register with a new kubelet at once."""
        kubelet = _identity(self._socket)
        if kubelet == self._kubelet:
            return
        log.info("kubelet socket changed", present=kubelet is not None)
        self._kubelet = kubelet
        self._kubelet_changed()
        for registration in self._registrations.values():
            if registration.kubelet != kubelet:
                registration.failures, registration.due_s = 0, 0.0

    def attend(self, plugin: Plugin) -> bool:
        """Repair the registration of a plugin, and return whether there was something to do."""
        registration = self._registrations.setdefault(plugin.name, _Registration())
        settled = self._kubelet is None or self._serves(plugin, registration)
        if settled and plugin.listening:
            registration.failures, registration.why, registration.due_s = 0, "", 0.0
            return False
        vanished = not plugin.listening and not registration.failures
        if time.monotonic() < registration.due_s and not vanished:
            return False
        try:
            if not plugin.listening:
                plugin.stop()
                registration.kubelet = None
                plugin.start()
            if self._kubelet is not None:
                self._register(plugin, registration)
        except CPUPoolError as error:
            self._failed(plugin, registration, str(error))
        return True

    def forget(self, plugin: Plugin) -> None:
        """Drop the state of a plugin that has been stopped."""
        self._registrations.pop(plugin.name, None)

    def missing(self, plugin: Plugin) -> str:
        """Return why the kubelet does not know or watch a plugin; empty if it does both."""
        registration = self._registrations.get(plugin.name, _Registration())
        if self._serves(plugin, registration):
            return ""
        why = registration.why or "it has not asked for its devices yet"
        return f"the kubelet does not know {plugin.name}: {why}"

    @property
    def absent(self) -> str:
        """The reason why there is no kubelet to register with; empty where there is one."""
        return "" if self._kubelet else f"{self._socket} is not there; start the kubelet"

    def pause_s(self, longest_s: float) -> float:
        """Return how long to wait until the next attempt is due, at most `longest_s`."""
        now_s = time.monotonic()
        # An attempt that has come due since its plugin's turn must not wait for the next look.
        waits = (
            max(registration.due_s - now_s, 0.0)
            for registration in self._registrations.values()
            if registration.due_s
        )
        return min((longest_s, *waits))

    def _serves(self, plugin: Plugin, registration: _Registration) -> bool:
        """Return whether the kubelet that runs now knows the plugin and listens to it."""
        return registration.kubelet == self._kubelet and plugin.watched

    def _register(self, plugin: Plugin, registration: _Registration) -> None:
        # Asked once more: another kubelet may have come since this look began.
        kubelet = _identity(self._socket)
        if kubelet is not None and kubelet == registration.kubelet:
            if not self._wanted(plugin):
                # The stream has ended with what it serves; the next look stops the plugin.
                return
            log.warning("kubelet stopped listening", resource=plugin.name)
            registration.kubelet = None
        plugin.register(self._socket)
        registration.kubelet, registration.why = kubelet, ""
        registration.due_s = time.monotonic() + _DIAL_S
        self._registered(plugin.name)
        log.info("device plugin registered", resource=plugin.name)

    def _failed(self, plugin: Plugin, registration: _Registration, why: str) -> None:
        delay_s = retry_s(registration.failures)
        # Attempts go on for as long as it takes; each new reason is logged as a warning once.
        tell = log.debug if why == registration.why else log.warning
        tell(
            "device plugin not registered",
            resource=plugin.name,
            retry_s=f"{delay_s:.2f}",
            reason=why,
        )
        registration.failures += 1
        registration.why = why
        registration.due_s = time.monotonic() + delay_s


def retry_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row."""
    delay_s = min(_FIRST_RETRY_S * 2.0 ** min(failures, 16), _LAST_RETRY_S)
    # Jitter keeps the nodes of a cluster, and the plugins of a node, from asking in step.
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311  # it needs no secrecy


def _identity(socket: Path) -> _KubeletIdentity | None:
    try:
        status = socket.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
