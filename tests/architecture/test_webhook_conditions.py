"""The API server asks the webhook about pods with pools or words that it checks, and no others.

The conditions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import Rules
from tests.pods import ANNOTATION, container, pod, process, review

FILE = Path(__file__).parents[2] / "daemonsets/webhook/configuration.yaml"
(WEBHOOK,) = yaml.safe_load(FILE.read_text())["webhooks"]
CONDITIONS = [cel.compile(one["expression"]) for one in WEBHOOK["matchConditions"]]

Body = dict[str, Any]


def asked(document: Body) -> bool:
    """Tell whether the API server asks the webhook, by its rules and conditions."""
    request = {key: value for key, value in document["request"].items() if value is not None}
    resource = "/".join(filter(None, ("pods", request.get("subResource"))))
    matched = any(
        request["operation"] in rule["operations"] and resource in rule["resources"]
        for rule in WEBHOOK["rules"]
    )
    values = {"request": request, "object": request["object"], "oldObject": None, **request}
    return matched and all(condition.execute(values) for condition in CONDITIONS)


NOTICE, MOVES = "nokia.k8s.io/cpu-notice-seconds", "nokia.k8s.io/cpu-moves"
CHECKED = (ANNOTATION, NOTICE, MOVES)


def worded(annotations: dict[str, str] | None, **fields: Any) -> Body:
    body = copy.deepcopy(pod(container(**fields)))
    if annotations is not None:
        body["metadata"]["annotations"] = annotations
    return body


ENABLE_SHARED = "workload.openshift.io/enable-shared-cpus"
OTHERS = {
    "limits": {"cpu": "1", "example.com/gpu": "1", "nokia.k8s.io.example.com/shared": "1"},
    "requests": {"nokia.k8s.io/sriov_vfio_ens1f0": "1"},
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(pod(container(pools={"shared-a": 1})), True, id="request and limit"),
        pytest.param(
            pod(container(resources={"limits": {"nokia.k8s.io/shared": "1"}})),
            True,
            id="limit alone",
        ),
        pytest.param(
            pod(container(resources={"requests": {"nokia.k8s.io/exclusive": "1"}})),
            True,
            id="request alone",
        ),
        pytest.param(pod(container(), processes=""), True, id="annotation alone"),
        pytest.param(
            pod(container(), initContainers=[container("i", pools={"shared-a": 1})]),
            True,
            id="init container",
        ),
        pytest.param(
            pod(container("a", resources={}), container("b", pools={"shared-a": 1})),
            True,
            id="second container",
        ),
        pytest.param(
            pod(container(resources={"limits": {ENABLE_SHARED: "1"}})), True, id="OpenShift's limit"
        ),
        pytest.param(
            pod(container(), initContainers=[{"resources": {"requests": {ENABLE_SHARED: "1"}}}]),
            True,
            id="OpenShift's request",
        ),
        *(
            pytest.param(worded({key: "1"}), key in CHECKED, id=key)
            for key in (NOTICE, MOVES, "example.com/cpu-moves", "nokia.k8s.io/memory-migrates")
        ),
        pytest.param(pod(container()), False, id="nothing"),
        pytest.param(pod(container(resources=OTHERS)), False, id="other resources"),
        pytest.param(
            pod(container(), initContainers=[container("i", resources=OTHERS)]),
            False,
            id="other resources of an init container",
        ),
    ],
)
def test_the_api_server_asks_about_pods_with_pools_or_words_that_are_checked(
    body: Body, expected: bool
) -> None:
    assert asked(review(body)) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, None, False, id="none"),
        pytest.param({"a": "1"}, {"a": "2", "b": "1"}, False, id="others"),
        *(
            pytest.param(old, new, expected, id=f"{key} {how}")
            for key in CHECKED
            for old, new, expected, how in (
                ({key: "[]"}, {key: "[]", "a": "1"}, False, "is the same"),
                ({key: "[]"}, {key: ""}, True, "is changed"),
                (None, {key: "[]"}, True, "is the first"),
                ({"a": "1"}, {key: "[]"}, True, "is added"),
                ({key: "[]"}, None, False, "is removed"),
            )
        ),
    ],
)
def test_an_update_needs_the_webhook_where_it_brings_what_is_checked(
    before: dict[str, str] | None, after: dict[str, str] | None, expected: bool
) -> None:
    old, new = (worded(each, pools={"exclusive-a": 1}) for each in (before, after))
    new["metadata"]["finalizers"] = ["example.com/job"]

    assert asked(review(new, "UPDATE", old=old)) == expected
    assert asked(review(new, "UPDATE", old=old, subResource="ephemeralcontainers"))
    assert not asked(review(new, "UPDATE", old=old, subResource="status"))


AMOUNTS = st.dictionaries(
    st.sampled_from(
        [
            *("nokia.k8s.io/exclusive-a", "nokia.k8s.io/", "nokia.k8s.io", "cpu", "a/b"),
            *("nokia.k8s.io/sriov", "nokia.k8s.io/share", "nokia.k8s.io/enable-shared-cpus"),
            *(ENABLE_SHARED, "workload.openshift.io/cores"),
        ]
    ),
    st.sampled_from(["1", "0", "1.5", "x"]),
    max_size=2,
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.sampled_from("abc"), "image": st.just("app")},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS}),
        "env": st.just([{"name": "EXCLUSIVE_CPUS", "value": "1"}]),
        "command": st.just(["app"]),
    },
)
LISTS = st.lists(CONTAINERS, min_size=1, max_size=2)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([*CHECKED, "other"]),
    st.sampled_from(
        ["", "[]", json.dumps([{"container": "a", "processes": [process()]}]), "3", "11", "any"]
    ),
)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({}, optional={"annotations": ANNOTATIONS}),
        "spec": st.fixed_dictionaries({"containers": LISTS}, optional={"initContainers": LISTS}),
    }
)


@given(PODS, ANNOTATIONS, st.sampled_from([{}, {"shared-a": 2}]))
def test_what_the_webhook_is_not_asked_about_it_would_let_pass(
    body: Body, annotations: dict[str, str], mixed: dict[str, int]
) -> None:
    updated = {**body, "metadata": {"annotations": annotations}}
    for document in (review(body), review(updated, "UPDATE", old=body)):
        if not asked(document):
            response = answer(document, Rules(mixed=mixed))["response"]
            assert response["allowed"]
            assert "patch" not in response
