"""The NodeResourceTopology of this node in the API server: followed, and applied."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.kube.reflector import Reflector
from cpupool.kube.resources import NODE_TOPOLOGIES, group
from cpupool.telemetry import log as logs
from cpupool.wire import node_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.kube.client import APIServer
    from cpupool.wire.node_topology import Observed, Values

log = logs.get(__name__)

NAME: Final = "topology watch"
_MISSING_S: Final = 60.0
"""How often to look for the CRD while the cluster has none."""
_NOT_FOUND: Final = 404


class NodeTopologyObject:
    """A `NodeTopologySink`. `run` has a thread of its own; one other thread calls `apply`.

    Args:
        server: the API server.
        node: the node's name, and the object's.
        restarted: as for `Reflector`.
    """

    def __init__(
        self,
        server: APIServer,
        node: str,
        *,
        restarted: Callable[[str, str], None],
    ) -> None:
        self._server = server
        self._node = node
        self._changed: Callable[[], None] = lambda: None
        self._restarted = restarted
        self._asking = APIConnection(server)
        self._applying = APIConnection(server)
        self._reflector: Reflector[Observed] | None = None
        self._version = ""
        self._waiting = threading.Event()
        self._told = ""

    @property
    def version(self) -> str:
        """The version of the API in which the object is written; empty until it is known."""
        return self._version

    def observed(self) -> tuple[Observed, ...] | None:
        """Return the object, or nothing where there is none; None until that is known."""
        return self._reflector.items() if self._reflector else None

    def wakes(self, changed: Callable[[], None]) -> None:
        """Call this at each change of the object; it must not block."""
        self._changed = changed

    def apply(self, node_uid: str, values: Values) -> None:
        """Set these fields of the object, and give up every other field.

        Raises:
            APIError: there is no answer, or it is a refusal: 409 where a field is another manager's
                by now, 404 without the CRD.
        """
        body = node_topology.applied(self._node, node_uid, self._version, values)
        target = NODE_TOPOLOGIES[self._version].object(self._node)
        self._applying.apply(target, body, manager=node_topology.MANAGER)

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Follow the object until `stop` is set and `wake` called; wait while there is no CRD."""
        while not stop.is_set():
            beat()
            self._asking.resume()
            version = self._served()
            if not version:
                self._waiting.wait(_MISSING_S)
                self._waiting.clear()
                continue
            self._reflector = Reflector(
                self._server,
                NODE_TOPOLOGIES[version].collection(),
                node_topology.observed,
                fields=f"metadata.name={self._node}",
                changed=self._changed,
                restarted=self._restarted,
            )
            self._version = version
            self._reflector.run(stop, beat)

    def wake(self) -> None:
        """End any wait, so that `run` and `apply` notice that they shall end."""
        self._waiting.set()
        self._asking.interrupt()
        self._applying.interrupt()
        if self._reflector:
            self._reflector.wake()

    def _served(self) -> str:
        """Return the best version that the API server serves; empty without one."""
        complaint = ""
        try:
            found = set(_versions(self._asking.get(group(node_topology.GROUP))))
            for version in node_topology.VERSIONS:
                if version in found:
                    return version
            complaint = f"the cluster serves none of {', '.join(node_topology.VERSIONS)}"
        except APIError as error:
            complaint = str(error) if error.status != _NOT_FOUND else "the cluster has no such CRD"
        if complaint != self._told and not self._asking.interrupted:
            log.warning(
                "node's topology not published",
                reason=complaint,
                remedy="create the CRD: kubectl create -k daemonsets/topology-crd",
            )
            self._told = complaint
        return ""


def _versions(body: Mapping[str, Any]) -> list[str]:
    versions = body.get("versions")
    found = versions if isinstance(versions, list) else []
    return [str(each.get("version")) for each in found if isinstance(each, dict)]
