from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.webhook.admission.decision import Admitted, Denied, admit, admit_update
from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import KOORD_SCHEDULER, RequiredAgent, Rules
from tests.pods import container, pod, review

RULES = Rules(koordinator=True)
QOS, PRIORITY = "koordinator.sh/qosClass", "koordinator.sh/priority-class"
SPEC = "scheduling.koordinator.sh/resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
CLASS, OF_SPEC = f"metadata.labels[{QOS}]", f"metadata.annotations[{SPEC}]"
OF_STATUS = f"metadata.annotations[{STATUS}]"
ANYBODY = "system:serviceaccount:kube-system:replicaset-controller"
PROD = "koord-prod"

Body = dict[str, Any]


def of_class(qos: str, *containers: Body, priority: str = PROD, **spec: Any) -> Body:
    body = pod(*(containers or [using("2")]), **spec)
    labels = {QOS: qos, PRIORITY: priority}
    body["metadata"]["labels"] = {key: value for key, value in labels.items() if value}
    return body


def using(cpu: str, limit: str | None = None, **fields: Any) -> Body:
    limits = {"cpu": cpu if limit is None else limit}
    return container(resources={"requests": {"cpu": cpu}, "limits": limits}, **fields)


def noted(annotations: Body, body: Body | None = None) -> Body:
    body = copy.deepcopy(body or of_class("LSR"))
    body["metadata"]["annotations"] = annotations
    return body


def preferring(**fields: Any) -> Body:
    return noted({SPEC: json.dumps(fields)})


def found(body: Body, rules: Rules = RULES, **request: Any) -> str:
    decision = admit(body, rules, **request)
    return decision.message if isinstance(decision, Denied) else ""


