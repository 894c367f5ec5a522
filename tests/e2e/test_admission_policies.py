"""An agent writes only what is its node's, on a real API server with the agent's own token.

The nodes are only objects, so any cluster will do.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import Pod, PodUID
from cpupool.kube.client import APIError
from cpupool.kube.connection import APIConnection
from cpupool.kube.node_topology import NodeTopologyObject
from cpupool.kube.pod_status import PodStatus
from cpupool.kube.resources import NODE_TOPOLOGIES, PODS
from cpupool.policies.koordinator.pod_annotations import resource_status
from cpupool.wire.node_topology import (
    ATTRIBUTES,
    GROUP,
    MANAGER,
    PLURAL,
    POLICIES,
    V1ALPHA2,
    VERSIONS,
    ZONES,
    Field,
    applied,
)
from tests.e2e.cluster import kubectl, missing, patiently, read
from tests.e2e.paper import (
    ACCOUNT,
    NAMESPACE,
    agent_pod,
    created,
    manifests,
    needs_controllers,
    needs_named_nodes,
    paper_node,
    present,
)
from tests.loops import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cpupool.kube.client import APIServer
    from cpupool.wire.node_topology import Values
    from tests.e2e.paper import PaperNode

if missing(node=False):
    pytest.skip(
        f"no {' and no '.join(missing(node=False))}: needs a cluster", allow_module_level=True
    )

pytestmark = pytest.mark.timeout(900)
FOLDERS = (
    "fail-misfits",
    "koordinator-admission",
    "node-resources",
    "resource-status",
    "topology-reporter",
)
Body = dict[str, Any]
LABEL = "app.kubernetes.io/managed-by"
GIVEN: Values = {
    Field((ZONES,)): [{"name": "node-0", "type": "Node"}],
    Field((POLICIES,)): ["SingleNUMANodePodLevel"],
    Field((ATTRIBUTES,)): [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
    Field(("metadata", "annotations", "node.koordinator.sh/cpu-topology")): "{}",
    Field(("metadata", "labels", LABEL)): "Koordinator",
}


STATUS, QOS = "scheduling.koordinator.sh/resource-status", "koordinator.sh/qosClass"
ASSIGNED = {"annotations": {STATUS: '{"cpuset":"2-3"}'}}
SCHEDULER = (
    "--as=system:serviceaccount:koordinator-system:koord-scheduler",
    "--as-group=system:masters",
)
ALIEN = "only the object of its own node"
NOT_A_SCHEDULER, CLASS_STAYS = "only a scheduler may write", "cannot change"


@pytest.fixture(scope="module", autouse=True)
def rights() -> Iterator[None]:
    folders = ("agent", "topology-crd", *FOLDERS)
    with present(body for folder in folders for body in manifests(folder)):
        yield


def policies() -> list[Body]:
    bodies = [body for folder in FOLDERS for body in manifests(folder)]
    return [body for body in bodies if body["kind"] == "ValidatingAdmissionPolicy"]


def typed(body: Body) -> Body:
    """Return a copy under another name, which is in no force, for resources that have types.

    The API server checks neither subresources nor all versions at once, and of the expressions only
    the validations.
    """
    copied = copy.deepcopy(body)
    copied["metadata"]["name"] += "-e2e"
    for rule in copied["spec"]["matchConstraints"]["resourceRules"]:
        rule["resources"] = [name.partition("/")[0] for name in rule["resources"]]
        if rule["apiVersions"] == ["*"]:
            rule["apiVersions"] = list(VERSIONS)
    return copied


def faults(body: Body) -> list[str]:
    """Create a policy, and return what the check of its types says, once it has.

    A policy is checked once, for those types whose schema the API server publishes by then.
    """
    kind, name = "validatingadmissionpolicy", body["metadata"]["name"]
    with present((body,)):
        patiently(lambda: "typeChecking" in read(kind, name).get("status", {}), lambda: "no check")
        checked = read(kind, name)["status"]["typeChecking"]
    return [fault["warning"] for fault in checked.get("expressionWarnings", ())]


def types(body: Body) -> set[str]:
    """Return how a fault names each type of a policy."""
    rules = body["spec"]["matchConstraints"]["resourceRules"]
    return {
        f"{group}/{version}, Kind="
        for rule in rules
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
    }


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PaperNode, PaperNode]]:
    """Two nodes, each with the pod of its agent, which is pending."""
    folder = tmp_path_factory.mktemp("tokens")
    with paper_node(folder) as one, paper_node(folder) as other, agent_pod(one), agent_pod(other):
        yield one, other


def refused(write: Callable[[], object]) -> str:
    """Return why a write is refused; empty if it is not."""
    try:
        write()
    except APIError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("body", policies(), ids=lambda body: body["metadata"]["name"])
def test_the_api_server_finds_no_fault_in_the_types_of_a_policy(body: Body) -> None:
    needs_controllers("checks the types of policies")
    right, wrong = typed(body), typed(body)
    wrong["metadata"]["name"] += "-wrong"
    wrong["spec"]["validations"][0]["expression"] += " && object.metadata.nonsense == ''"

    # The schema of a CRD is published some moments after it is served.
    def unknown() -> set[str]:
        found = "".join(fault for fault in faults(wrong) if "undefined field 'nonsense'" in fault)
        return {name for name in types(wrong) if name not in found}

    patiently(lambda: not unknown(), unknown)
    assert faults(right) == []


def test_an_agent_fails_pending_pods_of_its_node_alone(nodes: tuple[PaperNode, PaperNode]) -> None:
    one, other = nodes
    own, others = one.agent(), other.agent()
    needs_named_nodes(own)
    target = PODS.object(one.name, NAMESPACE, subresource="status")

    def note(server: APIServer) -> str:
        patch = {"status": {"message": "a note"}}
        return refused(lambda: APIConnection(server).merge_patch(target, patch))

    def fail(server: APIServer) -> str:
        uid = PodUID(read("-n", NAMESPACE, "pod", one.name)["metadata"]["uid"])
        pod = Pod(uid, NAMESPACE, one.name, None, ())
        return refused(lambda: PodStatus(server).fail(pod, "E2E", "a test"))

    # A policy is in force some moments after it is there.
    patiently(lambda: "only pods of its own node" in note(others), lambda: note(others))
    assert "only pods of its own node" in fail(others)
    assert "only set the phase of a pending pod to Failed" in note(own)
    assert fail(own) == ""

    status = read("-n", NAMESPACE, "pod", one.name)["status"]
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "E2E", "a test")


def test_an_agent_annotates_pods_of_its_node_with_its_own_choice_alone(
    nodes: tuple[PaperNode, PaperNode],
) -> None:
    one, other = nodes
    own, others = one.agent(), other.agent()
    needs_named_nodes(own)
    uid = PodUID(read("-n", NAMESPACE, "pod", one.name)["metadata"]["uid"])
    pod = Pod(uid, NAMESPACE, one.name, None, ())
    chosen, assigned = resource_status(CPUSet.of(2, 3)), '{"cpuset":"4-5"}'
    target = PODS.object(one.name, NAMESPACE, subresource="status")

    def annotate(server: APIServer, key: str = STATUS, value: str = chosen) -> str:
        return refused(lambda: PodStatus(server).annotate(pod, key, value))

    def stored() -> Body:
        metadata: Body = read("-n", NAMESPACE, "pod", one.name)["metadata"]
        return dict(metadata.get("annotations", {}))

    def merge(**changes: Any) -> str:
        return refused(lambda: APIConnection(own).merge_patch(target, changes))

    patiently(lambda: "only pods of its own node" in annotate(others), lambda: annotate(others))
    assert annotate(own) == ""
    assert annotate(own, value=resource_status(CPUSet.of(6))) == ""
    assert stored() == {STATUS: resource_status(CPUSet.of(6))}

    assert "chosenBy cpupool" in annotate(own, value=assigned)
    assert "403 Forbidden" in refused(
        lambda: APIConnection(own).merge_patch(PODS.object(one.name, NAMESPACE), {})
    )
    gone = Pod(PodUID("another"), NAMESPACE, one.name, None, ())
    assert "field is immutable" in refused(lambda: PodStatus(own).annotate(gone, STATUS, chosen))
    ours = {"metadata": {"annotations": {STATUS: chosen}}}
    assert "save the annotation" in merge(metadata={**ours["metadata"], "labels": {"a": "b"}})
    assert "no other annotation" in merge(metadata={"annotations": {STATUS: chosen, "a": "b"}})
    assert "the status of a pod" in merge(**ours, status={"message": "a"})
    assert "only set the phase" in annotate(own, key="e2e.example/note")

    patch = ("-n", NAMESPACE, "annotate", "pod", one.name, "--overwrite", f"{STATUS}={assigned}")
    kubectl(*SCHEDULER, *patch)
    assert "may not replace what a scheduler" in annotate(own)
    assert stored() == {STATUS: assigned}


def test_an_agent_writes_the_topology_of_its_node_alone(nodes: tuple[PaperNode, PaperNode]) -> None:
    one, other = nodes
    own, others = one.agent(), other.agent()
    needs_named_nodes(own)
    nobodys = one.server(kubectl("-n", NAMESPACE, "create", "token", ACCOUNT))
    patiently(lambda: ALIEN in apply(others, one), lambda: apply(others, one))
    assert ALIEN in apply(nobodys, one)

    sink = NodeTopologyObject(own, one.name, restarted=lambda *_: None)
    with running(sink.run, wake=sink.wake):
        patiently(lambda: sink.observed() is not None, lambda: "the object is not followed")
        sink.apply(one.uid, GIVEN)
        patiently(
            lambda: any(seen.shows(one.name, one.uid, GIVEN) for seen in sink.observed() or ()),
            sink.observed,
        )
        fewer = {field: value for field, value in GIVEN.items() if field.name in (ZONES, LABEL)}
        sink.apply(one.uid, fewer)

    assert ALIEN in apply(others, one)
    assert ALIEN in apply(nobodys, one)
    target = NODE_TOPOLOGIES[V1ALPHA2].object(one.name)
    body = read(f"{PLURAL}.{V1ALPHA2}.{GROUP}", one.name)
    assert "403 Forbidden" in refused(lambda: APIConnection(own).update(target, body))


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"finalizers": ["e2e.example/keep"]}, "metadata of the object"),
        ({"annotations": {"e2e.example/note": "1"}}, "only the annotations"),
        ({"labels": {"tier": "a"}}, "only the label"),
        ({"ownerReferences": []}, "only the object's Node its owner"),
        (
            {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1-2-3"}
                ]
            },
            "only the object's Node its owner",
        ),
    ],
    ids=["finalizer", "annotation", "label", "no owner", "other owner"],
)
def test_an_agent_writes_no_other_field_of_its_object(
    nodes: tuple[PaperNode, PaperNode], metadata: Body, why: str
) -> None:
    one, other = nodes
    own, others = one.agent(), other.agent()
    needs_named_nodes(own)
    patiently(lambda: ALIEN in apply(others, one), lambda: apply(others, one))

    assert why in apply(own, one, **metadata)
    assert apply(own, one) == ""
    assert why in apply(own, one, **metadata)


def apply(server: APIServer, node: PaperNode, **metadata: Any) -> str:
    """Apply a node's object with fields in its metadata, and return why that is refused."""
    target = NODE_TOPOLOGIES[V1ALPHA2].object(node.name)
    body = applied(node.name, node.uid, V1ALPHA2, GIVEN)
    body["metadata"] |= metadata
    return refused(lambda: APIConnection(server).apply(target, body, manager=MANAGER))


