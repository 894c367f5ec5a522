"""Whole lives of nodes under the kubelet's static policy: containers come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from cpupool.core import quantity
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, NotEnoughCPUs, SMTAlignmentError
from cpupool.policies import static
from cpupool.policies.static import Owner, StaticOptions, StaticPolicy
from tests.conformance.oracle.cpu_hints import listed, unlawful
from tests.conformance.oracle.kubelet_distribution import take_as_kubelet
from tests.conformance.oracle.verdicts import Verdict, misfit, refusal

if TYPE_CHECKING:
    from cpupool.policies.static import NodeState
    from tests.conformance.oracle.verdicts import Case, Machines


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
            StaticOptions.parse(case["options"]),
            CPUSet.parse(case["reserved_arg"]) or case["num_reserved"],
        )
    except (ConfigError, NotEnoughCPUs) as error:
        refused = "new_error" in case
        return Verdict.EQUAL if refused else Verdict.DIFFERENT, "" if refused else str(error)
    if "new_error" in case:
        return Verdict.DIFFERENT, f"started in spite of {case['new_error']!r}"
    state = policy.start()
    given = [str(policy.reserved), str(state.shared)]
    recorded = [case["reserved"], case["start_default_set"]]
    if given != recorded:
        return Verdict.DIFFERENT, f"at the start {given} instead of {recorded}"

    verdict = Verdict.EQUAL
    for number, step in enumerate(case["steps"]):
        before, recorded = state, _recorded(step)
        state, answer, flaw = _answer(policy, before, step)
        if excuse := _excuse(step):
            verdict = excuse
            state = _set_anew(policy, before, step)
        elif answer == recorded:
            flaw = ""
        else:
            with patch.object(static, "take_distributed", take_as_kubelet):
                state, overwritten, _ = _answer(policy, before, step)
            flaw = "" if overwritten == recorded else f"{answer} instead of {recorded}"
            verdict = Verdict.NOALIAS if verdict is Verdict.EQUAL else verdict
        if flaw:
            return Verdict.DIFFERENT, f"step {number}: {flaw}"
    return verdict, ""


def _excuse(step: Case) -> Verdict | None:
    if "unsafe" in step:
        return Verdict.UNSAFE
    return Verdict.PANIC if step.get("error", "").startswith("PANIC") else None


def _set_anew(policy: StaticPolicy, before: NodeState, step: Case) -> NodeState:
    """Make the state after a step in which the kubelet gave CPUs that were not free."""
    if "unsafe" not in step:
        return before
    owner, cpus = Owner(step["pod"], step["container"]), CPUSet.parse(step["assigned"])
    given = replace(before, assigned={**before.assigned, owner: cpus})
    after, _ = policy.allocate(given, owner, len(cpus), init=step.get("init", False))
    return after


def _recorded(step: Case) -> list[Any]:
    outcome = step.get("error", step.get("assigned"))
    return [step.get("hints_offered"), outcome, step["default_set"]]


def _answer(policy: StaticPolicy, state: NodeState, step: Case) -> tuple[NodeState, list[Any], str]:
    """Take one step: the state after it, what a recording would hold, and what is unlawful."""
    owner = Owner(step["pod"], step["container"])
    if step["op"] == "remove":
        after = policy.remove(state, owner)
        return after, [None, None, str(after.shared)], ""
    asked = quantity.parse(step["cpu"])
    if asked != int(asked):
        return state, [None, None, str(state.shared)], ""
    count = int(asked)
    held = state.assigned.get(owner, CPUSet())
    usable = state.shared - policy.reserved | state.reusable_by(owner.pod) | held
    offer = policy.hints(state, owner, count)
    flaw = unlawful(offer, policy.layout, count, usable)
    try:
        after, taken = policy.allocate(
            state, owner, count, init=step.get("init", False), nodes=step["hint"]
        )
    except (NotEnoughCPUs, SMTAlignmentError) as error:
        return (
            state,
            [listed(offer), _words(error), str(state.shared)],
            flaw or refusal(count, usable),
        )
    flaw = flaw or misfit(taken.cpus, count, usable)
    return after, [listed(offer), str(taken.cpus), str(after.shared)], flaw


def _words(error: NotEnoughCPUs | SMTAlignmentError) -> str:
    """Write a refusal as the kubelet does."""
    if isinstance(error, NotEnoughCPUs):
        facts = f"requested={error.requested}, available={error.available}"
        return f"not enough cpus available to satisfy request: {facts}"
    if error.available is None:
        facts = f"requested {error.requested} cpus not multiple cpus per core"
        return f"SMT Alignment Error: {facts} = {error.cpus_per_core}"
    return (
        f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs ="
        f" {error.available}, requested CPUs = {error.requested},"
        f" CPUs per core = {error.cpus_per_core}"
    )
