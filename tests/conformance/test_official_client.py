"""Our REST client asks what the official Python client asks, and gets the same.

Both speak to the fake API server. The official client is the oracle: for the method, the path, the
query, the content type and the body of each request, and for what comes back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client as kube
from kubernetes.stream import stream
from kubernetes.watch import Watch

from cpupool.kube import pod_exec
from cpupool.kube.client import APIError, APIServer
from cpupool.kube.connection import APIConnection
from cpupool.kube.resources import EVENTS, NODES, PODS, WEBHOOK_CONFIGURATIONS, Resource
from tests.apiserver import FakeAPIServer
from tests.apiserver.executions import Execution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], Any]

RAW: Any = {"_preload_content": False}
"""For the answer as it came, not as the client's models."""
AS_JSON: Any = {"_headers": {"Content-Type": "application/json"}, **RAW}
"""By itself the client names no content type, which the API server takes for JSON."""
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
LEASES = Resource("coordination.k8s.io", "v1", "leases")
TOPOLOGIES = Resource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies")
POD = "/api/v1/namespaces/web/pods/upf"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/web/leases/lock"
CONFIGURATION = WEBHOOK_CONFIGURATIONS.object("cpupool").text
MERGED = {"metadata": {"annotations": {"a": "b", "gone": None}}}
OPERATIONS = [{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]
APPLIED = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "lock"},
    "spec": {"holderIdentity": "node-a"},
}
TOPOLOGY = {
    "apiVersion": "topology.node.k8s.io/v1alpha2",
    "kind": "NodeResourceTopology",
    "metadata": {"name": "node-a"},
    "zones": [{"name": "node-0", "type": "Node"}],
}
EVENT: Any = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"namespace": "web", "name": "upf.1"},
    "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "web", "name": "upf"},
    "type": "Warning",
    "reason": "CPUOffline",
    "message": "CPU 3 is offline; switch it on",
}


def serve() -> FakeAPIServer:
    """Make an API server that always begins with the same objects and versions."""
    server = FakeAPIServer("node-a", {"nodeType": "dpdk"}, admin=True)
    pods = [
        {
            "metadata": {"name": name, "namespace": "web", "uid": f"{name}-uid"},
            "spec": {"containers": [{"name": "main"}]},
        }
        for name in ("upf", "smf", "amf")
    ]
    server.set_pods(pods)
    server.keep(LEASE, {"spec": {"holderIdentity": "node-b"}})
    server.keep(CONFIGURATION, {"webhooks": [{"name": "pods.cpupool.io"}]})
    return server


@pytest.fixture
def theirs() -> Iterator[FakeAPIServer]:
    with serve() as server:
        yield server


@pytest.fixture
def ours() -> Iterator[FakeAPIServer]:
    with serve() as server:
        yield server


@pytest.fixture
def official(theirs: FakeAPIServer) -> Iterator[kube.ApiClient]:
    with kube.ApiClient(kube.Configuration(host=theirs.url)) as client:
        yield client


@pytest.fixture
def connection(ours: FakeAPIServer) -> APIConnection:
    return APIConnection(APIServer.at(ours.url))


def requests(server: FakeAPIServer) -> list[tuple[Any, ...]]:
    """Give what was asked over the wire; a GET has no body, so its content type says nothing."""
    return [
        (
            asked.method,
            urlsplit(asked.path).path,
            # `true` and `True` are the same to the API server (strconv.ParseBool), and so is 1.
            {
                key: ["true"] if values[0] in {"1", "True"} else values
                for key, values in parse_qs(urlsplit(asked.path).query).items()
            },
            asked.content_type if asked.body else "",
            json.loads(asked.body) if asked.body else None,
        )
        for asked in server.requests
    ]


def body(answer: Any) -> Any:
    return json.loads(answer.data)


def test_a_list_in_pages(
    official: kube.ApiClient, connection: APIConnection, theirs: FakeAPIServer, ours: FakeAPIServer
) -> None:
    core = kube.CoreV1Api(official)
    chosen = "spec.nodeName=node-a"
    first = body(
        core.list_pod_for_all_namespaces(
            field_selector=chosen, limit=2, resource_version="0", **RAW
        )
    )
    more = first["metadata"]["continue"]
    second = body(
        core.list_pod_for_all_namespaces(field_selector=chosen, limit=2, _continue=more, **RAW)
    )

    selected = {"fieldSelector": chosen, "limit": "2"}
    page = connection.page(PODS.collection(), {**selected, "resourceVersion": "0"})
    last = connection.page(PODS.collection(), {**selected, "continue": more})

    assert [page, last] == [first, second]
    assert [len(page["items"]), len(last["items"])] == [2, 1]
    assert requests(ours) == requests(theirs)


