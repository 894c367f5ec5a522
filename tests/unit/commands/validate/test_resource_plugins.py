"""`cpupool validate` on the file of our resource plugins, by itself and as it is deployed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from cpupool import cli
from tests.guides import blocks
from tests.machines import Machine

GUIDE = Path(__file__).parents[4] / "docs/user/resource-plugins.md"
GOOD = """\
reserved: "0-1"
pools:
  online: {cpus: 4}
  offline: {weight: 1}
roles:
  ETL: {pool: offline}
nics:
  eth1: {ipv4: 10.0.0.2}
"""
BAD = """\
reserved: "0-1,99"
reservedMemory: 1MB
pools:
  online: {cpus: none}
  offline: {weight: 1, minCpu: 2}
role:
  ETL: {pool: offline}
"""
PROBLEMS = (
    "1:11: reserved: CPUs 99 are not online; reserve other CPUs",
    "2:17: reservedMemory: '1MB' is not a quantity",
    "4:18: pools.online.cpus: 'none' is no whole number from 1; write a whole number from 1",
    "5:24: pools.offline.minCpu: unknown key; did you mean minCpus?",
    "6:1: role: unknown key; did you mean roles?",
)
POOLS = "pools: {default: {cpus: 0}}\n"


def in_config_map(text: str, key: str = "resource-plugins.yaml") -> str:
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cpupool-resource-plugins}\ndata:\n"
    return f"{head}  {key}: |\n{textwrap.indent(text, '    ')}"


def validated(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, list[str]]:
    path = folder / "mine.yaml"
    path.write_text(text)
    code = cli.main(["validate", str(path), *options])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, [line.removeprefix(str(folder) + "/") for line in printed.out.splitlines()]


def this_machine(folder: Path) -> list[str]:
    return ["--topology", str(Machine(cores=8).write(folder / "machine").sys)]


def test_a_good_file_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "ok: for resource plugins: pools online, offline; roles ETL; NICs eth1"
    machine = this_machine(tmp_path)

    assert validated(GOOD, tmp_path, capsys, *machine) == (0, [f"mine.yaml: {said}"])
    deployed = in_config_map(GOOD)
    assert validated(deployed, tmp_path, capsys, *machine, "--node-labels", "a=b") == (
        0,
        [f"resource-plugins.yaml: {said}"],
    )


def test_every_problem_has_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = validated(BAD, tmp_path, capsys, *this_machine(tmp_path))

    assert code == 1
    assert len(lines) == len(PROBLEMS)
    for line, said in zip(lines, PROBLEMS, strict=True):
        assert line.startswith(f"mine.yaml:{said}")


def test_every_problem_has_its_place_in_a_config_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, alone = validated(BAD, tmp_path, capsys)
    code, lines = validated(in_config_map(BAD), tmp_path, capsys)

    assert code == 1
    for line, said in zip(lines, alone, strict=True):
        name, row, column, rest = said.split(":", 3)
        assert line == f"{name}:{int(row) + 5}:{int(column) + 4}:{rest}"


def test_too_few_cpus_are_said_with_what_else_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'pools: {a: {cpus: 4}, b: {minCpus: 9}}\nreserved: "0-6,8"\n'

    code, (lacks, few) = validated(text, tmp_path, capsys, *this_machine(tmp_path))

    assert code == 1
    assert lacks == "mine.yaml:2:11: reserved: CPUs 8 are not online; reserve other CPUs"
    assert few.startswith("mine.yaml:2:11: reserved: 1 CPUs are left for 2 pools, which have 10")


@pytest.mark.parametrize(
    ("text", "of_plugins"),
    [
        ("pools: {online: {weight: 1}}", True),
        ("pools: {exclusive_a: {minCpus: 1}}", True),
        ("roles: {a: {numaNode: alone}}", True),
        ("nics: {eth1: {ipv4: 10.0.0.2}}", True),
        ("load: {usePercent: 80}", True),
        ("reserved: 0", True),
        ("reserved: 0\npools: {online: {cpus: 4}}", True),
        ("reservedMemory: 1Gi\npools: {online: {cpus: 4}}", True),
        ("pools: {online: {cpus: 4}}", False),
        ("pools: {exclusive_a: {cpus: 4, reserved: 4}}", False),
        ("reserved: 0\npools: {exclusive_a: {cpus: 4}, default: {cpus: 0}}", False),
        ("reserved: 0\ncpuManager: {policy: static}", False),
        ("nodeSelector: {a: b}\nroles: {}\npools: {a: {cpus: 4}}", False),
        ("pools: 5", False),
        ("", False),
    ],
)
def test_a_file_is_known_by_its_keys(
    text: str, of_plugins: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines = validated(text, tmp_path, capsys)

    assert any("for resource plugins" in line for line in lines) is of_plugins


def test_both_kinds_lie_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [in_config_map(GOOD, "other.yaml"), in_config_map(POOLS, "poolconfig-a.yaml")]
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
    code, lines = validated("---\n".join([*both, service]), tmp_path, capsys)

    assert code == 0
    assert [line.partition(":")[0] for line in lines] == ["poolconfig-a.yaml", "other.yaml"]


def test_no_yaml_in_a_config_map_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = validated(in_config_map("pools: ]\n"), tmp_path, capsys)

    assert code == 2
    (line,) = lines
    assert line.startswith("mine.yaml:6:12: ")


def test_an_object_without_either_is_refused_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = validated(in_config_map("a: b\n", "app.yaml"), tmp_path, capsys)

    assert code == 1
    assert "there is no key of the form poolconfig-<name>.yaml" in lines[0]


def test_the_examples_of_the_guide_are_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = blocks(GUIDE.read_text(), "yaml")
    assert examples
    for example in examples:
        code, lines = validated(example, tmp_path, capsys)
        assert (code, len(lines)) == (0, 1), lines
