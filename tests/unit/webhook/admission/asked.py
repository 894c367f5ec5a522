"""Pods that ask for pools, and what admission says of them."""

from __future__ import annotations

from typing import Any

import pytest

from cpupool.webhook.admission.decision import Admitted, Denied, admit
from cpupool.webhook.admission.rules import CFSQuotas, LargestPool, Rules
from tests.pods import ANNOTATION, container, pod, process

POOLS = {
    "exclusive-a": LargestPool(6),
    "exclusive-b": LargestPool(2, multi_threaded=True),
    "shared-a": LargestPool(3),
    "shared-b": LargestPool(1),
}
RULES = Rules(pools=POOLS)
UNKNOWN = Rules()
SHARED_QUOTAS = Rules(pools=POOLS, cfs_quotas=CFSQuotas.SHARED)
STARTER = "/opt/cpupool/process-starter"
ANNOTATED = f"metadata.annotations[{ANNOTATION}]"
LIMITS = "spec.containers[0].resources.limits"


def admitted(body: Any, rules: Rules = RULES) -> Any:
    decision = admit(body, rules)
    assert isinstance(decision, Admitted), decision
    return decision.body


def warnings(body: Any, rules: Rules = RULES) -> tuple[str, ...]:
    decision = admit(body, rules)
    assert isinstance(decision, Admitted), decision
    return decision.warnings


def denial(body: Any, rules: Rules = RULES) -> str:
    decision = admit(body, rules)
    assert isinstance(decision, Denied), decision
    return decision.message


def only(body: Any, part: str = "containers") -> dict[str, Any]:
    (one,) = body["spec"][part]
    return dict(one)


def native(requests: Any = None, limits: Any = None, **pools: str) -> dict[str, Any]:
    """Make resources with native cpu beside pools."""
    asked = {f"nokia.k8s.io/{name.replace('_', '-')}": amount for name, amount in pools.items()}
    return {
        "requests": {**asked, **({} if requests is None else {"cpu": requests})},
        "limits": {**asked, **({} if limits is None else {"cpu": limits})},
    }


def processes(*listed: Any, name: str = "main") -> list[dict[str, Any]]:
    return [{"container": name, "processes": listed}]


# What is refused.


def asking(**fields: Any) -> dict[str, Any]:
    return container(**{"pools": {"exclusive-a": "1"}, "command": ["x"], **fields})


def variable(name: str, **value: Any) -> dict[str, Any]:
    return {"name": name, **value}


def limited(amounts: dict[str, Any], requests: dict[str, Any] | None = None) -> dict[str, Any]:
    named = [
        {f"nokia.k8s.io/{pool}": amount for pool, amount in one.items()}
        for one in (amounts, amounts if requests is None else requests)
    ]
    return pod(container(command=["x"], resources={"limits": named[0], "requests": named[1]}))


