from __future__ import annotations

import json

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ManifestError
from cpupool.core.orchestration import NodeRules
from cpupool.core.workloads import QoSClass
from cpupool.kube import views
from cpupool.policies.koordinator.node_rules import RESERVATION
from tests import pods, testdata
from tests.unit.kube.views.bodies import NAMES


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
            f"{json.dumps(POD)}\n---\nkind: Pod\nmetadata: {{name: b}}\n",
            ["web", "b"],
            id="JSON, and then YAML",
        ),
        pytest.param("{kind: Pod, metadata: {name: a}}", ["a"], id="YAML within braces"),
        pytest.param(
            json.dumps({"kind": "PodList", "items": [{"metadata": {"name": "a"}}]}),
            ["a"],
            id="the API server's list, whose items name no kind",
        ),
        pytest.param(json.dumps({"kind": "List", "items": [POD]}), ["web"], id="kubectl's list"),
    ],
)
def test_pods_are_read_from_text(text: str, names: list[str]) -> None:
    found = pods.bodies("pods.yaml", text)
    assert [pod["metadata"]["name"] for pod in found] == names


def test_a_date_stays_a_text() -> None:
    text = "kind: Pod\nmetadata: {creationTimestamp: 2026-11-20T10:00:00Z}\n"
    found = pods.bodies("pods.yaml", text)
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
            "kind: ConfigMap\n---\nkind: Service\n",
            "pods.yaml:1:1: kind: 'ConfigMap' is not one of Pod, Deployment",
            id="other kinds alone",
        ),
        pytest.param(
            "kind: Pod\n---\nkind: Deploymnet\n",
            "pods.yaml:3:1: kind: 'Deploymnet' is not one of Pod, Deployment",
            id="a slip",
        ),
        pytest.param(
            "a: 1\n", "pods.yaml:1:1: kind: is missing; it must be one of Pod", id="no kind"
        ),
        pytest.param("kind: PodList\n", "pods.yaml:1:1: items: is missing", id="a list of nothing"),
        pytest.param(
            json.dumps({"kind": "List", "items": [POD, {"kind": 1}]}),
            "pods.yaml: items[1].kind: 1 is not one of Pod",
            id="a number for a kind in a list",
        ),
        pytest.param(
            json.dumps({"kind": "PodList", "items": [1]}),
            "pods.yaml: items[0]: this is not a mapping",
            id="a number in a list",
        ),
        pytest.param("[" * 5000, "pods.yaml:1:101: this is nested", id="nested without end"),
        pytest.param('{"a":' * 50000, "pods.yaml: ", id="JSON nested without end"),
        pytest.param("a: " + "9" * 5000, "pods.yaml: ", id="a number without end"),
        pytest.param("- " * 3000, "pods.yaml:1:201: this is nested deeper", id="lists without end"),
        *(
            pytest.param(f"a: {odd}", "pods.yaml: this is not YAML that JSON can say", id=odd)
            for odd in (
                *("!!bool x", "!!int ''", "!!float ''", "!!timestamp x", "!!set {a}", ".nan"),
                *("!!binary aGk=", "!!timestamp 2001-01-01", "-.inf", '"\\UFFFFFFFF"'),
            )
        ),
    ],
)
def test_a_text_that_holds_no_pods_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        pods.bodies("pods.yaml", text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["a: [\n", "a:\n\tb: 1\n"])
def test_a_text_that_is_no_yaml_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ManifestError, match=r"^pods\.yaml:2:1: .*; correct the YAML$"):
        pods.bodies("pods.yaml", text)


def test_the_samples_of_cpu_pooler_are_pods() -> None:
    found = {}
    for path in sorted((testdata.folder() / "cpu-pooler").glob("cpu-test*.yaml")):
        for manifest in pods.bodies(path.name, path.read_text()):
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
    found = views.node({"metadata": {"name": "n", "uid": "u", "labels": {"a": "1", "b": ""}}})
    assert (found.uid, found.labels) == ("u", {"a": "1", "b": ""})
    assert views.node({"metadata": {"name": "n"}}).labels == {}


def test_the_rules_of_a_node_come_from_its_annotations() -> None:
    reserved = {RESERVATION: '{"reservedCPUs": "0-1"}', "other": "2"}
    assert views.node({"metadata": {"annotations": reserved}}).rules.withheld == CPUSet.of(0, 1)
    assert views.node({"metadata": {"annotations": {"other": "2"}}}).rules == NodeRules()


@pytest.mark.parametrize("labels", [["a"], {"a": 1}])
def test_labels_that_are_none_are_refused(labels: object) -> None:
    with pytest.raises(ManifestError, match=r"node: metadata\.labels"):
        views.node({"metadata": {"name": "n", "labels": labels}})