def test_lists_of_a_namespace_of_the_cluster_and_of_another_group(
    official: kube.ApiClient, connection: APIConnection, theirs: FakeAPIServer, ours: FakeAPIServer
) -> None:
    core, leases = kube.CoreV1Api(official), kube.CoordinationV1Api(official)
    webhooks = kube.AdmissionregistrationV1Api(official)
    answers = [
        core.list_namespaced_pod("web", label_selector="app=upf", **RAW),
        core.list_node(**RAW),
        leases.list_namespaced_lease("web", **RAW),
        leases.list_lease_for_all_namespaces(**RAW),
        webhooks.list_mutating_webhook_configuration(**RAW),
    ]

    pages = [
        connection.page(PODS.collection("web"), {"labelSelector": "app=upf"}),
        connection.page(NODES.collection(), {}),
        connection.page(LEASES.collection("web"), {}),
        connection.page(LEASES.collection(), {}),
        connection.page(WEBHOOK_CONFIGURATIONS.collection(), {}),
    ]

    assert pages == [body(answer) for answer in answers]
    assert [len(page["items"]) for page in pages] == [0, 1, 1, 1, 1]
    assert requests(ours) == requests(theirs)


def test_a_watch(
    official: kube.ApiClient, connection: APIConnection, theirs: FakeAPIServer, ours: FakeAPIServer
) -> None:
    asked = {"resourceVersion": "100", "timeoutSeconds": "60", "allowWatchBookmarks": "true"}
    watch = Watch()
    seen = []
    for event in watch.stream(
        kube.CoreV1Api(official).list_pod_for_all_namespaces,
        resource_version="100",
        timeout_seconds=60,
        allow_watch_bookmarks=True,
        _request_timeout=60,
    ):
        seen.append({"type": event["type"], "object": event["raw_object"]})
        if len(seen) == 3:
            watch.stop()
            theirs.end_watches()

    with connection.watch(PODS.collection(), asked, 60) as events:
        found = [next(events) for _ in range(3)]

    assert found == seen
    assert requests(ours) == requests(theirs)


def test_objects_and_subresources_are_read_and_replaced(
    official: kube.ApiClient, connection: APIConnection, theirs: FakeAPIServer, ours: FakeAPIServer
) -> None:
    core, leases = kube.CoreV1Api(official), kube.CoordinationV1Api(official)
    answers = [
        body(core.read_namespaced_pod("upf", "web", **RAW)),
        body(core.read_namespaced_pod_status("upf", "web", **RAW)),
    ]
    lease = body(leases.read_namespaced_lease("lock", "web", **RAW))
    changed: Any = {**lease, "spec": {"holderIdentity": "node-c"}}
    answers.append(body(leases.replace_namespaced_lease("lock", "web", changed, **AS_JSON)))

    target = LEASES.object("lock", "web")
    found = [
        connection.get(PODS.object("upf", "web")),
        connection.get(PODS.object("upf", "web", subresource="status")),
    ]
    assert connection.get(target) == lease
    found.append(connection.update(target, changed))

    assert found == answers
    assert requests(ours) == requests(theirs)


def test_an_event_is_created(
    official: kube.ApiClient, connection: APIConnection, theirs: FakeAPIServer, ours: FakeAPIServer
) -> None:
    kube.CoreV1Api(official).create_namespaced_event("web", EVENT, **AS_JSON)
    connection.create(EVENTS.collection("web"), EVENT)

    assert ours.events == theirs.events == [EVENT]
    assert requests(ours) == requests(theirs)