BATCH = {"kubernetes.io/batch-cpu": "1000"}
OWNS = "a pod of the class LSE owns whole CPUs, and this one requests"
SUM = "make the sum of its containers a whole number of CPUs, or write the class LS"
LSR_WITH = "the class LSR goes with koord-prod alone, and the pod has"
BE_WITH = "the class BE goes with koord-mid, koord-batch or koord-free, and the pod has"
DENIALS = [
    pytest.param(of_class("LSE", using("1500m")), f"{CLASS}: {OWNS} 1500m; {SUM}"),
    pytest.param(of_class("LSE", container()), f"{CLASS}: {OWNS} 0m; {SUM}"),
    pytest.param(
        of_class("LSE", using("1"), initContainers=[using("1500m")]),
        f"{CLASS}: {OWNS} 1500m; {SUM}",
    ),
    pytest.param(
        of_class("LSE", using("1"), initContainers=[using("500m", restartPolicy="Always")]),
        f"{CLASS}: {OWNS} 1500m; {SUM}",
    ),
    pytest.param(
        of_class("LSE", using("1", "2")),
        "spec.containers[0].resources.limits.cpu: the request is 1 and the limit 2: a pod of the"
        " class LSE owns what it requests; make both the same",
    ),
    pytest.param(
        of_class("LSE", container(resources={"requests": {"cpu": "1"}})),
        "spec.containers[0].resources.limits.cpu: the request is 1 and the limit missing: a pod of"
        " the class LSE owns what it requests; make both the same",
    ),
    pytest.param(
        of_class("LSE", using("x")),
        "spec.containers[0].resources.limits.cpu: 'x' is not a quantity: write a number, as 2, 500m"
        " or 1k; correct it",
    ),
    pytest.param(
        of_class("LSR", priority="koord-batch"),
        f"{CLASS}: {LSR_WITH} koord-batch; write the label {PRIORITY}: koord-prod",
    ),
    pytest.param(
        of_class("LSR", priority="", priorityClassName="a"),
        f"{CLASS}: {LSR_WITH} no priority class of Koordinator; write the label {PRIORITY}:"
        " koord-prod",
    ),
    pytest.param(
        of_class("BE", container()),
        f"{CLASS}: {BE_WITH} koord-prod; write the label {PRIORITY}: koord-batch",
    ),
    pytest.param(
        of_class("BE", container(), priority="other"),
        f"{CLASS}: {BE_WITH} the unknown value other; write the label {PRIORITY}: koord-batch",
    ),
    pytest.param(
        of_class("LS", container(resources={"limits": BATCH})),
        "spec.containers[0].resources.limits[kubernetes.io/batch-cpu]: only pods of the class BE"
        f" have this resource; write the label {QOS}: BE, or request cpu and memory",
    ),
    pytest.param(
        noted({SPEC: "[}"}),
        f"{OF_SPEC}: this is '[}}'; write a JSON object, or remove it",
    ),
    pytest.param(
        preferring(**{f"preferredCPUBindPolicy{n}": 1 for n in range(33)}),
        f"{OF_SPEC}: this has 33 fields, and Koordinator knows 3; write requiredCPUBindPolicy,"
        " preferredCPUBindPolicy, preferredCPUExclusivePolicy alone",
    ),
    pytest.param(
        preferring(preferedCPUBindPolicy="FullPCPUs"),
        f"{OF_SPEC}: unknown key preferedCPUBindPolicy; did you mean preferredCPUBindPolicy?",
    ),
    pytest.param(
        preferring(preferredCPUBindPolicy="FullPCPU"),
        f"{OF_SPEC}.preferredCPUBindPolicy: unknown value FullPCPU; did you mean FullPCPUs?",
    ),
    pytest.param(
        preferring(preferredCPUExclusivePolicy=["PCPULevel"]),
        f"{OF_SPEC}.preferredCPUExclusivePolicy: unknown value ['PCPULevel']; did you mean"
        " PCPULevel?",
    ),
    pytest.param(
        preferring(requiredCPUBindPolicy=4),
        f"{OF_SPEC}.requiredCPUBindPolicy: unknown value 4; use FullPCPUs or SpreadByPCPUs or"
        " ConstrainedBurst",
    ),
]
TOPOLOGY = "scheduling.koordinator.sh/numa-topology-spec"
OF_TOPOLOGY = f"metadata.annotations[{TOPOLOGY}]"
DENIALS += [
    pytest.param(of_class("LSX"), f"{CLASS}: unknown value LSX; did you mean LS?"),
    pytest.param(of_class("lsr"), f"{CLASS}: unknown value lsr; did you mean LSR?"),
    pytest.param(
        of_class("LSE", priority="koord-prd"),
        f"metadata.labels[{PRIORITY}]: unknown value koord-prd; did you mean koord-prod?",
    ),
    pytest.param(
        noted({TOPOLOGY: '{"numaTopologyPolicy":"SingleNUMA"}'}),
        f"{OF_TOPOLOGY}.numaTopologyPolicy: unknown value SingleNUMA; did you mean SingleNUMANode?",
    ),
    pytest.param(
        noted({TOPOLOGY: '{"numaTopologyPolicies":"Restricted"}'}),
        f"{OF_TOPOLOGY}: unknown key numaTopologyPolicies; did you mean numaTopologyPolicy?",
    ),
]
ADMITTED = [
    noted({TOPOLOGY: '{"numaTopologyPolicy":"","singleNUMANodeExclusive":"Preferred"}'}),
    of_class("LSE", using("1500m"), using("500m", name="b")),
    of_class("LSE", using("2000m", "2")),
    of_class("LSE", using("2"), container("helper")),
    of_class("LSE", container(resources={"limits": {"cpu": "2", "memory": "1Gi"}})),
    of_class("LSE", priority="koord-batch"),
    of_class("LSE", using("1500m"), initContainers=[using("2")]),
    of_class("LSE", using("1500m"), initContainers=[using("500m", restartPolicy="Always")]),
    of_class("LSR", priority="", priority_number=9500),
    of_class("LS", using("1500m", "2")),
    of_class("BE", container(resources={"limits": BATCH}), priority="koord-free"),
    of_class("BE", container(), priority="", priority_number=5500),
    of_class("", container(resources={"requests": {"cpu": "1"}}), priority=""),
    # Its CPUs are the pool's, whatever its class.
    of_class("LSE", container(command=["x"], pools={"exclusive-a": "1"})),
    of_class("LSE", using("1500m"), initContainers=[container("i", pools={"shared-a": "100"})]),
    # The kubelet runs the pod from its file.
    noted({"kubernetes.io/config.mirror": "1"}, of_class("LSE", using("1500m"))),
    preferring(),
    noted({SPEC: "null"}),
    preferring(
        requiredCPUBindPolicy="SpreadByPCPUs",
        preferredCPUBindPolicy="Default",
        preferredCPUExclusivePolicy=None,
    ),
]