BOTH = {"exclusive-a": "2", "shared-a": "100"}
DENIALS = [
    pytest.param(
        limited({}, {"exclusive-a": "2"}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: its limit is missing, its request 2; make both the"
        " same",
        id="no limit",
    ),
    pytest.param(
        limited({"shared-a": "1k"}, {"shared-a": "999"}),
        f"{LIMITS}[nokia.k8s.io/shared-a]: its limit is 1000, its request 999; make both the same",
        id="limit and request differ",
    ),
    pytest.param(
        limited({"exclusive-a": "500m"}, {}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: '500m' is not a quantity: an extended resource is"
        " requested in whole numbers; an exclusive pool counts cores, a shared one milli-CPUs",
        id="half a core",
    ),
    pytest.param(
        limited({"exclusive-a": "two"}, {}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: 'two' is not a quantity: write a number, as 2, 500m"
        " or 1k; an exclusive pool counts cores, a shared one milli-CPUs",
        id="no quantity",
    ),
    pytest.param(
        limited({"exclusive-a": []}, {}),
        f"{LIMITS}[nokia.k8s.io/exclusive-a]: 'list' is not a quantity: write a number, as 2, 500m"
        " or 1k; an exclusive pool counts cores, a shared one milli-CPUs",
        id="no text",
    ),
    pytest.param(
        limited({"exclusive-q": "1"}),
        f"{LIMITS}[nokia.k8s.io/exclusive-q]: no pool file has an exclusive or shared pool"
        " exclusive-q; use exclusive-a or exclusive-b or shared-a or shared-b",
        id="an unknown pool",
    ),
    pytest.param(
        limited({"exclusive-a": "1", "shared-q": "5"}),
        f"{LIMITS}[nokia.k8s.io/shared-q]: no pool file has an exclusive or shared pool shared-q;"
        " use exclusive-a or exclusive-b or shared-a or shared-b",
        id="an unknown shared pool, whose size the limit would be made of",
    ),
    pytest.param(
        pod(asking(env=[variable("A"), variable("EXCLUSIVE_CPUS", value="1")])),
        "spec.containers[0].env[1]: EXCLUSIVE_CPUS is set by cpupool alone; remove it",
        id="EXCLUSIVE_CPUS",
    ),
    pytest.param(
        pod(container(env=[variable("SHARED_CPUS", valueFrom={})]), asking()),
        "spec.containers[0].env[0]: SHARED_CPUS is set by cpupool alone; remove it",
        id="SHARED_CPUS of a neighbour",
    ),
    pytest.param(
        pod(asking(), initContainers=[container(env=[variable("CPUPOOL_CPUS_EXCLUSIVE_A")])]),
        "spec.initContainers[0].env[0]: CPUPOOL_CPUS_EXCLUSIVE_A is set by cpupool alone; remove"
        " it",
        id="a pool's variable",
    ),
    pytest.param(
        pod(asking(env=[variable("CPU_POOLS", value="shared")])),
        "spec.containers[0].env[0]: CPU_POOLS is set by cpupool alone, and is 'exclusive' here;"
        " remove it",
        id="another CPU_POOLS",
    ),
    pytest.param(
        pod(asking(env=[variable("CPU_POOLS", valueFrom={"fieldRef": {}})])),
        "spec.containers[0].env[0]: CPU_POOLS is set by cpupool alone, and is 'exclusive' here;"
        " remove it",
        id="CPU_POOLS from elsewhere",
    ),
    pytest.param(
        pod(asking(), container("b", env=[variable("CPU_POOLS", value="exclusive")])),
        "spec.containers[1].env[0]: CPU_POOLS is set by cpupool alone, and is not set here; remove"
        " it",
        id="CPU_POOLS without a pool",
    ),
    pytest.param(
        pod(asking(), resources={"limits": {"cpu": "1"}}),
        "spec.resources.limits.cpu: the pod is limited to 1 cpu, and its container main gets the"
        " limit 1100m for its pools; raise it to 1100m at least, or remove it",
        id="a limit of the whole pod",
    ),
    pytest.param(
        pod(asking(), resources={"limits": {"cpu": "one"}}),
        "spec.resources.limits.cpu: 'one' is not a quantity: write a number, as 2, 500m or 1k;"
        " correct it",
        id="an unreadable limit of the whole pod",
    ),
    pytest.param(
        pod(asking(command=[STARTER], args=["--process", "0:all:0:1", "x"])),
        "spec.containers[0].command: this is the process starter with arguments that admission has"
        " not written; write the application's own command",
        id="the starter without its annotation",
    ),
    pytest.param(
        pod(container(), processes="[}"),
        f"{ANNOTATED}: this is not JSON: Expecting value: line 1 column 2; correct it",
        id="an annotation that is no JSON",
    ),
    pytest.param(
        pod(asking(), processes=[]),
        f"{ANNOTATED}: it names no container; name one, or remove the annotation",
        id="an annotation for nothing",
    ),
    pytest.param(
        pod(asking(), processes=processes(process(), name="other")),
        f"{ANNOTATED}[0].container: the pod has no container or init container other; correct the"
        " name",
        id="no such container",
    ),
    pytest.param(
        pod(asking(), container("b"), processes=processes(process(), name="b")),
        f"{ANNOTATED}[0]: container b requests no exclusive or shared pool; request the pools of"
        " its processes",
        id="no requests",
    ),
    pytest.param(
        pod(asking(), processes=processes(process(), process(pool="shared-a"))),
        f"{ANNOTATED}[0].processes[1].pool: container main does not request shared-a; request it,"
        " or use exclusive-a",
        id="a pool that is not requested",
    ),
    pytest.param(
        pod(
            asking(pools=BOTH),
            processes=processes(*[process(pool="shared-a", cpus=cpus) for cpus in (60, 41)]),
        ),
        f"{ANNOTATED}[0].processes: they have 101 milli-CPUs of shared-a together, and container"
        " main requests 100; make both the same",
        id="too much shared",
    ),
    pytest.param(
        pod(asking(pools=BOTH), processes=processes(process())),
        f"{ANNOTATED}[0].processes: they have 0 milli-CPUs of shared-a together, and container main"
        " requests 100; make both the same",
        id="nothing shared",
    ),
    pytest.param(
        pod(asking(), processes=processes(process(cpus=1), process(cpus=2))),
        f"{ANNOTATED}[0].processes: they have 3 CPUs of exclusive-a together, and the 1 cores that"
        " container main requests have 2 at most; request more, or pin fewer",
        id="more than twice the exclusive cores",
    ),
    pytest.param(
        pod(
            asking(pools={"exclusive-a": "1", "exclusive-b": "4"}),
            processes=processes(process(cpus=3), process(pool="exclusive-b")),
        ),
        f"{ANNOTATED}[0].processes: they have 3 CPUs of exclusive-a together, and the 1 cores that"
        " container main requests have 2 at most; request more, or pin fewer",
        id="more of one pool than it has, though another has more",
    ),
    pytest.param(
        pod(asking(), processes=processes(process("a", "x" * 131_072))),
        f"{ANNOTATED}[0].processes[0].args[0]: it has 131072 bytes, and the kernel takes arguments"
        " of 131071; shorten it, or pass a file",
        id="an argument too long",
    ),
]
