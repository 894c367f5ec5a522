"""Which pod of the agent's a command away from the node runs in, and why in none."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import yaml

from cpupool import cli
from cpupool.commands.shell import agent_pod
from cpupool.kube.resources import NODES, PODS
from tests.apiserver.executions import Execution
from tests.kubeconfigs import Login, login

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOOK = (
    "kubectl get pods -A -o wide"
    " -l app.kubernetes.io/name=cpupool,app.kubernetes.io/component=agent"
)
NODES_THERE = "`kubectl get nodes`"
RUNNING = {"running": {"startedAt": "2026-11-24T10:00:00Z"}}


def agent(
    name: str, state: dict[str, Any] | None = None, *, namespace: str = "cpupool", **metadata: Any
) -> Any:
    """Make a pod of the agent's; without a state its container has none yet."""
    statuses = [{"name": "other", "state": RUNNING}]
    if state is not None:
        statuses.append({"name": "agent", "state": state})
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}-uid",
            "labels": {**agent_pod.LABELS, "pod-template-generation": "1"},
            **metadata,
        },
        "spec": {"containers": [{"name": "agent"}]},
        "status": {"phase": "Pending", "containerStatuses": statuses},
    }


GONE = agent("gone", RUNNING, deletionTimestamp="2026-11-24T10:00:00Z")
OTHER = {**agent("webhook", RUNNING), "metadata": {**agent("webhook")["metadata"], "labels": {}}}


@pytest.fixture
def cluster(folder: Path) -> Iterator[Login]:
    with login(folder, admin=True) as found:
        found.server.keep(NODES.object("node-b").text, {"metadata": {"name": "node-b"}})
        yield found


def named(pod: str, _command: Sequence[str]) -> Execution:
    return Execution(f"{pod}\n".encode())


def status(cluster: Login, node: str, *pods: Any) -> int:
    """Run `cpupool status` away from a node with these pods; each answers with its path."""
    server = cluster.server
    server.set_pods(pods)
    for body in pods:
        metadata = body["metadata"]
        pod = PODS.object(metadata["name"], metadata["namespace"]).text
        server.containers[pod, "agent"] = partial(named, pod)
    path = cluster.kubeconfig({"jane": cluster.certificate("jane")})
    return cli.main(["status", "--kubeconfig", str(path), "--node", node])


def test_the_labels_and_the_container_are_those_of_the_daemon_set() -> None:
    text = (Path(__file__).parents[4] / "daemonsets/agent/daemonset.yaml").read_text()
    template = yaml.safe_load(text)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert template["metadata"]["labels"] == agent_pod.LABELS
    assert container["name"] == agent_pod.CONTAINER


def test_what_a_node_writes_commands_no_terminal(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    there = agent("there", RUNNING)
    cluster.server.set_pods([there])
    pod = PODS.object("there", "cpupool").text
    evil = "\x1b[1;32m╭ right\x1b[0m\t\n\x1b]0;title\x07\x1b[2J\r\x9b1A\x7f".encode()
    cluster.server.containers[pod, "agent"] = lambda _command: Execution(evil, evil)
    path = cluster.kubeconfig({"jane": cluster.certificate("jane")})

    cli.main(["status", "--kubeconfig", str(path), "--node", "node-a"])

    shown = "╭ right{}\t\n\\u001b]0;title\\u0007\\u001b[2J\\u000d\\u009b1A\\u007f"
    printed = capsys.readouterr()
    # The picture has colours, and leaves none behind; an error has none.
    assert printed.out == "\x1b[1;32m" + shown.format("\x1b[0m")
    assert printed.err == "\\u001b[1;32m" + shown.format("\\u001b[0m")


def test_the_one_agent_that_runs_on_the_node_is_asked(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = agent("elsewhere", RUNNING)
    elsewhere["spec"]["nodeName"] = "node-b"
    evicted = agent("evicted")

    assert status(cluster, "node-a", GONE, OTHER, evicted, agent("one", RUNNING), elsewhere) == 0

    assert capsys.readouterr().out == "/api/v1/namespaces/cpupool/pods/one\n"
    assert cluster.server.verbs() == {("list", "pods"), ("get", "pods/exec")}


def test_an_agent_of_another_namespace_is_found(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(cluster, "node-a", agent("one", RUNNING, namespace="kube-system")) == 0
    assert capsys.readouterr().out == "/api/v1/namespaces/kube-system/pods/one\n"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (GONE, "its pod is being deleted"),
        (agent("gone"), "its pod is Pending"),
        (agent("gone", {"waiting": {"reason": "CrashLoopBackOff"}}), "waiting: CrashLoopBackOff"),
        (agent("gone", {"terminated": {"exitCode": 1}}), "terminated: no reason"),
    ],
)
def test_an_agent_that_does_not_run_is_named_with_the_reason(
    cluster: Login, found: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(cluster, "node-a", found) == 2
    assert capsys.readouterr().err == (
        "cpupool: the agent's container in pod cpupool/gone on node node-a does not run"
        f" ({why}); look at `kubectl -n cpupool describe pod gone`\n"
    )


@pytest.mark.parametrize("metadata", [None, [], {}, {"name": 1, "namespace": "a"}])
def test_a_pod_without_a_name_is_refused(
    cluster: Login, metadata: object, capsys: pytest.CaptureFixture[str]
) -> None:
    nameless = {**agent("one", RUNNING), "metadata": metadata}
    with mock.patch.object(agent_pod, "objects", return_value=[nameless]):
        assert status(cluster, "node-a") == 1
    said = capsys.readouterr().err
    assert said.startswith("cpupool: metadata")
    assert said.count("\n") == 1


def test_several_agents_are_named(cluster: Login, capsys: pytest.CaptureFixture[str]) -> None:
    pods = agent("one", RUNNING), agent("one", RUNNING, namespace="another")
    assert status(cluster, "node-a", *pods) == 2
    assert capsys.readouterr().err == (
        "cpupool: node node-a has several agents: another/one, cpupool/one; keep one, or run"
        " `cpupool status` in one with `kubectl exec`\n"
    )


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("node-b", f"node node-b has no pod of the agent; look at `{LOOK}`"),
        (
            "nod-b",
            f"there is no node nod-b; did you mean node-b or node-a? Else look at {NODES_THERE}",
        ),
        ("worker", f"there is no node worker; look at {NODES_THERE}"),
        ("a,b=c", f"'a,b=c' is no name of a node; look at {NODES_THERE}"),
        ("", f"no node is named; give --node, and see {NODES_THERE}"),
    ],
)
def test_a_node_without_an_agent(
    cluster: Login, node: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(cluster, node, agent("one", RUNNING)) == 2
    assert capsys.readouterr().err == f"cpupool: {said}\n"


@pytest.mark.parametrize("right", [("list", "pods"), ("get", "nodes")])
def test_a_right_that_is_missing_is_reported(
    cluster: Login, right: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.forbidden = {right}
    assert status(cluster, "node-c") == 1
    assert f"{' '.join(right)}: 403 Forbidden" in capsys.readouterr().err
