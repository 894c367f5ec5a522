"""Nodes that are only objects of the API server, and the agent's rights on them.

A cluster without a kubelet is enough, and one without a controller manager.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
import yaml

from cpupool.kube.client import APIServer, Token
from cpupool.kube.kubeconfig import KubeconfigCredentials
from tests.e2e.cluster import kubectl, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DAEMONSETS: Final = Path(__file__).parents[2] / "daemonsets"
NAMESPACE: Final = "cpupool"
_LEFT_OUT: Final = {"Kustomization", "Component", "DaemonSet"}
ACCOUNT: Final = "cpupool-agent"
COLLECTED_S: Final = 30.0
"""A garbage collector deletes within a second or two; a busy cluster's takes longer."""
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"


@dataclass(frozen=True, slots=True)
class PaperNode:
    """A Node without a kubelet.

    Attributes:
        name: its name.
        uid: its UID.
        folder: for tokens.
    """

    name: str
    uid: str
    folder: Path

    def agent(self) -> APIServer:
        """Return the API server for the agent of this node: as a pod's, its token names the node.

        There must be the pod `self.name` on the node.
        """
        return self.server(
            kubectl(
                *("-n", NAMESPACE, "create", "token", ACCOUNT),
                *("--bound-object-kind=Pod", f"--bound-object-name={self.name}"),
            )
        )

    def server(self, token: str) -> APIServer:
        """Return the API server for the owner of a token."""
        path = self.folder / hashlib.sha256(token.encode()).hexdigest()
        path.write_text(token)
        found = KubeconfigCredentials(os.environ["KUBECONFIG"], "").load()
        return APIServer(
            found.host,
            ca=Path(found.ssl_ca_cert) if found.ssl_ca_cert else None,
            credentials=Token(path),
            server_name=found.tls_server_name or "",
        )


@contextmanager
def paper_node(folder: Path) -> Iterator[PaperNode]:
    """Create a Node, and delete it with its NodeResourceTopology."""
    metadata = {"generateName": "cpupool-e2e-"}
    made = created({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    name = made["metadata"]["name"]
    try:
        yield PaperNode(name, made["metadata"]["uid"], folder)
    finally:
        kubectl("delete", "node", name, "--ignore-not-found")


@contextmanager
def agent_pod(node: PaperNode) -> Iterator[dict[str, Any]]:
    """Create the pod of an agent that is bound to the node and never starts."""
    body = created(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": node.name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": node.name,
                "serviceAccountName": ACCOUNT,
                "automountServiceAccountToken": False,
                "containers": [{"name": "agent", "image": "none.example/agent"}],
            },
        }
    )
    try:
        yield body
    finally:
        kubectl("-n", NAMESPACE, "delete", "pod", node.name, "--force", "--ignore-not-found")


def created(body: dict[str, Any]) -> Any:
    """Create an object, and return it."""
    return yaml.safe_load(kubectl("create", "-f", "-", "-o", "yaml", given=body))


@contextmanager
def present(bodies: Iterable[dict[str, Any]]) -> Iterator[frozenset[str]]:
    """Create those objects that the cluster lacks, give their names, and delete them at the end."""
    with ExitStack() as opened:
        new = set()
        for body in bodies:
            if kubectl("get", "-f", "-", "--ignore-not-found", "-o", "name", given=body):
                continue
            created(body)
            new.add(body["metadata"]["name"])
            # Only a controller manager ends what is in a namespace.
            if body["kind"] != "Namespace" or controllers():
                opened.callback(kubectl, "delete", "-f", "-", "--ignore-not-found", given=body)
        yield frozenset(new)


def manifests(name: str) -> list[dict[str, Any]]:
    """Return the objects of a folder in `daemonsets/`, but pods and what makes pods."""
    files = sorted(DAEMONSETS.joinpath(name).glob("*.yaml"))
    found = [body for file in files for body in yaml.safe_load_all(file.read_text())]
    return [body for body in found if body["kind"] not in _LEFT_OUT]


@cache
def controllers() -> bool:
    """Return whether a controller manager runs: its garbage collector deletes what has no owner.

    Its lease does not say so: without leader election there is none, and an ended one leaves its.

    Source: https://kubernetes.io/docs/concepts/architecture/garbage-collection/.
    """
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": str(uuid4())}
    metadata = {
        "generateName": "cpupool-e2e-",
        "namespace": "default",
        "ownerReferences": [owner],
    }
    made = created({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    orphan = ("-n", "default", "configmap", made["metadata"]["name"], "--ignore-not-found")
    try:
        return within(COLLECTED_S, lambda: not kubectl("get", *orphan))
    finally:
        kubectl("delete", *orphan)


def needs_controllers(what: str) -> None:
    """Skip the test where no controller manager runs, which does this."""
    if not controllers():
        found = f"no garbage collector has deleted an object without an owner in {COLLECTED_S:g} s"
        pytest.skip(f"{found}, so no controller manager runs, which {what}")


def needs_named_nodes(agent: APIServer) -> None:
    """Skip the test where the token of a pod does not name the pod's node."""
    token = agent.headers()["Authorization"].removeprefix("Bearer ")
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    }
    status = created(review)["status"]
    assert status.get("authenticated"), status
    if _NODE_NAME not in status["user"].get("extra", {}):
        version = json.loads(kubectl("get", "--raw", "/version"))["gitVersion"]
        pytest.skip(f"API server {version}: the token of a pod does not name the pod's node")
