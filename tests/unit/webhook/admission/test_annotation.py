"""The annotation of processes: what is read from it, and everything that is wrong with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from cpupool.core.errors import Severity
from cpupool.webhook.admission import annotation
from cpupool.webhook.admission.annotation import ContainerProcesses, ProcessSpec, Supervision
from tests.architecture.test_user_docs import DOCS
from tests.pods import process

if TYPE_CHECKING:
    from cpupool.core.errors import Problem

PATH = "metadata.annotations[nokia.k8s.io/cpus]"


def parse(value: Any) -> tuple[tuple[ContainerProcesses, ...], list[Problem]]:
    problems: list[Problem] = []
    text = value if isinstance(value, str) else json.dumps(value)
    return annotation.parse(text, PATH, problems), problems


def one(**changes: Any) -> list[dict[str, Any]]:
    """Make an annotation of one container with one process, of which some keys are changed."""
    changed = {**process(), **changes}
    return [{"container": "main", "processes": [{k: v for k, v in changed.items() if v != ...}]}]


def test_containers_and_processes_keep_their_order() -> None:
    found, problems = parse(
        [
            {
                "container": "b",
                "processes": [
                    {
                        "process": "/bin/sh",
                        "args": ["-c", 'é "$X"\n'],
                        "pool": "shared-a",
                        "cpus": 9,
                    },
                    {"process": "app", "pool": "exclusive-a", "cpus": 2},
                ],
            },
            {"container": "a", "processes": [process("x")], "supervise": "any"},
        ]
    )
    assert problems == []
    assert found == (
        ContainerProcesses(
            "b",
            (
                ProcessSpec("/bin/sh", ("-c", 'é "$X"\n'), "shared-a", 9),
                ProcessSpec("app", (), "exclusive-a", 2),
            ),
        ),
        ContainerProcesses("a", (ProcessSpec("x", (), "exclusive-a", 1),), Supervision.ANY),
    )
    assert [entry.path for entry in found] == [f"{PATH}[0]", f"{PATH}[1]"]


FIRST = "[0].processes[0]"
NO_COUNTS: list[Any] = [0, -1, 0.0, 1.5, 2.0**63, "2", True, [], 2**63]
REFUSED = [
    pytest.param("", "", "this is not JSON: Expecting value: line 1 column 1", id="empty"),
    pytest.param("[{]", "", "this is not JSON: Expecting property name", id="no JSON"),
    pytest.param("[" * 100_000, "", "nested too deep", id="nested too deep"),
    pytest.param(
        "[" + "9" * 5000 + "]",
        "",
        "this is not JSON: a number has thousands of digits",
        id="a number too long",
    ),
    pytest.param({}, "", "not a list", id="an object for the list"),
    pytest.param([], "", "it names no container; name one, or remove", id="no container"),
    pytest.param("null", "", "it names no container", id="null"),
    pytest.param(["main"], "[0]", "not an object; write one with container, pro", id="a text"),
    pytest.param([{"processes": [process()]}], "[0].container", "missing", id="no name"),
    pytest.param(
        [{"container": "", "processes": [process()]}], "[0].container", "missing", id="empty name"
    ),
    pytest.param([{"container": "a"}], "[0].processes", "there is no process", id="no list"),
    pytest.param(
        [{"container": "a", "processes": []}],
        "[0].processes",
        "there is no process",
        id="no process",
    ),
    pytest.param(
        [{"container": "a", "processes": {}}], "[0].processes", "not a list", id="an object inside"
    ),
    pytest.param([{"container": "a", "processes": [1]}], FIRST, "not an object", id="a number"),
    pytest.param(
        [{"container": "a", "processes": [process()], "supervise": True}],
        "[0].supervise",
        "neither any nor last",
        id="another supervision",
    ),
    pytest.param(
        one() + one(), "[1]", f"container main stands here twice, first at {PATH}[0]", id="twice"
    ),
    pytest.param(one(process=...), f"{FIRST}.process", "missing", id="no program"),
    pytest.param(one(process=1), f"{FIRST}.process", "not text", id="a number for a program"),
    pytest.param(one(pool=...), f"{FIRST}.pool", "missing", id="no pool"),
    pytest.param(one(pool=""), f"{FIRST}.pool", "missing", id="an empty pool"),
    pytest.param(one(args="-c"), f"{FIRST}.args", "not a list", id="text for arguments"),
    pytest.param(one(args=["a", None]), f"{FIRST}.args[1]", "not text", id="null in arguments"),
    pytest.param(one(args=["a\0"]), f"{FIRST}.args[0]", "a NUL character", id="NUL"),
    pytest.param(one(args=["\ud800"]), f"{FIRST}.args[0]", "a surrogate pair", id="no Unicode"),
    pytest.param(
        one(args=["é" * 65_536]),
        f"{FIRST}.args[0]",
        "it has 131072 bytes, and the kernel takes arguments of 131071",
        id="an argument too long",
    ),
    pytest.param(one(cpus=...), f"{FIRST}.cpus", "missing", id="no cpus"),
    *(
        pytest.param(one(cpus=cpus), f"{FIRST}.cpus", "not a whole number above 0", id=f"{cpus!r}")
        for cpus in NO_COUNTS
    ),
]


@pytest.mark.parametrize(("value", "where", "words"), REFUSED)
def test_what_is_wrong_is_reported_with_its_place(value: Any, where: str, words: str) -> None:
    found, (problem,) = parse(value)
    assert problem.path == PATH + where
    assert words in f"{problem.what}; {problem.remedy}"
    assert problem.severity is Severity.ERROR
    assert len(found) == (where == "[1]")


def test_everything_wrong_is_found_at_once_and_the_rest_is_read() -> None:
    found, problems = parse([{"processes": [{"args": 1}]}, *one(), {"container": "a"}])
    assert [problem.path.removeprefix(PATH) for problem in problems] == [
        "[0].container",
        "[0].processes[0].args",
        "[0].processes[0].process",
        "[0].processes[0].pool",
        "[0].processes[0].cpus",
        "[2].processes",
    ]
    assert [entry.container for entry in found] == ["main"]


@pytest.mark.parametrize("written", ["2", "2.0", "2e0", "0.2e1"])
def test_a_whole_number_is_one_in_any_form(written: str) -> None:
    found, problems = parse(json.dumps(one(cpus=7)).replace("7", written))
    ((spec,),) = (entry.processes for entry in found)
    assert (problems, spec.cpus, type(spec.cpus)) == ([], 2, int)


def test_an_argument_as_long_as_the_kernel_takes_is_read() -> None:
    found, problems = parse(one(args=["x" * 131_071]))
    assert problems == []
    assert len(found[0].processes[0].args[0]) == 131_071


def test_unknown_keys_are_passed_over_with_a_hint() -> None:
    found, problems = parse([{**one(CPUs=2, zzz=1, args=...)[0], "a\nb": 0}])
    assert len(found) == 1
    assert [str(problem) for problem in problems] == [
        rf"warning: {PATH}[0]: the key 'a\nb' has no meaning here; remove it",
        f"warning: {PATH}{FIRST}: the key CPUs has no meaning here; did you mean cpus?",
        f"warning: {PATH}{FIRST}: the key zzz has no meaning here; remove it",
    ]


def test_keys_in_another_case_are_taken_with_a_warning() -> None:
    """CPU-Pooler takes them: Go's encoding/json compares keys without their case."""
    entry = {"Container": "main", "PROCESSES": one(cpus=..., CPUs=2)[0]["processes"]}
    found, problems = parse([entry])
    assert found == parse(one(cpus=2))[0]
    assert [str(problem) for problem in problems] == [
        f"warning: {PATH}[0]: the key Container is taken for container; write that",
        f"warning: {PATH}[0]: the key PROCESSES is taken for processes; write that",
        f"warning: {PATH}{FIRST}: the key CPUs is taken for cpus; write that",
    ]


def test_an_exact_key_wins_over_one_in_another_case() -> None:
    for entry in ({"CPUs": 2, **process()}, {**process(), "CPUs": 2}):
        found, problems = parse([{"container": "main", "processes": [entry]}])
        assert found == parse(one())[0]
        assert len(problems) == 1


SCHEMA = json.loads((DOCS / "annotation.schema.json").read_text())
BEYOND_A_SCHEMA = {"twice", "no Unicode", "an argument too long"}
"""What JSON Schema cannot say: it counts characters, not bytes."""


@pytest.mark.parametrize(
    "value", [case.values[0] for case in REFUSED if case.id not in BEYOND_A_SCHEMA], ids=str
)
def test_the_schema_refuses_what_the_code_refuses(value: Any) -> None:
    try:
        document = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_the_schema_takes_what_the_code_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate([{**one(args=None, cpus=9)[0], "supervise": "last", "x": 1}], SCHEMA)
    jsonschema.validate(one(args=...), SCHEMA)