def test_the_patches_of_an_object_and_of_a_subresource(
    official: kube.ApiClient, connection: APIConnection, theirs: FakeAPIServer, ours: FakeAPIServer
) -> None:
    core = kube.CoreV1Api(official)
    pod, status = PODS.object("upf", "web"), PODS.object("upf", "web", subresource="status")
    failed = {"status": {"phase": "Failed"}}
    answers = [
        core.patch_namespaced_pod("upf", "web", MERGED, _content_type=MERGE, **RAW),
        core.patch_namespaced_pod("upf", "web", OPERATIONS, _content_type=JSON_PATCH, **RAW),
        core.patch_namespaced_pod_status("upf", "web", failed, _content_type=MERGE, **RAW),
    ]

    found = [
        connection.merge_patch(pod, MERGED),
        connection.json_patch(pod, OPERATIONS),
        connection.merge_patch(status, failed),
    ]

    assert found == [body(answer) for answer in answers]
    assert found[-1]["metadata"]["annotations"] == {"a": "b"}
    assert found[-1]["metadata"]["labels"] == {"x": "y"}
    assert found[-1]["status"] == {"phase": "Failed"}
    assert requests(ours) == requests(theirs)


@pytest.mark.parametrize("force", [False, True])
def test_server_side_apply(
    official: kube.ApiClient,
    connection: APIConnection,
    theirs: FakeAPIServer,
    ours: FakeAPIServer,
    *,
    force: bool,
) -> None:
    leases, custom = kube.CoordinationV1Api(official), kube.CustomObjectsApi(official)
    for server in (theirs, ours):
        server.crds = {TOPOLOGIES.group: [TOPOLOGIES.version]}
    forced = {"force": True} if force else {}
    options: Any = {"_content_type": APPLY, "field_manager": "cpupool", **forced, **RAW}
    answers = [
        leases.patch_namespaced_lease("lock", "web", APPLIED, **options),
        custom.patch_cluster_custom_object(
            TOPOLOGIES.group, TOPOLOGIES.version, TOPOLOGIES.plural, "node-a", TOPOLOGY, **options
        ),
    ]

    found = [
        connection.apply(LEASES.object("lock", "web"), APPLIED, manager="cpupool", force=force),
        connection.apply(TOPOLOGIES.object("node-a"), TOPOLOGY, manager="cpupool", force=force),
    ]

    assert found == [body(answer) for answer in answers]
    assert found[0]["spec"] == {"holderIdentity": "node-a"}
    assert requests(ours) == requests(theirs)


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
def test_a_command_in_a_container(
    official: kube.ApiClient, theirs: FakeAPIServer, ours: FakeAPIServer, code: int, protocol: str
) -> None:
    for server in (theirs, ours):
        server.protocols = [protocol]
        server.containers[POD, "main"] = lambda command: Execution(
            f"╭ {' '.join(command)} ╮\n".encode(), b"said\n", code
        )
    command = ["env", "A=b c", "cpupool", "status"]
    websocket = stream(
        kube.CoreV1Api(official).connect_get_namespaced_pod_exec,
        "upf",
        "web",
        container="main",
        command=command,
        stdout=True,
        stderr=True,
        binary=True,
        _preload_content=False,
    )
    websocket.run_forever()
    websocket.sock.shutdown()
    said = websocket.read_stdout().decode(), websocket.read_stderr().decode(), websocket.returncode

    target = PODS.object("upf", "web", subresource="exec")
    ended = pod_exec.run(APIServer.at(ours.url), target, "main", command)

    assert (ended.stdout, ended.stderr, ended.code) == said
    assert ended == pod_exec.Ended("╭ env A=b c cpupool status ╮\n", "said\n", code)
    assert requests(ours) == requests(theirs)


def test_a_refusal(
    official: kube.ApiClient, connection: APIConnection, theirs: FakeAPIServer, ours: FakeAPIServer
) -> None:
    leases = kube.CoordinationV1Api(official)
    target = LEASES.object("lock", "web")
    calls: list[tuple[Call, Call]] = [
        (
            lambda: leases.read_namespaced_lease("gone", "web"),
            lambda: connection.get(LEASES.object("gone", "web")),
        ),
        (
            lambda: leases.patch_namespaced_lease(
                "lock", "web", {"metadata": {"resourceVersion": "1"}}, _content_type=MERGE
            ),
            lambda: connection.merge_patch(target, {"metadata": {"resourceVersion": "1"}}),
        ),
    ]
    for theirs_asks, ours_asks in calls:
        with pytest.raises(kube.ApiException) as refused:
            theirs_asks()
        with pytest.raises(APIError) as error:
            ours_asks()
        assert error.value.status == refused.value.status
        assert error.value.reason == json.loads(refused.value.body or "")["reason"]
    assert requests(ours) == requests(theirs)
