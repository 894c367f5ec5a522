"""The guide to the CPU manager: its example, every command, and the output that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests.guides import blocks, commands, example_node
from tests.machines import Machine
from tests.scenarios import test_demo
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.commands.demo.live import LiveNode

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/user/cpu-manager.md").read_text()
EXAMPLE = ROOT / "examples/cpu-manager"
MACHINE = Machine(sockets=2, cores=16, threads=2)
"""The machine of the example: CPUs 0 and 32 are one core."""
SHARED = "0-1,5-15,32-33,37-47"
NOBODY = "http://127.0.0.1:9"


def calls(name: str) -> list[list[str]]:
    """Return the arguments of each of the guide's calls of a command."""
    return [given for command, *given in commands(GUIDE) if command == name]


@pytest.fixture
def live(folder: Path) -> Iterator[LiveNode]:
    with example_node(folder, MACHINE, EXAMPLE, {"nokia.k8s.io/exclusive_dpdk": 16}) as live:
        yield live


def test_the_example_has_the_guides_pool_file() -> None:
    written = (EXAMPLE / "poolconfig.yaml").read_text().splitlines()
    assert [line for line in written if not line.startswith("#")] == blocks(GUIDE, "yaml")[
        0
    ].splitlines()


def test_the_pods_of_the_example_get_what_the_guide_says(live: LiveNode) -> None:
    found = {
        container.name.removeprefix("default/"): container.found
        for container in live.status().containers
        if container.name.count("/") == 2
    }

    assert found == {
        "whole/main": "2,34",
        "part/main": SHARED,
        "both/main": "3-4,35-36",
        "both/logs": SHARED,
        "pool/main": "16-17",
        "burstable/main": SHARED,
    }
    own = {process.container: process.instance.environment for process in live.node.processes()}
    assert "EXCLUSIVE_CPUS" not in own["logs"]


def test_every_command_of_the_guide_runs_on_such_a_node(
    live: LiveNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, root = str(live.node.root.sysfs.parent), live.node.root
    monkeypatch.chdir(EXAMPLE)
    machine = ["--topology", folder]
    written = ["--file", str(root.status), *machine]
    here = ["--host-root", folder, "--config", f"{folder}/config", "--agent", NOBODY]
    options = {
        "validate": [],
        "kubelet-config": machine,
        "doctor": [*here, "--cgroup-root", live.node.cgroup_root],
        "status": written,
        "explain": written,
    }
    live.status()
    eventually(lambda: "default/burstable/main" in root.status.read_text(), "the agent's status")
    for name, more in options.items():
        ((*given,),) = calls(name)
        words = [folder if word == "this" else word for word in given]
        assert cli.main([name, *words, *more]) == 0, name
        printed = capsys.readouterr().out
        if name == "explain":
            assert printed.startswith(blocks(GUIDE, "text")[-1])
    # The other commands have tests of their own.
    named = re.findall(r"^cpupool ([a-z-]+)", "".join(blocks(GUIDE, "sh")), re.MULTILINE)
    assert set(named) - options.keys() == {"demo", "simulate"}


@test_demo.two_cpus
def test_the_demo_says_what_the_guide_shows(folder: Path) -> None:
    ((*options,),) = calls("demo")
    printed, _ = test_demo.demo(folder, *options).communicate(timeout=DEADLINE_S)

    # The numbers are another machine's; three dots stand for what is left out.
    shown = blocks(GUIDE, "text")[0].replace("\n  ", " ").replace("\n...", "")
    lines = [re.escape(line).replace(r"\.\.\.", ".*") for line in without_numbers(shown)]
    assert re.search("(?s:\n|\n.*\n)".join(lines), "\n".join(without_numbers(printed)))


def test_simulate_prints_what_the_guide_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.setenv("COLUMNS", "100")
    # `tests/unit/commands/test_simulate.py` has the other call.
    (*options,), _ = calls("simulate")

    assert cli.main(["simulate", *options]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert blocks(GUIDE, "text")[1].replace("\n  ", " ") in "\n".join(printed)


def without_numbers(text: str) -> list[str]:
    return [re.sub(r"\d[-,\d]*", "N", line) for line in text.splitlines()]
