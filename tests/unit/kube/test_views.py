from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.errors import ManifestError
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerKind, PodUID, QoSClass
from cpupool.kube import views
from tests import testdata

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = Names()
ID = "ab" * 32
OTHER_ID = "cd" * 32


def body(*containers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Make a pod as the API server has it; `metadata`, `spec` and `status` add to its own."""
    return {
        "metadata": {"name": "web", "uid": "web-uid", **more.get("metadata", {})},
        "spec": {"containers": list(containers or [{"name": "main"}]), **more.get("spec", {})},
        "status": more.get("status", {}),
    }


def asking(**limits: Any) -> dict[str, Any]:
    """Make a container with limits, `_` standing for a dash and a pool named without its domain."""
    named = {
        name if name in ("cpu", "memory") else NAMES.resource(name.replace("_", "-")): amount
        for name, amount in limits.items()
    }
    return {"name": "main", "resources": {"limits": named}}


def test_a_pod_is_read_with_every_kind_of_container() -> None:
    given = body(
        asking(exclusive_a="2", shared_b="1500", cpu="4"),
        metadata={"namespace": "prod"},
        spec={
            "initContainers": [
                {"name": "setup"},
                {"name": "proxy", "restartPolicy": "Always"},
                {"name": "once", "restartPolicy": "Never"},
            ],
            "ephemeralContainers": [{"name": "debug"}],
        },
    )
    pod = views.pod(given, NAMES)
    assert (pod.uid, pod.namespace, pod.name) == (PodUID("web-uid"), "prod", "web")
    assert pod.cgroup_uid == "web-uid"
    assert not pod.finished
    assert [(one.name, one.kind) for one in pod.containers] == [
        ("setup", ContainerKind.INIT),
        ("proxy", ContainerKind.SIDECAR),
        ("once", ContainerKind.INIT),
        ("main", ContainerKind.APP),
        ("debug", ContainerKind.EPHEMERAL),
    ]
    assert pod.containers[3].requests == {"exclusive-a": 2, "shared-b": 1500}


@pytest.mark.parametrize(
    ("amount", "count"),
    [
        pytest.param("1k", 1000, id="the API server's spelling of 1000"),
        pytest.param(3, 3, id="a bare number of a manifest"),
        pytest.param("0", None, id="nothing asked for is no request"),
    ],
)
def test_an_amount_is_read_as_kubernetes_writes_it(amount: object, count: int | None) -> None:
    pod = views.pod(body(asking(shared_a=amount)), NAMES)
    assert pod.containers[0].requests == ({"shared-a": count} if count else {})


def test_a_request_without_a_limit_counts_too() -> None:
    container = {"name": "main", "resources": {"requests": {"nokia.k8s.io/shared-a": "5"}}}
    assert views.pod(body(container), NAMES).containers[0].requests == {"shared-a": 5}


def test_only_resources_of_the_own_domain_are_pools() -> None:
    pod = views.pod(body(asking(shared_a="5")), Names("example.com"))
    assert pod.containers[0].requests == {}


@pytest.mark.parametrize(
    ("status", "identifier"),
    [
        pytest.param(
            {"containerID": f"containerd://{ID}", "state": {"running": {}}}, ID, id="containerd"
        ),
        pytest.param({"containerID": f"cri-o://{ID}", "state": {"running": {}}}, ID, id="CRI-O"),
        pytest.param({"containerID": f"docker://{ID}", "state": {"running": {}}}, ID, id="docker"),
        pytest.param({"containerID": ID}, ID, id="an id without a scheme"),
        pytest.param({"state": {"waiting": {}}}, None, id="not created yet"),
        pytest.param(
            {"containerID": f"containerd://{ID}", "state": {"waiting": {}}},
            ID,
            id="created and not started",
        ),
        pytest.param(
            {"containerID": f"containerd://{ID}", "state": {"terminated": {"exitCode": 0}}},
            None,
            id="ended",
        ),
        pytest.param(
            {
                "containerID": f"containerd://{ID}",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"containerID": f"containerd://{ID}"}},
            },
            None,
            id="ended and waiting for its restart",
        ),
        pytest.param(
            {
                "containerID": f"containerd://{ID}",
                "state": {"running": {}},
                "lastState": {"terminated": {"containerID": f"containerd://{OTHER_ID}"}},
            },
            ID,
            id="restarted",
        ),
    ],
)
def test_the_id_is_that_of_the_instance_that_runs(
    status: dict[str, Any], identifier: str | None
) -> None:
    given = body(status={"containerStatuses": [{"name": "main", **status}]})
    assert views.pod(given, NAMES).containers[0].id == identifier


def test_ids_come_from_the_status_lists_of_all_kinds() -> None:
    lists = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    names = ("setup", "main", "debug")
    given = body(
        spec={"initContainers": [{"name": "setup"}], "ephemeralContainers": [{"name": "debug"}]},
        status={
            one: [{"name": name, "containerID": f"containerd://{name}"}]
            for one, name in zip(lists, names, strict=True)
        },
    )
    assert tuple(one.id for one in views.pod(given, NAMES).containers) == names


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)],
)
def test_a_pod_that_succeeded_or_failed_is_finished(phase: str, *, finished: bool) -> None:
    assert views.pod(body(status={"phase": phase}), NAMES).finished is finished


@pytest.mark.parametrize(
    ("name", "critical"), [("system-node-critical", True), ("system-cluster-critical", False)]
)
def test_a_pod_that_its_node_needs_is_known_by_its_priority_class(
    name: str, *, critical: bool
) -> None:
    pod = views.pod(body(spec={"priorityClassName": name}), NAMES)
    assert pod.node_critical is critical


def test_a_static_pod_is_found_under_its_config_hash() -> None:
    annotations = {"kubernetes.io/config.hash": "f00d", "kubernetes.io/config.mirror": "f00d"}
    pod = views.pod(body(metadata={"annotations": annotations}), NAMES)
    assert (pod.uid, pod.cgroup_uid) == ("web-uid", "f00d")


@pytest.mark.parametrize(
    ("mirror", "hash_"),
    [
        pytest.param(None, "f00d", id="an ordinary pod with a hash"),
        pytest.param("x", "f00d", id="a mark that is not the hash"),
        pytest.param("f00d", None, id="a mark without a hash"),
        pytest.param("../x", "../x", id="a path"),
        pytest.param("aa-bb", "aa-bb", id="another pod's UID"),
    ],
)
def test_a_forged_mark_of_a_static_pod_means_nothing(mirror: str | None, hash_: str | None) -> None:
    given = {"kubernetes.io/config.mirror": mirror, "kubernetes.io/config.hash": hash_}
    annotations = {key: value for key, value in given.items() if value is not None}
    read = views.pod(body(metadata={"annotations": annotations}), NAMES)

    assert read.cgroup_uid == read.uid


FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("given", "qos"),
    [
        pytest.param(body(), QoSClass.BEST_EFFORT, id="no resources"),
        pytest.param(body(asking(shared_a="5")), QoSClass.BEST_EFFORT, id="a pool alone"),
        pytest.param(body(asking(cpu="0")), QoSClass.BEST_EFFORT, id="zero is nothing"),
        pytest.param(body(asking(**FULL)), QoSClass.GUARANTEED, id="limits alone are requests too"),
        pytest.param(body(asking(cpu="1")), QoSClass.BURSTABLE, id="no memory"),
        pytest.param(
            body({"name": "main", "resources": {"requests": FULL}}),
            QoSClass.BURSTABLE,
            id="requests without limits",
        ),
        pytest.param(
            body({"name": "main", "resources": {"limits": FULL, "requests": {"cpu": "500m"}}}),
            QoSClass.BURSTABLE,
            id="a request below its limit",
        ),
        pytest.param(
            body({"name": "main", "resources": {"limits": FULL, "requests": {"cpu": "1000m"}}}),
            QoSClass.GUARANTEED,
            id="the same amount spelled otherwise",
        ),
        pytest.param(
            body(asking(**FULL), spec={"initContainers": [{"name": "setup"}]}),
            QoSClass.BURSTABLE,
            id="an init container without limits",
        ),
        pytest.param(
            body(
                asking(**FULL),
                spec={"initContainers": [{"name": "p", "restartPolicy": "Always"}]},
            ),
            QoSClass.BURSTABLE,
            id="a sidecar without limits",
        ),
        pytest.param(
            body(asking(**FULL), spec={"ephemeralContainers": [{"name": "debug"}]}),
            QoSClass.GUARANTEED,
            id="an ephemeral container does not count",
        ),
        pytest.param(
            body(spec={"resources": {"limits": FULL}}),
            QoSClass.GUARANTEED,
            id="pod-level limits",
        ),
        pytest.param(
            body(asking(**FULL), spec={"resources": {"requests": {"cpu": "1"}}}),
            QoSClass.BURSTABLE,
            id="pod-level requests stand for those of the containers",
        ),
        pytest.param(
            body(asking(**FULL), status={"qosClass": "Burstable"}),
            QoSClass.BURSTABLE,
            id="the API server's word counts",
        ),
    ],
)
def test_the_qos_class_is_kubernetes_own(given: dict[str, Any], qos: QoSClass) -> None:
    assert views.pod(given, NAMES).qos is qos


@pytest.mark.parametrize(
    ("given", "field"),
    [
        pytest.param({}, "metadata.uid", id="nothing at all"),
        pytest.param([], "", id="a list"),
        pytest.param({"metadata": "web"}, "metadata", id="metadata of another type"),
        pytest.param(body(metadata={"name": ""}), "metadata.name", id="an empty name"),
        pytest.param(
            body(metadata={"name": True}), "metadata.name", id="a name that YAML read as true"
        ),
        pytest.param(body(metadata={"uid": "../../x"}), "metadata.uid", id="a uid that is a path"),
        pytest.param(body(metadata={"namespace": "a\nb"}), "metadata.namespace", id="a line break"),
        pytest.param(body(metadata={"annotations": [1]}), "metadata.annotations", id="annotations"),
        pytest.param(body(spec={"containers": None}), "spec.containers", id="no containers"),
        pytest.param(body(spec={"containers": "main"}), "spec.containers", id="a text for a list"),
        pytest.param(body(spec={"containers": [7]}), "spec.containers[0]", id="a number for one"),
        pytest.param(body({"image": "x"}), "spec.containers[0].name", id="a nameless container"),
        pytest.param(
            body({"name": "a"}, {"name": "a"}), "spec.containers[1].name", id="a name given twice"
        ),
        pytest.param(
            body({"name": "a", "resources": []}),
            "spec.containers[0].resources",
            id="resources of another type",
        ),
        pytest.param(
            body(asking(shared_a="many")),
            "spec.containers[0].resources.limits.nokia.k8s.io/shared-a",
            id="an amount that is none",
        ),
        pytest.param(
            body(asking(shared_a=[])),
            "spec.containers[0].resources.limits.nokia.k8s.io/shared-a",
            id="an amount of another type",
        ),
        pytest.param(
            body(asking(shared_a="1500m")),
            "spec.containers[0].resources.limits.nokia.k8s.io/shared-a",
            id="part of a device",
        ),
        pytest.param(
            body(asking(cpu="fast")),
            "spec.containers[0].resources.limits.cpu",
            id="a cpu limit that is none",
        ),
        pytest.param(body(status={"qosClass": "Best"}), "status.qosClass", id="an unknown class"),
        pytest.param(
            body(status={"qosClass": []}), "status.qosClass", id="a class of another type"
        ),
        pytest.param(
            body(status={"containerStatuses": {}}), "status.containerStatuses", id="statuses"
        ),
        pytest.param(
            body(status={"containerStatuses": [{"containerID": "x://y", "state": 1}]}),
            "status.containerStatuses[0].state",
            id="a state of another type",
        ),
    ],
)
def test_a_body_that_is_no_pod_is_refused_with_the_field(given: Any, field: str) -> None:
    with pytest.raises(ManifestError) as caught:
        views.pod(given, NAMES)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{caught.value.source}: ")
    assert "\n" not in str(caught.value)


def test_a_wrong_value_is_shown_without_writing_all_of_it_out() -> None:
    heavy: list[Any] = ["x"]
    for _ in range(12):
        heavy = [heavy] * 10

    with pytest.raises(ManifestError) as caught:
        views.pod(body(metadata={"name": heavy}), NAMES)
    assert len(str(caught.value)) < 150


def test_a_wrong_name_is_shown_whole() -> None:
    uid = f"{'a' * 40}/b"
    with pytest.raises(ManifestError, match=f"'{uid}' is not a name"):
        views.pod(body(metadata={"uid": uid}), NAMES)


def test_an_error_names_the_pod() -> None:
    with pytest.raises(ManifestError, match=r"^pod prod/web: spec\.containers: is missing$"):
        views.pod(body(metadata={"namespace": "prod"}, spec={"containers": []}), NAMES)


def test_the_literal_variables_of_a_container_are_read() -> None:
    variables = [
        {"name": "A", "value": "1"},
        {"name": "EMPTY"},
        {"name": "FROM", "valueFrom": {"fieldRef": {}}},
    ]
    given = body({"name": "main", "env": variables}, {"name": "other", "env": [{"name": "B"}]})
    assert views.environment(given, "main") == {"A": "1", "EMPTY": ""}
    assert views.environment(body(), "main") == {}


@pytest.mark.parametrize(
    "variable",
    [{"name": "A=B"}, {"name": "A", "value": "\0"}, {"name": "A", "value": 1}, {"value": "1"}],
)
def test_a_variable_that_no_process_can_carry_is_refused(variable: dict[str, Any]) -> None:
    with pytest.raises(ManifestError) as caught:
        views.environment(body({"name": "main", "env": [variable]}), "main")
    assert caught.value.field.startswith("spec.containers[0].env[0]")


def test_a_manifest_is_stored_with_a_uid_and_without_the_status_it_came_with() -> None:
    manifest = {"metadata": {"name": "web"}, "spec": {}, "status": {"phase": "Failed"}}
    stored = views.created(manifest, "web-uid")
    assert stored["metadata"] == {"name": "web", "namespace": "default", "uid": "web-uid"}
    assert stored["status"] == {"phase": "Pending"}
    assert manifest["metadata"] == {"name": "web"}


def test_a_manifest_without_metadata_is_refused() -> None:
    with pytest.raises(ManifestError, match="metadata"):
        views.created({"spec": {}}, "web-uid")


POD = {"kind": "Pod", "metadata": {"name": "web"}}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("# a comment\n---\n", [], id="empty documents"),
        pytest.param("kind: Pod\nmetadata: {name: a}\n", ["a"], id="one pod"),
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: b}\n",
            ["a", "b"],
            id="several documents",
        ),
        pytest.param(json.dumps(POD, indent="\t"), ["web"], id="JSON indented with tabs"),
        pytest.param(
            json.dumps({"kind": "PodList", "items": [{"metadata": {"name": "a"}}]}),
            ["a"],
            id="the API server's list, whose items name no kind",
        ),
        pytest.param(json.dumps({"kind": "List", "items": [POD]}), ["web"], id="kubectl's list"),
    ],
)
def test_pods_are_read_from_text(text: str, names: list[str]) -> None:
    found = views.pods_from_text("pods.yaml", text)
    assert [pod["metadata"]["name"] for pod in found] == names


def test_a_date_stays_a_text() -> None:
    text = "kind: Pod\nmetadata: {creationTimestamp: 2026-11-20T10:00:00Z}\n"
    found = views.pods_from_text("pods.yaml", text)
    assert found[0]["metadata"]["creationTimestamp"] == "2026-11-20T10:00:00Z"


BOMB = "\n".join(
    [
        "kind: Pod",
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)),
        "metadata: {name: *a8}",
    ]
)
"""A list of a thousand million words in half a kilobyte."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(BOMB, "pods.yaml:3:10: aliases are not supported", id="aliases of aliases"),
        pytest.param("a: [1,\nb: }", "pods.yaml:2:4: ", id="broken YAML"),
        pytest.param("a: &x 1\nb: *y\n", "pods.yaml:2:4: ", id="an unknown alias"),
        pytest.param('{"a":\n1 2}', "pods.yaml:2:3: ", id="broken JSON"),
        pytest.param("a: \x01\n", "pods.yaml: ", id="a control character"),
        pytest.param("- 1\n", "pods.yaml:1:1: this is not a mapping", id="a list"),
        pytest.param(
            "kind: Pod\n---\nkind: Service\n",
            "pods.yaml:3:1: kind: 'Service' is not one of Pod, Deployment",
            id="another kind",
        ),
        pytest.param(
            "a: 1\n", "pods.yaml:1:1: kind: is missing; it must be one of Pod", id="no kind"
        ),
        pytest.param("kind: PodList\n", "pods.yaml:1:1: items: is missing", id="a list of nothing"),
        pytest.param(
            json.dumps({"kind": "List", "items": [POD, {"kind": "Node"}]}),
            "pods.yaml: items[1].kind: 'Node' is not one of Pod",
            id="another kind in a list",
        ),
        pytest.param(
            json.dumps({"kind": "PodList", "items": [1]}),
            "pods.yaml: items[0]: this is not a mapping",
            id="a number in a list",
        ),
        pytest.param("[" * 5000, "pods.yaml: ", id="nested without end"),
        pytest.param('{"a":' * 50000, "pods.yaml: ", id="JSON nested without end"),
        pytest.param("a: " + "9" * 5000, "pods.yaml: ", id="a number without end"),
    ],
)
def test_a_text_that_holds_no_pods_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        views.pods_from_text("pods.yaml", text)
    assert str(caught.value).startswith(message)


