"""What plugins for resources learn of a pod."""

from __future__ import annotations

from typing import Any

from cpupool.core.names import Names
from cpupool.core.workloads import PodDescription
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

    assert pod.description == PodDescription({"app": "web"}, {"note": "text"}, of_daemon_set=True)
    assert [dict(each.quantities) for each in pod.containers] == [
        {"cpu": 0.25},
        {"cpu": 2.5, "memory": 2.0**30, "example.com/nic": 2.0},
    ]


def test_a_deployments_pod_is_of_no_daemon_set() -> None:
    body = {**BODY, "metadata": {"name": "web", "uid": "u"}}

    assert descriptions.pod(body, Names()).description == PodDescription()


def test_without_plugins_nothing_of_it_is_kept() -> None:
    pod = views.pod(BODY, Names())

    assert pod.description is None
    assert not any(each.quantities for each in pod.containers)
