from __future__ import annotations

import json
from typing import Any

import pytest

from cpupool.core.errors import ManifestError
from cpupool.core.names import Names
from cpupool.webhook.admission.decision import admit
from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import LargestPool, Rules
from tests.pods import ANNOTATION, container, pod, process, review
from tests.unit.webhook.admission.asked import (
    ANNOTATED,
    BOTH,
    DENIALS,
    LIMITS,
    RULES,
    admitted,
    asking,
    denial,
    processes,
    variable,
    warnings,
)


@pytest.mark.parametrize(("body", "message"), DENIALS)
def test_what_is_against_a_rule_is_refused_with_its_place_and_a_remedy(
    body: Any, message: str
) -> None:
    assert denial(body) == message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(asking(env=[variable("CPUPOOL_START_TIMEOUT", value="5")])), id="timeout"),
        pytest.param(pod(asking(env=[variable("CPU_POOLS", value="exclusive")])), id="CPU_POOLS"),
        pytest.param(pod(asking(), resources={"limits": {"cpu": "1100m"}}), id="pod-level limit"),
        pytest.param(pod(asking(), resources={"requests": {"cpu": "1"}}), id="pod-level request"),
        pytest.param(pod(asking(), processes=processes(process(cpus=2))), id="both threads"),
        pytest.param(
            pod(
                asking(pools={"exclusive-a": "1", "exclusive-b": "1"}),
                processes=processes(process(), process(pool="exclusive-b", cpus=2)),
            ),
            id="processes in two exclusive pools",
        ),
        pytest.param(
            pod(
                asking(pools={**BOTH, "exclusive-b": "1"}),
                processes=processes(process(pool="shared-a", cpus=100)),
            ),
            id="two exclusive pools and nothing pinned",
        ),
    ],
)
def test_what_is_just_within_a_rule_is_admitted(body: Any) -> None:
    assert admitted(body)