def waiting(name: str, cpu: str = "2", **metadata: Any) -> Body:
    """Return an LSR pod that is bound to no node."""
    amounts = {"cpu": cpu}
    resources = {"requests": amounts, "limits": amounts}
    labels = {QOS: "LSR", "koordinator.sh/priority-class": "koord-prod"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, **metadata},
        "spec": {
            "schedulerName": "none",
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "containers": [{"name": "a", "image": "none.example/a", "resources": resources}],
        },
    }


def denied(write: Callable[[], object]) -> str:
    """Return why kubectl is refused; empty if it is not."""
    try:
        write()
    except AssertionError as refusal:
        return str(refusal)
    return ""


@pytest.fixture
def lsr(nodes: tuple[PaperNode, PaperNode]) -> Iterator[str]:
    """An LSR pod that waits for a scheduler, once the policies are in force."""
    name = f"{nodes[0].name}-lsr"
    in_force(waiting(name, annotations=ASSIGNED["annotations"]), NOT_A_SCHEDULER)
    in_force(waiting(name, "1500m"), "a whole number of CPUs")
    created(waiting(name))
    try:
        yield name
    finally:
        kubectl("-n", NAMESPACE, "delete", "pod", name, "--force", "--ignore-not-found")


def in_force(body: Body, why: str) -> None:
    """Return once a pod is refused for this reason."""
    patiently(lambda: why in dry(body), lambda: dry(body))