@pytest.mark.parametrize(("body", "message"), DENIALS)
def test_what_a_class_does_not_go_with_is_refused(body: Body, message: str) -> None:
    assert found(body) == message
    assert found(body, Rules()) == ""


@pytest.mark.parametrize("body", ADMITTED)
def test_what_a_class_goes_with_is_admitted(body: Body) -> None:
    body = copy.deepcopy(body)
    if number := body["spec"].pop("priority_number", None):
        body["spec"]["priority"] = number
    assert found(body) == ""


def test_a_field_that_koordinator_may_have_tomorrow_is_a_warning() -> None:
    decision = admit(preferring(color="red"), RULES)
    assert isinstance(decision, Admitted)
    (warning,) = decision.warnings
    assert warning.startswith(f"{OF_SPEC}: unknown key color; use requiredCPUBindPolicy or")


@pytest.mark.parametrize("policy", ["koordinator", "static", "none"])
def test_the_rules_count_where_a_pool_file_has_the_policy(policy: str) -> None:
    default = Pool.named("default", "0-7")
    files = [
        NodePools.of(default, cpu_manager=CPUManager(each, CPUSet.of(0)))
        for each in ("static", policy)
    ]
    assert bool(found(of_class("LSE", using("1500m")), Rules().knowing(files))) == (
        policy == "koordinator"
    )


ASSIGNED = {STATUS: '{"cpuset":"2-3"}'}


def test_only_a_listed_account_creates_a_pod_with_assigned_cpus() -> None:
    body = noted(ASSIGNED)
    remedy = "leave it out, or have an administrator add the account to --schedulers"
    assert found(body, account=ANYBODY) == (
        f"{OF_STATUS}: only a scheduler may write this, not {ANYBODY}; {remedy}"
    )
    assert found(body) == f"{OF_STATUS}: only a scheduler may write this; {remedy}"
    assert found(body, account=KOORD_SCHEDULER) == ""
    own = replace(RULES, schedulers=frozenset({ANYBODY}))
    assert found(body, own, account=ANYBODY) == ""
    assert found(body, own, account=KOORD_SCHEDULER) != ""


def reviewed(
    body: Body,
    old: Body | None,
    account: str,
    operation: str = "UPDATE",
    rules: Rules = RULES,
    **request: Any,
) -> str:
    """Return why a review is answered with a denial; empty if it is not."""
    document = review(body, operation, old=old, userInfo={"username": account}, **request)
    response = answer(document, rules)["response"]
    return "" if response["allowed"] else str(response["status"]["message"])


BINDING: Body = {"kind": {"group": "", "version": "v1", "kind": "Binding"}, "operation": "CREATE"}
LSR, LSE = of_class("LSR"), of_class("LSE")


@pytest.mark.parametrize("subresource", ["", "status"])
def test_assigned_cpus_and_the_class_of_a_pod_stay(subresource: str) -> None:
    sub: Body = {"subResource": subresource}
    for new, old in ((noted(ASSIGNED), LSR), (LSR, noted(ASSIGNED))):
        refused = reviewed(new, old, ANYBODY, **sub)
        assert "only a scheduler" in refused
        assert ("leave it as it was" in refused) == (old is not LSR)
        assert reviewed(new, old, KOORD_SCHEDULER, **sub) == ""
        assert reviewed(new, old, ANYBODY, rules=Rules(), **sub) == ""
    assert reviewed(noted({**ASSIGNED, "a": "b"}), noted(ASSIGNED), ANYBODY, **sub) == ""
    assert reviewed(LSE, LSR, KOORD_SCHEDULER, **sub) == (
        f"{CLASS}: it stays LSR while the pod lives; create the pod again"
    )
    prod = reviewed(LSR, of_class("LSR", priority=""), KOORD_SCHEDULER, **sub)
    assert f"metadata.labels[{PRIORITY}]: it stays '' while" in prod


