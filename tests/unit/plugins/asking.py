"""Requests to our plugins, in few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.workloads import ContainerRef
from cpupool.plugins.state import PluginState
from cpupool.policies.layout import Layout
from cpupool.policies.qrm.questions import ContainerRole, Question
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.plugins.base import Plugin

LAYOUT = Layout.of_topology(Machine(sockets=2, cores=20, threads=2, adjacent=True).topology())
"""The machine of the QRM proposal: CPUs 0-39 on NUMA node 0, 40-79 on node 1."""
MAIN, SIDECAR, INIT = ContainerRole.MAIN, ContainerRole.SIDECAR, ContainerRole.INIT
_QOS = "katalyst.kubewharf.io/"


def ask(
    pod: str,
    quantity: float,
    pod_role: str = "",
    role: ContainerRole = MAIN,
    *,
    resource: str = "cpu",
    says: Mapping[str, str] | None = None,
) -> Question:
    """Make a request; `says` has Katalyst's annotations, without their domain."""
    return Question(
        ContainerRef(pod, role.name.lower()),
        "default",
        pod,
        role,
        0,
        resource,
        quantity,
        pod_role,
        annotations={f"{_QOS}{key}": value for key, value in (says or {}).items()},
    )


class Asked:
    """A plugin and its state, asked as a manager does."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.state = plugin.settled(PluginState())

    def hints(self, question: Question) -> list[tuple[list[int], bool]] | None:
        found = self.plugin.hints(self.state, question)
        return None if found is None else [(sorted(h.nodes or ()), h.preferred) for h in found]

    def allocate(self, question: Question, *nodes: int) -> str:
        """Return the value that the container gets; empty for none."""
        hint = TopologyHint(frozenset(nodes) or None, preferred=True)
        self.state = self.plugin.allocate(self.state, question, hint)
        return self.value(question)

    def value(self, question: Question) -> str:
        if question.container not in self.state.held:
            return ""
        answers = self.plugin.answers(self.state, question.container)
        return "".join(answer.value for answer in answers.values())

    def remove(self, pod: str) -> None:
        self.state = self.plugin.settled(self.state.without(pod))
