"""What doctor says about the node's NodeResourceTopology, which it reads over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cpupool.wire.node_topology import GROUP, MANAGER, PLURAL, V1ALPHA1, V1ALPHA2
from tests.kubeconfigs import Login, login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.nodes import AnsweringAgent, WrittenNode

NODE = "node-a"
PATH = f"/apis/{GROUP}/{V1ALPHA2}/{PLURAL}/{NODE}"
NFD = "nfd-topology-updater"
Rows = list[dict[str, str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Login]:
    with login(tmp_path, admin=True) as found:
        found.server.crds = {GROUP: [V1ALPHA1, V1ALPHA2]}
        yield found


@pytest.fixture
def ask(cluster: Login, examine: Any, node: WrittenNode) -> Callable[..., Rows]:
    """Run doctor with the API server; return the rows about the object."""
    user = {"jane": cluster.certificate("jane")}
    options = ("--kubeconfig", str(cluster.kubeconfig(user)), "--node-name", NODE)
    given = ("--node-labels", "a=b", "--kubelet-config", str(node.root.kubelet_config))

    def run(**agent: str) -> Rows:
        rows: Rows = examine(*options, *given, **agent)[1].get("node topology", [])
        return rows

    return run


def publish(cluster: Login) -> None:
    """Hold the object as an agent has applied it."""
    cluster.server.keep(PATH, {"metadata": {}})
    fields: dict[str, Any] = {"f:zones": {}, "f:topologyPolicies": {}}
    ours = {"manager": MANAGER, "operation": "Apply", "fieldsV1": fields}
    body = {"zones": [], "topologyPolicies": [], "metadata": {"managedFields": [ours]}}
    cluster.server.keep(PATH, body)


@pytest.fixture
def publishing(agent: AnsweringAgent) -> str:
    """Return the address of an agent that publishes."""
    agent.metrics.topology_published()
    return agent.url


def test_an_agent_that_does_not_publish_has_no_row(
    examine: Any, ask: Callable[..., Rows], agent: AnsweringAgent
) -> None:
    assert "node topology" not in examine(agent=agent.url)[1]
    assert ask(agent=agent.url) == []


def test_without_an_api_server_the_other_writers_are_not_seen(
    examine: Any, publishing: str
) -> None:
    (row,) = examine(agent=publishing)[1]["node topology"]
    assert row["verdict"] == "unseen"
    assert "--kubeconfig" in row["remedy"]


def test_the_agent_alone_is_right(
    cluster: Login, ask: Callable[..., Rows], publishing: str
) -> None:
    publish(cluster)
    assert ask(agent=publishing) == [
        {
            "verdict": "ok",
            "fact": "v1alpha2: cpupool writes topologyPolicies, zones",
            "remedy": "",
        }
    ]


def test_other_writers_are_named_with_their_fields_and_their_label(
    cluster: Login, ask: Callable[..., Rows], publishing: str
) -> None:
    publish(cluster)
    labels = {"app.kubernetes.io/managed-by": "Koordinator"}
    cluster.server.change_as(NFD, PATH, {"zones": [{"name": "node-0"}]})
    cluster.server.change_as("koordlet", PATH, {"metadata": {"labels": labels}})
    (row,) = ask(agent=publishing)
    assert row["verdict"] == "warning"
    assert f"cpupool writes topologyPolicies; {NFD} writes zones; koordlet writes" in row["fact"]
    assert "the label app.kubernetes.io/managed-by says Koordinator" in row["fact"]
    assert "kubectl delete noderesourcetopologies node-a" in row["remedy"]


def test_labels_and_annotations_of_others_are_in_nobodys_way(
    cluster: Login, ask: Callable[..., Rows], publishing: str
) -> None:
    publish(cluster)
    cluster.server.change_as("kubectl-edit", PATH, {"metadata": {"labels": {"team": "a"}}})
    (row,) = ask(agent=publishing)
    assert row["verdict"] == "ok"
    assert "kubectl-edit writes team" in row["fact"]


def test_an_object_of_others_is_told_where_the_agent_does_not_publish(
    cluster: Login, ask: Callable[..., Rows], agent: AnsweringAgent
) -> None:
    cluster.server.keep(PATH, {"metadata": {}})
    cluster.server.change_as(NFD, PATH, {"zones": []})
    (row,) = ask(agent=agent.url)
    assert (row["verdict"], row["fact"]) == ("ok", f"v1alpha2: {NFD} writes zones")


def test_what_the_agent_has_left_behind_is_a_warning(
    cluster: Login, ask: Callable[..., Rows], agent: AnsweringAgent
) -> None:
    publish(cluster)
    (row,) = ask(agent=agent.url)
    assert row["verdict"] == "warning"
    assert "no longer publishes" in row["remedy"]
    # An agent that does not answer may publish.
    assert [each["verdict"] for each in ask()] == ["ok"]


def test_a_missing_crd_and_a_missing_object_have_their_remedies(
    cluster: Login, ask: Callable[..., Rows], publishing: str
) -> None:
    (row,) = ask(agent=publishing)
    assert row["fact"] == "the node has no object yet"
    cluster.server.crds = {}
    (row,) = ask(agent=publishing)
    assert row["verdict"] == "warning"
    assert row["remedy"] == "create the CRD: kubectl create -k daemonsets/topology-crd"


def test_the_version_is_the_one_that_the_agent_uses(
    cluster: Login, ask: Callable[..., Rows], publishing: str
) -> None:
    cluster.server.crds = {GROUP: [V1ALPHA1]}
    cluster.server.keep(PATH.replace(V1ALPHA2, V1ALPHA1), {"metadata": {}})
    (row,) = ask(agent=publishing)
    assert row["fact"] == "v1alpha1: no manager is named"


def test_a_refused_agent_is_told_with_the_overlay_and_keeps_its_other_rights(
    examine: Any, agent: AnsweringAgent, publishing: str
) -> None:
    agent.metrics.watch_restarted(PLURAL, "403")
    _, rows = examine(agent=publishing)
    row, _ = rows["node topology"]
    assert row["verdict"] == "warning"
    assert "daemonsets/topology-reporter" in row["remedy"]
    assert rows["rights"][0]["verdict"] == "ok"


def test_an_api_server_that_refuses_stops_no_other_row(
    cluster: Login, ask: Callable[..., Rows], publishing: str
) -> None:
    publish(cluster)
    cluster.server.forbidden = {("get", PLURAL)}
    (row,) = ask(agent=publishing)
    assert row["verdict"] == "unseen"
    assert "403" in row["fact"]