@pytest.mark.parametrize("subresource", ["", "binding"])
def test_a_binding_brings_no_forged_assignment_and_no_class(subresource: str) -> None:
    request: Body = {**BINDING, "subResource": subresource}
    target = {"target": {"kind": "Node", "name": "a"}}
    assigned = {"metadata": {"annotations": ASSIGNED}, **target}
    classed = {"metadata": {"labels": {QOS: "LSE"}}, **target}
    assert "only a scheduler" in reviewed(assigned, None, ANYBODY, **request)
    assert reviewed(assigned, None, KOORD_SCHEDULER, **request) == ""
    assert "it stays ''" in reviewed(classed, None, KOORD_SCHEDULER, **request)
    assert reviewed({"metadata": {}, **target}, None, ANYBODY, **request) == ""
    # An eviction is none of ours.
    assert reviewed(assigned, None, ANYBODY, kind={"group": "policy", "kind": "Eviction"}) == ""


def test_an_update_is_refused_for_what_is_new_in_it() -> None:
    old = of_class("LSE", using("1500m"))
    new = noted({"a": "b"}, old)
    assert isinstance(admit_update(new, old, RULES, ANYBODY), Admitted)
    wrong = admit_update(noted({SPEC: "[]"}, old), old, RULES, ANYBODY)
    assert isinstance(wrong, Denied)
    assert wrong.message.startswith(OF_SPEC)


def test_a_caller_without_a_name_is_nobody() -> None:
    assert not answer(review(noted(ASSIGNED)), RULES)["response"]["allowed"]


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ({"overhead": {"cpu": "250m"}}, "the sum of its containers and of spec.overhead"),
        (
            {
                "overhead": {"cpu": "250m"},
                "resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}},
            },
            "the cpu of spec.resources and of spec.overhead",
        ),
        (
            {"resources": {"limits": {"cpu": "3500m"}, "requests": {"cpu": "3500m"}}},
            "the cpu of spec.resources",
        ),
    ],
)
def test_an_owner_hears_which_amounts_are_to_be_whole_together(spec: Body, remedy: str) -> None:
    body = of_class("LSE", using("4"), **spec)
    assert f"; make {remedy} a whole number of CPUs, or write the class LS" in found(body)


def test_an_owners_unreadable_amounts_hide_no_other_problem() -> None:
    body = of_class("LSE", using("x"), using("1", "2", name="b"), using("y", name="c"))
    body["spec"]["overhead"] = {"cpu": "z"}
    lines = found(body).splitlines()
    assert [line.partition(". ")[2].split(": ")[0] for line in lines[1:]] == [
        "spec.containers[0].resources.limits.cpu",
        "spec.containers[2].resources.limits.cpu",
        "spec.overhead.cpu",
        "spec.containers[1].resources.limits.cpu",
    ]


@pytest.mark.parametrize(
    ("body", "owns"),
    [
        (of_class("LSE", using("1500m"), using("500m", name="b")), True),
        (of_class("LSR", resources={"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}), True),
        (of_class("LSE", using("1500m"), overhead={"cpu": "500m"}), True),
        (of_class("LS"), False),
        (of_class("LSE", using("2"), container("b", pools={"shared-a": "100"})), False),
    ],
)
def test_an_owner_needs_the_agent_where_pods_with_whole_cpus_do(body: Body, owns: bool) -> None:
    rules = replace(RULES, required_agent=RequiredAgent.GUARANTEED)
    for known, needs in ((rules, owns), (replace(rules, koordinator=False), False)):
        decision = admit(body, known)
        assert isinstance(decision, Admitted)
        annotations = decision.body["metadata"].get("annotations", {})
        assert ("required-plugins.noderesource.dev" in annotations) is needs
