"""`cpupool demo` as a newcomer runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cpupool.core.cpuset import CPUSet
from tests import policies
from tests.waiting import DEADLINE_S

HERE = sorted(os.sched_getaffinity(0))
POD = """
kind: Pod
metadata: {name: greedy}
spec:
  containers:
    - name: main
      resources: {limits: {nokia.k8s.io/exclusive_demo: 999}}
"""


def demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "cpupool", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )


def left_behind(folder: Path, pid: int) -> list[str]:
    """List a demo's temporary files and cgroups."""
    name = f"cpupool-demo-{pid}"
    # Other tests' cgroups may end during the walk, which passes over them.
    above = (Path(path) for path, names, _ in os.walk("/sys/fs/cgroup") if name in names)
    return [str(path) for path in (*folder.iterdir(), *(path / name for path in above))]


def test_every_process_is_where_it_belongs_and_nothing_is_left(folder: Path) -> None:
    process = demo(folder, "--json")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    result = json.loads(printed)
    assert result["verified"] is True
    assert {row["name"] for row in result["processes"]} >= {
        "poller/poll",
        "sharer/work",
        "plain (sandbox)",
    }
    assert all(row["runs"] == row["belongs"] for row in result["processes"])
    if len(HERE) > 1:
        assert result["disturbed"]["name"] == "poller/poll"
        assert result["disturbed"]["back_on"] != result["disturbed"]["moved_to"]
    assert left_behind(folder, process.pid) == []


def test_the_picture_and_the_table_are_for_people(folder: Path) -> None:
    process = demo(folder, "--svg", str(folder / "picture.svg"))
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    assert re.search(r"^All \d+ processes run where they belong\.$", printed, re.MULTILINE)
    assert "WRONG" not in printed
    assert "demo/poller/poll" in (folder / "picture.svg").read_text().replace("&#160;", " ")


SOLE = ("sole", True)
"""The line on which the LSE pod has CPUs."""
two_cpus = pytest.mark.skipif(len(HERE) < 2, reason="one CPU is not enough to own and to share")


@two_cpus
def test_a_pod_without_cpus_of_its_own_is_held_until_another_pod_ends(folder: Path) -> None:
    process = demo(folder, "--cpu-manager", "static", "--json")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    result = json.loads(printed)
    assert result["verified"] is True
    (held,) = result["held"]
    assert (held["pod"], held["until"]) == ("late", "early")
    assert "not enough cpus available to satisfy request" in held["why"]
    rows = {row["name"]: row for row in result["processes"]}
    assert rows.keys() == {"late (sandbox)", "late/main", "sharer (sandbox)", "sharer/work"}
    own = CPUSet.parse(rows["late/main"]["runs"])
    assert rows["late/main"]["given"] == f"EXCLUSIVE_CPUS={own}"
    assert rows["late/main"]["requested"] == f"cpu {len(own)}"
    assert own.isdisjoint(CPUSet.parse(rows["sharer/work"]["runs"]))
    assert result["disturbed"]["name"] == "early/main"
    assert result["disturbed"]["back_on"] != result["disturbed"]["moved_to"]
    assert left_behind(folder, process.pid) == []


@two_cpus
def test_the_choices_of_the_cpu_manager_are_said_and_drawn(folder: Path) -> None:
    process = demo(folder, "--cpu-manager", "static")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    said = re.findall(r"^Pod (\w+ [a-z]+)", printed, re.MULTILINE)
    assert said == [
        "early runs",
        "late waits",
        "sharer runs",
        "early ends",
        "late runs",
        "late ends",
        "late was",
    ]
    assert re.search(r"Pod late runs: .*main has CPUs [-,0-9]+ of its own\.", printed)
    assert "Pod late was held until early had ended." in printed
    assert "CPU manager: static; reserved CPUs: " in printed
    assert "demo/late/main" in printed
    assert "WRONG" not in printed


@two_cpus
def test_a_policy_of_a_package_chooses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", policies.installed(folder / "packages"))
    process = demo(folder, "--cpu-manager", "later")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    assert "CPU manager: later; reserved CPUs: " in printed
    assert "WRONG" not in printed


@two_cpus
def test_a_pod_is_resized_if_the_machine_has_the_cpus(folder: Path) -> None:
    process = demo(folder, "--cpu-manager", "dynamic", "--json")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    result = json.loads(printed)
    assert result["verified"] is True
    assert {row["name"] for row in result["processes"]} >= {"web/main", "sharer/work"}
    assert any(resize["told"] for resize in result["resizes"]) != bool(result["left_out"])
    assert left_behind(folder, process.pid) == []


@two_cpus
def test_pods_of_koordinators_classes_come_and_go(folder: Path) -> None:
    process = demo(folder, "--cpu-manager", "koordinator")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    assert "WRONG" not in printed
    assert "CPU manager: koordinator; reserved CPUs: " in printed
    refused = r"^Pod forged runs on the shared CPUs: the scheduler has assigned CPUs \d+, but"
    assert re.search(refused, printed, re.MULTILINE)
    story = re.findall(
        r"^Pod (\w+) (?:runs: it has CPUs (\S+) of its own|ends)\.$"
        r"(?:\nAll other containers run on the shared CPUs: default (\S+), best effort (\S+)\.)?",
        printed,
        re.MULTILINE,
    )
    name, own, shared, best_effort = story[0]
    assert name == "assigned"
    assert CPUSet.parse(own).isdisjoint(CPUSet.parse(shared))
    assert CPUSet.parse(own) <= CPUSet.parse(best_effort)
    ((own, best_effort),) = ((own, be) for name, own, _, be in story if (name, own > "") == SOLE)
    assert CPUSet.parse(own).isdisjoint(CPUSet.parse(best_effort))
    assert story[-1][1:] == ("", *[str(CPUSet(HERE))] * 2)
    assert left_behind(folder, process.pid) == []


