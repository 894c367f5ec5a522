"""`cpupool validate`, as an admin's CI runs it."""

from __future__ import annotations

import argparse
import io
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.commands import validate
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.config import poolconfig
from cpupool.core.errors import ConfigError
from cpupool.core.names import Names
from cpupool.host import installed_policies
from cpupool.host.pool_files import read_pool_files
from tests.machines import MACHINES
from tests.policies import package

if TYPE_CHECKING:
    from pathlib import Path

DPDK = """\
nodeSelector: {nodeType: dpdk}
pools:
  exclusive-pool: {cpus: 2-7}
  shared-pool: {cpus: 1}
  default: {cpus: 0}
"""
CONTROLLER = """\
nodeSelector: {nodeType: controller}
pools:
  exclusive: {cpus: 30-33}
  default: {cpus: 0-3}
"""


STATIC = """\
cpuManager:
  policy: static
  reserved: 0-1
  options: {full-pcpus-only: true}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder as the ConfigMap is mounted: two pool files and what is none."""
    (tmp_path / "poolconfig-dpdk.yaml").write_text(DPDK)
    (tmp_path / "poolconfig-controller.yaml").write_text(CONTROLLER)
    (tmp_path / "README.yaml").write_text("]")
    (tmp_path / "..data").mkdir()
    return tmp_path


def run(
    *files: Path,
    topology: str | None = None,
    node_labels: dict[str, str] | None = None,
    resource_domain: str = "nokia.k8s.io",
) -> tuple[int, list[str]]:
    """Run the command in the folder of its files; give the exit code and the lines."""
    out = io.StringIO()
    arguments = argparse.Namespace(
        files=list(files),
        topology=topology,
        node_labels=node_labels,
        resource_domain=resource_domain,
    )
    code = validate.run(arguments, out)
    return code, out.getvalue().splitlines()


def test_a_good_file_is_one_line_with_its_pools_by_kind(folder: Path) -> None:
    path = folder / "poolconfig-dpdk.yaml"
    assert run(path) == (0, [f"{path}: ok: exclusive-pool 2-7, shared-pool 1, default 0"])


def test_a_policy_is_reported_with_its_pool(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "pools:\n"
        "  exclusive-a: {cpus: 2-5, cpuBindPolicy: fullPhysicalCores, reserved: 2-3}\n"
        "  exclusive-b: {cpus: 6, numaPolicy: packed}\n"
        "  exclusive-c: {cpus: 7, alignByUncoreCache: true}\n"
    )
    assert run(path) == (
        0,
        [
            (
                f"{path}: ok: exclusive-a 2-5 (cpuBindPolicy: fullPhysicalCores, reserved: 2-3),"
                " exclusive-b 6, exclusive-c 7 (alignByUncoreCache: true)"
            )
        ],
    )


def test_mixed_cpus_that_are_on_are_reported_after_the_pools(folder: Path) -> None:
    path = folder / "poolconfig-dpdk.yaml"
    path.write_text(f"{path.read_text()}\nmixedCPUs: {{pool: shared-pool, containersLimit: 9}}\n")
    code, (line,) = run(path)
    assert code == 0
    assert line.endswith(", default 0; mixed CPUs of shared-pool for 9 containers")


def test_a_folder_stands_for_its_pool_files(folder: Path) -> None:
    code, lines = run(folder)
    assert code == 0
    assert [line.partition(": ok: ")[0] for line in lines] == [
        f"{folder}/poolconfig-controller.yaml",
        f"{folder}/poolconfig-dpdk.yaml",
    ]


def test_a_manifest_in_a_folder_is_no_pool_file_as_for_the_agent(tmp_path: Path) -> None:
    body = DPDK.replace("\n", "\n    ")
    path = tmp_path / "poolconfig-a.yaml"
    path.write_text(f"kind: ConfigMap\ndata:\n  poolconfig-dpdk.yaml: |\n    {body}\n")

    assert run(path)[0] == 0
    code, lines = run(tmp_path)
    assert code == 1
    assert lines[0].startswith(f"{path}:1:1: kind: unknown key")
    ((name, text),) = read_pool_files(tmp_path).items()
    with pytest.raises(ConfigError, match="kind: unknown key"):
        poolconfig.parse(name, text, Names())


