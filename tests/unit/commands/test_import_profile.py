"""`cpupool import performance-profile`, as an admin runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cpupool import cli
from cpupool.config import kubelet_config
from tests.machines import Machine

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = """\
apiVersion: performance.openshift.io/v2
kind: PerformanceProfile
metadata: {name: telco}
spec:
  cpu: {reserved: "0-1", isolated: "4-7", shared: "2-3"}
  workloadHints: {mixedCpus: true}
  nodeSelector: {node-role.kubernetes.io/performance: "test"}
"""
POOLS = "poolconfig-telco.yaml"
KUBELET = "kubelet-telco.yaml"


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    Machine(cores=4, threads=2, adjacent=True).write(tmp_path)
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    return ["import", "performance-profile", str(profile), "--topology", str(tmp_path)]


def test_pool_file_and_settings_are_printed(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(asked) == 0

    printed = capsys.readouterr()
    pools, kubelet = yaml.safe_load_all(printed.out)
    assert pools == {
        "pools": {
            "default": {"cpus": "0-1"},
            "exclusive_isolated": {"cpus": "4,6"},
            "shared_mixed": {"cpus": "2-3"},
        },
        "mixedCPUs": {"pool": "shared_mixed"},
        "nodeSelector": {"node-role.kubernetes.io/performance": "test"},
    }
    assert kubelet == {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "none",
        "reservedSystemCPUs": "2-7",
    }
    assert max(map(len, printed.out.splitlines())) <= 100
    idle, reserved = printed.err.splitlines()
    assert "CPUs 5,7 are threads of cores that exclusive_isolated lists once" in idle
    said = "profile.yaml:5:19: warning: spec.cpu.reserved: the Node Tuning Operator sets"
    assert f"{said} reservedSystemCPUs to 0-3" in reserved
    assert '# reservedSystemCPUs: "0-3"' in printed.out


@pytest.mark.parametrize("mixed", ["true", "false"])
@pytest.mark.parametrize("isolated", ["4-7", "4-5"], ids=["every CPU", "some in no list"])
def test_for_either_owner_of_the_isolated_cpus_there_are_settings_that_pass_the_check(
    asked: list[str],
    tmp_path: Path,
    isolated: str,
    mixed: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = PROFILE.replace("4-7", isolated).replace("true", mixed)
    (tmp_path / "profile.yaml").write_text(text)
    made = tmp_path / "made"
    assert cli.main([*asked, "--output", str(made)]) == 0
    kubelet, pools = made / KUBELET, made / POOLS
    labels = "node-role.kubernetes.io/performance=test"
    checked = ["kubelet-config", str(pools), *asked[3:], "--node-labels", labels]

    # As it is, nothing is said; for a kubelet that gives the CPUs out, the comment counts.
    capsys.readouterr()
    assert cli.main([*checked, "--check", str(kubelet)]) == 0
    static_cpus = yaml.safe_load(kubelet.read_text().splitlines()[-1].removeprefix("# "))

    if mixed == "true":
        kept = yaml.safe_load(pools.read_text())
        kept["pools"] = {"shared_mixed": kept["pools"]["shared_mixed"]}
        pools.write_text(yaml.safe_dump(kept))
        static = {"kind": "KubeletConfiguration", "cpuManagerPolicy": "static"}
        assert static_cpus == {"reservedSystemCPUs": "0-3"}
        kubelet.write_text(json.dumps({**static, **static_cpus}))
        assert cli.main([*checked, "--check", str(kubelet)]) == 0
    assert "warning" not in capsys.readouterr().out


def test_the_files_that_are_written_can_be_used(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made" / "here"

    assert cli.main([*asked, "--output", str(made)]) == 0

    assert capsys.readouterr().out.splitlines() == [str(made / POOLS), str(made / KUBELET)]
    checked = ["validate", str(made / POOLS), "--topology", str(tmp_path)]
    assert cli.main([*checked, "--node-labels", "node-role.kubernetes.io/performance=test"]) == 0
    assert "warning" not in capsys.readouterr().out
    config = kubelet_config.parse(KUBELET, (made / KUBELET).read_text())
    assert (config.cpu_manager_policy, str(config.reserved_cpus)) == ("none", "2-7")


def test_the_same_as_json(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(asked)
    text = capsys.readouterr().out

    assert cli.main([*asked, "--json"]) == 0

    made = json.loads(capsys.readouterr().out)
    assert made["pool_file"]["name"] == POOLS
    assert text.startswith(f"# {POOLS}\n{made['pool_file']['text']}---\n")
    assert made["mixed_cpus"] is True
    assert made["kubelet"] == {"cpuManagerPolicy": "none", "reservedSystemCPUs": "0-3"}
    assert made["reserved_beside_default"] == "2-7"


def test_with_one_switch_the_shared_cpus_are_not_reserved(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.yaml").write_text(PROFILE.replace("true", "false"))

    assert cli.main([*asked, "--json"]) == 0

    printed = capsys.readouterr()
    made = json.loads(printed.out)
    assert made["mixed_cpus"] is False
    assert made["kubelet"]["reservedSystemCPUs"] == "0-1"
    assert "mixedCPUs" not in made["pool_file"]["text"]
    assert "mixed CPUs stay off" in printed.err


def test_a_refused_profile_is_a_line_for_each_problem(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.yaml").write_text(PROFILE.replace("2-3", "1,4"))

    assert cli.main([*asked, "--output", str(tmp_path / "made")]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.partition(": spec.cpu.shared: ")[2][:30] for line in printed.err.splitlines()] == [
        "CPUs 1 are also in spec.cpu.re",
        "CPUs 4 are also in spec.cpu.is",
    ]
    assert not (tmp_path / "made").exists()


def test_a_profile_that_does_not_fit_the_machine(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.yaml").write_text(PROFILE.replace("4-7", "3-7").replace("2-3", "2"))

    assert cli.main(asked) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "CPUs 2 in shared_mixed are siblings of its CPUs 3" in printed.err


@pytest.mark.parametrize("there", [POOLS, KUBELET])
def test_nothing_is_overwritten(
    asked: list[str], tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / there).write_text("mine")

    assert cli.main([*asked, "--output", str(tmp_path)]) == 2

    assert f"{there} is there already" in capsys.readouterr().err
    assert (tmp_path / there).read_text() == "mine"
    assert not (tmp_path / ({POOLS, KUBELET} - {there}).pop()).exists()


def test_no_link_is_followed(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / POOLS).symlink_to(tmp_path / "elsewhere")

    assert cli.main([*asked, "--output", str(tmp_path)]) == 1

    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_made(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "profile.yaml" / "inside"

    assert cli.main([*asked, "--output", str(folder)]) == 1

    printed = capsys.readouterr().err
    assert f"{folder}" in printed
    assert "name another folder with --output" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import"], "see cpupool import --help"),
        (["import", "profile", "a.yaml"], "invalid choice: 'profile'"),
        (["import", "performance-profile", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (
            ["import", "performance-profile", "a.yaml", "--json", "--output", "b"],
            "not allowed with argument",
        ),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2

    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_notes_with_standard_error_closed(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)

    assert cli.main([*asked, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["mixed_cpus"] is True


ALIGNED = """\
apiVersion: performance.openshift.io/v2
kind: PerformanceProfile
metadata:
  name: telco
  annotations:
    kubeletconfig.experimental: |
      {"allowedUnsafeSysctls": ["net.core.somaxconn"], "systemReserved": {"memory": "2Gi"},
       "topologyManagerScope": "pod", "cpuManagerPolicyOptions": {"full-pcpus-only": "false"}}
    performance.openshift.io/dra-resource-management: "false"
