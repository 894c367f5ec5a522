"""What a plugin is asked for a container, in Katalyst's words and in the proposal's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.workloads import ContainerKind, ContainerRef, Pod, PodDescription
from cpupool.policies.qrm import katalyst
from cpupool.policies.qrm.questions import ContainerRole, Question
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
    return Question.of(pod, pod.containers[container], "cpu", quantity)


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


def test_of_a_pod_that_only_the_runtime_knows_a_plugin_learns_its_name() -> None:
    question = asked(replace(POD, qos=None), 2)
    assert (question.pod_role, question.pod_type, question.qos_class) == ("", "", "")
    assert question.pod_name == "web"
