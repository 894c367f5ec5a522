"""What the API server refuses of an Event."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


def problems_of_event(event: Mapping[str, Any], namespace: str) -> list[str]:
    """Validate as pkg/apis/core/validation/events.go does."""
    metadata, about = event["metadata"], event["involvedObject"]
    problems = []
    if not _SUBDOMAIN.fullmatch(metadata["name"]):
        problems.append("metadata.name is no DNS subdomain")
    if metadata["namespace"] != namespace:
        problems.append("metadata.namespace is another than the request's")
    if about.get("namespace", "default") != namespace:
        problems.append("involvedObject.namespace does not match metadata.namespace")
    if len(event["message"].encode()) > 1024:
        problems.append("message has more than 1024 bytes")
    if event["type"] not in {"Normal", "Warning"}:
        problems.append("type is neither Normal nor Warning")
    return problems
