"""Koordinator's labels and annotations: who may write them, and which go together.

The expressions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cel
import pytest
import yaml

from cpupool.core.quantity import Quantity
from tests.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parents[2] / "daemonsets/koordinator-admission"
STATUS = "scheduling.koordinator.sh/resource-status"
QOS, PRIORITY = "koordinator.sh/qosClass", "koordinator.sh/priority-class"
SCHEDULER = "system:serviceaccount:koordinator-system:koord-scheduler"
AGENT = "system:serviceaccount:cpupool:cpupool-agent"
ANYBODY = "system:serviceaccount:kube-system:replicaset-controller"
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": lambda text: float(Quantity.read(text).value),
    "asApproximateFloat": lambda amount: amount,
    "compareTo": lambda one, other: (one > other) - (one < other),
    "sum": sum,
    "max": max,
    "indexOf": lambda listed, each: listed.index(each),
}
"""Functions of the API server that the other implementation lacks."""

Body = dict[str, Any]


class Policy:
    """A policy of a file, with its binding."""

    def __init__(self, name: str) -> None:
        policy, self.binding = yaml.safe_load_all(FOLDER.joinpath(name).read_text())
        self.spec = policy["spec"]
        self.name = policy["metadata"]["name"]

    def denials(self, **values: object) -> set[str]:
        """Return why the API server denies a request; nothing if it allows it."""
        context = cel.Context(functions=FUNCTIONS, variables={**values, "variables": {}})
        conditions = [each["expression"] for each in self.spec.get("matchConditions", ())]
        if not all(cel.compile(text).execute(context) for text in conditions):
            return set()
        known: Body = {}
        for each in self.spec["variables"]:
            known[each["name"]] = cel.compile(each["expression"]).execute(context)
            context.add_variable("variables", known)
        return {
            each["message"]
            for each in self.spec["validations"]
            if not cel.compile(each["expression"]).execute(context)
        }


METADATA, CLASSES = Policy("metadata-policy.yaml"), Policy("classes-policy.yaml")


def marked(annotations: Body | None = None, labels: Body | None = None) -> Body:
    """Return an object with this metadata, as the API server has it: without empty maps."""
    given = {"annotations": annotations, "labels": labels}
    return {"metadata": {"name": "web", **{key: value for key, value in given.items() if value}}}


def written(
    new: Body, old: Body | None = None, user: str = ANYBODY, sub: str = "", kind: str = "Pod"
) -> set[str]:
    request = {
        "operation": "CREATE" if old is None else "UPDATE",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "userInfo": {"username": user},
        **({"subResource": sub} if sub else {}),
    }
    return METADATA.denials(request=request, object=new, oldObject=old)


ASSIGNED = {STATUS: '{"cpuset":"2-3"}'}
WAYS = [
    pytest.param({"new": marked(ASSIGNED)}, id="created"),
    pytest.param({"new": marked({STATUS: ""})}, id="created empty"),
    pytest.param({"new": marked(ASSIGNED), "old": marked({"a": "b"})}, id="added"),
    pytest.param({"new": marked({STATUS: "{}"}), "old": marked(ASSIGNED)}, id="changed"),
    pytest.param({"new": marked({"a": "b"}), "old": marked(ASSIGNED)}, id="removed"),
    pytest.param({"new": marked(), "old": marked(ASSIGNED)}, id="the last one removed"),
    pytest.param({"new": marked(ASSIGNED), "old": marked(), "sub": "status"}, id="by status"),
    pytest.param(
        {"new": marked(ASSIGNED), "sub": "binding", "kind": "Binding"}, id="by the pod's binding"
    ),
    pytest.param({"new": marked(ASSIGNED), "kind": "Binding"}, id="by a binding"),
]


@pytest.mark.parametrize("way", WAYS)
def test_only_a_listed_scheduler_assigns_cpus(way: Body) -> None:
    (why,) = written(**way)
    assert STATUS in why
    assert written(**way, user=SCHEDULER) == set()


def test_an_agent_assigns_cpus_by_the_status_alone() -> None:
    ways: list[Any] = [way.values[0] for way in WAYS]
    allowed = [way for way in ways if not written(**way, user=AGENT)]
    assert allowed == [way for way in ways if way.get("sub") == "status"]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (marked(), None),
        (marked({"a": "b"}, {QOS: "LSR", PRIORITY: "koord-prod"}), None),
        (marked({**ASSIGNED, "a": "c"}, {QOS: "LSR"}), marked(ASSIGNED, {QOS: "LSR"})),
        (marked(ASSIGNED, {QOS: "LSR", "a": "b"}), marked(ASSIGNED, {QOS: "LSR"})),
    ],
)
def test_anybody_writes_what_assigns_nothing(new: Body, old: Body | None) -> None:
    assert written(new, old) == set()


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ({QOS: "LSE"}, {QOS: "LSR"}),
        ({QOS: "LSE"}, {}),
        ({}, {QOS: "LSR"}),
        ({QOS: "LSR", PRIORITY: "koord-prod"}, {QOS: "LSR"}),
        ({QOS: "LSR"}, {QOS: "LSR", PRIORITY: "koord-prod"}),
    ],
)
def test_the_class_of_a_pod_stays_whoever_asks(new: Body, old: Body) -> None:
    for user in (ANYBODY, SCHEDULER, AGENT):
        for sub in ("", "status"):
            (why,) = written(marked(labels=new), marked(labels=old), user, sub)
            assert "cannot change" in why


@pytest.mark.parametrize("sub", ["binding", ""])
def test_no_binding_brings_a_class(sub: str) -> None:
    (why,) = written(marked(labels={QOS: "LSE"}), None, SCHEDULER, sub, "Binding")
    assert "cannot change" in why
    assert written(marked(labels={"zone": "a"}), None, SCHEDULER, sub, "Binding") == set()


def test_the_policies_deny_and_fail_closed_on_every_way_into_a_pods_metadata() -> None:
    for policy in (METADATA, CLASSES):
        assert policy.spec["failurePolicy"] == "Fail"
        assert policy.binding["spec"]["validationActions"] == ["Deny"]
        assert policy.binding["spec"]["policyName"] == policy.name
    ways = {
        (operation, resource)
        for rule in METADATA.spec["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }
    # The other subresources put the old metadata back (kubernetes: pkg/registry/core/pod).
    assert ways == {
        *(("CREATE", "pods"), ("UPDATE", "pods"), ("UPDATE", "pods/status")),
        *(("CREATE", "pods/binding"), ("CREATE", "bindings")),
    }


def of_class(qos: str, *cpus: str, priority: str = "", **spec: Any) -> Body:
    """Return a pod with a container for each amount of cpu."""
    listed = [
        container(f"c{place}", resources={part: {"cpu": cpu} for part in ("requests", "limits")})
        for place, cpu in enumerate(cpus)
    ]
    body = pod(*listed, **spec)
    labels = {QOS: qos, PRIORITY: priority or {"BE": "koord-batch"}.get(qos, "koord-prod")}
    body["metadata"]["labels"] = {key: value for key, value in labels.items() if value != "none"}
    return body


def owning(qos: str, cpu: str, *cpus: str, **spec: Any) -> Body:
    """Return a pod with resources of its own."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return of_class(qos, *cpus, resources={"requests": amounts, "limits": amounts}, **spec)