def test_a_manifest_stands_for_its_pool_files(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    body = DPDK.replace("\n", "\n    ")
    path.write_text(f"kind: ConfigMap\ndata:\n  poolconfig-dpdk.yaml: |\n    {body}\n")
    assert run(path, node_labels={"nodeType": "dpdk"}) == (
        0,
        [
            "poolconfig-dpdk.yaml: ok: exclusive-pool 2-7, shared-pool 1, default 0",
            "this node takes poolconfig-dpdk.yaml",
        ],
    )


def test_every_problem_is_a_line_and_good_files_are_still_reported(folder: Path) -> None:
    bad, good = folder / "bad.yaml", folder / "poolconfig-dpdk.yaml"
    bad.write_text("pools: {exclusive: {cpus: x}, shared: {cpu: 1}}")
    code, lines = run(bad, good)
    assert code == 1
    assert [line.partition(" pools.")[0] for line in lines] == [
        f"{bad}:1:27:",
        f"{bad}:1:31:",
        f"{bad}:1:40:",
        f"{good}: ok: exclusive-pool 2-7, shared-pool 1, default 0",
    ]


def test_a_file_that_is_no_yaml_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: \xff")
    assert run(path) == (
        2,
        [f"{path}:1:4: the byte 0xff is not UTF-8; save the file as UTF-8"],
    )


def test_a_manifests_own_problems_come_with_those_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("kind: ConfigMap\nkind: ConfigMap\ndata: {poolconfig-a.yaml: 'pools: {}'}\n")
    code, lines = run(path)
    assert code == 1
    assert [line.split(":")[1:3] for line in lines] == [["2", "1"], ["3", "8"]]


def test_warnings_are_reported_and_leave_a_file_good(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "pools: {shared: {cpus: 1-2, hyperThreadingPolicy: singleThreaded}, default: {cpus: 1}}"
    )
    code, lines = run(path)
    assert code == 0
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines[:2]] == ["warning"] * 2
    assert lines[2] == f"{path}: ok: shared 1-2, default 1"
    assert len(lines) == 3


def test_every_file_must_fit_the_machine(folder: Path) -> None:
    MACHINES["telco_2s_2n_16c32t"].write(folder / "machine")
    code, lines = run(folder, topology=str(folder / "machine"))
    assert code == 1
    assert lines == [
        (
            f"{folder}/poolconfig-controller.yaml:3:21: pools.exclusive.cpus: this machine has no"
            " CPUs 32-33; it has 0-31; remove them, or use this file for a machine that has them"
        ),
        f"{folder}/poolconfig-dpdk.yaml: ok: exclusive-pool 2-7, shared-pool 1, default 0",
    ]


BROKEN = DPDK.replace("1}", "1-2, cpu: 3}").replace("2-7}", "'2-7,99'}")
"""An unknown key, an overlap, and a CPU that no machine here has."""


@pytest.mark.parametrize("labels", [None, {"nodeType": "dpdk"}])
def test_what_is_wrong_with_and_without_the_machine_is_reported_together(
    folder: Path, labels: dict[str, str] | None
) -> None:
    MACHINES["telco_2s_2n_16c32t"].write(folder / "machine")
    path = folder / "poolconfig-dpdk.yaml"
    path.write_text(BROKEN)

    code, lines = run(path, topology=str(folder / "machine"), node_labels=labels)

    assert code == 1
    told = "\n".join(lines)
    assert "unknown key" in told
    assert "CPUs 2 are also in shared-pool" in told
    assert "this machine has no CPUs 99" in told


def test_a_refused_file_for_other_nodes_is_not_held_against_the_machine(folder: Path) -> None:
    MACHINES["telco_2s_2n_16c32t"].write(folder / "machine")
    (folder / "poolconfig-dpdk.yaml").write_text(BROKEN)

    _, lines = run(folder, topology=str(folder / "machine"), node_labels={"nodeType": "controller"})

    told = "\n".join(lines)
    assert "unknown key" in told
    assert "this machine has no" not in told


def test_of_a_labelled_node_only_the_file_that_it_takes_must_fit_its_machine(folder: Path) -> None:
    MACHINES["telco_2s_2n_16c32t"].write(folder / "machine")
    code, lines = run(
        folder, topology=str(folder / "machine"), node_labels={"nodeType": "dpdk", "a": "b"}
    )
    assert code == 0
    assert lines[-1] == f"this node takes {folder}/poolconfig-dpdk.yaml"
    code, lines = run(
        folder, topology=str(folder / "machine"), node_labels={"nodeType": "controller"}
    )
    assert code == 1
    assert "has no CPUs 32-33" in lines[0]


@pytest.mark.parametrize(("labels", "shown"), [({}, "none"), ({"a": "b", "c": ""}, "a=b,c=")])
def test_a_node_that_no_file_is_for_is_a_problem(
    folder: Path, labels: dict[str, str], shown: str
) -> None:
    code, lines = run(folder, node_labels=labels)
    assert code == 1
    assert lines[0] == (
        f"nodeSelector: no file is for a node with these labels: {shown}; correct the labels, or"
        " add a file for this node"
    )
    assert len(lines) == 3


