from __future__ import annotations

import json
from typing import Any

import pytest

from cpupool.core.errors import RemoteProtocolError
from cpupool.webhook.admission.decision import Admitted, admit
from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import Rules
from tests.pods import container, pod, review, stored
from tests.unit.webhook.admission.asked import (
    DENIALS,
    RULES,
    admitted,
    asking,
    limited,
    native,
    variable,
)

# The envelope.


def response_to(document: Any, **options: bool) -> dict[str, Any]:
    reviewed = answer(document, RULES, **options)
    response = reviewed.pop("response")
    assert reviewed == {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    assert response.pop("uid") == "u-1"
    return dict(json.loads(json.dumps(response)))


def test_the_patch_leads_to_what_admission_made() -> None:
    body = pod(
        asking(env=[variable("A/~")], resources=native(1, 4, exclusive_a="1")),
        container("b", pools={"shared-a": "5"}),
        container("c"),
        initContainers=[asking()],
    )
    response = response_to(review(body))
    assert response.pop("warnings")
    assert stored(body, response) == admitted(body) != body
    assert response.keys() == {"allowed", "patchType", "patch"}


def test_a_pod_that_asks_for_nothing_gets_no_patch() -> None:
    assert response_to(review(pod(container()))) == {"allowed": True}


def test_a_webhook_that_only_checks_sends_no_patch() -> None:
    assert response_to(review(pod(asking())), mutate=False) == {"allowed": True}
    assert not response_to(review(limited({"exclusive-a": "x"})), mutate=False)["allowed"]


def test_a_denial_is_a_status_of_kubernetes() -> None:
    body, message = DENIALS[0].values
    assert response_to(review(body)) == {
        "allowed": False,
        "status": {"code": 422, "reason": "Invalid", "message": message},
    }


BAD = limited({"exclusive-a": "x"})


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(review(None, "DELETE", old=BAD), id="deleting"),
        pytest.param(review(BAD, "CONNECT"), id="connecting"),
        pytest.param(review(BAD, subResource="binding"), id="binding"),
        pytest.param(review(BAD, "UPDATE", subResource="status"), id="the kubelet's status"),
        pytest.param(review(BAD, kind={"group": "", "kind": "Node"}), id="another kind"),
        pytest.param(review(BAD, kind={"group": "x", "kind": "Pod"}), id="another group"),
        pytest.param(review(BAD, kind=None), id="no kind"),
        pytest.param(review(BAD, "UPDATE", old=BAD), id="an update of the same"),
    ],
)
def test_other_requests_are_let_through(document: Any) -> None:
    assert response_to(document) == {"allowed": True}


@pytest.mark.parametrize("subresource", ["", "status"])
def test_an_update_without_the_object_changes_nothing(subresource: str) -> None:
    document = review(None, "UPDATE", subResource=subresource)
    del document["request"]["object"]
    assert "patch" not in response_to(document)


@pytest.mark.parametrize("subresource", ["", "ephemeralcontainers"])
def test_updates_are_checked(subresource: str) -> None:
    document = review(BAD, "UPDATE", old=pod(container()), subResource=subresource)
    assert not response_to(document)["allowed"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "no AdmissionReview of admission.k8s.io/v1"),
        ([], "no AdmissionReview"),
        ({"kind": "AdmissionReview"}, "no AdmissionReview"),
        (review({}) | {"apiVersion": "admission.k8s.io/v1beta1"}, "admissionReviewVersions"),
        (review({}) | {"request": None}, "no request with a uid"),
        (review({}, uid=1), "no request with a uid"),
    ],
)
def test_what_is_no_review_is_refused(document: Any, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        answer(document, RULES)


def test_an_amount_that_is_replaced_stays_in_its_place() -> None:
    amounts = {"cpu": "2", "nokia.k8s.io/exclusive-a": "1", "memory": "1Gi"}
    body = pod(container(command=["app"], resources={"limits": amounts, "requests": amounts}))
    decision = admit(body, Rules())
    assert isinstance(decision, Admitted)
    made = decision.body["spec"]["containers"][0]["resources"]
    assert [list(made[part]) for part in ("limits", "requests")] == [list(amounts)] * 2
