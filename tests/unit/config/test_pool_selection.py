"""Which pool file a node takes."""

from __future__ import annotations

import pytest

from cpupool.config import pool_selection
from cpupool.core.errors import ConfigError, Severity
from tests.unit.config.poolconfig.files import files


@pytest.mark.parametrize(
    ("selectors", "labels", "taken"),
    [
        pytest.param(["t: x", "t: y"], {"t": "y", "z": "1"}, "b.yaml", id="the one that matches"),
        pytest.param(["t: x, u: y"], {"t": "x"}, None, id="one label of two is no match"),
        pytest.param(["t: x, u: y"], {"t": "x", "u": "y"}, "a.yaml", id="all labels match"),
        pytest.param(["t: x"], {}, None, id="a node without labels"),
        pytest.param(["t: ''"], {}, None, id="an empty value is not a missing label"),
        pytest.param([""], {"t": "x"}, "a.yaml", id="an empty selector is for every node"),
        pytest.param(["", "t: x"], {"t": "x"}, "b.yaml", id="a match wins over no selector"),
        pytest.param(["", "t: x"], {"t": "y"}, "a.yaml", id="no selector wins over no match"),
        pytest.param([], {"t": "x"}, None, id="no files"),
    ],
)
def test_a_node_takes_the_file_whose_labels_all_match(
    selectors: list[str], labels: dict[str, str], taken: str | None
) -> None:
    chosen = pool_selection.select(files(*selectors), labels)
    assert (chosen.name if chosen else None) == taken


def test_two_files_for_one_node_are_an_error_that_names_both() -> None:
    with pytest.raises(ConfigError) as raised:
        pool_selection.select(files("t: x", "u: y", "v: z"), {"t": "x", "u": "y"})
    assert str(raised.value) == (
        "b.yaml:1:1: nodeSelector: b.yaml and a.yaml (a.yaml:1:1) both match this node;"
        " change one so that no node matches both"
    )


def test_every_further_file_for_one_node_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        pool_selection.select(files("", "", ""), {"t": "x"})
    assert [problem.what[:17] for problem in raised.value.problems] == [
        "b.yaml and a.yaml",
        "c.yaml and a.yaml",
    ]


@pytest.mark.parametrize(
    ("selectors", "count"),
    [
        pytest.param(["t: x", "t: y"], 0, id="one label with two values"),
        pytest.param(["t: x", "u: y"], 0, id="two labels that a node may have one of"),
        pytest.param(["t: x", "t: x"], 1, id="the same labels"),
        pytest.param(["t: x", "t: x, u: y"], 1, id="some of the other's labels"),
        pytest.param(["t: x, u: y", "t: x"], 1, id="the other way round"),
        pytest.param(["", "t: x"], 0, id="every node and some nodes"),
        pytest.param(["", "", ""], 3, id="every pair"),
    ],
)
def test_files_that_always_match_together_are_rivals(selectors: list[str], count: int) -> None:
    problems = pool_selection.rivals(files(*selectors))
    assert len(problems) == count
    assert all(problem.severity is Severity.ERROR for problem in problems)


def test_rivals_are_named_with_their_places() -> None:
    assert [str(problem) for problem in pool_selection.rivals(files("t: x", "t: x"))] == [
        (
            "b.yaml:1:1: nodeSelector: b.yaml and a.yaml (a.yaml:1:1) both match every node that"
            " one of"
            " them is for; change one so that no node matches both"
        )
    ]
