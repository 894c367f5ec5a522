"""`cpupool simulate` from its command line: a recorded machine, a pool file, and pods."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from cpupool import cli
from tests import policies
from tests.machines import MACHINES
from tests.pictures import ids
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., int]

EXAMPLES = Path(__file__).parents[3] / "examples/simulate"
EXAMPLE = (
    "--topology",
    str(EXAMPLES / "machine.tar.gz"),
    "--pools",
    str(EXAMPLES / "pools.yaml"),
    "--trace",
    str(EXAMPLES / "trace.jsonl"),
)
POOLS = "pools:\n  exclusive_a: {cpus: '1-3'}\n  shared_b: {cpus: '4'}\n  default: {cpus: 0}\n"
POD = """\
kind: Pod
metadata: {name: web, namespace: ns}
spec:
  containers:
    - {name: poll, resources: {requests: {nokia.k8s.io/exclusive_a: 2}}}
    - {name: serve, resources: {requests: {nokia.k8s.io/shared_b: 250}}}
"""


@pytest.fixture
def simulate(tmp_path: Path) -> Run:
    """Simulate on eight cores without siblings, on two sockets."""
    MACHINES["arm_no_smt"].write(tmp_path)
    (tmp_path / "pools.yaml").write_text(POOLS)
    given = ["--topology", str(tmp_path), "--pools", str(tmp_path / "pools.yaml")]
    return lambda *arguments: cli.main(["simulate", *given, *map(str, arguments)])


def written(folder: Path, text: str, name: str = "mine") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_pods_are_drawn_and_listed_where_they_land(
    simulate: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--pods", written(tmp_path, POD)) == 0

    out = capsys.readouterr().out
    assert ids(out, "A") == [1, 2]
    assert ids(out, "B") == [4]
    assert "ns/web/poll   exclusive_a  2         1-2" in out
    assert "ns/web/serve  shared_b     250       4" in out
    assert "Above is the end under pool: 1 of 1 pods came in." in out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["pool", "first-fit"]


def test_a_pod_that_does_not_fit_is_reported_with_the_reason_and_exit_code_1(
    simulate: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = POD.replace("web", "late")

    code = simulate(
        "--pods", written(tmp_path, POD), "--pods", written(tmp_path, other, "other.yaml")
    )

    assert code == 1
    refused = "Refused at 0 s: ns/late: Unschedulable: exclusive_a: 2 requested, 1 free of 3"
    assert refused in capsys.readouterr().out


def test_refused_pods_of_a_trace_are_counted_and_no_failure(
    simulate: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--random", 500, "--load", 3) == 0

    out = capsys.readouterr().out
    told = [line for line in out.splitlines() if line.startswith("Refused at ")]
    assert len(told) == 5
    assert "more; --json has them all." in out


def test_the_example_is_simulated_and_every_policy_has_a_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["pool", "first-fit", "kubelet-packed", "packed", "distributed"]
    assert cli.main(["simulate", *EXAMPLE, "--policy", *names, "pool"]) == 0

    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines()[-len(names) :]}
    assert list(rows) == names
    assert "100.0%" in rows["pool"]
    assert "62.5%" in rows["first-fit"]
    assert max(map(len, out.splitlines())) <= 88


def test_guide_and_readme_show_what_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    guide, readme = (
        (EXAMPLES.parents[1] / name).read_text() for name in ("docs/user/simulate.md", "README.md")
    )
    random = (*EXAMPLE[:4], "--random", "1000", "--policy", "pool", "first-fit", "kubelet-packed")

    assert cli.main(["simulate", *EXAMPLE]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(printed) in guide
    assert cli.main(["simulate", *random, "leastAllocated"]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines()[-7:]]
    assert "\n".join(rows) in guide
    assert "\n".join(rows) in readme
    native = (*EXAMPLE[:3], str(EXAMPLES / "cpu-manager.yaml"), *random[4:6])
    assert cli.main(["simulate", *native, "--policy", "static", "kubelet-packed"]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines()[-9:]]
    assert "\n".join(rows) in guide
    assert cli.main(["simulate", *native[:4], "--load-trace", str(EXAMPLES / "load.csv")]) == 0
    assert capsys.readouterr().out in guide


def test_the_page_of_the_cpu_manager_shows_the_moves_of_the_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = (EXAMPLES.parents[1] / "docs/user/cpu-manager.md").read_text()
    pools, trace = str(EXAMPLES / "cpu-manager.yaml"), str(EXAMPLES / "moves.jsonl")
    example = (*EXAMPLE[:3], pools, "--trace", trace, "--compact", "--policy", "dynamic", "static")

    assert cli.main(["simulate", *example]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    (move,) = (line for line in printed if line.startswith("Move "))
    assert move in " ".join(page.split())
    assert "\n".join(printed[-4:]) in page


@pytest.fixture
def of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a policy that works, and one that cannot be imported."""
    policies.package(tmp_path / "site", "ours", lowest="tests.policies:LowestCPUs")
    policies.package(tmp_path / "site", "theirs", broken="no_such_module:Policy")
    with policies.found(monkeypatch, tmp_path / "site"):
        yield