def test_annotations_beyond_the_apis_limit_are_refused_by_us() -> None:
    body = pod(asking())
    room = 256 * 1024 - len("k")
    body["metadata"]["annotations"] = {"k": "é" * (room // 2) + "x" * (room % 2)}
    assert admitted(body)
    body["metadata"]["annotations"]["k"] += "x"
    message = (
        "metadata.annotations: the annotations have 262145 bytes, and Kubernetes takes 262144;"
        " shorten them"
    )
    assert denial(body) == message
    body["metadata"]["annotations"] = {ANNOTATION: "[" * (256 * 1024 + 1 - len(ANNOTATION))}
    assert "nested too deep" in denial(body)
    body["metadata"]["annotations"] = {ANNOTATION: "[" * (256 * 1024 + 1)}
    assert denial(body) == message.replace("262145", "262162")


def test_an_annotation_of_nothing_but_mistakes_is_refused() -> None:
    text = f"[{'{},' * 80_000}{{}}]"
    assert denial(pod(asking(), processes=text)).startswith("160002 problems:\n1. ")


def test_a_message_names_eight_pools() -> None:
    rules = Rules(pools={f"shared-{number}": LargestPool(1) for number in range(10)})
    assert denial(pod(asking()), rules).endswith(
        "shared-4 or shared-5 or shared-6 or shared-7 or one of 2 others"
    )


def test_all_problems_are_in_one_message() -> None:
    body = pod(
        container(
            "a",
            pools={"exclusive-a": "1.5"},
            env=[variable("SHARED_CPUS"), variable("CPU_POOLS", value="exclusive")],
        ),
        container("b", pools={"shared-q": "5"}),
        processes=[*processes(process(), name="a"), {"container": "c"}],
    )
    assert denial(body).splitlines() == [
        "4 problems:",
        (
            f"1. {LIMITS}[nokia.k8s.io/exclusive-a]: '1.5' is not a quantity: an extended resource"
            " is requested in whole numbers; an exclusive pool counts cores, a shared one"
            " milli-CPUs"
        ),
        f"2. {ANNOTATED}[1].processes: there is no process; list at least one",
        "3. spec.containers[0].env[0]: SHARED_CPUS is set by cpupool alone; remove it",
        (
            "4. spec.containers[1].resources.limits[nokia.k8s.io/shared-q]: no pool file has an"
            " exclusive or shared pool shared-q; use exclusive-a or exclusive-b or shared-a or"
            " shared-b"
        ),
    ]


def test_a_message_shows_twenty_problems() -> None:
    lines = denial(pod(asking(), processes=[{}] * 30)).splitlines()
    assert (lines[0], len(lines), lines[-1]) == ("60 problems:", 22, "and 40 more")


def test_warnings_are_as_short_and_few_as_the_api_passes_on() -> None:
    names = Names("d" * 190 + ".io")
    body = pod(asking(resources={"limits": {names.resource("exclusive-a"): 1}}))
    unknown = {f"{place:063}": 1 for place in range(30)}
    text = json.dumps([{**processes(process())[0], **unknown}])
    body["metadata"]["annotations"] = {names.processes: text}
    found = warnings(body, Rules(names))
    assert len(found) == 16
    assert {len(warning) for warning in found} == {256}
    assert all(warning.endswith("...") for warning in found)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "there is no pod"),
        ([], "not an object"),
        ({"spec": []}, "spec: this is not an object"),
        ({"spec": {"containers": {}}}, "spec.containers: this is not a list"),
        ({"spec": {"containers": [1]}}, r"spec.containers\[0\]: this is not an object"),
        (
            {"metadata": {"annotations": {"a": 1}}},
            r'ions\[a\]: this is not text; write "1"$',
        ),
        ({"metadata": {"annotations": {"a": True}}}, r'a\]: this is not text; write "true"$'),
        ({"metadata": {"annotations": {"a": 10**5000}}}, r"a\]: this is not text$"),
        ({"metadata": {"annotations": {"a": ["1"]}}}, r"a\]: this is not text$"),
        (pod(container(command="x")), r"\[0\].command: this is not a list"),
        (pod(container(args=[1])), r"\[0\].args\[0\]: this is not text"),
        (pod(container(env=[1])), r"\[0\].env\[0\]: this is not an object"),
        (pod(container(env=[{"name": 1}])), r"\[0\].env\[0\].name: this is not text"),
        (pod(container(resources={"limits": {1: 2}})), "not an object with texts for keys"),
        (pod(asking(), resources=[]), "spec.resources: this is not an object"),
    ],
)
def test_what_is_no_pod_is_reported_with_its_place(body: Any, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        admit(body, RULES)
    response = answer(review(body), RULES)["response"]
    assert not response["allowed"]


class TestCrowds:
    def test_a_pod_with_too_many_containers_is_refused_before_they_are_looked_at(self) -> None:
        crowd = [*(container(f"c{n}") for n in range(999)), asking()]
        assert admitted(pod(*crowd))
        assert denial(pod(*crowd, "no container", initContainers=[container("init")])) == (
            "spec.containers: the pod requests pools and has 1002 containers; make several pods of"
            " at most 1000 containers"
        )

    def test_a_pod_that_requests_nothing_may_have_any_number(self) -> None:
        body = pod(*(container(f"c{n}") for n in range(1001)))
        assert admitted(body) == body


def test_a_denial_has_the_warnings_of_the_pod() -> None:
    body = pod(asking(command=[], pools={"exclusive-a": "1", "exclusive-q": "1"}))
    response = answer(review(body), RULES)["response"]
    assert not response["allowed"]
    assert [text.partition(":")[0] for text in response["warnings"]] == [
        "spec.containers[0].command"
    ]


def test_an_amount_that_cannot_be_read_hides_no_other_problem() -> None:
    wrong = {"exclusive-q": "1.5", "shared-a": "100"}
    listed = [process(pool="shared-a", cpus=50), process(pool="shared-b"), process()]
    lines = denial(pod(asking(pools=wrong), processes=processes(*listed))).splitlines()
    problems = [line.partition(": ")[2] for line in lines[1:]]
    assert [(text.partition("; ")[0]) for text in problems] == [
        "'1.5' is not a quantity: an extended resource is requested in whole numbers",
        "no pool file has an exclusive or shared pool exclusive-q",
        "container main does not request shared-b",
        "container main does not request exclusive-a",
        "they have 50 milli-CPUs of shared-a together, and container main requests 100",
    ]


def test_a_pool_with_an_unreadable_amount_is_requested_all_the_same() -> None:
    body = pod(asking(pools={"exclusive-a": "x"}), processes=processes(process()))
    assert denial(body).startswith(f"{LIMITS}[nokia.k8s.io/exclusive-a]: 'x' is not a quantity")
