"""Whole lives of nodes under the kubelet's static policy: containers come and go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from cpupool.core import quantity
from cpupool.core.cpu_manager import TRUTH_VALUES, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, NotEnoughCPUs, SMTAlignmentError
from cpupool.core.grants import Grants
from cpupool.core.names import POLICY_CPUS
from cpupool.policies.base import ChoiceRequest
from cpupool.policies.static import policy as static
from cpupool.policies.static.policy import StaticPolicy
from cpupool.policies.view import DEFAULT
from tests import builders
from tests.conformance.oracle.cpu_hints import listed, unlawful
from tests.conformance.oracle.kubelet_distribution import take_as_kubelet
from tests.conformance.oracle.verdicts import Verdict, misfit, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.policies.view import NodeView
    from tests.conformance.oracle.verdicts import Case, Machines


class Owner(NamedTuple):
    """A container: its pod's UID and its name."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Node:
    """What the kubelet has written down: who has which CPUs.

    Attributes:
        policy: cpupool's.
        shared: CPUs that are nobody's own.
        assigned: the containers with CPUs of their own.
        reusing: the pod that was served last; what others' init containers leave is forgotten.
        reusable: what its init containers leave to its other containers.
        sound: no CPU has had two owners so far, so that grants can hold what is assigned.
    """

    policy: StaticPolicy
    shared: CPUSet
    assigned: Mapping[Owner, CPUSet] = field(default_factory=dict)
    reusing: str = ""
    reusable: CPUSet = field(default_factory=CPUSet)
    sound: bool = True

    @classmethod
    def of(cls, policy: StaticPolicy) -> Node:
        """Return a node without containers."""
        seen = builders.view(policy.layout.cpus, Grants())
        return cls(policy, policy.extents(seen)[DEFAULT])

    def view(self) -> NodeView:
        """Return what the policy sees: grants, or only what is left where grants cannot hold it."""
        everything = self.policy.layout.cpus
        if not self.sound:
            return builders.view(everything, Grants(), self.shared)
        claims = (builders.chosen(*owner, cpus) for owner, cpus in self.assigned.items())
        return builders.view(everything, Grants().adding(claims))

    def request(self, step: Case) -> ChoiceRequest:
        """Return what a container is to have of its own."""
        owner, nodes = _owner(step), step["hint"]
        return ChoiceRequest(
            POLICY_CPUS,
            int(quantity.parse(step["cpu"])),
            self.policy.available(self.view()),
            self.reusable if owner.pod == self.reusing else CPUSet(),
            has=self.assigned.get(owner, CPUSet()),
            nodes=None if nodes is None else frozenset(nodes),
        )

    def given(self, step: Case, cpus: CPUSet) -> Node:
        """Return the node after a container was given CPUs."""
        owner = _owner(step)
        reusable = self.reusable if owner.pod == self.reusing else CPUSet()
        return replace(
            self,
            shared=self.shared - cpus,
            assigned={**self.assigned, owner: cpus},
            reusing=owner.pod,
            reusable=reusable | cpus if step.get("init", False) else reusable - cpus,
        )

    def without(self, step: Case) -> Node:
        """Return the node after a container has gone."""
        owner = _owner(step)
        assigned = {one: cpus for one, cpus in self.assigned.items() if one != owner}
        kept = CPUSet.union(cpus for one, cpus in assigned.items() if one.pod == owner.pod)
        freed = self.assigned.get(owner, CPUSet()) - kept
        return replace(self, shared=self.shared | freed, assigned=assigned)


def _owner(step: Case) -> Owner:
    return Owner(step["pod"], step["container"])


def options(written: Mapping[str, str]) -> StaticOptions:
    """Read the kubelet's option map of a recording."""
    names = StaticOptions.names()
    return StaticOptions(**{names[name]: TRUTH_VALUES[text] for name, text in written.items()})


