"""The published schema takes what the code takes, as far as a schema can say."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import example, given
from hypothesis import strategies as st

from cpupool.core.errors import errors_in
from cpupool.webhook.admission import annotation
from tests.architecture.test_user_docs import DOCS
from tests.searching import examples

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((DOCS / "annotation.schema.json").read_text())
)
ODD = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        1.0,
        1.5,
        2.0**62,
        2.0**63,
        2**63 - 1,
        2**63,
        1e300,
        "",
        "a",
        "a\x00b",
        "é\n",
        [],
        {},
        ["a"],
        [None],
        [1],
        {"a": 1},
    ]
)
WORD = st.sampled_from(["app", "exclusive-a", "é", "a\n"])
COUNT = st.integers(1, 9) | st.sampled_from([1.0, 250.0, 2**63 - 1])


def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw what is right, or seldom anything."""
    return st.integers(0, 9).flatmap(lambda dice: ODD if dice == 0 else right)


PROCESS = st.fixed_dictionaries(
    {"process": mostly(WORD), "pool": mostly(WORD), "cpus": mostly(COUNT)},
    optional={"args": mostly(st.lists(mostly(WORD), max_size=3) | st.none()), "other": ODD},
)
CONTAINER = st.fixed_dictionaries(
    {"processes": mostly(st.lists(mostly(PROCESS), min_size=1, max_size=2))},
    optional={"supervise": mostly(st.sampled_from(["any", "last", None])), "other": ODD},
)
PARTS = st.lists(mostly(CONTAINER), max_size=3)


def named(entries: list[Any], names: list[Any]) -> list[Any]:
    """Give each entry a name: no schema can say that names differ."""
    return [
        {**entry, "container": name} if isinstance(entry, dict) else entry
        for entry, name in zip(entries, names, strict=False)
    ]


NAMES = st.lists(mostly(WORD), unique_by=repr, min_size=3, max_size=3)
DOCUMENTS = mostly(st.builds(named, PARTS, NAMES))
SOUND = [{"container": "a", "processes": [{"process": "x", "pool": "y", "cpus": 2.0}]}]


@examples(400)
@given(DOCUMENTS)
@example(SOUND)
@example([{**SOUND[0], "processes": [{"process": "x", "pool": "y"}]}])
@example([{**SOUND[0], "supervise": "never"}])
def test_the_schema_takes_an_annotation_if_the_code_does(document: Any) -> None:
    problems: list[Any] = []
    annotation.parse(json.dumps(document), "", problems)
    assert VALIDATOR.is_valid(document) is not bool(errors_in(problems))