@two_cpus
def test_each_class_of_koordinator_runs_where_it_belongs(folder: Path) -> None:
    process = demo(folder, "--cpu-manager", "koordinator", "--json")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    result = json.loads(printed)
    assert result["verified"] is True
    assert {pod["pod"] for pod in result["held"]} == {"late", "sole"}
    rows = {row["name"]: row for row in result["processes"]}
    own = CPUSet.parse(rows["sole/main"]["runs"])
    assert rows["sole/main"]["given"] == f"EXCLUSIVE_CPUS={own}"
    assert rows["sole/main"]["requested"] == f"LSE, cpu {len(own)}"
    assert rows["sole (sandbox)"]["runs"] == str(own)
    others = [CPUSet.parse(row["runs"]) for name, row in rows.items() if "sole" not in name]
    assert own.isdisjoint(CPUSet.union(others))
    assert rows["forged/main"]["runs"] == rows["ls/main"]["runs"] == rows["burstable/main"]["runs"]
    assert rows["be/main"]["requested"] == "BE"
    assert result["disturbed"]["name"] == "assigned/main"


@two_cpus
def test_a_pod_that_is_held_to_the_end_fails_the_demo(folder: Path) -> None:
    greedy = POD.replace("nokia.k8s.io/exclusive_demo: 999", "cpu: 999, memory: 1Gi")
    (folder / "pod.yaml").write_text(greedy)

    process = demo(folder, "--cpu-manager", "static", "--pods", str(folder / "pod.yaml"))
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (1, "")
    assert "Pod greedy was held to the end." in printed
    assert printed.splitlines()[-1] == "1 pod did not start: see above."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "options", [(), pytest.param(("--cpu-manager", "koordinator"), marks=two_cpus)], ids=str
)
def test_an_interrupt_in_the_middle_leaves_nothing(
    folder: Path, number: int, options: tuple[str, ...]
) -> None:
    process = demo(folder, *options)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Pod "):
            break
    process.send_signal(number)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=DEADLINE_S)

    said = "cpupool: interrupted; nothing is left behind\n"
    assert (process.returncode, complaints) == (130, said)
    assert left_behind(folder, process.pid) == []


def test_a_pod_that_does_not_fit_is_said_and_fails_the_demo(folder: Path) -> None:
    (folder / "pod.yaml").write_text(POD)

    process = demo(folder, "--pods", str(folder / "pod.yaml"))
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (1, "")
    assert "greedy" in printed
    assert "1 pod did not start: see above." in printed
    assert printed.splitlines()[-2] == "No process was started."
    assert "processes run where they belong" not in printed


def test_the_resource_domain_is_the_users(folder: Path) -> None:
    mine = folder / "poolconfig-mine.yaml"
    mine.write_text(
        f"resourceBaseName: example.com\npools: {{default: {{cpus: {HERE[0]}}}}}\n"
        "nodeSelector: {a: b}\n"
    )

    process = demo(folder, "--config", str(mine), "--resource-domain", "example.com", "--json")
    printed, complaints = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, complaints) == (0, "")
    assert json.loads(printed)["verified"] is True


@pytest.mark.skipif(len(HERE) < 2, reason="on one CPU every process is where it belongs")
def test_a_process_that_was_astray_before_fails_a_demo_that_ends_well(folder: Path) -> None:
    # The first look finds a process on every CPU, all later ones find it where it belongs.
    program = (
        "import sys; from cpupool import cli; from cpupool.commands.demo import live\n"
        "from cpupool.core.cpuset import CPUSet; from cpupool.local.pods import ContainerProcess\n"
        "look, ask, late = live.LiveNode.settled_rows, ContainerProcess.cpus_allowed, []\n"
        "def wrong(self):\n"
        "    return CPUSet.parse('0-99') if not late else ask(self)\n"
        "def once(self):\n"
        "    live.PATIENCE_S = 20.0 if late else 0.1\n"
        "    rows = look(self)\n"
        "    late.append(rows)\n"
        "    return rows\n"
        "live.LiveNode.run_pod = lambda self, body: self.node.run_pod(body)\n"
        "live.LiveNode.settled_rows, ContainerProcess.cpus_allowed = once, wrong\n"
        "sys.exit(cli.main(['demo', '--json']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "TMPDIR": str(folder), "GRPC_VERBOSITY": "NONE"},
        check=False,
    )

    assert (result.returncode, result.stderr) == (1, "")
    document = json.loads(result.stdout)
    assert all(row["right"] for row in document["processes"])
    assert document["astray"]
    assert document["verified"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as somebody else")
def test_an_ordinary_user_gets_emulated_cgroups_and_the_kernels_own_word(folder: Path) -> None:
    folder.chmod(0o777)
    # A first run as root imports everything: the tests' interpreter may lie in a folder that is
    # root's alone, and so may the checkout.
    program = (
        "import io, os, sys; from cpupool import cli\n"
        "said, sys.stdout = sys.stdout, io.StringIO()\n"
        "assert cli.main(['demo', '--json']) == 0\n"
        "sys.stdout = said; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(cli.main(['demo', '--json']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={
            **os.environ,
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            # The command itself sets this before it imports grpc.
            "GRPC_VERBOSITY": "NONE",
        },
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert "emulated" in document["cgroups"]
    assert document["verified"] is True