spec:
  cpu: {reserved: "0-1", isolated: "4-15", ovsDpdk: "2-3"}
  numa: {topologyPolicy: single-numa-node}
  nodeSelector: {a/b: ""}
"""


def imported(
    tmp_path: Path, text: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str, int]:
    """Return the settings for the kubelet, the notes, and the exit code of the check."""
    folder = tmp_path / "machine"
    machine.write(folder)
    profile, made = tmp_path / "aligned.yaml", tmp_path / "made"
    profile.write_text(text)
    command = ["import", "performance-profile", str(profile), "--topology", str(folder)]
    assert cli.main([*command, "--output", str(made)]) == 0
    notes = capsys.readouterr().err
    checked = ["kubelet-config", str(made / POOLS), "--topology", str(folder)]
    checked += ["--node-labels", "a/b=", "--check", str(made / KUBELET)]
    code = cli.main(checked)
    return yaml.safe_load((made / KUBELET).read_text()), notes, code


@pytest.mark.parametrize("nodes", [2, 10])
def test_the_alignment_is_carried_over_and_passes_the_check(
    tmp_path: Path, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(nodes=nodes, cores=20 // nodes)
    text = ALIGNED.replace("4-15", "4-19")

    settings, notes, code = imported(tmp_path, text, machine, capsys)

    assert code == 0
    assert settings["topologyManagerPolicy"] == "single-numa-node"
    assert (settings["topologyManagerScope"], settings["memoryManagerPolicy"]) == ("pod", "Static")
    assert settings["allowedUnsafeSysctls"] == ["net.core.somaxconn"]
    assert settings["reservedMemory"] == [{"numaNode": 0, "limits": {"memory": "2648Mi"}}]
    assert settings["systemReserved"] == {"memory": "2Gi"}
    options = {"max-allowable-numa-nodes": "10"} if nodes == 10 else None
    assert settings.get("topologyManagerPolicyOptions") == options
    assert "cpuManagerPolicyOptions" not in settings
    assert "cpuManagerPolicyOptions (full-pcpus-only: false) is not carried over" in notes


def test_a_driver_for_claims_ends_the_alignment_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ALIGNED.replace('"false"\nspec', '"true"\nspec')

    settings, notes, code = imported(tmp_path, text, Machine(nodes=2, cores=8), capsys)

    assert code == 0
    assert (settings["topologyManagerPolicy"], settings["memoryManagerPolicy"]) == ("none", "None")
    assert "dra-resource-management: a driver gives out CPUs and memory by claims" in notes
    assert "single-numa-node is not carried over; set topologyManagerPolicy to single" in notes


def test_a_profile_without_a_policy_names_the_operators(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(asked) == 0
    assert "\n# topologyManagerPolicy: best-effort\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ('{"allowed', '["allowed', "kubeletconfig.experimental: this is no JSON object"),
        ('"2Gi"', "much", "kubeletconfig.experimental: this is no JSON object"),
        ('"2Gi"', '"much"', "systemReserved.memory: 'much'"),
        ('{"memory": "2Gi"}', '"2Gi"', "systemReserved is no map, so the Node Tuning Operator"),
        (
            'management: "false"\nspec:',
            'management: "true"\nspec:\n  workloadHints: {mixedCpus: true}',
            "with this and mixed CPUs the Node Tuning Operator refuses the profile",
        ),
    ],
)
def test_what_the_operator_refuses_is_refused(
    tmp_path: Path, was: str, becomes: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ALIGNED.replace('ovsDpdk: "2-3"', 'ovsDpdk: "2", shared: "3"')
    assert was in text
    (tmp_path / "aligned.yaml").write_text(text.replace(was, becomes))

    assert cli.main(["import", "performance-profile", str(tmp_path / "aligned.yaml")]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


@pytest.mark.parametrize(
    ("snippet", "said"),
    [
        ('{"memoryManagerPolicy": "Static"}', "reservedMemory: the kubelet does not start"),
        ('{"topologyManagerScope": "pods"}', "topologyManagerScope: the kubelet does not start"),
        ('{"systemReserved": {"cpu": "x"}}', "systemReserved.cpu: 'x' is not a quantity"),
    ],
)
def test_settings_that_the_check_refuses_have_a_note(
    tmp_path: Path, snippet: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, _, rest = ALIGNED.partition("      {")
    text = f"{before}      {snippet}\n{rest[rest.index('    performance.openshift') :]}"
    text = text.replace("single-numa-node", "best-effort")

    _, notes, code = imported(tmp_path, text, Machine(nodes=2, cores=8), capsys)

    assert code != 0
    assert f"warning: metadata.annotations.kubeletconfig.experimental: {said}" in notes