@pytest.mark.usefixtures("of_packages")
def test_a_policy_of_a_package_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MACHINES["arm_no_smt"].write(tmp_path)
    pools = written(tmp_path, "cpuManager: {policy: static, reserved: 0-0}", "pools.yaml")
    pod = POD.replace("nokia.k8s.io/exclusive_a: 2", "cpu: 2, memory: 1Gi").partition(
        "    - {name: s"
    )
    pods = written(tmp_path, pod[0].replace("requests", "limits"), "pod.yaml")
    arguments = ["simulate", "--topology", str(tmp_path), "--pools", pools, "--pods", pods]

    assert cli.main([*arguments, "--policy", "lowest", "pool", "--json"]) == 0
    policies_json = json.loads(capsys.readouterr().out)["policies"]
    assert list(policies_json) == ["lowest", "pool"]
    # It reserves nothing, and the policy of the file keeps CPU 0.
    placed = {name: one["containers"][0]["cpus"] for name, one in policies_json.items()}
    assert placed == {"lowest": "0-1", "pool": "1-2"}

    assert cli.main([*arguments, "--policy", "broken"]) == 2
    assert "the policy broken of the package theirs, no_such_module:Policy, cannot be" in (
        capsys.readouterr().err
    )


POLICY_FILE = """
cpuManager: {policy: static, reserved: "0,32", topologyPolicy: single-numa-node}
"""
POLICY_TRACE = """
{"at_s": 0, "pod": "ns/a", "containers": [{"name": "c", "cpu": 20}]}
{"at_s": 0, "pod": "ns/b", "containers": [{"name": "c", "cpu": 20}]}
{"at_s": 2, "pod": "ns/wide", "containers": [{"name": "c", "cpu": 14}]}
{"at_s": 9, "pod": "ns/late", "containers": [{"name": "c", "cpu": 4}]}
"""


def test_pods_that_wait_for_cpus_of_the_cpu_manager_policy_are_reported_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"pools.yaml": POLICY_FILE, "trace.jsonl": POLICY_TRACE}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    arguments = ["simulate", *EXAMPLE[:2], "--pools", str(tmp_path / "pools.yaml")]
    arguments += ["--trace", str(tmp_path / "trace.jsonl"), "--policy", "static", "kubelet-packed"]

    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    text = "Resources cannot be allocated with Topology locality"
    assert f"Held since 2 s: ns/wide/c: {text}\n" in shown
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        ["static", "1", "(25%)", "7", "s", "1"],
        ["kubelet-packed", "0", "(0%)", "-", "0"],
    ]
    assert cli.main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["policies"]
    assert document["static"]["summary"]["waiting_at_end"] == 1
    (wide,) = [one for one in document["static"]["containers"] if one["name"] == "ns/wide/c"]
    assert (wide["cpus"], wide["waited_s"], wide["held"]) == ("", 7, text)
    (refusal,) = document["kubelet-packed"]["refusals"]
    assert refusal["why"] == f"ns/wide: TopologyAffinityError: {text}"


