"""Katalyst's controller and regulator, and the sizes of pools that fit together."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any

from cpupool.core.errors import NotEnoughCPUs
from cpupool.plugins import pool_sizes
from cpupool.plugins.load_controller import Controller, Gains, Limits, Regulator
from tests.conformance.oracle.verdicts import BrokenRecording, Verdict

if TYPE_CHECKING:
    from tests.conformance.oracle.verdicts import Case, Machines


def check_controller(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Play the measurements of a case."""
    given = case["params"]
    gains = Gains(
        given["kpp"],
        given["kpn"],
        given["deadband_upper"],
        given["deadband_lower"],
        given["kdp"],
        given["kdn"],
        given["adjust_upper"],
        given["adjust_lower"],
    )
    controller, upper = Controller(), case["upper"]
    for step in case["steps"]:
        controller = controller.after(
            gains,
            cpus=step["knob"],
            current=step["current"],
            target=case["target"],
            upper=upper,
        )
        found = controller.needed(lower=case["lower"], upper=upper, inverse=case["direct"])
        if not isclose(found, step["result"], rel_tol=1e-9):
            return Verdict.DIFFERENT, f"{found} instead of {step['result']}"
    return Verdict.EQUAL, ""


def check_regulator(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Play the decisions of a case; the last decrease is at -30 s."""
    limits = Limits(
        case["lower"],
        case["upper"],
        case["reserved_for_allocate"],
        case["ht_aligned"],
        case["max_up"],
        case["max_down"],
        case["min_down_period_s"],
    )
    regulator = Regulator(shrunk_s=-30.0)
    for step in case["steps"]:
        regulator = regulator.after(
            limits, step["want"], in_force=step["effective"], now_s=step["t"]
        )
        if regulator.size != step["result"]:
            return Verdict.DIFFERENT, f"{regulator.size} instead of {step['result']}"
    return Verdict.EQUAL, ""


def check_sizes(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Compare sizes; where Go's order of maps decides, one of the recorded answers."""
    right = [{"error": True} if "error" in each else each for each in _recorded(case)]
    found = _sizes(case)
    if found in right:
        return Verdict.EQUAL, ""
    return Verdict.DIFFERENT, f"{found} instead of {right}"


def _recorded(case: Case) -> list[Any]:
    return list(case["one_of"]) if "one_of" in case else [case["result"]]


def _sizes(case: Case) -> dict[str, Any]:
    pools = case["pools"]
    match case["fn"]:
        case "normalize":
            sizes = pool_sizes.normalized(pools, case["target"])
            return {"error": True} if sizes is None else {"sizes": sizes}
        case "proportional":
            sizes = pool_sizes.proportional(pools, case["available"])
            return {"sizes": sizes, "total": sum(sizes.values())}
        case "regulate":
            expands = case["allow_expand"]
            fit = pool_sizes.fitted(pools, case["unexpandable"], case["available"], expands=expands)
            return fit._asdict()
        case "overlap":
            try:
                return {"sizes": pool_sizes.overlapping(pools, case["required"])}
            except NotEnoughCPUs:
                return {"error": True}
    raise BrokenRecording(f"the function {case['fn']!r} is not known")
