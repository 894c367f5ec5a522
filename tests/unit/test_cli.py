from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cpupool import cli
from cpupool.version import VERSION
from tests.waiting import DEADLINE_S


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["demoo"], "'demoo' is no command; did you mean demo?", id="a typo"),
        pytest.param(["frobnicate"], "'frobnicate' is no command; use one of", id="no command"),
        pytest.param([], "COMMAND; see cpupool --help", id="nothing"),
        pytest.param(["status", "--fil"], "see cpupool status --help", id="half an option"),
        pytest.param(["topology", "x"], "see cpupool topology --help", id="one word too many"),
        pytest.param(
            ["demo", "--jsn"],
            "--jsn (did you mean --json?); see cpupool demo",
            id="a typo in an option",
        ),
        pytest.param(
            ["agent", "--cofnig=/a", "--sweep-intervall", "9"],
            " (did you mean --config and --sweep-interval?); see cpupool agent",
            id="typos in two options",
        ),
        pytest.param(["demo", "--xyzzy"], "--xyzzy; see cpupool demo --help", id="no such option"),
        pytest.param(["validate", "nowhere.yaml"], "nowhere.yaml: No such file", id="no file"),
        pytest.param(["validate", "\x1b[2J.yaml"], "\\u001b[2J.yaml: No such file", id="an escape"),
        pytest.param(
            ["validate", "a.yaml", "--node-labels", "worker"],
            "'worker' is no label; write key=value",
            id="label",
        ),
        *(
            pytest.param(
                ["agent", "--sweep-interval", number],
                f"'{number}' is not between 0.1 and 60 seconds",
                id=f"an interval of {number}",
            )
            for number in ("1e400", "0", "-1", "nan", "0.09", "3601")
        ),
        *(
            pytest.param(
                [command, "--resource-domain", domain],
                f"{domain!r} is no DNS subdomain",
                id=f"{command} with the domain {domain!r:.9}",
            )
            for command, domain in (
                ("agent", ""),
                ("agent", "a/b c"),
                ("validate", "Example.com"),
                ("topology", "a..b"),
                ("demo", "a" * 254),
            )
        ),
        *(
            pytest.param(
                [command, "--json", "--svg", "a.svg"],
                "not allowed with argument",
                id=f"{command} in two shapes",
            )
            for command in ("demo", "topology", "status", "explain")
        ),
        *(
            pytest.param(
                [command, "--svg", svg],
                "cannot be written; name a file",
                id=f"{command} to {svg:.20}",
            )
            for command, svg in (
                ("demo", "/nowhere/a.svg"),
                ("topology", "/"),
                ("status", "/tmp/" + "x" * 300),
            )
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


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_what_an_example_names_in_the_repository_is_there(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])

    for path in re.findall(r"configmaps/\S+", capsys.readouterr().out):
        assert (Path(__file__).parents[2] / path).is_file()


@pytest.mark.parametrize(
    "command", ["demo", "topology", "validate", "status", "explain", "simulate"]
)
def test_the_help_says_what_the_exit_codes_mean(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])

    assert re.search(
        r"Exit code 0: [^;]+; 1: [^;]+; 2: [^;]+\.\n",
        capsys.readouterr().out,
    )


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])

    assert capsys.readouterr().out == f"cpupool {VERSION}\n"


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    command = f"{sys.executable} -m cpupool topology --json | head -c 1"
    result = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )

    assert (result.stdout, result.stderr) == ("{", "")


def test_the_agent_is_spared_the_drawing_library() -> None:
    program = (
        "import sys; from cpupool import cli\n"
        "try: cli.main(['agent', '--help'])\n"
        "except SystemExit: print(sorted({'rich'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
        cwd=Path(__file__).parents[2],
    )

    assert result.stdout.endswith("[]\n")


def test_nothing_that_takes_time_is_imported_before_ctrl_c_is_awaited() -> None:
    program = (
        "import os, sys; before = set(sys.modules)\n"
        "import cpupool.__main__; print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        # The site's hooks may import anything, and Python itself has imported os.
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
        cwd=Path(__file__).parents[2],
    )

    assert result.stdout.split() == ["__future__", "cpupool", "cpupool.__main__"]


@pytest.mark.parametrize("imported", ["cpupool.cli", "cpupool.commands.topology"])
def test_ctrl_c_during_an_import_is_no_traceback(imported: str) -> None:
    """The import says that it has begun, and then waits for the signal."""
    program = f"""
import runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {imported!r}:
            print("begun", flush=True)
            # A system call would sleep through a signal that comes right before it.
            while True:
                pass

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["cpupool", "topology"]
sys.meta_path.insert(0, Finder())
runpy.run_module("cpupool", run_name="__main__")
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stderr
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
