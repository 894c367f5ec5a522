"""A pod's words about changes of its CPUs, as a node reads them and the webhook checks them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import DYNAMIC, CPUManager
from cpupool.core.errors import errors_in
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import CPUMoves
from cpupool.policies.dynamic import pod_words
from cpupool.policies.dynamic.policy import DynamicPolicy
from cpupool.webhook.admission.decision import Admitted, Denied, admit, admit_update
from cpupool.webhook.admission.rules import Rules
from tests.pods import container, pod

NOTICE, MOVES = "nokia.k8s.io/cpu-notice-seconds", "nokia.k8s.io/cpu-moves"
OURS = Names()
NO_NUMBERS = ("", "-1", "+1", "1.5", "010", " 1", "1\n", "1e1", "ten", "3601", "٣", "9" * 5000)
"""What is no whole number of seconds that any node could give."""


def file_of(policy: str, longest_s: int) -> NodePools:
    return NodePools.of(
        Pool.named("default", "0-7"),
        cpu_manager=CPUManager(policy, reserved=1, max_notice_s=longest_s),
    )


def saying(annotations: dict[str, str], **fields: Any) -> dict[str, Any]:
    body = pod(container(**fields))
    body["metadata"]["annotations"] = annotations
    return body


def denial(annotations: dict[str, str], rules: Rules = Rules()) -> str:  # noqa: B008
    """Return why a pod is not admitted; empty if it is."""
    decision = admit(saying(annotations), rules)
    return decision.message if isinstance(decision, Denied) else ""


@pytest.mark.parametrize(
    ("annotations", "notice_s", "moves", "misread"),
    [
        ({}, None, "never", ()),
        ({NOTICE: "0"}, 0, "never", ()),
        ({NOTICE: "30", MOVES: "any"}, 30, "any", ()),
        ({MOVES: "same-l3"}, None, "same-l3", ()),
        ({MOVES: "Any"}, None, "never", ("cpu-moves",)),
        ({NOTICE: "x", MOVES: ""}, None, "never", ("cpu-notice-seconds", "cpu-moves")),
        ({"example.com/cpu-notice-seconds": "x"}, None, "never", ()),
    ],
)
def test_a_node_reads_the_words_of_its_domain(
    annotations: dict[str, str], notice_s: int | None, moves: str, misread: tuple[str, ...]
) -> None:
    assert pod_words.of_pod(annotations, OURS) == (notice_s, CPUMoves(moves), misread)


@pytest.mark.parametrize("written", NO_NUMBERS)
def test_what_is_no_number_of_seconds_counts_for_nothing(written: str) -> None:
    assert pod_words.of_pod({NOTICE: written}, OURS).notice_s is None
    assert f"metadata.annotations[{NOTICE}]: " in denial({NOTICE: written})


def test_a_denial_says_what_to_write() -> None:
    rules = Rules().knowing([file_of(DYNAMIC, 10)])
    what = f"metadata.annotations[{NOTICE}]: %s is no notice that a node can give; write a whole"
    assert denial({NOTICE: "soon"}, rules) == (
        f"{what % 'soon'} number of seconds, from 0 to 10, the largest maxNoticeSeconds of the pool"
        " files"
    )
    assert denial({NOTICE: "010"}, rules) == (
        f"{what % '010'} number of seconds without leading zeros, from 0 to 10, the largest"
        " maxNoticeSeconds of the pool files"
    )
    assert denial({MOVES: "some"}) == (
        f"metadata.annotations[{MOVES}]: unknown value some; use never or same-l3 or same-numa or"
        " any"
    )
    assert denial({MOVES: "samel3"}).endswith("did you mean same-l3?")


@pytest.mark.parametrize("files", [[], [file_of("static", 10)]])
def test_without_a_pool_file_that_says_the_longest_notice_a_denial_names_the_default(
    files: list[NodePools],
) -> None:
    assert denial({NOTICE: "11"}, Rules().knowing(files)).endswith(
        "from 0 to 10, the default of maxNoticeSeconds: no pool file with policy: dynamic is known"
    )


@pytest.mark.parametrize("word", ["never", "same-l3", "same-numa", "any"])
def test_a_known_word_has_no_warning(word: str) -> None:
    decision = admit(saying({MOVES: word}), Rules())
    assert isinstance(decision, Admitted)
    assert decision.warnings == ()


@pytest.mark.parametrize(
    ("files", "longest_s"),
    [
        ([], 10),
        ([file_of("static", 10)], 10),
        ([file_of(DYNAMIC, 5), file_of("static", 10)], 5),
        ([file_of(DYNAMIC, 0)], 0),
        ([file_of(DYNAMIC, 5), file_of(DYNAMIC, 60), file_of("of a package", 10)], 60),
    ],
)
def test_a_notice_is_at_most_that_of_any_node(files: list[NodePools], longest_s: int) -> None:
    rules = Rules().knowing(files)
    assert denial({NOTICE: str(longest_s)}, rules) == ""
    assert f"from 0 to {longest_s}," in denial({NOTICE: str(longest_s + 1)}, rules)


def test_a_pod_with_pools_is_checked_too_and_static_pods_are_not() -> None:
    with_pools = saying({NOTICE: "x", MOVES: "x"}, pools={"shared-a": 1})
    decision = admit(with_pools, Rules())
    assert isinstance(decision, Denied)
    assert decision.message.startswith("2 problems:")
    assert denial({NOTICE: "x", "kubernetes.io/config.mirror": "1"}) == ""


class Longer(DynamicPolicy):
    """A policy of a package that derives from `dynamic`."""


def test_a_policy_that_derives_from_it_adds_no_second_problem() -> None:
    longer = CPUManager("longer", max_notice_s=20, installed=Longer)
    rules = Rules().knowing([NodePools(cpu_manager=longer)])
    assert "problems" not in denial({NOTICE: "21"}, rules)
    assert denial({NOTICE: "20"}, rules) == ""


def test_another_domain_has_words_of_its_own() -> None:
    rules = Rules(Names("example.com"))
    assert denial({NOTICE: "x", MOVES: "x"}, rules) == ""
    assert "example.com/cpu-moves" in denial({"example.com/cpu-moves": "x"}, rules)


@pytest.mark.parametrize(
    ("before", "after", "admitted"),
    [
        ({}, {NOTICE: "3"}, True),
        ({NOTICE: "3"}, {}, True),
        ({NOTICE: "3"}, {NOTICE: "11"}, False),
        ({}, {MOVES: "x"}, False),
        ({NOTICE: "11"}, {NOTICE: "11", "a": "b"}, True),
        ({NOTICE: "11"}, {NOTICE: "12"}, False),
    ],
)
def test_a_later_edit_may_bring_no_new_problem(
    before: dict[str, str], after: dict[str, str], admitted: bool
) -> None:
    decision = admit_update(saying(after), saying(before), Rules())
    assert isinstance(decision, Admitted) == admitted


WORDS = st.text(max_size=5) | st.sampled_from(
    ["0", "7", "10", "11", "3600", "never", "any", "same-l3"]
)


@given(st.dictionaries(st.sampled_from([NOTICE, MOVES, "a/b"]), WORDS), st.integers(0, 3600))
def test_a_node_with_the_longest_notice_follows_what_is_admitted(
    annotations: dict[str, str], longest_s: int
) -> None:
    read = pod_words.of_pod(annotations, OURS)
    follows = not read.misread and (read.notice_s or 0) <= longest_s
    problems = errors_in(pod_words.problems(annotations, OURS, longest_s))
    assert (not problems) == follows