def test_the_samples_of_cpu_pooler_are_pods() -> None:
    found = {}
    for path in sorted((testdata.folder() / "cpu-pooler").glob("cpu-test*.yaml")):
        for manifest in views.pods_from_text(path.name, path.read_text()):
            pod = views.pod(views.created(manifest, "some-uid"), NAMES)
            found[path.name] = {one.name: one.requests for one in pod.containers}
    assert found == {
        "cpu-test.yaml": {
            "sharedtestcontainer": {"shared-pool": 160},
            "exclusivetestcontainer": {"exclusive-pool": 2, "shared-pool": 100},
            "defaulttestcontainer": {},
        },
        "cpu-test-exclusive.yaml": {"cputest-exclusive": {"exclusive-pool": 2}},
        "cpu-test-shared-exclusive.yaml": {
            "cputest-exclusive": {"exclusive-pool": 2, "shared-pool": 500}
        },
    }


def test_the_admission_requests_of_cpu_pooler_hold_pods() -> None:
    found = {}
    for path in sorted((testdata.folder() / "cpu-pooler").glob("*.json")):
        review = json.loads(path.read_text())
        pod = views.pod(views.created(review["request"]["object"], "some-uid"), NAMES)
        assert pod.qos is QoSClass.BURSTABLE
        found[path.stem] = [one.requests for one in pod.containers]
    assert found == {
        "pod-spec-both-pool-types-req": [{"exclusive-cpupool1": 4, "shared-cpupool": 200}],
        "pod-spec-excl-pool-req-missing": [{"exclusive-pool1": 3}],
        "pod-spec-exclusive-pool-req": [{"exclusive-cpupool1": 4, "exclusive-cpupool2": 2}],
        "pod-spec-pool-req-missing": [{}],
        "pod-spec-shared-pool-req": [{"sharedpool": 160}, {}],
        "pod-spec-wrong-excl-pool-value-req": [{"exclusive-pool": 3}],
        "pod-spec-wrong-pool-value-req": [{"shared-pool": 120}],
    }


def test_a_node_has_labels() -> None:
    assert views.node_labels({"metadata": {"name": "n", "labels": {"a": "1", "b": ""}}}) == {
        "a": "1",
        "b": "",
    }
    assert views.node_labels({"metadata": {"name": "n"}}) == {}


@pytest.mark.parametrize("labels", [["a"], {"a": 1}])
def test_labels_that_are_none_are_refused(labels: object) -> None:
    with pytest.raises(ManifestError, match=r"node: metadata\.labels"):
        views.node_labels({"metadata": {"name": "n", "labels": labels}})
