from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cpupool import cli
from cpupool.version import VERSION


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["demoo"], "'demoo' is no command; did you mean demo?", id="a typo"),
        pytest.param(["frobnicate"], "'frobnicate' is no command; use one of", id="no command"),
        pytest.param([], "COMMAND; see cpupool --help", id="nothing"),
        pytest.param(["status", "--fil"], "see cpupool status --help", id="half an option"),
        pytest.param(["validate", "nowhere.yaml"], "nowhere.yaml: No such file", id="no file"),
        pytest.param(
            ["agent", "--node-labels", "worker"],
            "'worker' is no label; write key=value",
            id="label",
        ),
        pytest.param(["status", "--file", "nowhere.json"], "start `cpupool agent", id="no agent"),
        pytest.param(["topology", "--topology", "nowhere"], "nowhere", id="no machine"),
        pytest.param(["demo", "--config", "nowhere.yaml"], "nowhere.yaml: No such", id="no pools"),
        pytest.param(["demo", "--pods", "nowhere.yaml"], "nowhere.yaml: No such", id="no pods"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2

    printed = capsys.readouterr().err
    assert printed.startswith("cpupool: ")
    assert said in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])

    assert ended.value.code == 0
    assert f"examples:\n  cpupool {command}" in capsys.readouterr().out.replace("kubectl", "\n")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])

    assert capsys.readouterr().out == f"cpupool {VERSION}\n"


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    command = f"{sys.executable} -m cpupool topology --json | head -c 1"
    result = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )

    assert (result.stdout, result.stderr) == ("{", "")


def test_the_agent_is_spared_asyncio_and_the_drawing_library() -> None:
    program = (
        "import sys; from cpupool import cli\n"
        "try: cli.main(['agent', '--help'])\n"
        "except SystemExit: print(sorted({'asyncio', 'ssl', 'rich'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )

    assert result.stdout.endswith("[]\n")