def test_dynamic_serves_pods_that_are_not_resized_as_static_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["simulate", *EXAMPLE[:3], str(EXAMPLES / "cpu-manager.yaml"), "--random", "200"]

    assert cli.main([*arguments, "--policy", "static", "dynamic", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)["policies"]
    static, dynamic = (
        [(each["name"], each["cpus"]) for each in found[policy]["containers"]]
        for policy in ("static", "dynamic")
    )
    assert dynamic == static
    assert any(cpus for _, cpus in static)
    assert found["dynamic"]["summary"] == found["static"]["summary"]


RESIZES = """\
{"at_s": 0, "pod": "ns/own", "containers": [{"name": "c", "cpu": 2}]}
{"at_s": 1, "pod": "ns/own", "resize": {"c": 4}}
{"at_s": 2, "pod": "ns/own", "resize": {"c": 99.5}}
"""


def test_resizes_are_listed_and_counted_where_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools, trace = written(tmp_path, POLICY_FILE, "pools.yaml"), written(tmp_path, RESIZES)
    arguments = ["simulate", *EXAMPLE[:2], "--pools", pools, "--policy", "static"]

    assert cli.main([*arguments, "--trace", trace]) == 0
    shown = capsys.readouterr().out
    what = "Node didn't have enough capacity: cpu, requested: 99500, capacity: 62000"
    why = f"Infeasible: {what} (in milli-CPUs)"
    owns = "request 4 becomes 99500m; it owns 2 CPUs"
    assert f"Resize refused at 2 s: ns/own/c: {owns}: {why}\n" in shown
    assert shown.splitlines()[-1].split() == ["static", "0", "1", "1"]

    assert cli.main([*arguments, "--trace", trace, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["policies"]["static"]
    assert document["summary"]["resizes_ignored"] == 1
    assert document["resizes"][1] == {
        "at_s": 2,
        "container": "ns/own/c",
        "had_milli": 4000,
        "requested_milli": 99500,
        "owned": 2,
        "outcome": "refused",
        "why": why,
    }

    assert cli.main([*arguments, "dynamic", "--trace", trace]) == 0
    shown = capsys.readouterr().out
    assert f"Resize refused under static at 2 s: ns/own/c: {owns}: " in shown
    owns = "request 4 becomes 99500m; it owns 4 CPUs"
    assert f"Resize refused under dynamic at 2 s: ns/own/c: {owns}: " in shown

    assert cli.main([*arguments, "--random", "40", "--resizes", "0.5"]) == 0
    assert "resizes served" in capsys.readouterr().out
    assert cli.main([*arguments, "--random", "40"]) == 0
    assert "resizes served" not in capsys.readouterr().out


ALIGNED = """\
cpuManager: {policy: dynamic, reserved: "0,8,16,24", topologyPolicy: single-numa-node}
"""
MOVING = """\
{"at_s": 0, "pod": "ns/a", "containers": [{"name": "c", "cpu": 6}]}
{"at_s": 0, "pod": "ns/b", "containers": [{"name": "c", "cpu": 8}]}
{"at_s": 0, "pod": "ns/d", "containers": [{"name": "c", "cpu": 4}], "annotations": SAID}
{"at_s": 1, "pod": "ns/b", "ends": true}
{"at_s": 2, "pod": "ns/late", "containers": [{"name": "c", "cpu": 12}]}
{"at_s": 2000, "pod": "ns/small", "containers": [{"name": "c", "cpu": 1}]}
"""
SAID = '{"cpu-moves": "any"}'


def test_compaction_is_shown_before_anybody_is_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MACHINES["telco_2s_2n_16c32t"].write(tmp_path)
    given = ["--pools", written(tmp_path, ALIGNED, "pools.yaml"), "--topology", str(tmp_path)]
    arguments = ["simulate", *given, "--policy", "static", "--trace"]
    arguments += [written(tmp_path, MOVING.replace("SAID", SAID))]
    why = "so that pod ns/late can have its CPUs"

    arguments.insert(arguments.index("static"), "dynamic")
    assert cli.main([*arguments, "--compact"]) == 0
    shown = capsys.readouterr().out
    move = f"600 s: ns/d/c from CPUs 9-10,25-26 to 4-5,20-21, {why}\n"
    assert f"Move under dynamic at {move}" in shown
    rows = [line.split() for line in shown.splitlines()[-2:]]
    assert rows == [
        ["dynamic", "1", "(20%)", "608", "s", "0", "1"],
        ["static", "1", "(20%)", "1,998", "s", "1", "0"],
    ]

    assert cli.main([*arguments, "--compact", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["policies"]
    assert (document["static"]["moves"], document["dynamic"]["summary"]["moves"]) == ([], 1)
    assert document["dynamic"]["moves"] == [
        {
            "at_s": 600,
            "container": "ns/d/c",
            "before": "9-10,25-26",
            "after": "4-5,20-21",
            "why": why,
        }
    ]

    # Without the option, as without the word of a pod, nobody moves.
    assert cli.main(arguments) == 0
    assert "move" not in capsys.readouterr().out
    arguments[-1] = written(tmp_path, MOVING.replace("SAID", "{}"))
    assert cli.main([*arguments, "--compact"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(
        "No pod here may move: give pods the annotation cpu-moves, or add --compact any.\n"
    )
    assert "moves" not in shown.replace("cpu-moves", "")
    of_policies = [each for each in arguments if each != "dynamic"]
    assert cli.main([*of_policies, "--compact", "any"]) == 0
    nobody = "No policy here moves containers: add --policy dynamic.\n"
    assert capsys.readouterr().out.endswith(nobody)
    assert cli.main([*arguments, "--compact", "any"]) == 0
    assert move in capsys.readouterr().out

    spread = "options: {distribute-cpus-across-numa: 'true'}"
    pools = written(tmp_path, ALIGNED.replace("topologyPolicy: single-numa-node", spread), "p.yaml")
    assert cli.main([*arguments, "--compact", "any", "--pools", pools]) == 0
    nobody = "The option distribute-cpus-across-numa lets no container move: turn it off.\n"
    assert capsys.readouterr().out.endswith(nobody)


def test_explain_says_which_part_of_a_bubble_a_simulated_container_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MACHINES["telco_2s_2n_16c32t"].write(tmp_path)
    manager = 'policy: static, reserved: "0,16", topologyScope: pod, podLevelResources: true'
    pools = written(tmp_path, f"cpuManager: {{{manager}}}", "pools.yaml")
    named = [{"name": "db", "cpu": 1}, {"name": "logs"}]
    pods = [
        {"at_s": 0, "pod": "ns/web", "cpu": 4, "containers": named},
        {"at_s": 1, "pod": "ns/full", "cpu": 1, "containers": named},
        {"at_s": 2, "pod": "ns/part", "cpu": 1.5, "containers": named},
    ]
    trace = written(tmp_path, "\n".join(map(json.dumps, pods)))
    machine = ["--topology", str(tmp_path)]
    assert cli.main(["simulate", *machine, "--pools", pools, "--trace", trace, "--json"]) == 0
    file = written(tmp_path, capsys.readouterr().out, "result.json")

    assert cli.main(["explain", "ns/web", "--file", file]) == 0
    db, logs = capsys.readouterr().out.split("ns/web/logs: ")
    bubble = "the policy static has chosen the bubble 1-2,17-18 for the resources of the whole pod"
    assert "request: it requests 1 whole CPU => 1\n" in db
    assert f"{bubble}: this part is the container's own => 1\n" in db
    assert "request: it requests no whole CPUs => 2,17-18\n" in logs
    assert f"{bubble}: its other containers share these, and run nowhere else => 2,17-18\n" in logs

    assert cli.main(["explain", "ns/full/logs", "--file", file]) == 1
    assert "request: it requests no whole CPUs => none\n" in capsys.readouterr().out
    assert cli.main(["explain", "ns/part", "--file", file]) == 2
    assert "does not list a container that only shares the default pool" in capsys.readouterr().err


def test_containers_that_share_are_named_below_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = EXAMPLES.parent / "cpu-manager"
    given = [*EXAMPLE[:3], str(folder / "poolconfig.yaml"), "--pods", str(folder / "pods.yaml")]
    assert cli.main(["simulate", *given, "--policy", "static"]) == 0
    assert (
        "Without a pool, and without CPUs of their own: default/part/main, default/both/logs,"
        " default/burstable/main.\n"
    ) in capsys.readouterr().out


def test_pods_that_come_at_one_time_may_all_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MACHINES["telco_2s_2n_16c32t"].write(tmp_path)

    def pod(name: str, cpu: int) -> str:
        resources = {"limits": {"cpu": str(cpu), "memory": "1Gi"}}
        return json.dumps(
            {
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": "ns",
                    "annotations": {"nokia.k8s.io/cpu-moves": "any"},
                },
                "spec": {"containers": [{"name": "c", "resources": resources}]},
            }
        )

    pods = "\n---\n".join([pod("a", 7), pod("b", 9), pod("c", 5), pod("late", 7)])
    pools = written(tmp_path, ALIGNED, "pools.yaml")
    arguments = ["simulate", "--topology", str(tmp_path), "--pools", pools]
    arguments += ["--pods", written(tmp_path, pods, "pods.yaml")]
    assert cli.main(arguments) == 1
    assert cli.main([*arguments, "--compact"]) == 0
    shown = capsys.readouterr().out
    assert "Move under pool at 0 s: ns/" in shown
    assert "so that pod ns/late can have its CPUs" in shown


def test_manifests_that_wait_for_cpus_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pools.yaml").write_text(POLICY_FILE)
    resources = {"limits": {"cpu": "40", "memory": "1Gi"}}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    pod = {"kind": "Pod", "metadata": {"name": "wide", "namespace": "ns"}, "spec": spec}
    (tmp_path / "pods.yaml").write_text(json.dumps(pod))
    arguments = ["simulate", *EXAMPLE[:2], "--pools", str(tmp_path / "pools.yaml")]

    assert cli.main([*arguments, "--pods", str(tmp_path / "pods.yaml")]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ns/wide/c", "policy/cpu", "40", "held"] in rows


KOORDINATOR_FILE = """
cpuManager: {policy: koordinator, reserved: "0,32"}
"""
FORGED = """\
kind: Pod
metadata:
  name: forged
  namespace: ns
  labels: {koordinator.sh/qosClass: LSR, app: x}
  annotations: {nokia.k8s.io/cpus-per-container: "true", other: "1", STATUS}
spec:
  priority: 9500
  containers: [{name: c, resources: {limits: {cpu: 2, memory: 1Gi}}}]
""".replace("STATUS", 'scheduling.koordinator.sh/resource-status: \'{"cpuset": "0-1"}\'')


def test_manifests_keep_the_classes_of_koordinator_and_who_shares_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.jsonl"
    arguments = ["simulate", *EXAMPLE[:3], written(tmp_path, KOORDINATOR_FILE)]
    pods = ["--pods", written(tmp_path, FORGED, "pods.yaml"), "--save-trace", str(saved)]

    assert cli.main([*arguments, *pods]) == 1

    shown = capsys.readouterr().out
    why = "the scheduler has assigned CPUs 0-1, but 0 are reserved"
    assert f"Shares since 0 s: ns/forged/c: {why}\n" in shown
    assert ["ns/forged/c", "policy/cpu", "2", "shared"] in [
        row.split() for row in shown.splitlines()
    ]
    line = json.loads(saved.read_text())
    assert line["labels"] == {
        "koordinator.sh/qosClass": "LSR",
        "koordinator.sh/priority-class": "koord-prod",
    }
    assert line["annotations"] == {
        "scheduling.koordinator.sh/resource-status": '{"cpuset": "0-1"}',
        "cpus-per-container": "true",
    }
    assert cli.main([*arguments, "--trace", str(saved), "--json"]) == 0
    file = written(tmp_path, capsys.readouterr().out, "simulated.json")
    assert cli.main(["explain", "forged", "--file", file]) == 1
    assert f"2. shares: {why} => none\n" in capsys.readouterr().out


def test_json_is_one_object_with_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *EXAMPLE, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "cpupool-simulation/1"
    assert list(found["policies"]) == ["pool", "first-fit"]
    pool: dict[str, Any] = found["policies"]["pool"]
    assert pool["summary"]["admitted"] == 6
    assert pool["summary"]["refused"] == 1
    assert pool["series"][0]["at_s"] == 0
    assert pool["refusals"][0]["at_s"] == 480
    containers = {one["name"]: one for one in pool["containers"]}
    probe = containers["telco/probe/capture"]
    assert probe["steps"][-1]["left"] == probe["cpus"] != ""
    assert {"rule", "why", "left"} == set(probe["steps"][0])
    assert "0 free of 24" in containers["telco/batch/main"]["refused"]


def test_explain_reads_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["simulate", *EXAMPLE, "--json"])
    file = written(tmp_path, capsys.readouterr().out)

    assert cli.main(["explain", "telco/probe/capture", "--file", file]) == 0
    assert "numaPolicy" in capsys.readouterr().out


def test_json_does_without_the_drawing_libraries() -> None:
    script = (
        "import sys; from cpupool import cli;"
        f"cli.main(['simulate', '--json', *{EXAMPLE!r}]);"
        "sys.exit('rich' in sys.modules or 'matplotlib' in sys.modules)"
    )

    subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=DEADLINE_S, stdout=subprocess.DEVNULL
    )


def test_the_same_seed_gives_the_same_trace_and_a_saved_one_the_same_end(
    simulate: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    printed = []
    for arguments in (
        ("--random", 50, "--seed", 3, "--save-trace", one),
        ("--random", 50, "--seed", 3, "--save-trace", two),
        ("--random", 50, "--seed", 4, "--save-trace", other),
        ("--trace", one),
    ):
        assert simulate(*arguments) == 0
        printed.append(capsys.readouterr().out)

    assert one.read_text() == two.read_text() != other.read_text()
    assert printed[0] == printed[1] == printed[3] != printed[2]


def test_a_plot_is_written_and_lines_differ_by_more_than_colour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png, svg, again = (tmp_path / name for name in ("plot.png", "plot.svg", "again.svg"))
    for path in (png, svg, again):
        assert cli.main(["simulate", *EXAMPLE, "--plot", str(path)]) == 0
    capsys.readouterr()

    image = png.read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert image.endswith(b"IEND\xaeB`\x82")
    root = ET.fromstring(svg.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = "".join(root.itertext())
    for word in ("first-fit", "containers on one NUMA node", "time (min)"):
        assert word in words
    assert "stroke-dasharray" in svg.read_text()
    assert svg.read_bytes() == again.read_bytes()


def test_without_the_plotting_library_it_says_what_to_install_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is there if another test has plotted.
    monkeypatch.delitem(sys.modules, "cpupool.commands.pictures.plotting", raising=False)
    monkeypatch.delattr("cpupool.commands.pictures.plotting", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    code = cli.main(["simulate", *EXAMPLE, "--plot", str(tmp_path / "plot.png")])

    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err == (
        "cpupool: --plot draws with matplotlib, which is missing;"
        " in cpupool's folder: pip install '.[plot]'\n"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_run_shows_on_a_terminal_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")

    assert cli.main(["simulate", *EXAMPLE, "--json"]) == 0

    assert "simulating" in terminal.getvalue()
    assert "/20" in terminal.getvalue()
    json.loads(capsys.readouterr().out)


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    trace, plot = tmp_path / "trace.jsonl", tmp_path / "plot.png"
    endless = ("--random", "20000", "--load", "0.5", "--save-trace", trace, "--plot", plot)
    command = [sys.executable, "-m", "cpupool", "simulate", *EXAMPLE[:4], *map(str, endless)]
    message = b"cpupool: interrupted; nothing is left behind\r\n"
    terminal, its_end = pty.openpty()
    os.set_blocking(terminal, False)
    told = b""
    with (
        os.fdopen(terminal, "rb", buffering=0) as shown,
        # A terminal whose other end is closed may lose what was written last.
        os.fdopen(its_end, "wb", buffering=0) as its_end_kept,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end_kept) as process,
    ):

        def text() -> bytes:
            nonlocal told
            told += shown.read(4096) or b""
            return told

        try:
            eventually(lambda: b"simulating" in text(), lambda: repr(told))
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=DEADLINE_S)
            eventually(lambda: text().endswith(message), lambda: repr(told))
        finally:
            process.kill()

    assert process.returncode == 130
    assert out == b""
    # The cursor that the bar had hidden is back.
    assert told.rindex(b"\x1b[?25h") > told.rindex(b"\x1b[?25l")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "static"], "policy is none, not static; write cpuManager: {policy: static,"),
        (["--policy", "first-fit", "poool"], "'poool' is no policy; did you mean pool?"),
        (["--policy", "x"], "'x' is no policy; use one of pool, static, dynamic, koordinator, "),
        (["--topology-manager", "best"], "--topology-manager: invalid choice: 'best'"),
        (["--seed", "3"], "--seed is for --random; leave it out"),
        (["--load", "0.5"], "--load is for --random; leave it out"),
        (["--load", "nan"], "'nan' is not between 0.01 and 10; 1 is all of a pool"),
        (["--random", "3"], "not allowed with argument"),
        (["--plot", "plot.pdf"], "plot.pdf ends in neither .png nor .svg"),
        (["--plot", "/no/such/plot.png"], "/no/such/plot.png cannot be written"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", *EXAMPLE, *arguments]) == 2

    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize("number", ["0", "-1", "x", "100001"])
def test_so_many_random_pods_cannot_be_made(
    number: str, simulate: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--random", number) == 2
    assert f"'{number}' is not a number from 1 to 100,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        pytest.param(("--pods", "a: ]"), "mine:1:4: ", id="pods that are no YAML"),
        pytest.param(("--pods", ""), "mine: there is no pod in it; name a file", id="no pod"),
        pytest.param(
            ("--pods", "kind: Pod\nmetadata: {name: web}\n"), "spec.containers", id="no body"
        ),
        pytest.param(
            ("--pods", f"{POD}---\n{POD}"), "there are two pods ns/web", id="two of a name"
        ),
        pytest.param(("--trace", "x"), "mine:1:1: this is no JSON", id="a trace that is none"),
    ],
)
def test_a_file_that_cannot_be_used_is_bad_usage(
    mine: tuple[str, str],
    said: str,
    simulate: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    option, text = mine
    assert simulate(option, written(tmp_path, text)) == 2

    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_a_file_that_is_no_text_is_bad_usage(
    simulate: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_bytes(b"\xff\xfe")

    assert simulate("--trace", tmp_path / "mine") == 2
    assert "mine: this is not UTF-8; save it as UTF-8" in capsys.readouterr().err
