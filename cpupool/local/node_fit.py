"""The kubelet's check whether the node has the cpu that a running pod requests after a resize.

Source: kubernetes pkg/kubelet/allocation, with the CPU manager policy none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"


@dataclass(frozen=True, slots=True)
class ResizePending:
    """Why the kubelet does not take another cpu request of a running pod.

    Attributes:
        reason: `DEFERRED` while other pods have the cpu, `INFEASIBLE` for ever.
        message: the kubelet's words.
    """

    reason: str
    message: str


def pending(asked: int, used: int, capacity: int) -> ResizePending | None:
    """Return why the kubelet does not take a request of a pod; None if it does.

    Args:
        asked: the milli-CPUs that the pod requests now.
        used: those of all other pods.
        capacity: those that all pods can request together.
    """
    if asked > capacity:
        what = f"capacity: cpu, requested: {asked}, capacity: {capacity}"
        return ResizePending(INFEASIBLE, f"Node didn't have enough {what}")
    if asked > capacity - used:
        what = f"resource: cpu, requested: {asked}, used: {used}, capacity: {capacity}"
        return ResizePending(DEFERRED, f"Node didn't have enough {what}")
    return None
