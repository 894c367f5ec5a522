"""One table of cases for the program and its reference, and random arguments."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from tests.searching import examples
from tests.starter.containers import Containers, Ended, Started, ended, why_no_namespaces
from tests.starter.reference import Plan, RefusedError, plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CASES = [
    pytest.param(case, id=case["name"])
    for file in sorted(Path(__file__).with_name("cases").glob("*.json"))
    for case in json.loads(file.read_text())
]
ONLINE = CPUSet.of(0, 1)

pytestmark = pytest.mark.skipif(
    CPUSet(os.sched_getaffinity(0)) != ONLINE, reason="these cases are for a machine of two CPUs"
)


def _words(case: Mapping[str, Any], report: Path) -> list[str]:
    return [word if word != "REPORT" else str(report) for word in case["argv"]]


@pytest.mark.parametrize("case", CASES)
def test_the_program(case: Mapping[str, Any], containers: Containers, report: Path) -> None:
    _check(case, containers, report)


@pytest.mark.parametrize("case", CASES)
def test_the_program_for_arm64(case: Mapping[str, Any], emulated: Containers, report: Path) -> None:
    if case.get("status") in {126, 127} and case["argv"].count("--process") > 1:
        pytest.skip("qemu makes vfork() a fork(), so the parent does not learn of a failed exec")
    _check(case, emulated, report)


def _check(case: Mapping[str, Any], containers: Containers, report: Path) -> None:
    containers.share(**case.get("pools", {}))
    found = containers.run(_words(case, report), case["environment"], cpus=case.get("on", "0-1"))
    assert found.status == case.get("status", 0), found.stderr
    if "stderr" in case:
        assert re.search(f"^process-starter: .*{case['stderr']}.*\n\\Z", found.stderr)
        assert not found.started
    else:
        assert found.stderr == ""
        wanted = [
            Started(CPUSet.parse(cpus), tuple(_words({"argv": argv}, report)))
            for cpus, *argv in case["started"]
        ]
        assert _in_order(found.started) == _in_order(wanted)


@pytest.mark.parametrize("case", CASES)
def test_the_reference(case: Mapping[str, Any], report: Path) -> None:
    words = _words(case, report)
    on = CPUSet.parse(case.get("on", "0-1"))
    try:
        decided = plan(words, case["environment"], case.get("pools", {}), ONLINE)
    except RefusedError:
        assert case["status"] == 125
    else:
        assert (decided.expected == on) == (case.get("status", 0) != 125)
        wanted = [(CPUSet.parse(cpus), *argv[1:]) for cpus, *argv in case.get("started", ())]
        found = [(process.cpus, *process.argv[1:]) for process in decided.processes]
        assert not wanted or found == wanted


def _in_order(started: Sequence[Started]) -> list[Started]:
    return sorted(started, key=lambda one: (one.argv, str(one.cpus)))


LISTS = st.sampled_from(["0", "1", "0-1", "1,0", "0-1,9", "8191", "8192", "", "1-0", "0-1\n", "0,"])
FILES = st.one_of(
    LISTS, st.text("019-,\n \0", max_size=6), st.text(max_size=9).map(lambda x: x + "\n")
)
VARIABLES = ["CPUPOOL_CPUS_A", "CPUPOOL_CPUS_B", "EXCLUSIVE_CPUS", "SHARED_CPUS"]
OPTIONS = st.one_of(
    st.tuples(st.just("--exclusive"), st.sampled_from(["CPUPOOL_CPUS_A", "CPUPOOL_CPUS_B", "NO"])),
    st.tuples(
        st.just("--shared"),
        st.sampled_from(["shared_a", "shared_b", "a/b", "", "x" * 255, "x" * 256]),
    ),
    st.tuples(st.just("--supervise"), st.sampled_from(["any", "last", "LAST"])),
)
COMMANDS = st.sampled_from(["REPORT"] * 8 + ["/etc", "/no/such", ""])
ARGUMENTS = st.one_of(
    st.sampled_from(["--", "--process", "0:all:0:1", "--shared"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)


@st.composite
def _commands(draw: st.DrawFn) -> list[str]:
    """Draw what follows the options: mostly right, sometimes off by one thing."""
    if draw(st.booleans()):
        return ["--", draw(COMMANDS), *draw(st.lists(ARGUMENTS, max_size=3))]
    words = []
    for number in range(draw(st.integers(0, 4))):
        command = [draw(COMMANDS), *draw(st.lists(ARGUMENTS, max_size=3))]
        where = draw(st.sampled_from([*(f"{name}:1" for name in VARIABLES), "shared:0", "all:0"]))
        words += ["--process", f"{number}:{where}:{len(command)}", *command]
    if words and draw(st.integers(0, 3)) == 0:
        changed = draw(st.integers(0, len(words) - 1))
        odd = [
            "0:all:0:1",
            "0:all:1:1",
            "0:CPUPOOL_CPUS_A:0:1",
            "0:all:0: 1",
            "9" * 30,
            "0:all:0:-1",
            "",
        ]
        words[changed : changed + draw(st.integers(0, 1))] = [draw(st.sampled_from(odd))]
    return words


@given(
    argv=st.tuples(st.lists(OPTIONS, max_size=3), _commands()).map(
        lambda drawn: [word for option in drawn[0] for word in option] + drawn[1]
    ),
    environment=st.dictionaries(st.sampled_from(VARIABLES), LISTS),
    pools=st.dictionaries(st.sampled_from(["shared_a", "shared_b"]), FILES)
    if not why_no_namespaces()
    else st.just({}),
)
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_program_agrees_with_the_reference(
    sanitized: Path,
    report: Path,
    folder: Path,
    *,
    argv: list[str],
    environment: dict[str, str],
    pools: dict[str, str],
) -> None:
    words = [str(report) if word == "REPORT" else word for word in argv]
    shutil.rmtree(folder / "pools", ignore_errors=True)
    with Containers(sanitized, folder) as containers:
        containers.share(**pools)
        nothing = ("env", "PATH=/no/such")
        found = ended(containers.start(words, environment, before=nothing, timeout_s=0))
    try:
        decided = plan(words, environment, pools, ONLINE)
    except RefusedError:
        assert (found.status, found.started) == (125, ())
        return
    if decided.expected != ONLINE:
        assert (found.status, found.started) == (125, ())
    else:
        _check_started(found, decided, str(report))


def _check_started(found: Ended, decided: Plan, report: str) -> None:
    wanted = [Started(process.cpus, process.argv) for process in decided.processes]
    statuses = {report: 0, "/etc": 126}
    failures = [statuses.get(one.argv[0], 127) for one in wanted if one.argv[0] != report]
    assert found.status == (failures[0] if failures else 0)
    if failures or decided.supervise:
        # Those that had been started were killed in the end, perhaps before they told.
        assert all(one in wanted for one in found.started)
    else:
        assert _in_order(found.started) == _in_order(wanted)
