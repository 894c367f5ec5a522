"""The pods that a controller of Kubernetes makes from the template in a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.kube.fields import Field

_REPLICAS: Final = "replicas"
_PARALLELISM: Final = "parallelism"
_CRON_JOB: Final = "CronJob"
COUNTS: Final[Mapping[str, str]] = {
    "Deployment": _REPLICAS,
    "StatefulSet": _REPLICAS,
    "ReplicaSet": _REPLICAS,
    "ReplicationController": _REPLICAS,
    "DaemonSet": "",
    "Job": _PARALLELISM,
    _CRON_JOB: _PARALLELISM,
}
"""Kind → the field of its spec that says how many pods run at once; empty for one on each node."""
_MOST_PODS: Final = 10_000


def template(workload: Field) -> Field:
    """Return the template for pods in a workload of a kind in COUNTS."""
    return _spec(workload)["template"]


def pods(workload: Field, *, copies: bool) -> Iterator[dict[str, Any]]:
    """Return the pods of a workload on one node, named as those of a StatefulSet.

    Args:
        workload: of a kind in COUNTS.
        copies: whether each pod is wanted; otherwise the first one stands for all.

    Raises:
        ManifestError: it has no name, no template, or no number of pods.
    """
    found = template(workload)
    if found["spec"].value is None:
        raise found["spec"].error("is missing")
    counted = COUNTS[str(workload["kind"].value)]
    count = _count(_spec(workload)[counted]) if copies and counted else 1
    owner = workload["metadata"]
    name = owner["name"].name()
    labelled = {key: value.value for key, value in found["metadata"].entries()}
    metadata = {**labelled, "namespace": owner["namespace"].name("default")}
    for number in range(count):
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "name": f"{name}-{number}"},
            "spec": found["spec"].value,
        }


def _spec(workload: Field) -> Field:
    """Return the part that has the template, and the number of pods beside it."""
    spec = workload["spec"]
    return spec["jobTemplate"]["spec"] if workload["kind"].value == _CRON_JOB else spec


def _count(field: Field) -> int:
    given = 1 if field.value is None else field.value
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= _MOST_PODS:
        raise field.error(f"is not a number from 0 to {_MOST_PODS}")
    return given
