"""The state of a plugin of ours: the containers that it serves, and its pools."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.core.plugin_facts import AnswerPart
    from cpupool.core.workloads import ContainerRef
    from cpupool.policies.qrm.questions import Question


@dataclass(frozen=True, slots=True)
class ServedContainer:
    """A container that a plugin serves.

    Attributes:
        question: its request.
        answer: what it has of its own, which stays; without a value it has what the node's other
            containers leave, on the NUMA node that the answer names, or what its pod's main
            container has.
    """

    question: Question
    answer: AnswerPart


@dataclass(frozen=True, slots=True)
class PluginState:
    """The whole memory of a plugin.

    Attributes:
        held: the containers that it serves.
        pools: pool → its CPUs.
        headroom_cpus: how many CPUs reclaimed pods may request together; None before a pool for
            them is there.
    """

    held: Mapping[ContainerRef, ServedContainer] = field(default_factory=dict)
    pools: Mapping[str, CPUSet] = field(default_factory=dict)
    headroom_cpus: float | None = None

    def holding(self, held: ServedContainer) -> PluginState:
        """Return the state with one more container, or with another answer for one."""
        return replace(self, held={**self.held, held.question.container: held})

    def without(self, pod: str) -> PluginState:
        """Return the state after a pod has ended."""
        return replace(self, held={ref: held for ref, held in self.held.items() if ref.pod != pod})

    def main_of(self, pod: str) -> AnswerPart | None:
        """Return the answer of a pod's container that names NUMA nodes; None if there is none."""
        answers = (held.answer for ref, held in self.held.items() if ref.pod == pod)
        return next((answer for answer in answers if answer.by_node), None)
