"""Which rule of admission a pod of a class breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.orchestration import Orchestration, QoS
from cpupool.policies.koordinator import classes
from tests import builders

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod


def pod(qos: QoS | None, milli: int = 2000, *, prod: bool = True, pools: int = 0) -> Pod:
    requests = builders.asking({"exclusive_a": pools} if pools else {})
    main = replace(builders.container(), requests=requests, request_milli=milli)
    return replace(builders.pod("web", main), orchestration=Orchestration(qos, prod=prod))


UNEQUAL = replace(pod(QoS.LSR), unequal="limits.memory 2Gi is not the request 1Gi")


@pytest.mark.parametrize(
    ("found", "rule"),
    [
        pytest.param(
            pod(QoS.LSR, prod=False),
            "a pod of the class LSR owns CPUs only with the priority class koord-prod, so this one"
            " shares",
            id="LSR without koord-prod",
        ),
        pytest.param(
            pod(QoS.LSE, 1500),
            "a pod of the class LSE owns whole CPUs, and this one requests 1500m and shares",
            id="LSE with a part of a CPU",
        ),
        pytest.param(
            UNEQUAL,
            "limits.memory 2Gi is not the request 1Gi: a pod of the class LSR is to have equal"
            " requests and limits",
            id="another limit than its request",
        ),
    ],
)
def test_a_rule_of_admission_that_a_pod_breaks_is_named(found: Pod, rule: str) -> None:
    assert classes.irregular(found) == rule


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(pod(QoS.LSR), id="a regular LSR pod"),
        pytest.param(pod(QoS.LSE, prod=False), id="LSE has the priority class by admission"),
        pytest.param(pod(QoS.LS, 1500, prod=False), id="another class"),
        pytest.param(replace(UNEQUAL, orchestration=None), id="no class"),
        pytest.param(pod(QoS.LSR, 1500, pools=1), id="a pod with devices of a pool"),
        pytest.param(replace(UNEQUAL, cgroup_uid="hash"), id="the mirror of a static pod"),
    ],
)
def test_other_pods_break_none(found: Pod) -> None:
    assert classes.irregular(found) == ""
