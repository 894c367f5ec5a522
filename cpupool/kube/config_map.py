"""A watch of one ConfigMap of the API server."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.kube import views
from cpupool.kube.reflector import Reflector
from cpupool.kube.resources import CONFIG_MAPS
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.kube.client import APIServer

log = logs.get(__name__)

CONFIG_MAP_WATCH: Final = "ConfigMap watch"
"""The name of its loop."""


@dataclass(frozen=True, slots=True)
class ConfigMapName:
    """The name of a ConfigMap in the cluster.

    Attributes:
        namespace: its namespace.
        name: its name there.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ConfigMapWatch:
    """Follows one ConfigMap: a `ConfigMapSource`.

    The last entries stay known while the API server is away, without the right to read the
    ConfigMap, and after its deletion.

    Args:
        server: the API server.
        name: which ConfigMap.
        changed: called when it has become different; must not block.
        restarted: called with the resource and the reason when a watch has ended.
    """

    def __init__(
        self,
        server: APIServer,
        name: ConfigMapName,
        *,
        changed: Callable[[], None],
        restarted: Callable[[str, str], None],
    ) -> None:
        self._name = name
        self._changed = changed
        self._entries: Mapping[str, bytes] | None = None
        self._answered = threading.Event()
        self._reflector = Reflector(
            server,
            CONFIG_MAPS.collection(name.namespace),
            views.config_map,
            fields=f"metadata.name={name.name}",
            changed=self._take,
            restarted=restarted,
            newest=True,
        )

    def entries(self) -> Mapping[str, bytes] | None:
        """Return key → content as the API server showed it last, or None until it has."""
        return self._entries

    def wait(self, timeout_s: float) -> None:
        """Wait for the first list or for `wake`, no longer than this."""
        self._answered.wait(timeout_s)

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Follow it until `stop` is set and `wake` called; as `Reflector.run`."""
        self._reflector.run(stop, beat)

    def wake(self) -> None:
        """End any wait."""
        self._answered.set()
        self._reflector.wake()

    def _take(self) -> None:
        found = self._reflector.items()
        if found:
            if self._entries is None:
                log.info("ConfigMap is followed", name=self._name)
            self._entries = found[0]
        else:
            log.warning(
                "there is no such ConfigMap, the pools do not change",
                name=self._name,
                remedy="create it, or check --configmap",
            )
        self._answered.set()
        self._changed()
