"""What every command makes of the files that it reads: alike, and with the same exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from textwrap import indent
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests.machines import Machine
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

POOLS = 'pools: {exclusive_a: {cpus: "1"}, default: {cpus: "0"}}\n'
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: main
    resources: {requests: {nokia.k8s.io/exclusive_a: 1}, limits: {nokia.k8s.io/exclusive_a: 1}}
"""
READERS = (
    ("admit", "FILE"),
    ("admit", "POD", "--pool-files", "FILE"),
    ("validate", "FILE"),
    ("topology", "--topology", "MACHINE", "--pools", "FILE"),
    ("status", "--file", "FILE"),
    ("explain", "web", "--file", "FILE"),
    ("simulate", "--topology", "MACHINE", "--pools", "FILE", "--random", "1"),
    ("simulate", "--topology", "MACHINE", "--pools", "POOLS", "--pods", "FILE"),
    ("simulate", "--topology", "MACHINE", "--pools", "POOLS", "--trace", "FILE"),
    ("demo", "--config", "FILE"),
    ("demo", "--pods", "FILE"),
    ("doctor", "--bundle", "FILE"),
    ("kubelet-config", "--topology", "MACHINE", "FILE"),
    ("kubelet-config", "--topology", "MACHINE", "POOLS", "--check", "FILE"),
    ("import", "performance-profile", "FILE"),
    ("support-bundle", "--log", "FILE"),
)
"""Each option that names a file to read."""
UNREADABLE = {
    "missing": None,
    "binary": b"\x7fELF\x02\x01\x01\x00\xff\xfe",
    "no YAML": b"a: ]",
}
TAKES_BYTES = (("support-bundle", "--log", "FILE"),)
"""A log may hold anything, so only what cannot be opened is refused."""
TAKES_FOLDERS = (("validate", "FILE"), ("admit", "POD", "--pool-files", "FILE"))
"""A folder may hold the pool files of a cluster."""


def filled(command: Sequence[str], folder: Path, file: str) -> list[str]:
    """Give a command line with its files: those beside FILE are good ones."""
    (folder / "pools.yaml").write_text(POOLS)
    (folder / "pod.yaml").write_text(POD)
    Machine(cores=2).write(folder / "machine")
    beside = {
        "FILE": file,
        "MACHINE": str(folder / "machine"),
        "POOLS": str(folder / "pools.yaml"),
        "POD": str(folder / "pod.yaml"),
    }
    return [beside.get(word, word) for word in command]


