"""The fingerprint of pods by which a scheduler knows what an agent has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.wire.pod_fingerprint import fingerprint
from tests.conformance.oracle.verdicts import Verdict

if TYPE_CHECKING:
    from tests.conformance.oracle.verdicts import Case, Machines


def check(case: Case, _machines: Machines) -> tuple[Verdict, str]:
    """Compare the fingerprint of the pods as they come."""
    given = fingerprint((namespace, name) for namespace, name in case["pods"])
    if given != case["fingerprint"]:
        return Verdict.DIFFERENT, f"{given} instead of {case['fingerprint']}"
    return Verdict.EQUAL, ""
