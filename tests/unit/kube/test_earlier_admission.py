"""What the API server adds to pods before it asks webhooks, from objects in the same input."""

from __future__ import annotations

from typing import Any

import pytest

from cpupool.core.errors import ManifestError
from cpupool.kube import manifests
from cpupool.kube.earlier_admission import EarlierAdmission
from tests.pods import container, pod

Body = dict[str, Any]

OBJECTS = """\
kind: Pod
---
kind: PriorityClass
metadata: {name: high}
value: 9100
---
kind: PriorityClass
metadata: {name: usual}
value: 5000
globalDefault: true
---
kind: PriorityClass
metadata: {name: unusual}
value: 6000
globalDefault: true
---
kind: RuntimeClass
metadata: {name: kata}
overhead: {podFixed: {cpu: 250m, memory: 160Mi}}
---
kind: RuntimeClass
metadata: {name: plain}
---
kind: LimitRange
metadata: {name: a, namespace: lab}
spec:
  limits:
    - {type: Container, default: {cpu: "2"}, max: {memory: 2Gi}, min: {cpu: 100m}}
    - {type: Pod, max: {cpu: "8"}}
---
kind: Namespace
metadata: {name: lab, annotations: {a: b}}
---
kind: Service
"""


def earlier(text: str = OBJECTS) -> EarlierAdmission:
    return EarlierAdmission.of(manifests.read("chart.yaml", text).others)


@pytest.mark.parametrize(
    ("spec", "added"),
    [
        ({"priorityClassName": "koord-prod"}, {"priority": 9000}),
        ({"priorityClassName": "koord-mid"}, {"priority": 7000}),
        ({"priorityClassName": "koord-batch"}, {"priority": 5000}),
        ({"priorityClassName": "koord-free"}, {"priority": 3000}),
        ({"priorityClassName": "system-node-critical"}, {"priority": 2_000_001_000}),
        ({"priorityClassName": "system-cluster-critical"}, {"priority": 2_000_000_000}),
        ({"priorityClassName": "high"}, {"priority": 9100}),
        ({"priorityClassName": "other"}, {}),
        ({}, {"priority": 5000}),
        ({"priority": 7}, {}),
        ({"priority": 7, "runtimeClassName": "plain"}, {}),
        (
            {"priority": 7, "runtimeClassName": "kata"},
            {"overhead": {"cpu": "250m", "memory": "160Mi"}},
        ),
        ({"priority": 7, "runtimeClassName": "kata", "overhead": {"cpu": "1"}}, {}),
    ],
)
def test_priority_and_overhead_are_added_where_they_are_not(spec: Body, added: Body) -> None:
    body = pod(container(), **spec)
    assert earlier().added(body) == added
    assert earlier().completed(body) == {**body, "spec": {**body["spec"], **added}}


def test_without_objects_only_well_known_classes_are_known() -> None:
    none = EarlierAdmission()
    assert none.added(pod(container())) == {}
    assert none.added(pod(container(), priorityClassName="koord-prod")) == {"priority": 9000}
    replaced = "kind: Pod\n---\nkind: PriorityClass\nmetadata: {name: koord-prod}\nvalue: 9500\n"
    assert earlier(replaced).added(pod(priorityClassName="koord-prod")) == {"priority": 9500}


@pytest.mark.parametrize(
    ("resources", "completed"),
    [
        (
            {},
            {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "2", "memory": "2Gi"}},
        ),
        (
            {"limits": {"cpu": "4"}},
            {"limits": {"cpu": "4", "memory": "2Gi"}, "requests": {"cpu": "4", "memory": "2Gi"}},
        ),
        (
            {"requests": {"cpu": "1"}},
            {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "1", "memory": "2Gi"}},
        ),
    ],
)
def test_containers_get_the_defaults_of_their_namespace(resources: Body, completed: Body) -> None:
    own = container(resources=resources)
    body = pod(own, initContainers=[own], ephemeralContainers=[container()])
    assert earlier().limited(body) == body
    body["metadata"]["namespace"] = "lab"
    spec = earlier().limited(body)["spec"]
    assert spec["containers"] == [container(resources=completed)]
    assert spec["initContainers"] == [container(resources=completed)]
    assert spec["ephemeralContainers"] == [container()]


def test_a_namespace_has_its_annotations() -> None:
    assert earlier().namespaces == {"lab": {"a": "b"}}


@pytest.mark.parametrize("body", [{}, {"spec": None}, {"spec": []}, {"spec": {"containers": 1}}])
def test_a_pod_that_is_none_gets_nothing(body: Body) -> None:
    lab = {**body, "metadata": {"namespace": "lab"}}
    assert EarlierAdmission(limits=earlier().limits).completed(lab) == lab


def test_a_value_that_is_no_number_is_refused_with_its_place() -> None:
    text = "kind: Pod\n---\nkind: PriorityClass\nmetadata: {name: a}\nvalue: high\n"
    with pytest.raises(ManifestError, match=r"chart\.yaml:3:1: value: is not a whole number"):
        earlier(text)