def check(case: Case, machines: Machines) -> tuple[Verdict, str]:
    """Live a node's life step by step.

    Where the kubelet gave away CPUs that were not free, or crashed, cpupool has an answer of its
    own, which has to be lawful; where the life goes on, it does from what the kubelet gave. Where
    the kubelet overwrote the nodes that it had found best, and this explains its answer exactly,
    the steps go on from that answer.
    """
    try:
        policy = StaticPolicy.of(
            machines[case["topo"]],
            options(case["options"]),
            CPUSet.parse(case["reserved_arg"]) or case["num_reserved"],
        )
    except (ConfigError, NotEnoughCPUs) as error:
        refused = "new_error" in case
        return Verdict.EQUAL if refused else Verdict.DIFFERENT, "" if refused else str(error)
    if "new_error" in case:
        return Verdict.DIFFERENT, f"started in spite of {case['new_error']!r}"
    node = Node.of(policy)
    given = [str(policy.reserved), str(node.shared)]
    recorded = [case["reserved"], case["start_default_set"]]
    if given != recorded:
        return Verdict.DIFFERENT, f"at the start {given} instead of {recorded}"

    verdict = Verdict.EQUAL
    for number, step in enumerate(case["steps"]):
        before, recorded = node, _recorded(step)
        node, answer, flaw = _answer(before, step)
        if excuse := _excuse(step):
            verdict = excuse
            node = _set_anew(before, step)
        elif answer == recorded:
            flaw = _astray(node)
        else:
            with patch.object(static, "take_distributed", take_as_kubelet):
                node, overwritten, _ = _answer(before, step)
            flaw = "" if overwritten == recorded else f"{answer} instead of {recorded}"
            verdict = Verdict.NOALIAS if verdict is Verdict.EQUAL else verdict
        if flaw:
            return Verdict.DIFFERENT, f"step {number}: {flaw}"
    return verdict, ""


def _excuse(step: Case) -> Verdict | None:
    if "unsafe" in step:
        return Verdict.UNSAFE
    return Verdict.PANIC if step.get("error", "").startswith("PANIC") else None


def _set_anew(before: Node, step: Case) -> Node:
    """Return the node after a step in which the kubelet gave CPUs that were not free."""
    if "unsafe" not in step:
        return before
    return replace(before.given(step, CPUSet.parse(step["assigned"])), sound=False)


def _recorded(step: Case) -> list[Any]:
    result = step.get("error", step.get("assigned"))
    return [step.get("hints_offered"), result, step["default_set"]]


def _answer(node: Node, step: Case) -> tuple[Node, list[Any], str]:
    """Take one step: the node after it, what a recording would hold, and what is unlawful."""
    if step["op"] == "remove":
        after = node.without(step)
        return after, [None, None, str(after.shared)], ""
    if (asked := quantity.parse(step["cpu"])) != int(asked):
        return node, [None, None, str(node.shared)], ""
    request = node.request(step)
    usable = request.available | request.reusable | request.has
    offer = node.policy.hints(request)
    flaw = unlawful(offer, node.policy.layout, request.count, usable)
    try:
        cpus = node.policy.choose(node.view(), request).cpus
    except (NotEnoughCPUs, SMTAlignmentError) as error:
        answer = [listed(offer), _words(error), str(node.shared)]
        return node, answer, flaw or refusal(request.count, usable)
    after = node.given(step, cpus)
    flaw = flaw or misfit(cpus, request.count, usable)
    return after, [listed(offer), str(cpus), str(after.shared)], flaw


def _astray(node: Node) -> str:
    """Return in what the shared set that follows from the grants is not the kubelet's."""
    shared = node.policy.extents(node.view())[DEFAULT] if node.sound else node.shared
    return "" if shared == node.shared else f"shared {shared} instead of {node.shared}"


def _words(error: NotEnoughCPUs | SMTAlignmentError) -> str:
    """Write a refusal as the recordings have it: without what the kubelet's admission adds."""
    text = error.as_kubelet.removeprefix("Allocate failed due to ")
    return text.removesuffix(", which is unexpected")
