"""Runs a command in the agent's pod on a node, for an admin who is not on the node."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from cpupool.commands.shell.away import OBJECT_NAME, absent, object_name, objects
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.kube import views
from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cpupool.kube.client import APIServer
    from cpupool.kube.pod_exec import Ended

LABELS: Final = {"app.kubernetes.io/name": "cpupool", "app.kubernetes.io/component": "agent"}
"""The labels of the agent's pods, as in the DaemonSet."""
CONTAINER: Final = "agent"
"""The agent's container in them."""
_SELECTOR: Final = ",".join(f"{key}={value}" for key, value in LABELS.items())
_NODES: Final = "kubectl get nodes"


def run(server: APIServer, node: str, command: Sequence[str]) -> Ended:
    """Run a command in the agent's container on a node, which may be in wrong hands.

    Raises:
        UsageError: there is no such node, or not one agent that runs on it.
        APIError: the API server does not answer, or refuses.
        ManifestError: it shows something that cannot be read.
    """
    # Its library comes with the one that has read the kubeconfig.
    from cpupool.kube import pod_exec  # noqa: PLC0415

    namespace, name = _find(APIConnection(server), node)
    target = PODS.object(name, namespace, subresource="exec")
    return pod_exec.run(server, target, CONTAINER, command)


def _find(connection: APIConnection, node: str) -> tuple[str, str]:
    """Return the namespace and the name of the one pod on a node whose agent runs."""
    if not OBJECT_NAME.fullmatch(node):
        raise UsageError(f"{node!r} is no name of a node; look at `{_NODES}`")
    on_node = f"spec.nodeName={node}"
    why: dict[tuple[str, str], str] = {}
    for body in objects(connection, PODS.collection(), fields=on_node, labels=_SELECTOR):
        found = object_name(body)
        why[found] = views.why_not_running(body, CONTAINER)
    running = [found for found, obstacle in why.items() if not obstacle]
    if len(running) == 1:
        return running[0]
    if running:
        pods = ", ".join("/".join(found) for found in sorted(running))
        raise UsageError(
            f"node {node} has several agents: {pods}; keep one, or run `cpupool status` in one with"
            " `kubectl exec`"
        )
    for (namespace, name), obstacle in why.items():
        raise UsageError(
            f"the agent's container in pod {namespace}/{name} on node {node} does not run"
            f" ({obstacle}); look at `kubectl -n {namespace} describe pod {name}`"
        )
    raise _no_agent(connection, node)


def _no_agent(connection: APIConnection, node: str) -> UsageError:
    try:
        connection.get(NODES.object(node))
    except APIError as error:
        if error.status != 404:
            raise
        names = [name for _, name in map(object_name, objects(connection, NODES.collection()))]
        return absent(f"node {node}", _NODES, difflib.get_close_matches(node, names))
    return UsageError(
        f"node {node} has no pod of the agent; look at `kubectl get pods -A -o wide -l {_SELECTOR}`"
    )
