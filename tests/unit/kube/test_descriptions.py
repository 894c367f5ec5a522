"""What plugins for resources learn of a pod."""

from __future__ import annotations

from typing import Any

import pytest

from cpupool.core.names import Names
from cpupool.core.workloads import UNDESCRIBED, PodDescription
from cpupool.kube import descriptions, views

BODY: dict[str, Any] = {
    "metadata": {
        "name": "web",
        "uid": "u",
        "labels": {"app": "web", "odd": 1},
        "annotations": {"note": "text"},
        "ownerReferences": [{"kind": "ReplicaSet"}, {"kind": "DaemonSet"}],
    },
    "spec": {
        "initContainers": [{"name": "init", "resources": {"limits": {"cpu": "250m"}}}],
        "containers": [
            {
                "name": "main",
                "resources": {
                    "limits": {"cpu": "4", "memory": "1Gi", "example.com/nic": "2", "hugepages": 0},
                    "requests": {"cpu": "2500m", "memory": None, "odd": "many"},
                },
            }
        ],
    },
}


def test_a_described_pod_has_its_texts_and_what_its_containers_request() -> None:
    pod = descriptions.pod(BODY, Names())

    assert pod.description == PodDescription({"app": "web"}, {"note": "text"}, left_out=True)
    assert [dict(each.quantities) for each in pod.containers] == [
        {"cpu": 0.25},
        {"cpu": 2.5, "memory": 2.0**30, "example.com/nic": 2.0},
    ]


@pytest.mark.parametrize(
    ("written", "found"),
    [("1e400", {"cpu": 2.0**63}), ("9E", {"cpu": 9e18}), ("-1", {}), ("0", {})],
)
def test_what_no_api_server_lets_a_pod_request_is_cut(
    written: str, found: dict[str, float]
) -> None:
    containers = [{"name": "main", "resources": {"requests": {"cpu": written}}}]
    body = {"metadata": {"name": "static", "uid": "u"}, "spec": {"containers": containers}}
    (main,) = descriptions.pod(body, Names()).containers
    assert main.quantities == found


def annotated(
    text: str, main: str = "main", requests: dict[str, str] | None = None
) -> tuple[dict[str, float], str]:
    """Return what the main container requests, and why the annotation is not valid."""
    annotations = {"nokia.k8s.io/requests": text, "kubernetes.io/main-container-name": main}
    containers = [
        {"name": "first", "resources": {}},
        {"name": "main", "resources": {"requests": requests or {}}},
    ]
    metadata = {"name": "web", "uid": "u", "annotations": annotations}
    pod = descriptions.pod({"metadata": metadata, "spec": {"containers": containers}}, Names())
    first, found = pod.containers
    assert not first.quantities
    return dict(found.quantities), pod.description.unclear


@pytest.mark.parametrize(
    ("level", "unclear"),
    [
        ("dedicated_cores", ""),
        ("", ""),
        (
            "dedicated_core",
            (
                "katalyst.kubewharf.io/qos_level is 'dedicated_core', not one of shared_cores,"
                " dedicated_cores, reclaimed_cores, system_cores"
            ),
        ),
    ],
)
def test_a_class_that_katalyst_does_not_know_is_unclear(level: str, unclear: str) -> None:
    annotations = {"katalyst.kubewharf.io/qos_level": level}
    metadata = {"name": "web", "uid": "u", "annotations": annotations}
    body = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    description = descriptions.pod(body, Names()).description
    assert description is not None
    assert description.unclear == unclear


def test_an_annotation_requests_for_the_main_container() -> None:
    found = annotated('{"NIC": 1, "example.com/net": "2k"}', requests={"cpu": "2"})
    assert found == ({"cpu": 2.0, "NIC": 1.0, "example.com/net": 2000.0}, "")


def test_without_a_name_the_first_container_is_the_main_one() -> None:
    metadata = {"name": "web", "uid": "u", "annotations": {"nokia.k8s.io/requests": '{"NIC": "1"}'}}
    containers = [{"name": "first"}, {"name": "second"}]
    pod = descriptions.pod({"metadata": metadata, "spec": {"containers": containers}}, Names())
    assert [dict(each.quantities) for each in pod.containers] == [{"NIC": 1.0}, {}]


@pytest.mark.parametrize(
    ("text", "main", "why"),
    [
        ("NIC=1", "main", 'is no JSON object of quantities above 0, as {"NIC": "1"}'),
        ('["NIC"]', "main", "is no JSON object"),
        ("{}", "main", "is no JSON object"),
        ('{"NIC": "one"}', "main", "is no JSON object"),
        ('{"NIC": "0"}', "main", "is no JSON object"),
        ('{"NIC": "-1"}', "main", "is no JSON object"),
        ('{"NIC": "1e400"}', "main", "is no JSON object"),
        ('{"NIC": "1e16"}', "main", "is no JSON object"),
        ('{"NIC": null}', "main", "is no JSON object"),
        ('{"NIC": {}}', "main", "is no JSON object"),
        ("[" * 100_000, "main", "is no JSON object"),
        ('{"cpu": "2"}', "main", "requests cpu, which only the container can request"),
        ('{"hugepages-2Mi": "2"}', "main", "requests hugepages-2Mi, which only the container can"),
        (
            '{"nokia.k8s.io/shared_a": "2"}',
            "main",
            "/shared_a, which only the container",
        ),
        ('{"": "1"}', "main", "requests '', which names no resource"),
        ('{"a b": "1"}', "main", "requests 'a b', which names no resource"),
        ('{"a.b/c": "2", "NIC": "1"}', "main", "requests a.b/c, which the container requests, too"),
        ('{"NIC": "1"}', "none", "is for the main container, which the pod does not have"),
    ],
)
def test_an_annotation_that_does_not_count_says_why(text: str, main: str, why: str) -> None:
    quantities, unclear = annotated(text, main, {"a.b/c": "1"})
    assert quantities == {"a.b/c": 1.0}
    assert why in unclear
    assert unclear.startswith("nokia.k8s.io/requests ")


def test_a_deployments_pod_is_of_no_daemon_set() -> None:
    body = {**BODY, "metadata": {"name": "web", "uid": "u"}}

    assert descriptions.pod(body, Names()).description == PodDescription()


def test_without_plugins_nothing_of_it_is_kept() -> None:
    pod = views.pod(BODY, Names())

    assert pod.description is UNDESCRIBED
    assert not any(each.quantities for each in pod.containers)