def dry(body: Body) -> str:
    """Return why a pod is refused that is not to be stored."""
    return denied(lambda: kubectl("create", "--dry-run=server", "-f", "-", given=body))


def writes(pod: str, node: str, metadata: Body) -> dict[str, Callable[..., str]]:
    """Return the ways into the metadata of a pod that is not bound: each writes these fields."""
    patch = ("-n", NAMESPACE, "patch", "pod", pod, "--type=merge", "-p")
    text = json.dumps({"metadata": metadata})
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": NAMESPACE, **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    below = f"/api/v1/namespaces/{NAMESPACE}"
    bound = ("create", "--raw")
    return {
        "update": lambda *user: kubectl(*user, *patch, text),
        "status": lambda *user: kubectl(*user, *patch, text, "--subresource=status"),
        "pods/binding": lambda *user: kubectl(
            *user, *bound, f"{below}/pods/{pod}/binding", "-f", "-", given=binding
        ),
        "bindings": lambda *user: kubectl(
            *user, *bound, f"{below}/bindings", "-f", "-", given=binding
        ),
    }


WAYS = ("update", "status", "pods/binding", "bindings")


@pytest.mark.parametrize("way", WAYS)
def test_a_forged_assignment_is_refused_and_a_schedulers_is_stored(
    nodes: tuple[PaperNode, PaperNode], lsr: str, way: str
) -> None:
    write = writes(lsr, nodes[0].name, ASSIGNED)[way]

    # The caller may do everything: it is the policy that refuses.
    assert NOT_A_SCHEDULER in denied(write)
    assert STATUS not in read("-n", NAMESPACE, "pod", lsr)["metadata"].get("annotations", {})

    write(*SCHEDULER)
    assert read("-n", NAMESPACE, "pod", lsr)["metadata"]["annotations"][STATUS]
    away = ("-n", NAMESPACE, "annotate", "pod", lsr, f"{STATUS}-")
    assert NOT_A_SCHEDULER in denied(lambda: kubectl(*away))


