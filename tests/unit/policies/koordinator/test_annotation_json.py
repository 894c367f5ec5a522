"""What an annotation must be, whichever it is."""

from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.policies.koordinator import annotation_json
from cpupool.policies.koordinator.annotation_json import AnnotationError


@pytest.mark.parametrize("text", [None, "", "null", "{}"])
def test_no_annotation_is_an_empty_object(text: str | None) -> None:
    assert annotation_json.json_object("a/b", text) == {}


@pytest.mark.parametrize("text", ["{", "[1]", '"word"', "1"])
def test_an_annotation_that_is_no_object_is_named(text: str) -> None:
    with pytest.raises(AnnotationError, match=r"a/b is .*; write a JSON object"):
        annotation_json.json_object("a/b", text)


def test_a_list_of_cpus_may_be_left_out() -> None:
    assert annotation_json.cpu_list("a/b", {}, "cpuset") == CPUSet()
    assert annotation_json.cpu_list("a/b", {"cpuset": "0-2"}, "cpuset") == CPUSet.parse("0-2")


@pytest.mark.parametrize("value", [[0], 3, "0-"])
def test_what_is_no_list_of_cpus_is_named_with_a_remedy(value: object) -> None:
    with pytest.raises(AnnotationError, match=r"a/b has in cpuset.*; ask an admin"):
        annotation_json.cpu_list("a/b", {"cpuset": value}, "cpuset", "ask an admin")


def test_a_long_value_is_shown_in_part() -> None:
    assert len(annotation_json.shown("9" * 1000)) == 63
