"""The agent is granted what it asks the API server for, and nothing that it does not ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cpupool.core.names import Names
from cpupool.kube.client import APIServer
from cpupool.kube.cluster import Cluster
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.apiserver import FakeAPIServer
from tests.clusters import running
from tests.waiting import eventually

FOLDER = Path(__file__).parents[2] / "daemonsets/agent"
NODE = "node-a"


def documents() -> dict[str, dict[str, Any]]:
    """Give the agent's objects by kind; there is one of each."""
    found = [
        document
        for name in ("rbac.yaml", "daemonset.yaml")
        for document in yaml.safe_load_all((FOLDER / name).read_text())
    ]
    by_kind = {document["kind"]: document for document in found}
    assert len(by_kind) == len(found)
    return by_kind


def test_the_agent_is_granted_exactly_what_it_asks_for() -> None:
    granted = {
        (group, resource, verb)
        for rule in documents()["ClusterRole"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    with FakeAPIServer(NODE) as server:
        cluster = Cluster(APIServer.at(server.url), NODE, Names(), Metrics(), lambda: None)
        with running(cluster):
            eventually(lambda: server.watching("pods") and server.watching("nodes"), "two watches")
            cluster.events.pod(builders.pod("upf"), "CPUOffline", "CPU 3 is offline; switch it on")
            cluster.events.node("CPUPoolConfigInvalid", "no such CPU; run cpupool validate")
            eventually(lambda: len(server.events) == 2, "two Events")
        asked = server.verbs()

    # The fake knows the core group only, which has no name.
    assert {("", resource, verb) for verb, resource in asked} == granted


def test_the_rights_are_those_of_the_agents_pod() -> None:
    found = documents()
    account, binding = found["ServiceAccount"]["metadata"], found["ClusterRoleBinding"]
    daemonset = found["DaemonSet"]
    pod = daemonset["spec"]["template"]["spec"]

    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": found["ClusterRole"]["metadata"]["name"],
    }
    assert pod["serviceAccountName"] == account["name"]
    assert pod["automountServiceAccountToken"]
    assert daemonset["metadata"]["namespace"] == account["namespace"]
