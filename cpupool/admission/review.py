"""The API server's review of a pod, and the answer to it: a JSON patch, or a denial.

The envelope is AdmissionReview of admission.k8s.io/v1 (k8s.io/api/admission/v1/types.go).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cpupool.admission.decision import (
    Admitted,
    Denied,
    admit,
    admit_metadata,
    admit_update,
)
from cpupool.core.errors import ManifestError, RemoteProtocolError

if TYPE_CHECKING:
    from cpupool.admission.pod_requests import Body
    from cpupool.admission.rules import Rules

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
        if isinstance(decided, Denied):
            response |= _refusal(decided.message)
        elif decided:
            response |= _completion(decided, request["object"] if mutate else decided.body)
    return {**_REVIEW, "response": response}


def patch(before: object, after: object, path: str = "") -> list[dict[str, Any]]:
    """Return the JSON patch (RFC 6902) that changes one document into another.

    It covers the changes of admission: it adds, replaces and removes entries of an object; a list
    grows at its end, keeps its length or is replaced. It does not compare parts that are the same
    object in both documents, so a body may have any depth; a general diff compares everything.
    """
    if before is after:
        return []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = {**before, **after}
        return [change for key in keys for change in _entry(before, after, key, path)]
    if isinstance(before, list) and isinstance(after, list):
        pairs = list(zip(before, after, strict=False))
        if len(before) == len(after):
            return [
                change
                for place, (old, new) in enumerate(pairs)
                for change in patch(old, new, f"{path}/{place}")
            ]
        if len(pairs) == len(before) and all(old is new for old, new in pairs):
            added = after[len(before) :]
            return [{"op": "add", "path": f"{path}/-", "value": value} for value in added]
    elif type(before) is type(after) and before == after:
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _entry(before: Body, after: Body, key: str, path: str) -> list[dict[str, Any]]:
    inner = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
    if key not in after:
        return [{"op": "remove", "path": inner}]
    if key not in before:
        return [{"op": "add", "path": inner, "value": after[key]}]
    return patch(before[key], after[key], inner)


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
    if admitted.warnings:
        completion["warnings"] = list(admitted.warnings)
    if changes := patch(before, admitted.body):
        encoded = base64.b64encode(json.dumps(changes).encode())
        completion |= {"patchType": "JSONPatch", "patch": encoded.decode()}
    return completion


def _refusal(message: str) -> dict[str, Any]:
    status = {"code": _UNPROCESSABLE, "reason": "Invalid", "message": message}
    return {"allowed": False, "status": status}
