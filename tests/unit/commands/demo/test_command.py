"""What is wrong with the command line of a demo is said before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests import policies

if TYPE_CHECKING:
    from pathlib import Path

POD = "kind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main}]}\n"


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        pytest.param("--pods", "a: ]", "mine.yaml:1:4: ", id="pods that are no YAML"),
        pytest.param("--pods", "", "mine.yaml: there is no pod in it", id="no pod"),
        pytest.param(
            "--pods", "kind: Pod\nmetadata: {name: web}\n", "spec.containers", id="no pod body"
        ),
        pytest.param(
            "--pods",
            POD.replace("{name: main}", "{name: main, env: [{name: A=B}]}"),
            "spec.containers[0].env[0]",
            id="a variable that no process can carry",
        ),
        pytest.param(
            "--pods",
            f"{POD}---\n{POD}",
            "mine.yaml: there are two pods default/web in it",
            id="two pods of a name",
        ),
        pytest.param("--config", "pools: ]", "mine.yaml:1:8: ", id="pools that are no YAML"),
        pytest.param(
            "--config",
            "pools: {exclusive: {cpus: 8000}}",
            "mine.yaml:1:27: pools.exclusive.cpus: this machine has no CPUs 8000",
            id="pools of another machine",
        ),
        pytest.param(
            "--config",
            "resourceBaseName: example.com\npools: {default: {cpus: 0}}",
            "the agent's --resource-domain",
            id="another resource domain",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_bad_usage_before_anything_starts(
    option: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)

    assert cli.main(["demo", option, str(mine)]) == 2

    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cpu-manager", "none"], "'none' is no policy to show here; use static, dynamic,"),
        (
            ["--cpu-manager", "dynamicc"],
            "'dynamicc' is no policy to show here; did you mean dynamic?",
        ),
        (["--cpu-manager", "qrm"], "'qrm' is no policy to show here; use --qrm instead"),
        (["--cpu-manager", "static", "--config", "mine.yaml"], "not allowed with argument"),
    ],
)
def test_a_cpu_manager_policy_is_for_a_pool_file_of_the_demo(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.yaml").write_text("pools: {default: {cpus: 0}}")
    monkeypatch.chdir(tmp_path)

    assert cli.main(["demo", *options]) == 2

    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_a_policy_of_a_package_is_one_for_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policies.package(tmp_path, "ours", lowest="tests.policies:LowestCPUs")
    with policies.found(monkeypatch, tmp_path):
        assert cli.main(["demo", "--cpu-manager", "lowest", "--plugin-folder", "plugins"]) == 2

    assert "--cpu-manager is for a policy without plugins" in capsys.readouterr().err