def init(cpu: str, name: str = "init", **fields: Any) -> Body:
    amounts = {"cpu": cpu}
    return container(name, resources={"requests": amounts, "limits": amounts}, **fields)


def resourced(qos: str, requests: Body, limits: Body) -> Body:
    body = of_class(qos)
    given = {key: each for key, each in (("requests", requests), ("limits", limits)) if each}
    body["spec"]["containers"] = [container(resources=given)]
    return body


BATCH = {"kubernetes.io/batch-cpu": "1000"}
WHOLE, EQUAL = "a whole number of CPUs", "equal requests and limits"
ALLOWED = [
    *(of_class(qos, "2") for qos in ("LSE", "LSR", "LS", "SYSTEM", "none")),
    of_class("LS", "1500m"),
    of_class("none", "1500m", priority="none"),
    of_class("LSE", "1500m", "500m"),
    of_class("LSE", "2", priority="koord-batch"),
    of_class("LSR", "1", initContainers=[init("500m")]),
    of_class("LSR", "1500m", initContainers=[init("500m", restartPolicy="Always")]),
    # The init container beside the sidecar makes it 3; before it, the pod's request is 2.
    of_class("LSE", "1500m", initContainers=[init("1", restartPolicy="Always"), init("2", "b")]),
    of_class("LSE", "500m", initContainers=[init("2", "b"), init("1", restartPolicy="Always")]),
    of_class("LSE", "3500m", overhead={"cpu": "500m"}),
    owning("LSE", "4", "1500m"),
    owning("LSE", "3500m", overhead={"cpu": "500m"}),
    *(of_class("LSR", "1", priority="none", number=number) for number in (9000, 9999)),
    *(of_class("BE", priority=f"koord-{each}") for each in ("mid", "batch", "free")),
    *(of_class("BE", priority="none", number=number) for number in (7000, 5999, 3000)),
    resourced("BE", BATCH, BATCH),
    resourced("LS", {"cpu": "1"}, {"cpu": "2"}),
    resourced("LSR", {"cpu": "1", "memory": "1Gi"}, {"cpu": "1000m", "memory": "1024Mi"}),
]
REFUSED = [
    (of_class("LSE", "1500m"), WHOLE),
    (of_class("LSR", "1", "1m"), WHOLE),
    (of_class("LSR", "0"), WHOLE),
    (of_class("LSE"), WHOLE),
    (of_class("LSE", "2", overhead={"cpu": "250m"}), WHOLE),
    (owning("LSE", "1500m", "1"), WHOLE),
    (of_class("LSE", "1", initContainers=[init("1500m")]), WHOLE),
    (of_class("Lsr", "2"), "must be LSE, LSR, LS, BE or SYSTEM"),
    (of_class("LSE", "2", priority="prod"), "must be koord-prod, koord-mid"),
    (of_class("LSR", "1", initContainers=[init("500m", restartPolicy="Always")]), WHOLE),
    (resourced("LSE", {"cpu": "1"}, {"cpu": "2"}), EQUAL),
    (resourced("LSE", {"cpu": "1"}, {}), EQUAL),
    (resourced("LSR", {"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "2Gi"}), EQUAL),
    *(
        (of_class("LSR", "1", priority=each), "class LSR needs")
        for each in ("none", "koord-mid", "koord-batch", "koord-free", "prod")
    ),
    (of_class("LSR", "1", priority="none", number=8000), "class LSR needs"),
    (of_class("LSR", "1", priority="koord-free", number=9000), "class LSR needs"),
    (of_class("BE", priority="koord-prod"), "class BE needs"),
    (of_class("BE", priority="none"), "class BE needs"),
    (of_class("BE", priority="none", number=9999), "class BE needs"),
    (resourced("LS", BATCH, BATCH), "needs the class BE"),
    (resourced("none", {"kubernetes.io/batch-memory": "1Gi"}, {}), "needs the class BE"),
]


def as_stored(body: Body) -> Body:
    """Return the pod with its number of priority, where it has one."""
    body = copy.deepcopy(body)
    if (number := body["spec"].pop("number", None)) is not None:
        body["spec"]["priority"] = number
    return body


def test_a_class_goes_with_what_koordinator_takes() -> None:
    for body in map(as_stored, ALLOWED):
        assert CLASSES.denials(object=body) == set(), body


@pytest.mark.parametrize(("body", "why"), REFUSED)
def test_a_class_goes_with_nothing_else(body: Body, why: str) -> None:
    (found,) = CLASSES.denials(object=as_stored(body))
    assert why in found


def test_mirrors_of_static_pods_and_pods_with_pools_are_not_judged() -> None:
    mirror, with_pools = of_class("LSE", "1500m"), of_class("LSE", "1500m")
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "1"}
    with_pools["spec"]["initContainers"] = [container("i", pools={"exclusive-a": "1"})]
    for body in (mirror, with_pools):
        assert CLASSES.denials(object=body) == set()
