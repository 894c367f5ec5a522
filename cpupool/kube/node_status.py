"""The status of this node in the API server, into which the agent applies extended resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import NODES
from cpupool.wire import node_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.kube.client import APIServer


class NodeStatusObject:
    """A `NodeResourceSink`; one thread uses it, and any thread may interrupt it.

    Args:
        server: the API server.
        node: the node's name.
    """

    def __init__(self, server: APIServer, node: str) -> None:
        self._connection = APIConnection(server)
        self._node = node

    def apply(self, node_uid: str, amounts: Mapping[str, int]) -> None:
        """Set these resources, and remove every other one that cpupool has set.

        Raises:
            APIError: there is no response, or it is a refusal: 404 and 409 where the node is gone,
                or has a successor with its name.
        """
        body = node_status.applied(self._node, node_uid, amounts)
        target = NODES.object(self._node, subresource="status")
        # The kubelet is the manager of the fields that it has zeroed, so only force gets them; the
        # role leaves out the fields of other programs.
        self._connection.apply(target, body, manager=node_status.MANAGER, force=True)

    def interrupt(self) -> None:
        """End the request that is going on, and every later one."""
        self._connection.interrupt()
