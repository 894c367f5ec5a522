from __future__ import annotations

from typing import Any

import pytest

from cpupool.core.errors import ManifestError
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerKind, CPUMoves, PodUID, QoSClass
from cpupool.kube import views
from tests.unit.kube.views.bodies import ID, NAMES, OTHER_ID, asking, body


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


@pytest.mark.parametrize(
    ("annotations", "migrates"),
    [
        ({}, False),
        ({"nokia.k8s.io/memory-migrates": "true"}, True),
        ({"nokia.k8s.io/memory-migrates": "false"}, False),
        ({"nokia.k8s.io/memory-migrates": "yes"}, None),
        ({"nokia.k8s.io/memory-migrates": ""}, None),
        ({"example.com/memory-migrates": "true"}, False),
    ],
)
def test_a_pod_says_whether_its_memory_is_migrated(
    annotations: dict[str, str], migrates: bool | None
) -> None:
    pod = views.pod(body(metadata={"annotations": annotations}), NAMES)
    assert pod.memory_migrates is migrates


def test_a_pod_says_how_its_cpus_may_change() -> None:
    annotations = {"nokia.k8s.io/cpu-notice-seconds": "5", "nokia.k8s.io/cpu-moves": "any"}
    pod = views.pod(body(metadata={"annotations": annotations}), NAMES)
    assert (pod.notice_s, pod.cpu_moves, pod.misread) == (5, CPUMoves.ANY, ())

    strange = views.pod(body(metadata={"annotations": dict.fromkeys(annotations, "x")}), NAMES)
    assert (strange.notice_s, strange.cpu_moves) == (None, CPUMoves.NEVER)
    assert strange.misread == ("cpu-notice-seconds", "cpu-moves")


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


@pytest.mark.parametrize(
    ("timestamp", "ending", "ends_s"),
    [
        (None, False, None),
        ("2027-01-15T08:00:00Z", True, 1_800_000_000.0),
        ("2027-01-15T10:00:00.5+02:00", True, 1_800_000_000.5),
        ("soon", True, None),
        ("2027-01-15T08:00:00", True, None),
        ("0001-01-01T00:00:00+23:59", True, -62_135_683_140.0),
    ],
)
def test_a_pod_that_is_being_deleted_says_when_its_grace_period_is_over(
    timestamp: str | None, ending: bool, ends_s: float | None
) -> None:
    pod = views.pod(body(metadata={"deletionTimestamp": timestamp}), NAMES)
    assert (pod.ending, pod.ends_s) == (ending, ends_s)