@pytest.mark.parametrize(
    ("command", "content"),
    [
        pytest.param(command, content, id=f"{' '.join(command)}: {name}")
        for command in READERS
        for name, content in UNREADABLE.items()
        if content is None or command not in TAKES_BYTES
    ],
)
def test_a_file_that_cannot_be_read_is_exit_code_2(
    command: Sequence[str],
    content: bytes | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "mine"
    if content is not None:
        file.write_bytes(content)

    assert cli.main(filled(command, tmp_path, str(file))) == 2

    printed = capsys.readouterr()
    # The problems that it finds are what `validate` prints.
    said = printed.out if command[0] == "validate" and content else printed.err
    assert str(file) in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [one for one in READERS if one not in TAKES_FOLDERS],
    ids=" ".join,
)
def test_a_folder_in_a_files_place_is_exit_code_2_and_asks_for_no_root(
    command: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    assert cli.main(filled(command, tmp_path, str(folder))) == 2

    said = capsys.readouterr().err
    assert str(folder) in said
    assert "Is a directory" in said
    assert "root" not in said.replace(str(folder), "")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "content"),
    [
        pytest.param(
            ("admit", "FILE"), POD.replace("/exclusive_a: 1", "/exclusive_a: 1m"), id="admit"
        ),
        pytest.param(("validate", "FILE"), "pools: {exclusive_a: {cpus: x}}", id="validate"),
        pytest.param(
            ("simulate", "--topology", "MACHINE", "--pools", "POOLS", "--pods", "FILE"),
            POD.replace("/exclusive_a: 1", "/exclusive_a: 9"),
            id="simulate",
        ),
        pytest.param(
            ("kubelet-config", "--topology", "MACHINE", "POOLS", "--check", "FILE"),
            '{"kubeletconfig": {"cpuManagerPolicy": "static"}}',
            id="kubelet-config",
        ),
    ],
)
def test_a_file_whose_answer_is_no_is_exit_code_1(
    command: Sequence[str], content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine"
    file.write_text(content)

    assert cli.main(filled(command, tmp_path, str(file))) == 1

    printed = capsys.readouterr()
    assert printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    "command",
    [
        ("validate", "FILE", "--topology", "MACHINE"),
        ("topology", "--topology", "MACHINE", "--pools", "FILE"),
        ("simulate", "--topology", "MACHINE", "--pools", "FILE", "--random", "1"),
        ("kubelet-config", "--topology", "MACHINE", "FILE"),
        ("demo", "--config", "FILE"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_with_pools_by_themselves_and_on_the_machine_is_reported_together(
    command: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine"
    file.write_text('pools: {exclusive_a: {cpus: "1,4000", color: red}, default: {cpus: "0"}}\n')

    assert cli.main(filled(command, tmp_path, str(file))) in (1, 2)

    said = "".join(capsys.readouterr())
    assert "pools.exclusive_a.color: unknown key" in said
    assert "this machine has no CPUs 4000" in said


def test_several_files_are_not_held_against_the_machine_of_a_node_without_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine"
    wrong = FIRST.replace('"1"', '"1,4000", color: red')
    file.write_text(f"{wrong}---\n{SECOND}")
    command = ("topology", "--topology", "MACHINE", "--pools", "FILE")

    assert cli.main(filled(command, tmp_path, str(file))) == 2

    said = capsys.readouterr().err
    assert "pools.exclusive_a.color: unknown key" in said
    assert said.count("\n") == 1


PIPED = (
    (("admit", "FILE"), POD),
    (("admit", "POD", "--pool-files", "FILE"), POOLS),
    (("validate", "FILE"), POOLS),
    (("topology", "--topology", "MACHINE", "--pools", "FILE"), POOLS),
    (("simulate", "--topology", "MACHINE", "--pools", "FILE", "--random", "1"), POOLS),
    (("simulate", "--topology", "MACHINE", "--pools", "POOLS", "--pods", "FILE"), POD),
    (("kubelet-config", "--topology", "MACHINE", "FILE"), POOLS),
)


@pytest.mark.parametrize(("command", "content"), PIPED, ids=lambda one: " ".join(one)[:60])
def test_a_pipe_is_read_like_a_file(
    command: Sequence[str], content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(content)
    try:
        code = cli.main(filled(command, tmp_path, f"/dev/fd/{reading}"))
    finally:
        os.close(reading)

    assert (code, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize(("command", "content"), PIPED, ids=lambda one: " ".join(one)[:60])
def test_standard_input_has_two_names(
    command: Sequence[str], content: str, name: str, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cpupool", *filled(command, tmp_path, name)],
        input=content,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def workload(kind: str, spec: str) -> str:
    """Give the manifest of a workload whose pods are POD's."""
    of_pod = POD.partition("spec:\n")[2]
    template = f"template:\n  metadata: {{labels: {{app: web}}}}\n  spec:\n{indent(of_pod, '    ')}"
    inside = f"{spec}\n{template}" if spec else template
    if kind == "CronJob":
        inside = f"jobTemplate:\n  spec:\n{indent(inside, '    ')}"
    return f"kind: {kind}\nmetadata: {{name: web, namespace: lab}}\nspec:\n{indent(inside, '  ')}"


WORKLOADS = [
    ("Deployment", "replicas: 2", 2),
    ("Deployment", "", 1),
    ("StatefulSet", "replicas: 3", 3),
    ("ReplicaSet", "replicas: 2", 2),
    ("DaemonSet", "", 1),
    ("Job", "parallelism: 2", 2),
    ("CronJob", "parallelism: 2", 2),
]


@pytest.mark.parametrize(("kind", "spec", "count"), WORKLOADS)
def test_admit_shows_one_pod_of_a_workload(
    kind: str, spec: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "web.yaml").write_text(workload(kind, spec))

    assert cli.main(["admit", str(tmp_path / "web.yaml"), "--json"]) == 0

    (pod,) = json.loads(capsys.readouterr().out)["pods"]
    assert pod["pod"] == "lab/web-0"
    assert pod["body"]["metadata"]["labels"] == {"app": "web"}
    assert pod["body"]["kind"] == "Pod", count


@pytest.mark.parametrize(("kind", "spec", "count"), WORKLOADS)
def test_simulate_places_each_pod_of_a_workload(
    kind: str, spec: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "web.yaml").write_text(f"{POD}---\n{workload(kind, spec)}")
    (tmp_path / "pools.yaml").write_text(
        'pools: {exclusive_a: {cpus: "1-7"}, default: {cpus: "0"}}'
    )
    Machine(cores=8).write(tmp_path / "machine")
    words = ["--topology", "machine", "--pools", "pools.yaml", "--pods", "web.yaml"]

    code = cli.main(
        [
            "simulate",
            "--json",
            *(str(tmp_path / word) if word[0] != "-" else word for word in words),
        ]
    )

    assert code == 0
    simulated = json.loads(capsys.readouterr().out)["policies"]["pool"]["containers"]
    assert [one["name"] for one in simulated] == [
        "default/web/main",
        *(f"lab/web-{number}/main" for number in range(count)),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Job\nmetadata: {name: a}\n", "spec.template.spec: is missing"),
        (workload("Deployment", "replicas: -1"), "spec.replicas: is not a number from 0 to 10000"),
        (workload("Deployment", "replicas: 40009999"), "spec.replicas: is not a number"),
        (workload("Deployment", "replicas: 0"), "there is no pod in it"),
        ("kind: Deployment\nspec: {template: {spec: {}}}", "metadata.name: is missing"),
        ("kind: Service\n", "kind: 'Service' is not one of Pod, Deployment"),
    ],
)
def test_a_workload_that_cannot_be_used_is_named(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "web.yaml").write_text(text)

    code = cli.main(
        filled(
            ("simulate", "--pools", "POOLS", "--pods", "FILE"), tmp_path, str(tmp_path / "web.yaml")
        )
    )

    assert code == 2
    assert said in capsys.readouterr().err


MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: cpu-pooler}
data:
  poolconfig-NAME.yaml: |
    nodeSelector: {node: NAME}
    pools: {exclusive_NAME: {cpus: "1"}, default: {cpus: "0"}}
"""
FIRST, SECOND = MAP.replace("NAME", "a"), MAP.replace("NAME", "b")
OTHERS = """\
kind: ConfigMap
data: {other.conf: text}
---
kind: Service
spec: {ports: [{port: 80}]}
"""


def listed(*manifests: str) -> str:
    """Give a List, as kubectl prints several objects."""
    return "apiVersion: v1\nkind: List\nitems:\n" + "".join(
        f"- {indent(one, '  ')[2:]}" for text in manifests for one in text.split("---\n")
    )


@pytest.mark.parametrize(
    "text",
    [
        f"{OTHERS}---\n{FIRST}---\n{SECOND}",
        f"---\n{FIRST}---\n\n---\n{SECOND}",
        listed(OTHERS, FIRST, SECOND),
    ],
    ids=["documents", "an empty document", "a list"],
)
def test_config_maps_are_found_among_other_objects(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.yaml").write_text(text)

    assert cli.main(["validate", str(tmp_path / "all.yaml")]) == 0

    assert capsys.readouterr().out == (
        "poolconfig-a.yaml: ok: exclusive_a 1, default 0\n"
        "poolconfig-b.yaml: ok: exclusive_b 1, default 0\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OTHERS, ["2:7: data: there is no key of the form", "4:7: kind: this is no ConfigMap"]),
        (
            listed(OTHERS),
            ["5:9: items[0].data: there is no", "items[1].kind: this is no ConfigMap"],
        ),
        ("kind: List\nitems: []\n", ["1:7: kind: this is no ConfigMap"]),
        (
            listed(FIRST, SECOND.replace('"1"', '"x"')),
            ["17:35: pools.exclusive_b.cpus: 'x' is not", "poolconfig-a.yaml: ok"],
        ),
    ],
)
def test_what_is_wrong_in_several_objects_is_said_with_its_place(
    text: str, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.yaml").write_text(text)

    assert cli.main(["validate", str(tmp_path / "all.yaml")]) == 1

    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(said), printed
    for line, words in zip(printed, said, strict=True):
        assert words in line


OWNERS = """\
pools: {default: {cpus: "0-15"}}
cpuManager: {policy: koordinator, reserved: "0-0"}
"""
OWNER = """\
kind: Pod
metadata:
  name: web
  labels: {koordinator.sh/qosClass: LSR}
spec:
  overhead: {cpu: 500m}
  containers:
    - {name: a, resources: {limits: {cpu: 1500m}}}
    - {name: b, resources: {limits: {cpu: 1}}}
"""
LEVEL = (
    OWNER.replace("spec:", "spec:\n  resources: {limits: {cpu: 3500m}}")
    .replace("{cpu: 1500m}", "{}")
    .replace("{limits: {cpu: 1}}", "{}")
)


@pytest.fixture
def owned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, int]]:
    """Simulate on sixteen CPUs; give container → how many CPUs its pod owns."""
    Machine(cores=16).write(tmp_path)
    (tmp_path / "owners.yaml").write_text(OWNERS)
    given = ("--topology", str(tmp_path), "--pools", str(tmp_path / "owners.yaml"), "--json")

    def found(*arguments: str) -> dict[str, int]:
        assert cli.main(["simulate", *given, *arguments, "--policy", "pool"]) == 0
        placements = json.loads(capsys.readouterr().out)["policies"]["pool"]["containers"]
        return {placed["name"]: placed["requested"] for placed in placements}

    return found


@pytest.mark.parametrize(("pod", "count"), [(OWNER, 3), (LEVEL, 4)], ids=["overhead", "pod level"])
def test_an_owner_has_what_the_scheduler_counts_also_from_a_saved_trace(
    pod: str, count: int, owned: Callable[..., dict[str, int]], tmp_path: Path
) -> None:
    (tmp_path / "pods.yaml").write_text(pod)
    trace = str(tmp_path / "trace.jsonl")
    has = dict.fromkeys(("default/web/a", "default/web/b"), count)
    assert owned("--pods", str(tmp_path / "pods.yaml"), "--save-trace", trace) == has
    assert owned("--trace", trace) == has


def test_a_chart_is_simulated_as_the_cluster_completes_it(
    owned: Callable[..., dict[str, int]], tmp_path: Path
) -> None:
    kata = "kind: RuntimeClass\nmetadata: {name: kata}\noverhead: {podFixed: {cpu: 500m}}\n"
    pod = OWNER.replace("overhead: {cpu: 500m}", "runtimeClassName: kata")
    named = "spec:\n  priorityClassName: x"
    batch = pod.replace("name: web", "name: batch").replace("spec:", named)
    klass = "kind: PriorityClass\nmetadata: {name: x}\nvalue: 5500\n"
    (tmp_path / "one.yaml").write_text(f"{pod}---\n{batch}")
    (tmp_path / "two.yaml").write_text(f"{pod.replace('web', 'too')}---\n{kata}")
    (tmp_path / "three.yaml").write_text(f"kind: Service\n---\n{klass}")
    files = (str(tmp_path / f"{name}.yaml") for name in ("one", "two", "three"))
    found = owned(*(word for file in files for word in ("--pods", file)))
    assert found == {f"default/{name}/{part}": 3 for name in ("web", "too") for part in "ab"}
