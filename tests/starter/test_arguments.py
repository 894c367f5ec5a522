"""From the annotation to the processes: what admission writes, as the kubelet expands it, run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import Rules
from tests.pods import container, expanded, pod, process, review, stored
from tests.searching import examples
from tests.starter.containers import Containers

if TYPE_CHECKING:
    from pathlib import Path

VARIABLES = {"CPUPOOL_CPUS_EXCLUSIVE_A": "0-1", "SHARED_CPUS": "0-1", "A B": "$(SHARED_CPUS)"}
WORDS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.lists(
        st.sampled_from(["$(SHARED_CPUS)", "$(A B)", "$", "$(", ")", "é", "\n", "'", '"', "\\"]),
        max_size=6,
    ).map("".join),
    st.sampled_from(["--", "--process", "0:all:0:1", "--supervise"]),
)
PROGRAMS = st.sampled_from(["report", "$(SHARED_CPUS)", "--process", "a\nb 'c\" $$é", "-"])
COMMANDS = st.tuples(PROGRAMS, st.lists(WORDS, max_size=4))


@given(st.lists(COMMANDS, min_size=1, max_size=5), st.booleans())
@example([("-", ["$" * 131_071])], False)
@example([("report", ["\U0001f600" * 32_767 + "xyz"]), ("-", [])], False)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_word_of_the_annotation_arrives(
    starter: Path,
    report: Path,
    folder: Path,
    commands: list[tuple[str, list[str]]],
    ascii_only: bool,
) -> None:
    for name, _ in commands:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(report)
    wanted = [(str(folder / name), *words) for name, words in commands]
    pinned, *others = wanted
    specs = [process(*pinned), *(process(*words, pool="shared-a") for words in others)]
    text = json.dumps([{"container": "main", "processes": specs}], ensure_ascii=ascii_only)
    body = pod(
        container(pools={"exclusive-a": 1, "shared-a": len(others)}),
        processes=text,
    )
    response = answer(review(body), Rules())["response"]
    (made,) = stored(body, response)["spec"]["containers"]
    with Containers(starter, folder) as containers:
        found = containers.run([expanded(word, VARIABLES) for word in made["args"]], VARIABLES)
    assert found.stderr == ""
    assert sorted(one.argv for one in found.started) == sorted(wanted)
