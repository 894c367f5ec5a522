"""Manifests of pods for `cpupool demo`: the parts that every kind of sample is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.names import Names

MILLI: Final = 250
SHARING: Final[Mapping[str, Any]] = {"requests": {"cpu": f"{MILLI}m"}}
"""The resources of a container without CPUs of its own."""


def pod(
    name: str, containers: list[dict[str, Any]], init: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a pod's manifest."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"initContainers": init or [], "containers": containers},
    }


def container(name: str, names: Names, pools: dict[str, int]) -> dict[str, Any]:
    """Return a container that requests amounts of pools."""
    amounts = {names.resource(pool): str(amount) for pool, amount in pools.items()}
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}


def whole(cpu: int) -> dict[str, Any]:
    """Return the resources of a container of a Guaranteed pod."""
    return {"limits": {"cpu": str(cpu), "memory": "1Gi"}}
