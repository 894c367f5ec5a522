"""Admission of OpenShift's resource: every refusal with its message, and what a pod becomes."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.webhook.admission.decision import Admitted, Denied, admit
from cpupool.webhook.admission.mixed_cpus import NamespaceUnknown
from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import CFSQuotas, LargestPool, Rules
from tests.pods import ANNOTATION, container, pod, process, review, stored

if TYPE_CHECKING:
    from collections.abc import Mapping

RESOURCE = "workload.openshift.io/enable-shared-cpus"
ALLOWED = "workload.mixedcpus.openshift.io/allowed"
FILE = NodePools.of(
    Pool.named("exclusive-a", "4-7"),
    Pool.named("shared-a", "1"),
    Pool.named("shared-mixed", "2-3"),
    mixed=MixedCPUs("shared-mixed"),
)
OFF = NodePools.of(*FILE)
LIMITS = "spec.containers[0].resources.limits"
NATIVE = {"cpu": "2", "memory": "1Gi"}
GUARANTEED = "and container main gets CPUs of its own only in a Guaranteed pod"
WRITE = "write one, or request an exclusive pool for main"
SAME = "make both the same, or request an exclusive pool for main"


def allowing(_namespace: str) -> Mapping[str, object]:
    return {ALLOWED: ""}


RULES = Rules(namespaces=allowing).knowing([FILE])


def mixed(name: str = "main", /, limits: Any = None, requests: Any = None, **fields: Any) -> Any:
    """Make a container that requests the resource once, beside these amounts."""
    given = {RESOURCE: "1", **(NATIVE if limits is None else limits)}
    resources = {"limits": given, "requests": given if requests is None else requests}
    return container(name, resources=resources, **fields)


def exclusive(pools: Mapping[str, str] | None = None, **fields: Any) -> Any:
    asked = {f"nokia.k8s.io/{name}": n for name, n in (pools or {"exclusive-a": "2"}).items()}
    return mixed(limits=asked, **{"command": ["app"], **fields})


def admitted(body: Any, rules: Rules = RULES) -> Any:
    decision = admit(body, rules, "apps")
    assert isinstance(decision, Admitted), decision
    return decision.body


def denial(body: Any, rules: Rules = RULES) -> str:
    decision = admit(body, rules, "apps")
    assert isinstance(decision, Denied), decision
    return decision.message


# What a pod becomes.


def test_a_container_with_native_cpus_keeps_them_and_is_marked() -> None:
    body = pod(mixed(command=["app"]), container("b", resources={"limits": NATIVE}))
    made = admitted(body)
    assert made["metadata"]["annotations"] == {"cpu-shared.crio.io/main": "enable"}
    first, second = made["spec"]["containers"]
    assert first == {**mixed(command=["app"]), "env": [{"name": "CPU_POOLS", "value": "shared"}]}
    assert second is body["spec"]["containers"][1]


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_a_container_with_an_exclusive_pool_has_both_kinds_of_cpus(part: str) -> None:
    body = pod(container())
    body["spec"][part] = [exclusive()]
    body["metadata"]["annotations"] = {"other": "x", "cpu-shared.crio.io/main": "no"}
    made = admitted(body)
    (one,) = made["spec"][part]
    assert one["env"][0] == {"name": "CPU_POOLS", "value": "exclusive&shared"}
    assert one["resources"]["requests"]["cpu"] == "0m"
    # Two cores, and the two CPUs of the shared pool.
    assert one["resources"]["limits"]["cpu"] == "4000m"
    assert one["args"] == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A", "--shared", "shared-mixed", "--", "app")
    ]
    assert made["metadata"]["annotations"] == {"other": "x", "cpu-shared.crio.io/main": "enable"}


def test_its_processes_start_on_its_exclusive_cpus() -> None:
    listed = [{"container": "main", "processes": [process(cpus=2)]}]
    (one,) = admitted(pod(exclusive(), processes=listed))["spec"]["containers"]
    assert one["args"][:6] == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A", "--shared", "shared-mixed"),
        *("--process", "0:CPUPOOL_CPUS_EXCLUSIVE_A:2:1"),
    ]


def test_the_largest_pool_behind_the_resource_counts_and_only_an_agreed_one_is_waited_for() -> None:
    other = NodePools.of(Pool.named("shared-b", "1-5"), mixed=MixedCPUs("shared-b"))
    smaller = NodePools.of(Pool.named("shared-b", "1-3"), mixed=MixedCPUs("shared-b"))
    off = NodePools.of(Pool.named("shared-b", "1-9"))
    rules = Rules(namespaces=allowing).knowing([FILE, other, smaller, off])
    assert rules.mixed == {"shared-mixed": 2, "shared-b": 5}
    (one,) = admitted(pod(exclusive()), rules)["spec"]["containers"]
    assert one["resources"]["limits"]["cpu"] == "7000m"
    assert one["args"] == ["--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A", "--", "app"]


def test_quotas_for_shared_cpus_only_set_no_limit() -> None:
    rules = replace(RULES, cfs_quotas=CFSQuotas.SHARED)
    (one,) = admitted(pod(exclusive()), rules)["spec"]["containers"]
    assert "cpu" not in one["resources"]["limits"]


@pytest.mark.parametrize(
    "metadata", [None, {}, {"annotations": None}, {"annotations": {"a": "b"}}, {"name": "x"}]
)
@pytest.mark.parametrize("one", [mixed(), exclusive()], ids=["native", "pool"])
def test_the_patch_leads_there_and_admitting_again_changes_nothing(metadata: Any, one: Any) -> None:
    body = {"metadata": copy.deepcopy(metadata), "spec": {"containers": [one]}}
    if metadata is None:
        del body["metadata"]
    made = stored(body, answer(review(body), RULES)["response"])
    assert made == admitted(body)
    assert made["metadata"]["annotations"]["cpu-shared.crio.io/main"] == "enable"
    assert "patch" not in answer(review(made), RULES)["response"]
    assert admitted(made)["metadata"] is made["metadata"]


@pytest.mark.parametrize("rules", [Rules(), Rules().knowing([OFF])], ids=["unknown", "off"])
@pytest.mark.parametrize("amount", ["1", "2", "x"])
def test_where_it_is_not_switched_on_it_is_somebody_elses(rules: Rules, amount: str) -> None:
    body = pod(container(resources={"limits": {RESOURCE: amount}, "requests": {}}))
    assert admitted(body, rules) is body
    with_pool = exclusive(env=[{"name": "OPENSHIFT_SHARED_CPUS", "value": "1"}])
    made = admitted(pod(with_pool), rules)
    assert "annotations" not in made["metadata"]
    assert made["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2100m"


def test_the_pools_of_a_file_are_those_that_it_lists() -> None:
    assert RULES.pools == {
        "exclusive-a": LargestPool(4),
        "shared-a": LargestPool(1),
        "shared-mixed": LargestPool(2),
    }


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(mixed(requests={})), id="limits alone"),
        pytest.param(
            pod(mixed(limits={"cpu": 2.0, "memory": 2**30}, requests={"cpu": "2000m"})),
            id="amounts written otherwise",
        ),
        pytest.param(
            pod(mixed(), container("b", resources={"limits": {"cpu": "500m", "memory": "1Mi"}})),
            id="a neighbour with half a CPU",
        ),
        pytest.param(pod(exclusive(), container("b")), id="a pool, and the pod is Burstable"),
        pytest.param(pod(mixed(), initContainers=[mixed("i")]), id="an init container, too"),
        pytest.param(pod(mixed(limits={**NATIVE, RESOURCE: "1000m"})), id="1000m"),
        pytest.param(
            pod(container(resources={"limits": {RESOURCE: "0"}}), container("b")), id="none"
        ),
        pytest.param(
            pod(
                mixed(),
                container(
                    "b",
                    env=[{"name": "OPENSHIFT_SHARED_CPUS", "value": "1"}],
                    resources={"limits": NATIVE},
                ),
            ),
            id="a neighbour's variable",
        ),
    ],
)
def test_what_is_just_within_a_rule_is_admitted(body: Any) -> None:
    admitted(body)


@pytest.mark.parametrize("rules", [RULES, replace(RULES, namespaces=lambda _: {})])
def test_a_mark_without_a_request_stays_as_it_is_and_gives_nothing(rules: Rules) -> None:
    body = pod(container(pools={"shared-a": "5"}))
    body["metadata"]["annotations"] = {"cpu-shared.crio.io/main": "enable"}
    made = admitted(body, rules)
    assert made["metadata"] is body["metadata"]
    assert made["spec"]["containers"][0]["env"] == [{"name": "CPU_POOLS", "value": "shared"}]


# What is refused.

DENIALS = [
    pytest.param(
        pod(mixed(limits={**NATIVE, RESOURCE: "2"})),
        f"{LIMITS}[{RESOURCE}]: 2 are requested, and the first brings all the shared CPUs; set the"
        " request to 1 or remove it",
        id="two units",
    ),
    pytest.param(
        pod(exclusive(), initContainers=[mixed("i", limits={**NATIVE, RESOURCE: "1"})]),
        "spec.containers[0].resources: it requests pools, and container i gets CPUs of its own"
        " only in a Guaranteed pod; move it to a pod of its own, or request"
        " an exclusive pool for i",
        id="a neighbour with pools",
    ),
    pytest.param(
        pod(mixed(limits={**NATIVE, RESOURCE: "0.5"})),
        f"{LIMITS}[{RESOURCE}]: '0.5' is not a quantity: an extended resource is requested in whole"
        " numbers; set the request to 1 or remove it",
        id="half a unit",
    ),
    pytest.param(
        pod(mixed(limits=NATIVE, requests={RESOURCE: "2"})),
        f"{LIMITS}[{RESOURCE}]: its limit is 1, its request 2; set both to 1 or remove both",
        id="limit and request differ",
    ),
    pytest.param(
        pod(container(resources={"limits": NATIVE, "requests": {RESOURCE: "1"}})),
        f"{LIMITS}[{RESOURCE}]: its limit is missing, its request 1; set both to 1 or remove both",
        id="no limit",
    ),
    pytest.param(
        pod(exclusive({"exclusive-a": "1", "shared-a": "5"})),
        f"{LIMITS}[{RESOURCE}]: the container requests the shared pool shared-a, too; remove one of"
        " the two requests",
        id="a shared pool, too",
    ),
    pytest.param(
        pod(exclusive({"shared-mixed": "5"})),
        f"{LIMITS}[{RESOURCE}]: the container requests the shared pool shared-mixed, too; remove"
        " one of the two requests",
        id="the shared pool behind it, too",
    ),
    pytest.param(
        pod(mixed(limits={"memory": "1Gi"})),
        f"{LIMITS}.cpu: there is none, {GUARANTEED}; {WRITE}",
        id="no cpu",
    ),
    pytest.param(
        pod(mixed(limits={"memory": "1Gi", "cpu": "0"})),
        f"{LIMITS}.cpu: there is none, {GUARANTEED}; {WRITE}",
        id="a cpu of nothing",
    ),
    pytest.param(
        pod(mixed(limits={"cpu": "2"})),
        f"{LIMITS}.memory: there is none, {GUARANTEED}; {WRITE}",
        id="no memory",
    ),
    pytest.param(
        pod(mixed(requests={"cpu": "1"})),
        f"{LIMITS}.cpu: the request is another, {GUARANTEED}; {SAME}",
        id="Burstable",
    ),
    pytest.param(
        pod(mixed(), initContainers=[container("i", resources={"limits": {"memory": "1"}})]),
        f"spec.initContainers[0].resources.limits.cpu: there is none, {GUARANTEED}; {WRITE}",
        id="a Burstable neighbour",
    ),
    pytest.param(
        pod(mixed(limits={"cpu": "2500m", "memory": "1"})),
        f"{LIMITS}.cpu: 2.5 is no whole number of CPUs, so container main has none of its own to"
        " which shared ones could be added; write a whole number, or request an exclusive pool",
        id="half a CPU",
    ),
    pytest.param(
        pod(mixed(limits={"cpu": "two", "memory": "1"})),
        f"{LIMITS}.cpu: 'two' is not a quantity: write a number, as 2, 500m or 1k; correct it",
        id="no quantity",
    ),
    pytest.param(
        pod(mixed(), resources={"limits": NATIVE}),
        "spec.resources: the kubelet gives no exclusive CPUs to a pod with resources of its own;"
        " write them at the containers, or request an exclusive pool for main",
        id="resources of the pod",
    ),
    pytest.param(
        pod(mixed(env=[{"name": "A"}, {"name": "OPENSHIFT_ISOLATED_CPUS", "value": "1"}])),
        "spec.containers[0].env[1]: OPENSHIFT_ISOLATED_CPUS is set by cpupool alone; remove it",
        id="OPENSHIFT_ISOLATED_CPUS",
    ),
    pytest.param(
        pod(exclusive(env=[{"name": "OPENSHIFT_SHARED_CPUS", "valueFrom": {}}])),
        "spec.containers[0].env[0]: OPENSHIFT_SHARED_CPUS is set by cpupool alone; remove it",
        id="OPENSHIFT_SHARED_CPUS",
    ),
    pytest.param(
        pod(mixed(env=[{"name": "CPU_POOLS", "value": "exclusive"}])),
        "spec.containers[0].env[0]: CPU_POOLS is set by cpupool alone, and is 'shared' here; remove"
        " it",
        id="another CPU_POOLS",
    ),
    pytest.param(
        pod(
            exclusive(),
            processes=[
                {"container": "main", "processes": [process(pool="enable-shared-cpus")]},
            ],
        ),
        f"metadata.annotations[{ANNOTATION}][0].processes[0].pool: enable-shared-cpus has no"
        " milli-CPUs to share out between processes; use exclusive-a: a process may move its"
        " threads to OPENSHIFT_SHARED_CPUS",
        id="a process in no pool",
    ),
    pytest.param(
        pod(mixed(), processes=[{"container": "main", "processes": [process()]}]),
        f"metadata.annotations[{ANNOTATION}][0]: container main requests no exclusive or shared"
        " pool; request the pools of its processes",
        id="processes without pools",
    ),
]


@pytest.mark.parametrize(("body", "message"), DENIALS)
def test_what_is_against_a_rule_is_refused_with_its_place_and_a_remedy(
    body: Any, message: str
) -> None:
    assert denial(body) == message


@pytest.mark.parametrize("rules", [RULES, Rules(), Rules().knowing([OFF])])
def test_the_resource_in_the_pools_domain_is_refused(rules: Rules) -> None:
    limits = {**NATIVE, "nokia.k8s.io/enable-shared-cpus": "1"}
    assert denial(pod(container(resources={"limits": limits})), rules) == (
        f"{LIMITS}[nokia.k8s.io/enable-shared-cpus]: no node has such a resource: it is"
        f" OpenShift's, for pools of any domain; write {RESOURCE}"
    )


def test_a_namespace_without_the_annotation_is_refused_and_any_value_will_do() -> None:
    asked: list[str] = []

    def annotated(namespace: str) -> Mapping[str, object]:
        asked.append(namespace)
        return {"other": ""}

    document = review(pod(mixed()), namespace="apps")
    response = answer(document, replace(RULES, namespaces=annotated))["response"]
    assert asked == ["apps"]
    assert response["status"]["message"] == (
        f"metadata.namespace: apps is not allowed to have {RESOURCE}: it lacks the annotation"
        f" {ALLOWED}; have an administrator add it, or remove the request"
    )
    for value in ("", "false", None):
        having = {"apps": {ALLOWED: value}}
        admitted(pod(mixed()), replace(RULES, namespaces=having.__getitem__))


def test_nothing_is_asked_about_pods_that_do_not_request_it() -> None:
    def asked(namespace: str) -> Mapping[str, object]:
        raise AssertionError(namespace)

    rules = replace(RULES, namespaces=asked)
    admitted(pod(container(pools={"exclusive-a": "1"}, command=["x"])), rules)
    old = pod(mixed())
    updated = answer(review(old, "UPDATE", old=old), rules)["response"]
    assert updated == {"uid": "u-1", "allowed": True}


def test_a_namespace_that_no_api_server_keeps_the_pod_out() -> None:
    def unknown(_namespace: str) -> Mapping[str, object]:
        raise NamespaceUnknown("the API server is away; wait")

    assert denial(pod(mixed()), replace(RULES, namespaces=unknown)) == (
        f"metadata.namespace: whether apps may have {RESOURCE} is not known: the API server is"
        " away; wait; then create the pod again"
    )
    assert "run it in a pod of the cluster, or with --api-server" in denial(
        pod(mixed()), Rules().knowing([FILE])
    )


def test_all_problems_are_reported_at_once() -> None:
    body = pod(
        mixed(limits={RESOURCE: "3", "cpu": "1500m"}),
        container("b"),
        container("c", pools={"exclusive-x": "1"}, command=["x"]),
    )
    lines = denial(body, replace(RULES, namespaces=lambda _: {})).splitlines()
    assert lines[0] == "8 problems:"
    assert [line.split(": ")[0].partition(" ")[2] for line in lines[1:]] == [
        "spec.containers[2].resources.limits[nokia.k8s.io/exclusive-x]",
        f"{LIMITS}[{RESOURCE}]",
        f"{LIMITS}.cpu",
        f"{LIMITS}.memory",
        "spec.containers[1].resources.limits.cpu",
        "spec.containers[1].resources.limits.memory",
        "spec.containers[2].resources",
        "metadata.namespace",
    ]
