"""How a pod is described to plugins, in Katalyst's words and in the proposal's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.resource_plugins import ContainerRole, Question
from cpupool.core.workloads import ContainerKind, ContainerRef, Pod, PodDescription
from cpupool.wire import katalyst
from cpupool.wire.katalyst import QoSLevel
from tests import builders

POD = builders.pod(
    "web",
    builders.container("init", ContainerKind.INIT),
    builders.container("proxy", ContainerKind.SIDECAR),
    builders.container("main"),
    builders.container("log"),
)


def annotated(key: str, value: str, pod: Pod = POD) -> Pod:
    return replace(pod, description=PodDescription({}, {key: value}))


def asked(pod: Pod, container: int, quantity: float = 2.0) -> Question:
    return katalyst.question(pod, pod.containers[container], "cpu", quantity)


def test_a_question_has_all_that_a_plugin_learns() -> None:
    texts = PodDescription({katalyst.POD_ROLE: "online"}, {katalyst.POD_TYPE: "batch"})
    assert asked(replace(POD, description=texts), 2) == Question(
        ContainerRef("web-uid", "main"),
        "default",
        "web",
        ContainerRole.MAIN,
        0,
        "cpu",
        2.0,
        "online",
        "batch",
        texts.labels,
        texts.annotations,
        "Burstable",
    )


@pytest.mark.parametrize(
    ("container", "role", "index"),
    [
        (0, ContainerRole.INIT, 0),
        (1, ContainerRole.SIDECAR, 1),
        (2, ContainerRole.MAIN, 0),
        (3, ContainerRole.SIDECAR, 1),
    ],
)
def test_the_first_container_is_the_main_one(
    container: int, role: ContainerRole, index: int
) -> None:
    question = asked(POD, container)
    assert (question.role, question.index) == (role, index)


def test_an_annotation_names_another_main_container() -> None:
    pod = annotated(katalyst.MAIN_CONTAINER, "log")
    roles = [asked(pod, container).role for container in (2, 3)]
    assert roles == [ContainerRole.SIDECAR, ContainerRole.MAIN]


@pytest.mark.parametrize("key", [katalyst.POD_ROLE, katalyst.PROPOSED_ROLE])
def test_a_role_may_be_an_annotation(key: str) -> None:
    assert asked(annotated(key, "online"), 2).pod_role == "online"


def test_a_type_may_have_the_proposals_name() -> None:
    assert asked(annotated(katalyst.PROPOSED_TYPE, "batch"), 2).pod_type == "batch"


def test_a_pod_that_only_the_runtime_knows_has_no_class_and_is_left_out() -> None:
    unknown = replace(POD, qos=None)
    assert katalyst.qos_level(unknown) is QoSLevel.SHARED
    assert katalyst.is_left_out(unknown)
    assert not katalyst.waits_for_reconcile(unknown)
    question = asked(unknown, 2)
    assert (question.pod_role, question.pod_type, question.qos_class) == ("", "", "")


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
    texts = PodDescription({}, {katalyst.QOS_LEVEL: level}, of_daemon_set=daemon)
    assert katalyst.is_left_out(replace(POD, description=texts)) is out


@pytest.mark.parametrize(("text", "waits"), [("true", True), ("false", False), ("", False)])
def test_a_pod_can_get_its_answer_later(text: str, *, waits: bool) -> None:
    assert katalyst.waits_for_reconcile(annotated(katalyst.SKIP_ADMIT, text)) is waits
