"""The API server asks the webhook about what Koordinator's rules concern, and about nothing else.

The conditions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

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
from tests.pods import container, pod, review

FILE = Path(__file__).parents[2] / "daemonsets/koordinator-webhook/kustomization.yaml"
((PATCH,),) = (
    yaml.safe_load(each["patch"]) for each in yaml.safe_load(FILE.read_text())["patches"]
)
WEBHOOK = PATCH["value"]
CONDITIONS = [cel.compile(each["expression"]) for each in WEBHOOK["matchConditions"]]
AGENT = "system:serviceaccount:cpupool:cpupool-agent"
QOS, PRIORITY = "koordinator.sh/qosClass", "koordinator.sh/priority-class"
STATUS, SPEC = (f"scheduling.koordinator.sh/resource-{each}" for each in ("status", "spec"))
WAYS = [
    ("CREATE", "Pod", "pods", ""),
    ("UPDATE", "Pod", "pods", ""),
    ("UPDATE", "Pod", "pods", "status"),
    ("CREATE", "Binding", "pods", "binding"),
    ("CREATE", "Binding", "bindings", ""),
]
"""Operation, kind, resource and subresource of each way into the metadata of a pod."""

Body = dict[str, Any]
RULES = Rules(koordinator=True)


def document(way: tuple[str, ...], new: Body, old: Body | None, user: str = "a") -> Body:
    operation, kind, _, subresource = way
    return review(
        new,
        operation,
        old=old if operation == "UPDATE" else None,
        kind={"group": "", "version": "v1", "kind": kind},
        userInfo={"username": user},
        **({"subResource": subresource} if subresource else {}),
    )


def asked(way: tuple[str, ...], given: Body) -> bool:
    """Return whether the API server asks the webhook, by its rules and conditions."""
    operation, _, resource, subresource = way
    place = "/".join(filter(None, (resource, subresource)))
    matched = any(
        operation in rule["operations"] and place in rule["resources"] for rule in WEBHOOK["rules"]
    )
    request = given["request"]
    values = {
        "request": request,
        "object": request["object"],
        "oldObject": request["oldObject"],
    }
    return matched and all(condition.execute(values) for condition in CONDITIONS)


def marked(labels: Body | None = None, annotations: Body | None = None, **fields: Any) -> Body:
    body = pod(container(**fields))
    given = {"labels": labels, "annotations": annotations}
    body["metadata"] |= {key: value for key, value in given.items() if value}
    return body


BATCH = {"kubernetes.io/batch-cpu": "1000"}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (marked({QOS: "LSE"}), True),
        (marked({PRIORITY: "koord-prod"}), True),
        (marked(annotations={STATUS: "{}"}), True),
        (marked(annotations={SPEC: "{}"}), True),
        (marked(resources={"limits": BATCH}), True),
        (marked(resources={"requests": BATCH}), True),
        (marked({"app": "a"}, {"b": "c"}, resources={"limits": {"cpu": "1"}}), False),
        (marked(), False),
    ],
)
def test_the_api_server_asks_about_new_pods_with_words_of_koordinator(
    new: Body, expected: bool
) -> None:
    assert asked(WAYS[0], document(WAYS[0], new, None)) == expected


@pytest.mark.parametrize("way", WAYS[1:3])
def test_an_update_needs_the_webhook_where_it_changes_such_a_word(way: tuple[str, ...]) -> None:
    before = marked({QOS: "LSE", "a": "b"}, {STATUS: "{}", "a": "b"})
    others = marked({QOS: "LSE", "a": "c"}, {STATUS: "{}"})
    assert not asked(way, document(way, others, before))
    for changed in (
        marked({QOS: "LSR"}, {STATUS: "{}"}),
        marked({QOS: "LSE"}, {STATUS: ""}),
        marked({QOS: "LSE"}),
        marked(None, {STATUS: "{}"}),
        marked({QOS: "LSE"}, {STATUS: "{}", SPEC: "{}"}),
    ):
        assert asked(way, document(way, changed, before))


def test_an_agent_writes_the_status_without_the_webhook() -> None:
    new, old = marked(annotations={STATUS: "{}"}), marked()
    by_agent = [way for way in WAYS if not asked(way, document(way, new, old, AGENT))]
    assert by_agent == [WAYS[2]]


WORDS = st.dictionaries(
    st.sampled_from([QOS, PRIORITY, "a"]),
    st.sampled_from(["LSE", "LSR", "BE", "koord-prod", "koord-batch", ""]),
)
NOTES = st.dictionaries(
    st.sampled_from([STATUS, SPEC, "a"]), st.sampled_from(["", "{", json.dumps({"cpuset": "1"})])
)
AMOUNTS = st.dictionaries(st.sampled_from([*BATCH, "cpu"]), st.sampled_from(["1", "1500m", "x"]))
PODS = st.builds(
    marked, WORDS, NOTES, resources=st.fixed_dictionaries({"limits": AMOUNTS, "requests": AMOUNTS})
)


@given(st.sampled_from(WAYS), PODS, PODS)
def test_what_the_webhook_is_not_asked_about_it_would_let_pass(
    way: tuple[str, ...], new: Body, old: Body
) -> None:
    # No update changes the resources.
    new = {**new, "spec": old["spec"]} if way[0] == "UPDATE" else new
    given = document(way, new, old)
    if not asked(way, given):
        assert answer(given, RULES)["response"]["allowed"]
