"""An EventSink that remembers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod


@dataclass
class Heard:
    """What was told.

    Attributes:
        pods: (pod name, reason, message) in order.
        nodes: (reason, message) in order.
    """

    pods: list[tuple[str, str, str]] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)

    def pod(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        del warning
        self.pods.append((pod.name, reason, message))

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        del warning
        self.nodes.append((reason, message))
