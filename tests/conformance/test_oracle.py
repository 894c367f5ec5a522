"""cpupool chooses as the kubelet and Koordinator do: every recorded case, and the runner itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.static import policy
from tests.conformance.oracle import take_by_topology
from tests.conformance.oracle.__main__ import main, run_file
from tests.conformance.oracle.verdicts import TOPOLOGIES, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.cpuset import CPUSet
    from cpupool.policies.accumulators.kubelet import Taken
    from cpupool.policies.layout import Layout

DATA = Path(__file__).resolve().parents[1] / "data"

MACHINE: dict[str, Any] = {"id": "m", "cpus": [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0]]}
CASE: dict[str, Any] = {
    "topo": "m",
    "fn": "packed",
    "avail": "0-1",
    "n": 1,
    "sort": "packed",
    "uncore": False,
}


RECORDINGS: Mapping[str, Mapping[Verdict, int]] = {
    "kubelet_oracle/take_by_topology.jsonl.gz": {
        Verdict.EQUAL: 3243,
        Verdict.NOALIAS: 25,
        Verdict.HANG: 10,
        Verdict.UNSAFE: 40,
    },
    "kubelet_oracle/cpu_hints.jsonl.gz": {Verdict.EQUAL: 810, Verdict.PANIC: 12},
    "kubelet_oracle/static_policy.jsonl.gz": {
        Verdict.EQUAL: 369,
        Verdict.NOALIAS: 2,
        Verdict.UNSAFE: 11,
        Verdict.PANIC: 4,
    },
    "kubelet_oracle/topology_merge.jsonl.gz": {Verdict.EQUAL: 500},
    "koordinator_oracle/take_cpus.jsonl.gz": {Verdict.EQUAL: 1099, Verdict.WRONG_SIZE: 1},
    "koordinator_node_oracle/be_quota.jsonl.gz": {Verdict.EQUAL: 134},
    "koordinator_node_oracle/be_select.jsonl.gz": {Verdict.EQUAL: 400},
    "koordinator_node_oracle/be_suppress_cpus.jsonl.gz": {Verdict.EQUAL: 377, Verdict.PANIC: 23},
    "koordinator_node_oracle/container_cpuset.jsonl.gz": {
        Verdict.EQUAL: 329,
        Verdict.ON_PURPOSE: 5,
    },
    "koordinator_node_oracle/pod_fingerprint.jsonl.gz": {Verdict.EQUAL: 134},
    "koordinator_node_oracle/share_pools.jsonl.gz": {Verdict.EQUAL: 400},
    "katalyst_oracle/cpu_hints.jsonl.gz": {Verdict.EQUAL: 600},
    "katalyst_oracle/memory_hints.jsonl.gz": {Verdict.EQUAL: 467},
    "katalyst_oracle/pid.jsonl.gz": {Verdict.EQUAL: 134},
    "katalyst_oracle/pool_sizes.jsonl.gz": {Verdict.EQUAL: 800},
    "katalyst_oracle/regulator.jsonl.gz": {Verdict.EQUAL: 134},
    "katalyst_oracle/take_cpus.jsonl.gz": {Verdict.EQUAL: 1200},
    "katalyst_oracle/topology_merge.jsonl.gz": {Verdict.EQUAL: 597, Verdict.MAP_ORDER: 3},
}


@pytest.mark.parametrize("file", RECORDINGS)
def test_every_recorded_answer_is_given(file: str) -> None:
    result = run_file(DATA / file)

    assert result.differences == []
    assert result.verdicts == RECORDINGS[file]


def test_as_koordinator_no_difference_is_on_purpose() -> None:
    file = DATA / "koordinator_node_oracle" / "container_cpuset.jsonl.gz"

    assert run_file(file, as_koordinator=True).verdicts == {Verdict.EQUAL: 334}


def test_every_recording_is_tested_here() -> None:
    files = {str(path.relative_to(DATA)) for path in DATA.glob("*_oracle/*.jsonl.gz")}

    assert {file for file in files if not file.endswith(TOPOLOGIES)} == set(RECORDINGS)


def record(
    folder: Path, *cases: Mapping[str, Any] | str, name: str = "kubelet/take_by_topology.jsonl.gz"
) -> Path:
    """Write a recording of one machine, and return its folder, which names a program."""
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    lines = [case if isinstance(case, str) else json.dumps(case) for case in cases]
    (file.parent / TOPOLOGIES).write_bytes(gzip.compress(json.dumps(MACHINE).encode()))
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return file.parent


def life(shared: str = "0-1") -> dict[str, Any]:
    """Record a node whose only container gets the reserved CPU, and leaves these CPUs shared."""
    owner = {"pod": "p", "container": "c"}
    given = {"hint": None, "hints_offered": [[[0], True]], "assigned": "0", "unsafe": "0"}
    return {
        "topo": "m",
        "options": {},
        "num_reserved": 1,
        "reserved_arg": "0",
        "reserved": "0",
        "start_default_set": "0-1",
        "steps": [
            {"op": "allocate", **owner, "cpu": "1", **given, "default_set": "1"},
            {"op": "remove", **owner, "default_set": shared},
        ],
    }


def refuse(layout: Layout, available: CPUSet, count: int, **_: object) -> Taken:
    """Take nothing."""
    raise NotEnoughCPUs(count, len(available))


def test_a_folder_without_differences_is_a_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(tmp_path, CASE | {"result": "0"}, CASE | {"n": 3, "error": "not enough"})

    assert main([str(folder)]) == 0

    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["file", "cases", "equal"]
    assert line.split()[:3] == ["kubelet/take_by_topology.jsonl.gz", "2", "2"]


def test_a_difference_is_listed_and_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(tmp_path, CASE | {"result": "0"}, CASE | {"result": "1"})

    assert main([str(folder)]) == 1

    assert capsys.readouterr().out.splitlines()[-1].endswith(".gz:2: 0 instead of 1")


@pytest.mark.parametrize("pods", [[["default", "web"]], [["web", "default"], ["a", "b"]]])
def test_a_fingerprint_of_other_pods_is_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pods: list[list[str]]
) -> None:
    of_no_pods = "pfp0v001ef46db3751d8e999"
    cases = ({"pods": listed, "fingerprint": of_no_pods} for listed in ([], pods))
    folder = record(tmp_path, *cases, name="koordinator/pod_fingerprint.jsonl.gz")

    assert main([str(folder)]) == 1

    shown = capsys.readouterr().out.splitlines()[-1]
    assert "pod_fingerprint.jsonl.gz:2: pfp0v001" in shown
    assert shown.endswith(f" instead of {of_no_pods}")


def test_folders_are_told_apart_by_their_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet = record(tmp_path, CASE | {"result": "0"})
    merge = {"nodes": [0], "prefer_closest": False, "providers": [], "results": {}}
    record(tmp_path, merge, name="kubelet/topology_merge.jsonl.gz")
    merge = {"nodes": [0], "align": [], "providers": [], "results": {}}
    katalyst = record(tmp_path, merge, name="katalyst/topology_merge.jsonl.gz")
    koordinator = record(tmp_path, {"any": "case"}, name="koordinator/scheduling.jsonl.gz")
    folders = [str(katalyst), str(koordinator), str(kubelet)]

    assert main(folders) == 0
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["katalyst/topology_merge.jsonl.gz", "1", "1"],
        ["koordinator/scheduling.jsonl.gz", "not", "judged"],
        ["kubelet/take_by_topology.jsonl.gz", "1", "1"],
        ["kubelet/topology_merge.jsonl.gz", "1", "1"],
    ]

    assert main([*folders, "--json"]) == 0
    found = [(row["folder"], row["judged"]) for row in json.loads(capsys.readouterr().out)]
    judged = {"katalyst": True, "koordinator": False, "kubelet": True}
    assert found == [(folder, judged[folder]) for folder, _ in found]
    assert {folder for folder, _ in found} == judged.keys()


ANSWERS = {
    "koordinator_node_oracle/be_quota.jsonl.gz": "new_quota_us",
    "koordinator_node_oracle/be_select.jsonl.gz": "order",
    "koordinator_node_oracle/be_suppress_cpus.jsonl.gz": "be_cpus",
    "koordinator_node_oracle/container_cpuset.jsonl.gz": "cpuset",
    "koordinator_node_oracle/pod_fingerprint.jsonl.gz": "fingerprint",
    "koordinator_node_oracle/share_pools.jsonl.gz": "cpu_shared_pools",
    "koordinator_oracle/take_cpus.jsonl.gz": "result",
    "katalyst_oracle/cpu_hints.jsonl.gz": "hints",
    "katalyst_oracle/memory_hints.jsonl.gz": "hints",
    "katalyst_oracle/pid.jsonl.gz": "steps",
    "katalyst_oracle/pool_sizes.jsonl.gz": "result",
    "katalyst_oracle/regulator.jsonl.gz": "steps",
    "katalyst_oracle/take_cpus.jsonl.gz": "result",
    "katalyst_oracle/topology_merge.jsonl.gz": "results",
    "kubelet_oracle/cpu_hints.jsonl.gz": "hints",
    "kubelet_oracle/static_policy.jsonl.gz": "start_default_set",
    "kubelet_oracle/take_by_topology.jsonl.gz": "result",
    "kubelet_oracle/topology_merge.jsonl.gz": "results",
}
"""Every recording, and the key of an answer in it."""


@pytest.mark.parametrize("options", [[], ["--as-koordinator"]], ids=["own", "as Koordinator"])
@pytest.mark.parametrize(
    ("name", "answer"),
    [*ANSWERS.items(), ("koordinator_node_oracle/share_pools.jsonl.gz", "pod_cpu_allocs")],
)
def test_a_changed_answer_is_a_difference_in_every_recording(
    tmp_path: Path, name: str, answer: str, options: list[str]
) -> None:
    lines = gzip.decompress((DATA / name).read_bytes()).decode().splitlines()
    cases = [case for case in map(json.loads, lines) if case.get(answer)]
    other = next(case[answer] for case in cases if case[answer] != cases[0][answer])
    folder = record(
        tmp_path, *({**cases[0], answer: each} for each in (cases[0][answer], other)), name=name
    )
    if (machines := (DATA / name).with_name(TOPOLOGIES)).exists():
        (folder / TOPOLOGIES).write_bytes(machines.read_bytes())

    assert main([str(folder), *options]) == 1
    assert run_file(tmp_path / name).verdicts == {Verdict.EQUAL: 1, Verdict.DIFFERENT: 1}


def test_every_recording_is_changed_above() -> None:
    assert ANSWERS.keys() == RECORDINGS.keys()


@pytest.mark.parametrize(("equal", "code"), [(18, 1), (19, 0)])
def test_at_most_five_percent_of_a_recording_differ_on_purpose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], equal: int, code: int
) -> None:
    file = "koordinator_node_oracle/container_cpuset.jsonl.gz"
    lines = gzip.decompress((DATA / file).read_bytes()).decode().splitlines()
    usual = next(line for line in lines if '"qos":"LS"' in line and '"resource_status":""' in line)
    gated = json.loads(usual) | {
        "be_cpu_manager": True,
        "cpuset": "1-7",
        "qos": "BE",
        "resource_status": '{"numaNodeResources":[{"node":0,"resources":{"cpu":"2"}}]}',
    }
    folder = record(tmp_path, *[usual] * equal, gated, name=file)

    assert main([str(folder)]) == code
    assert "  on purpose, 1: BECPUManager" in capsys.readouterr().out
    assert main([str(folder), "--as-koordinator"]) == 0


@pytest.mark.parametrize(
    ("flaw", "verdict"),
    [
        ({"hang": True}, "hang"),
        ({"result": "7", "unsafe": "7"}, "unsafe"),
        ({"result": "0-1", "wrong_size": True}, "wrong size"),
        ({"error": "PANIC: runtime error"}, "panic"),
        ({"result": "1", "result_noalias": "0"}, "noalias"),
    ],
)
def test_what_the_recorded_program_did_wrong_is_an_exception(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flaw: Mapping[str, Any], verdict: str
) -> None:
    folder = record(tmp_path, {**CASE, **flaw})

    assert main([str(folder), "--json"]) == 0

    (result,) = json.loads(capsys.readouterr().out)
    assert result["cases"] == 1
    assert result["equal"] == result["different"] == 0
    assert {kind for kind, count in result["excepted"].items() if count} == {verdict}


@pytest.mark.parametrize(
    ("n", "code"),
    [
        pytest.param(2, 1, id="as many as are usable"),
        pytest.param(3, 0, id="more than are usable"),
    ],
)
def test_a_refusal_in_an_excused_case_is_lawful_only_for_more_than_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, code: int
) -> None:
    monkeypatch.setattr(take_by_topology, "take_packed", refuse)
    folder = record(tmp_path, CASE | {"avail": "0-9", "n": n, "hang": True})

    assert main([str(folder)]) == code


def test_a_refusal_in_an_excused_step_is_lawful_only_for_more_than_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "take_packed", refuse)
    folder = record(tmp_path, life(), name="kubelet/static_policy.jsonl.gz")

    assert main([str(folder)]) == 1


@pytest.mark.parametrize(
    ("shared", "code"),
    [
        pytest.param("0-1", 0, id="as recorded"),
        pytest.param("0", 1, id="another state"),
    ],
)
def test_a_life_is_compared_after_an_unsafe_step(tmp_path: Path, shared: str, code: int) -> None:
    folder = record(tmp_path, life(shared), name="kubelet/static_policy.jsonl.gz")

    assert main([str(folder)]) == code


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ("{", ":1: Expecting property name"),
        ("[]", ":1: is no JSON object"),
        ({"topo": "m"}, ":1: there is no 'avail'"),
        (CASE | {"topo": "other", "result": "0"}, ":1: machine 'other' is not in topologies"),
        (CASE | {"avail": "x", "result": "0"}, ":1: 'x' is not a CPU list"),
        (CASE | {"n": "1", "result": "0"}, ":1: cannot be judged: TypeError: "),
        (CASE | {"result": 0}, ":1: cannot be judged: AttributeError: "),
        ("", "take_by_topology.jsonl.gz: has no cases"),
    ],
)
def test_a_line_that_is_no_case_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    case: Mapping[str, Any] | str,
    complaint: str,
) -> None:
    folder = record(tmp_path, case)

    assert main([str(folder)]) == 2

    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.count("\n") == 1
    assert complaint in written.err


def test_files_that_are_no_recordings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: is no folder with recordings" in capsys.readouterr().err

    folder = record(tmp_path, CASE, name="kubelet/other.jsonl.gz")
    assert main([str(folder)]) == 2
    assert "other.jsonl.gz: no suite knows this file" in capsys.readouterr().err

    (folder / "other.jsonl.gz").rename(folder / "take_by_topology.jsonl.gz")
    (folder / TOPOLOGIES).write_bytes(b"no gzip")
    assert main([str(folder)]) == 2
    assert f"{TOPOLOGIES}: Not a gzipped file" in capsys.readouterr().err

    assert main([str(folder.rename(tmp_path / "recorded"))]) == 2
    assert "its folder names no program of kubelet, koordinator" in capsys.readouterr().err
