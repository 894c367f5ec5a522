"""What Katalyst's labels and annotations say of a pod."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.katalyst import QoSLevel
from tests import builders

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

POD = builders.pod("web")


def annotated(key: str, value: str) -> Pod:
    return replace(POD, description=katalyst.described({}, {key: value}))


def test_a_pod_that_only_the_runtime_knows_has_no_class() -> None:
    assert katalyst.qos_level(POD) is QoSLevel.SHARED
    assert POD.description.left_out
    assert not POD.description.starts_early


@pytest.mark.parametrize("level", QoSLevel)
def test_a_pod_names_its_class(level: QoSLevel) -> None:
    assert katalyst.qos_level(annotated(katalyst.QOS_LEVEL, level.value)) is level


def test_a_class_that_is_none_shares() -> None:
    assert katalyst.qos_level(annotated(katalyst.QOS_LEVEL, "gold")) is QoSLevel.SHARED


@pytest.mark.parametrize(
    ("daemon", "level", "out"),
    [
        (False, "shared_cores", False),
        (True, "shared_cores", True),
        (True, "dedicated_cores", True),
        (True, "system_cores", False),
    ],
)
def test_pods_of_daemon_sets_are_left_out_but_those_of_the_system(
    *, daemon: bool, level: str, out: bool
) -> None:
    found = katalyst.described({}, {katalyst.QOS_LEVEL: level}, of_daemon_set=daemon)
    assert found.left_out is out


@pytest.mark.parametrize("level", QoSLevel)
def test_only_a_pod_of_shared_cores_can_have_its_cpus_and_memory_later(level: QoSLevel) -> None:
    found = katalyst.described({}, {katalyst.QOS_LEVEL: level.value})
    assert found.awaits_all is (level is not QoSLevel.SHARED)


@pytest.mark.parametrize(
    ("labels", "annotations", "waits"),
    [
        ({}, {katalyst.PROPOSED_ROLE: "ETL"}, True),
        ({}, {katalyst.PROPOSED_TYPE: "offline"}, True),
        ({katalyst.POD_ROLE: "ETL"}, {}, True),
        ({}, {katalyst.POD_TYPE: "offline"}, True),
        ({"app": "web"}, {"note": "text"}, False),
        ({}, {katalyst.PROPOSED_ROLE: ""}, False),
        ({}, {katalyst.PROPOSED_ROLE: "ETL", katalyst.QOS_LEVEL: "shared_cores"}, False),
    ],
)
def test_a_role_or_a_type_without_a_class_waits_as_in_the_proposal(
    labels: dict[str, str], annotations: dict[str, str], *, waits: bool
) -> None:
    assert katalyst.described(labels, annotations).awaits_all is waits


@pytest.mark.parametrize(("text", "waits"), [("true", True), ("false", False), ("", False)])
def test_a_pod_can_get_its_answer_later(text: str, *, waits: bool) -> None:
    assert katalyst.described({}, {katalyst.SKIP_ADMIT: text}).starts_early is waits
