"""The API server's review of a pod, and the response to it: a JSON patch, or a denial.

The envelope is AdmissionReview of admission.k8s.io/v1 (k8s.io/api/admission/v1/types.go).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.errors import ManifestError, RemoteProtocolError
from cpupool.webhook.admission.decision import (
    Admitted,
    Denied,
    admit,
    admit_metadata,
    admit_update,
)
from cpupool.webhook.admission.json_patch import patch

if TYPE_CHECKING:
    from cpupool.webhook.admission.rules import Rules

_REVIEW: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_UPDATED: Final = ("", "ephemeralcontainers")
"""Subresources of pods whose updates can add variables that only cpupool may set."""
_UNPROCESSABLE: Final = 422


def answer(document: object, rules: Rules, *, mutate: bool = True) -> dict[str, Any]:
    """Answer an AdmissionReview.

    Args:
        document: the request, as JSON.
        rules: the rules of admission.
        mutate: whether the webhook may complete pods; otherwise it only checks them.

    Returns:
        The AdmissionReview with the response, as JSON.

    Raises:
        RemoteProtocolError: the document is not a request of admission.k8s.io/v1.
    """
    request = _request(document)
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    try:
        decided = _decide(request, rules)
    except ManifestError as error:
        response |= _refusal(str(error))
    else:
        if decided and decided.warnings:
            response["warnings"] = list(decided.warnings)
        if isinstance(decided, Denied):
            response |= _refusal(decided.message)
        elif decided:
            response |= _completion(decided, request.get("object") if mutate else decided.body)
    return {**_REVIEW, "response": response}


def _request(document: object) -> Mapping[str, Any]:
    if not isinstance(document, Mapping) or any(
        document.get(key) != value for key, value in _REVIEW.items()
    ):
        raise RemoteProtocolError(
            "this is no AdmissionReview of admission.k8s.io/v1; set admissionReviewVersions: [v1]"
        )
    request = document.get("request")
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise RemoteProtocolError("this AdmissionReview has no request with a uid; send one")
    return request


def _decide(request: Mapping[str, Any], rules: Rules) -> Admitted | Denied | None:
    """Decide on a pod that is created, updated or bound; return None for any other request."""
    kind, user = request.get("kind"), request.get("userInfo")
    names = (kind.get("group"), kind.get("kind")) if isinstance(kind, Mapping) else ()
    account = str(user.get("username") or "") if isinstance(user, Mapping) else ""
    asked = (request.get("operation"), request.get("subResource") or "")
    body, before = request.get("object"), request.get("oldObject")
    if names == ("", "Binding") and asked[0] == "CREATE":
        return admit_metadata(body, {}, rules, account)
    if names != ("", "Pod"):
        return None
    if asked == ("CREATE", ""):
        return admit(body, rules, str(request.get("namespace") or "default"), account)
    if asked == ("UPDATE", "status"):
        return admit_metadata(body, before, rules, account)
    if asked[0] == "UPDATE" and asked[1] in _UPDATED:
        return admit_update(body, before, rules, account)
    return None


def _completion(admitted: Admitted, before: object) -> dict[str, Any]:
    completion: dict[str, Any] = {}
    # A forged review may lack the object.
    if isinstance(before, Mapping) and (changes := patch(before, admitted.body)):
        encoded = base64.b64encode(json.dumps(changes).encode())
        completion |= {"patchType": "JSONPatch", "patch": encoded.decode()}
    return completion


def _refusal(message: str) -> dict[str, Any]:
    status = {"code": _UNPROCESSABLE, "reason": "Invalid", "message": message}
    return {"allowed": False, "status": status}