def test_a_node_that_two_files_are_for_is_a_problem(folder: Path) -> None:
    (folder / "poolconfig-other.yaml").write_text(DPDK.replace("nodeType: dpdk", "a: b"))
    labels = {"nodeType": "dpdk", "a": "b"}
    code, lines = run(folder, node_labels=labels)
    assert code == 1
    assert "poolconfig-dpdk.yaml:1:1) both match this node;" in lines[0]
    assert not any(line.startswith("this node takes") for line in lines)


def test_files_for_the_same_nodes_are_a_problem_without_any_labels(folder: Path) -> None:
    (folder / "poolconfig-other.yaml").write_text(DPDK)
    code, lines = run(folder)
    assert code == 1
    assert "both match every node that one of them is for" in lines[0]


def test_the_resource_domain_is_that_of_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("resourceBaseName: example.com\npools: {shared: {cpus: 1}}\n")
    assert run(path)[0] == 1
    assert run(path, resource_domain="example.com")[0] == 0


@pytest.mark.parametrize("name", ["nowhere", "x" * 300])
def test_a_file_that_cannot_be_read_is_bad_usage(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: .*; name a"):
        run(tmp_path / name)


def test_a_file_with_nearly_a_pool_files_name_is_a_warning(folder: Path) -> None:
    (folder / "poolconfig.yaml").write_text(DPDK)
    code, lines = run(folder)
    assert code == 0
    assert lines[0] == (
        f"{folder}/poolconfig.yaml: warning: 'poolconfig.yaml' is no pool file, as it does not"
        " begin with poolconfig-; rename it if it is one"
    )


def test_a_node_takes_the_file_without_a_selector_where_no_other_matches(folder: Path) -> None:
    (folder / "poolconfig-rest.yml").write_text("pools: {shared: {cpus: 1}}\n")
    for label, taken in {"dpdk": "dpdk.yaml", "other": "rest.yml"}.items():
        code, lines = run(folder, node_labels={"nodeType": label})
        assert code == 0
        assert lines[-1] == f"this node takes {folder}/poolconfig-{taken}"


def test_a_folder_without_pool_files_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no poolconfig-<name>\.yaml in this folder.*manifest"):
        run(tmp_path)


def test_a_machine_that_cannot_be_read_is_bad_usage(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--topology: .*nowhere: no such file"):
        run(folder, topology=str(folder / "nowhere"))


def test_the_command_line_reaches_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["validate", str(folder), "--node-labels", "nodeType=dpdk"])
    assert code == 0
    assert capsys.readouterr().out.endswith(f"this node takes {folder}/poolconfig-dpdk.yaml\n")


@pytest.mark.parametrize("arguments", [[], ["FILE", "--node-labels", "dpdk"], ["/nowhere.yaml"]])
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["validate", "--help"])
    assert "cpupool validate /etc/cpu-pooler --topology this" in capsys.readouterr().out


def test_a_file_with_a_cpu_manager_policy_alone_is_good(tmp_path: Path) -> None:
    file = tmp_path / "poolconfig-a.yaml"
    file.write_text(STATIC)

    code, lines = run(file)

    assert code == 0
    assert lines == [
        (
            f"{file}: ok: cpuManager with policy: static, reserved: CPUs 0-1,"
            " options: full-pcpus-only, topologyPolicy: none, topologyScope: container,"
            " onMisfit: hold, eligible: pod, systemPods: off, podLevelResources: false"
        )
    ]


@pytest.mark.parametrize("labels", [None, {"nodeType": "dpdk"}])
def test_what_only_the_policy_knows_is_reported_with_its_place(
    tmp_path: Path, labels: dict[str, str] | None
) -> None:
    file = tmp_path / "poolconfig-a.yaml"
    file.write_text("pools: {default: {cpus: 0-15}}\n" + STATIC)
    MACHINES["telco_2s_2n_16c32t"].write(tmp_path)

    assert run(file)[0] == 0
    code, lines = run(file, topology=str(tmp_path), node_labels=labels)

    assert code == 1
    assert lines[0] == (
        f"{file}:5:30: cpuManager.options.full-pcpus-only: the default pool lacks CPUs 16-31,"
        " siblings of its own: their cores are torn; add 16-31 to the default pool, or turn the"
        " option off"
    )


def test_a_package_with_a_built_in_name_is_named_at_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(folder / "site", "taker", static="tests.policies:LowestCPUs")
    monkeypatch.syspath_prepend(str(folder / "site"))
    monkeypatch.setattr(installed_policies, "_provided", installed_policies._provided.__wrapped__)
    file = folder / "static.yaml"
    file.write_text(STATIC)

    code, said = run(file)

    assert code == 0
    assert said[0] == (
        f"{file}:2:11: warning: cpuManager.policy: the policy static of the package taker is never"
        " used: static is built in; name it otherwise in the package"
    )
