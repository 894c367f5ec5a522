"""Pod bodies for tests of admission, and what the API server and the kubelet do with them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from cpupool.kube import manifests

if TYPE_CHECKING:
    from collections.abc import Mapping

ANNOTATION = "nokia.k8s.io/cpus"


def bodies(name: str, text: str) -> list[dict[str, Any]]:
    """Read the pods of a text; `name` is its file, for messages."""
    found = manifests.read(name, text)
    found.refuse_others_alone()
    return [*found.pods]


def container(name: str = "main", /, **fields: Any) -> dict[str, Any]:
    """Make a container; `pools` are its requests and limits, by the names of their pools."""
    pools = {f"nokia.k8s.io/{pool}": amount for pool, amount in fields.pop("pools", {}).items()}
    body = {"name": name, "image": "app", **fields}
    if pools:
        body.setdefault("resources", {"requests": {**pools}, "limits": {**pools}})
    return body


def pod(*containers: Any, processes: object = None, **spec: Any) -> dict[str, Any]:
    """Make a pod; `processes` is its annotation, text as it is and anything else as JSON."""
    metadata: dict[str, Any] = {"name": "a", "namespace": "default"}
    if processes is not None:
        text = processes if isinstance(processes, str) else json.dumps(processes)
        metadata["annotations"] = {ANNOTATION: text}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return {**body, "spec": {"containers": list(containers), **spec}}


def process(*words: str, pool: str = "exclusive-a", cpus: int = 1) -> dict[str, Any]:
    """Make a process of the annotation."""
    command, *args = words or ("/bin/app",)
    return {"process": command, "args": args, "pool": pool, "cpus": cpus}


def review(
    body: object, operation: str = "CREATE", *, old: object = None, **request: Any
) -> dict[str, Any]:
    """Make the AdmissionReview that the API server sends for a pod."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": operation,
            "object": body,
            "oldObject": old,
            **request,
        },
    }


def stored(body: Any, response: Mapping[str, Any]) -> Any:
    """Apply the patch of a response, as the API server does."""
    if "patch" not in response:
        return body
    assert response["patchType"] == "JSONPatch"
    result = json.loads(json.dumps(body))
    for change in json.loads(base64.b64decode(response["patch"], validate=True)):
        keys = [key.replace("~1", "/").replace("~0", "~") for key in change["path"].split("/")[1:]]
        place = result
        for key in keys[:-1]:
            place = place[int(key) if isinstance(place, list) else key]
        _change(place, keys[-1], **change)
    return result


def _change(place: Any, key: str, *, op: str, path: str, value: Any = None) -> None:
    if isinstance(place, list):
        if op == "add":
            assert key == "-", path
            place.append(value)
        else:
            assert op == "replace", path
            place[int(key)] = value
    elif op == "remove":
        del place[key]
    else:
        # The API server refuses to replace what is not there.
        assert (key in place) == (op == "replace"), path
        place[key] = value


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as the kubelet does: third_party/forked/golang/expansion/expand.go.

    It works on bytes, and writes the one behind a lonely `$` as the character of that number.
    """
    given, done, place = word.encode(), [], 0
    while (dollar := given.find(b"$", place, -1)) >= 0:
        done.append(given[place:dollar])
        place = dollar + 2
        if given[dollar + 1 : place] == b"$":
            done.append(b"$")
        elif given[dollar + 1 : place] == b"(" and (end := given.find(b")", place)) >= 0:
            name = given[place:end].decode()
            done.append(variables.get(name, f"$({name})").encode())
            place = end + 1
        else:
            done.append(b"$" + chr(given[dollar + 1]).encode())
    return b"".join([*done, given[place:]]).decode(errors="replace")


def resized(body: Mapping[str, Any], cpu: str) -> dict[str, Any]:
    """Return a body whose containers request another amount of cpu, as after an in-place resize."""
    containers = [
        {
            **container,
            "resources": {
                kind: {**amounts, "cpu": cpu}
                for kind, amounts in container.get("resources", {}).items()
            },
        }
        for container in body["spec"]["containers"]
    ]
    return {**body, "spec": {**body["spec"], "containers": containers}}


def labelled(body: Mapping[str, Any], **labels: str) -> dict[str, Any]:
    """Return a body with other labels."""
    return {**body, "metadata": {**body["metadata"], "labels": labels}}
