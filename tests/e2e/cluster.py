"""The cluster, through kubectl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.names import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAMES: Final = Names()
PATIENCE_S: Final = 180.0
"""A kubelet tells its capacity every ten seconds and looks at a ConfigMap once a minute."""

UNCHECKED: Final = {"app.kubernetes.io/name": "cpupool"}
"""The API server does not ask the webhook about pods with these labels."""

_LOOK_S: Final = 0.2
_NATIVE: Final = {"cpu", "memory"}
_UNTIL_TERMINATED: Final = ["sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"]


def missing(*, node: bool = True) -> list[str]:
    """Name what a session lacks to reach a cluster and, if asked, to look at its node."""
    given = {
        "KUBECONFIG": os.environ.get("KUBECONFIG"),
        "kubectl": shutil.which("kubectl"),
        "root": not node or os.geteuid() == 0,
    }
    return [what for what, there in given.items() if not there]


def patiently(condition: Callable[[], object], what: Callable[[], object]) -> None:
    """Return once the condition holds; fail with `what` when it does not in time."""
    if not within(PATIENCE_S, condition):
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what()}")


def within(limit_s: float, condition: Callable[[], object]) -> bool:
    """Return whether the condition comes to hold in so many seconds, as soon as that is known."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        threading.Event().wait(_LOOK_S)
    return True


def kubectl(*arguments: str, given: object = None) -> str:
    """Run kubectl and give what it prints; `given` goes in as JSON."""
    done = subprocess.run(
        ["kubectl", *arguments],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def read(*arguments: str) -> Any:
    """Run `kubectl get` and give the object."""
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def told(kind: str, name: str, reason: str) -> list[str]:
    """Give the messages of an object's Events with this reason."""
    about = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
    return [event["message"] for event in read("events", "-A", "--field-selector", about)["items"]]


def manifest(
    name: str,
    node: str,
    image: str,
    containers: Mapping[str, Mapping[str, int]],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Make a pod with these labels: container name → pool, or what is native → amount.

    Containers run until they are told to end. Names that begin with `init` or `sidecar` make that
    kind. The node is named, so the scheduler and its taints have no say.
    """
    made: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for container, requests in containers.items():
        body: dict[str, Any] = {
            "name": container,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": _UNTIL_TERMINATED,
            "resources": {
                "limits": {
                    name if name in _NATIVE else NAMES.resource(name): str(amount)
                    for name, amount in requests.items()
                }
            },
        }
        if container.startswith("sidecar"):
            body["restartPolicy"] = "Always"
        app = not container.startswith(("init", "sidecar"))
        made["containers" if app else "initContainers"].append(body)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            **made,
        },
    }