@pytest.mark.parametrize("way", WAYS)
def test_the_class_of_a_pod_stays(nodes: tuple[PaperNode, PaperNode], lsr: str, way: str) -> None:
    write = writes(lsr, nodes[0].name, {"labels": {QOS: "LSE"}})[way]

    assert CLASS_STAYS in denied(lambda: write(*SCHEDULER))

    assert read("-n", NAMESPACE, "pod", lsr)["metadata"]["labels"][QOS] == "LSR"


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
def test_no_other_subresource_brings_an_annotation(lsr: str, subresource: str) -> None:
    place = f"/api/v1/namespaces/{NAMESPACE}/pods/{lsr}/{subresource}"
    pod = json.loads(kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{lsr}"))
    pod["metadata"]["annotations"] = ASSIGNED["annotations"]

    refusal = denied(lambda: kubectl("replace", "--raw", place, "-f", "-", given=pod))

    if "could not find the requested resource" in refusal:
        pytest.skip(f"this API server has no pods/{subresource}")
    assert refusal == ""
    assert STATUS not in read("-n", NAMESPACE, "pod", lsr)["metadata"].get("annotations", {})


def test_a_class_goes_with_its_requests_and_its_priority(lsr: str) -> None:
    labels = {QOS: "LSR"}
    cases = {
        "a whole number of CPUs": waiting(f"{lsr}-2", "1500m"),
        "the class LSR needs": waiting(f"{lsr}-2", labels=labels),
        "the class BE needs": waiting(f"{lsr}-2", labels={QOS: "BE"}),
        "must be LSE, LSR": waiting(f"{lsr}-2", labels={QOS: "Lsr"}),
    }
    ordered = waiting(f"{lsr}-2", "1500m")
    amounts = {part: {"cpu": "1"} for part in ("requests", "limits")}
    sidecar = {"name": "s", "image": "none.example/s", "resources": amounts}
    ending = {**sidecar, "name": "e", "resources": {part: {"cpu": "2"} for part in amounts}}
    sidecar["restartPolicy"] = "Always"
    ordered["spec"]["initContainers"] = [sidecar, ending]
    assert dry(ordered) == ""
    ordered["spec"]["initContainers"] = [ending, sidecar]
    cases["at least one"] = ordered
    unequal = waiting(f"{lsr}-2")
    unequal["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "3"}
    cases["equal requests and limits"] = unequal
    for why, body in cases.items():
        assert why in dry(body)
    for other in (waiting(f"{lsr}-2"), waiting(f"{lsr}-2", "1500m", labels={})):
        assert dry(other) == ""
