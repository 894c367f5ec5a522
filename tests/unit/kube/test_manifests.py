"""Pods beside other objects, as a chart renders them; `views/test_manifests.py` has the texts."""

from __future__ import annotations

import json

import pytest

from cpupool.core.errors import ManifestError
from cpupool.kube import manifests

CHART = """\
apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: jobsets.example.com}
---
kind: JobSet
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: two}
spec: {replicas: 2, template: {spec: {}}}
"""


@pytest.mark.parametrize(("copies", "pods"), [(True, ["two-0", "two-1"]), (False, ["two-0"])])
def test_objects_that_make_no_pods_are_passed_over(copies: bool, pods: list[str]) -> None:
    found = manifests.read("chart.yaml", CHART, copies=copies)
    assert [pod["metadata"]["name"] for pod in found.pods] == ["web", *pods]
    kinds = [other["kind"].value for other in found.others]
    assert kinds == ["ServiceAccount", "CustomResourceDefinition", "JobSet"]
    assert str(found.others[2].error("x")) == "chart.yaml:13:1: x"


def test_a_list_may_have_them_too() -> None:
    items = [{"kind": "Service"}, {"kind": "List", "items": [{"kind": "Pod"}]}]
    found = manifests.read("a", json.dumps({"kind": "List", "items": items}))
    assert (found.pods, len(found.others)) == (({"kind": "Pod"},), 1)


def test_a_list_of_one_kind_names_the_kind_of_its_items() -> None:
    text = """\
kind: PriorityClassList
items: [{metadata: {name: a}}]
---
kind: DeploymentList
items: [{metadata: {name: web}, spec: {template: {spec: {}}}}]
---
kind: AllowList
metadata: {name: a resource whose name is as that of a list}
"""
    found = manifests.read("chart.yaml", text)
    assert [pod["metadata"]["name"] for pod in found.pods] == ["web-0"]
    assert [other["kind"].value for other in found.others] == ["PriorityClass", "AllowList"]


OTHER_GROUPS = """\
apiVersion: batch.example.com/v1alpha1
kind: Job
metadata: {name: a job whose tasks have templates of their own}
spec: {tasks: [{template: {spec: {}}}]}
---
apiVersion: batch.example.com/v1alpha1
kind: JobList
items: [{spec: {template: an address}}]
---
apiVersion: example.com/v1
kind: UPFDeployment
---
apiVersion: example.com/v1
kind: Pod
---
apiVersion: apps.example.com/v1
kind: StatefulSet
metadata: {name: web}
spec: {template: {spec: {}}}
"""


def test_a_workload_of_another_group_makes_pods_by_a_template_at_the_usual_place() -> None:
    found = manifests.read("chart.yaml", OTHER_GROUPS)
    assert [pod["metadata"]["name"] for pod in found.pods] == ["web-0"]
    kinds = [other["kind"].value for other in found.others]
    assert kinds == ["Job", "Job", "UPFDeployment", "Pod"]


@pytest.mark.parametrize("version", ["", "apiVersion: apps/v1\n", "apiVersion: v1\n"])
def test_a_slip_in_the_kind_of_a_workload_is_refused(version: str) -> None:
    with pytest.raises(ManifestError, match="did you mean Deployment"):
        manifests.read("chart.yaml", f"{version}kind: Deploymnet")


def test_json_objects_may_follow_each_other() -> None:
    one, other = ({"kind": "Pod", "metadata": {"name": name}} for name in ("a", "b"))
    text = f"{json.dumps(one, indent=2)}\n{json.dumps(other)} {json.dumps({'kind': 'Service'})}\n"
    found = manifests.read("pods.json", text)
    assert (found.pods, len(found.others)) == ((one, other), 1)
    assert str(found.others[0].error("x")).startswith("pods.json:7:")
    with pytest.raises(ManifestError, match=r"^pods\.json:7:\d+: Expecting"):
        manifests.read("pods.json", text.replace('"Service"', ""))


def test_what_follows_a_json_object_is_another_one() -> None:
    with pytest.raises(ManifestError, match=r"^pods\.json:1:17: Expecting value"):
        manifests.read("pods.json", '{"kind": "Pod"} kind')
