from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from cpupool import cli
from cpupool.config import kubelet_config
from cpupool.config.kubelet_settings import KubeletNeeds
from tests.machines import MACHINES, Machine
from tests.nodes import POOL_FILE, POOLS

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = MACHINES["telco_2s_2n_16c32t"]


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    MACHINE.write(tmp_path)
    pools = tmp_path / "poolconfig-a.yaml"
    pools.write_text(POOL_FILE)
    return ["kubelet-config", str(pools), "--topology", str(tmp_path)]


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize("reserve", ["0", "500m", "4"])
@pytest.mark.parametrize(
    "pools", [POOL_FILE, POOL_FILE.replace('"4-7"', '"4-12"')], ids=["one node", "two nodes"]
)
def test_what_is_printed_passes_the_check(
    asked: list[str],
    tmp_path: Path,
    *,
    pools: str,
    reserve: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "poolconfig-a.yaml").write_text(pools)
    assert cli.main([*asked, "--reserve", reserve]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "kubelet.yaml").write_text(printed)

    checked = cli.main([*asked, "--reserve", reserve, "--check", str(tmp_path / "kubelet.yaml")])

    assert checked == 0
    said = capsys.readouterr().out
    # All of the default pool may be kept for daemons, and that leaves nothing for pods.
    assert "warning" not in said
    assert "kubelet.yaml: ok: " in said
    settings = yaml.safe_load(printed)
    assert settings["cpuManagerPolicy"] == "none"
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.parametrize("pools", [POOL_FILE, ""], ids=["beside pools", "without pools"])
@pytest.mark.parametrize(
    ("reserved", "allowed", "too_much"),
    [("2", "2", "2001m"), ("0-1,17", "2500m", "4")],
    ids=["a number", "a list"],
)
def test_what_is_printed_for_a_cpu_manager_policy_gives_the_scheduler_its_cpus(
    asked: list[str],
    tmp_path: Path,
    *,
    pools: str,
    reserved: str,
    allowed: str,
    too_much: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manager = f"cpuManager: {{policy: static, reserved: '{reserved}'}}\n"
    (tmp_path / "poolconfig-a.yaml").write_text(pools + manager)
    assert cli.main([*asked, "--reserve", allowed]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "kubelet.yaml").write_text(printed)
    assert cli.main([*asked, "--check", str(tmp_path / "kubelet.yaml")]) == 0

    kept = 2 if reserved == "2" else 3
    default = 4 if pools else 32
    said = capsys.readouterr().out
    assert "warning" not in said
    assert f" ok: {default - kept} cpu for the scheduler, in a default pool of {default} " in said
    settings = yaml.safe_load(printed)
    assert settings["cpuManagerPolicy"] == "none"
    assert settings["systemReserved"]["cpu"] == str(32 - default + kept)
    assert max(map(len, printed.splitlines())) <= 100

    assert cli.main([*asked, "--reserve", too_much]) == 2
    refused = capsys.readouterr().err
    assert f"--reserve {too_much} is more than the {kept} CPUs (0" in refused
    assert "raise cpuManager.reserved" in refused


def test_the_scheduler_does_not_count_the_cpus_of_system_pods(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = "{namespaces: [kube-system], cpus: 2-3}"
    manager = f"cpuManager: {{policy: static, reserved: 0-1, systemPods: {system}}}\n"
    (tmp_path / "poolconfig-a.yaml").write_text(manager)
    assert cli.main(asked) == 0
    printed = capsys.readouterr().out
    assert "the 2 that cpuManager reserves,\n# and the 2 of system pods. The scheduler" in printed
    assert yaml.safe_load(printed)["systemReserved"]["cpu"] == "4"
    assert max(map(len, printed.splitlines())) <= 100
    (tmp_path / "kubelet.yaml").write_text(printed)
    assert cli.main([*asked, "--check", str(tmp_path / "kubelet.yaml")]) == 0
    said = capsys.readouterr().out
    assert "gives out 28 and reserves 0-1 and keeps 2-3 for system pods" in said
    assert cli.main([*asked, "--reserve", "3"]) == 2
    assert "more than the 2 CPUs (0-1) that cpuManager reserves" in capsys.readouterr().err


def test_where_the_kubelet_gives_out_cpus_itself_it_keeps_the_shared_ones(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = 'pools: {shared_x: {cpus: "2-3,18-19"}}\nmixedCPUs: {pool: shared_x}\n'
    (tmp_path / "poolconfig-a.yaml").write_text(pools)
    assert cli.main(asked) == 0
    printed = capsys.readouterr().out
    (tmp_path / "kubelet.yaml").write_text(printed)
    assert cli.main([*asked, "--check", str(tmp_path / "kubelet.yaml")]) == 0
    settings = yaml.safe_load(printed)
    assert settings["cpuManagerPolicy"] == "static"
    assert settings["reservedSystemCPUs"] == "2-3,18-19"


def test_a_static_cpu_manager_that_is_only_tolerated_is_not_printed(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "poolconfig-a.yaml").write_text(
        "cpuManager: {policy: koordinator, reserved: '0,16'}\n"
    )
    assert cli.main(asked) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["cpuManagerPolicy"] == "none"

    beside = tmp_path / "kubelet.yaml"
    beside.write_text(
        "kind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: '0,16'\n"
    )
    assert cli.main([*asked, "--check", str(beside)]) == 0


def test_the_list_in_the_comment_reserves_enough(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*asked, "--reserve", "500m"])
    line = next(one for one in capsys.readouterr().out.splitlines() if 'CPUs: "' in one)
    listed = yaml.safe_load(line.removeprefix("# "))

    config = kubelet_config.parse("a", json.dumps({"kind": "KubeletConfiguration", **listed}))

    needs = KubeletNeeds.of(POOLS, MACHINE.topology(), 500)
    assert kubelet_config.check(config, needs) == ()


def test_an_answer_of_configz_is_checked_from_standard_input(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give(monkeypatch, '{"kubeletconfig":{"systemReserved":{"cpu":"1"}}}')

    assert cli.main([*asked, "--check", "-"]) == 1

    said = capsys.readouterr().out
    assert said.startswith("/dev/stdin:1:")
    assert "set systemReserved.cpu to 28" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--check", "/no/such"], "/no/such: No such file or directory"),
        (["--reserve", "5"], "--reserve 5 is more than the 4 CPUs of the default pool"),
        (["--reserve", "lots"], "'lots' is not a quantity"),
        (["--chek", "x"], "see cpupool"),
    ],
)
def test_bad_usage_is_one_line(
    asked: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*asked, *options]) == 2

    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod", "/dev/stdin:1:1: this is neither"),
        ("x" * (16 * 2**20 + 1), "/dev/stdin: it has more than"),
        ("\x00", "not allowed in YAML"),
    ],
    ids=["another kind", "too long", "no text"],
)
def test_standard_input_that_is_no_configuration(
    asked: list[str],
    text: str,
    said: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    give(monkeypatch, text)

    assert cli.main([*asked, "--check", "-"]) == 2

    assert said in capsys.readouterr().err


def test_more_numa_nodes_than_the_topology_manager_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Machine(sockets=2, nodes=5, cores=2).write(tmp_path)
    pools = tmp_path / "poolconfig-a.yaml"
    pools.write_text("pools: {exclusive_a: {cpus: 0-9}, default: {cpus: 10-19}}")

    assert cli.main(["kubelet-config", str(pools), "--topology", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["topologyManagerPolicy"] == "none"
    assert "max-allowable-numa-nodes" in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_standard_input_that_is_closed(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    assert cli.main([*asked, "--check", "-"]) == 2

    assert "standard input is closed" in capsys.readouterr().err


DROP_IN = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def test_drop_ins_are_part_of_what_is_checked(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(asked) == 0
    (tmp_path / "kubelet.yaml").write_text(capsys.readouterr().out)
    folder = tmp_path / "kubelet.d"
    folder.mkdir()
    checked = [*asked, "--check", str(tmp_path / "kubelet.yaml"), "--kubelet-config-dir"]
    assert cli.main([*checked, str(folder)]) == 0

    (folder / "10.conf").write_text(f"{DROP_IN}cpuManagerPolicy: static\n")
    capsys.readouterr()
    assert cli.main([*checked, str(folder)]) == 1
    assert f"{folder}/10.conf:3:19: cpuManagerPolicy: the kubelet's" in capsys.readouterr().out

    (folder / "10.conf").write_text("cpuManagerPolicy: none\n")
    assert cli.main([*checked, str(folder)]) == 2
    assert "10.conf:1:1: apiVersion: the kubelet does not start" in capsys.readouterr().err
    assert cli.main([*checked, str(tmp_path / "absent")]) == 2
    error = capsys.readouterr().err
    assert "absent: No such file or directory; the kubelet does not start without" in error
    assert error.count("\n") == 1


def test_a_configuration_with_which_the_kubelet_does_not_start_on_nine_numa_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Machine(sockets=3, nodes=3, cores=2).write(tmp_path)
    pools, kubelet = tmp_path / "poolconfig-a.yaml", tmp_path / "kubelet.yaml"
    pools.write_text("pools: {exclusive_a: {cpus: 0-9}, default: {cpus: 10-17}}")
    text = f"{DROP_IN}systemReserved: {{cpu: 10}}\ntopologyManagerPolicy: restricted\n"
    kubelet.write_text(text)
    checked = ["kubelet-config", str(pools), "--topology", str(tmp_path), "--check", str(kubelet)]

    assert cli.main(checked) == 1
    assert "topologyManagerPolicyOptions.max-allowable-numa-nodes: the" in capsys.readouterr().out

    kubelet.write_text(f"{text}topologyManagerPolicyOptions: {{max-allowable-numa-nodes: '9'}}\n")
    assert cli.main(checked) == 0


def test_an_empty_file_is_no_configuration(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubelet.yaml").touch()
    assert cli.main([*asked, "--check", str(tmp_path / "kubelet.yaml")]) == 2
    assert "kubelet.yaml: this file is empty; name the file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["kubelet-config", "validate"])
def test_a_number_that_leaves_no_online_cpu_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Machine(cores=16, offline="8-15").write(tmp_path)
    file = tmp_path / "poolconfig-a.yaml"
    file.write_text("nodeSelector: {a: b}\ncpuManager: {policy: static, reserved: 12}\n")
    assert cli.main([command, str(file), "--topology", str(tmp_path)]) != 0
    said = "".join(capsys.readouterr())
    assert "12 of the 8 online CPUs of the default pool are reserved" in said
    file.write_text(file.read_text().replace("12", "7"))
    assert cli.main([command, str(file), "--topology", str(tmp_path)]) == 0
