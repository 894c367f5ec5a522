"""The NodeResourceTopology of this node in the API server, which cpupool follows and applies."""

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
CREATE_CRD: Final = "create the CRD: kubectl create -k daemonsets/topology-crd"
GRANT: Final = (
    "apply an overlay with the component daemonsets/topology-reporter, or set --node-topology=off"
)
_LOOK_S: Final = 60.0
"""The time between two looks for a CRD or a right that is missing."""
_NOT_FOUND: Final = 404
_VERSIONS: Final = " or ".join(node_topology.VERSIONS)
_NO_CRD: Final = f"the API server serves no {node_topology.KIND} of {_VERSIONS}"
_OBSTACLES: Final = {
    "404": (_NO_CRD, CREATE_CRD),
    "403": ("the agent may not list and watch the object", GRANT),
}
"""Status of a list or a watch → the fact, and the remedy."""


class NodeTopologyObject:
    """A `NodeTopologySink`. `run` has a thread of its own; one other thread calls `apply`.

    Args:
        server: the API server.
        node: the node's name, and the object's.
        restarted: called with the resource and the reason when a watch has ended.
        look_s: how often to look for a CRD or a right that is missing.
    """

    def __init__(
        self,
        server: APIServer,
        node: str,
        *,
        restarted: Callable[[str, str], None],
        look_s: float = _LOOK_S,
    ) -> None:
        self._server = server
        self._node = node
        self._changed: Callable[[], None] = lambda: None
        self._restarted = restarted
        self._look_s = look_s
        self._asking = APIConnection(server)
        self._applying = APIConnection(server)
        self._reflector: Reflector[Observed] | None = None
        self._version = ""
        self._over = threading.Event()
        self._told = ""

    @property
    def version(self) -> str:
        """The version of the API in which the object is written; empty until it is known."""
        return self._version

    def observed(self) -> tuple[Observed, ...] | None:
        """Return the object, or nothing where there is none; None while that is not known."""
        reflector = self._reflector
        return reflector.items() if reflector else None

    def wakes(self, changed: Callable[[], None]) -> None:
        """Call this at each change of the object; it must not block."""
        self._changed = changed

    def apply(self, node_uid: str, values: Values) -> None:
        """Set these fields of the object, and give up every other field.

        Raises:
            APIError: there is no response, or it is a refusal: 409 where a field is another
                manager's by now, 404 without the CRD.
        """
        body = node_topology.applied(self._node, node_uid, self._version, values)
        target = NODE_TOPOLOGIES[self._version].object(self._node)
        self._applying.apply(target, body, manager=node_topology.MANAGER)

    def run(self, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Follow the object until `stop` is set and `wake` called; wait while there is no CRD."""
        failures = 0
        while self._goes_on(stop):
            beat()
            try:
                version = served(self._asking)
            except APIError as error:
                self._tell(str(error))
                self._asking.pause(failures, error.retry_after_s)
                failures += 1
                continue
            failures = 0
            if version:
                self._follow(version, beat)
                if not self._goes_on(stop):
                    return
            else:
                self._tell(_NO_CRD, CREATE_CRD)
            self._over.wait(self._look_s)

    def wake(self) -> None:
        """End any wait and request, so that `run` and `apply` notice the end."""
        self._over.set()
        self._asking.interrupt()
        self._applying.interrupt()
        if self._reflector:
            self._reflector.wake()

    def _goes_on(self, stop: threading.Event) -> bool:
        """Return whether `run` goes on; a `wake` from now on ends what it meets."""
        self._over.clear()
        self._asking.resume()
        return not stop.is_set()

    def _follow(self, version: str, beat: Callable[[], None]) -> None:
        """Follow the object in this version, until `wake` or a refusal that only a person ends."""

        def restarted(resource: str, reason: str) -> None:
            self._restarted(resource, reason)
            if reason in _OBSTACLES:
                self._over.set()
                self._tell(*_OBSTACLES[reason])
            else:
                self._told = ""

        self._version = version
        self._reflector = Reflector(
            self._server,
            NODE_TOPOLOGIES[version].collection(),
            node_topology.observed,
            fields=f"metadata.name={self._node}",
            changed=self._changed,
            restarted=restarted,
        )
        self._reflector.run(self._over, beat)
        self._reflector = None

    def _tell(self, reason: str, remedy: str = "") -> None:
        """Log once why the object cannot be followed."""
        if reason != self._told and not self._asking.interrupted:
            log.warning("node's topology not published", reason=reason, remedy=remedy)
            self._told = reason


def served(connection: APIConnection) -> str:
    """Return the best version of the object that the API server serves; empty without its CRD.

    Raises:
        APIError: there is no response, or it is another refusal.
    """
    try:
        body = connection.get(group(node_topology.GROUP))
    except APIError as error:
        if error.status == _NOT_FOUND:
            return ""
        raise
    found = _versions(body)
    return next((version for version in node_topology.VERSIONS if version in found), "")


def _versions(body: Mapping[str, Any]) -> list[object]:
    versions = body.get("versions")
    found = versions if isinstance(versions, list) else []
    return [each.get("version") for each in found if isinstance(each, dict)]
