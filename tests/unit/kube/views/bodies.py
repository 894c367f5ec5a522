"""Bodies of pods, as the API server writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpupool.core.names import Names

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = Names()
ID = "ab" * 32
OTHER_ID = "cd" * 32


def body(*containers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Make a pod as the API server has it; `metadata`, `spec` and `status` add to its own."""
    return {
        "metadata": {"name": "web", "uid": "web-uid", **more.get("metadata", {})},
        "spec": {"containers": list(containers or [{"name": "main"}]), **more.get("spec", {})},
        "status": more.get("status", {}),
    }


def asking(**limits: Any) -> dict[str, Any]:
    """Make a container with limits, `_` standing for a dash and a pool named without its domain."""
    named = {
        name if name in ("cpu", "memory") else NAMES.resource(name.replace("_", "-")): amount
        for name, amount in limits.items()
    }
    return {"name": "main", "resources": {"limits": named}}
