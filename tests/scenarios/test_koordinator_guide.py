"""The guide to Koordinator's classes: its example, every command, and the output that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests.guides import blocks, commands, example_node
from tests.scenarios import test_demo
from tests.scenarios.test_cpu_manager_guide import MACHINE, NOBODY, without_numbers
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.commands.demo.live import LiveNode

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/user/koordinator.md").read_text()
EXAMPLE = ROOT / "examples/koordinator"
OWNERS = {"lse": "1,33", "spread": "2-3", "lsr": "8,40", "pool": "24-25"}
SHARED = "0,4-7,9-23,32,34-39,41-55"
NEAR = "0,4-7,9-15,32,34-39,41-47"
BEST_EFFORT = "0,2-23,32,34-55"


@pytest.fixture
def live(folder: Path) -> Iterator[LiveNode]:
    with example_node(folder, MACHINE, EXAMPLE, {"nokia.k8s.io/exclusive_dpdk": 8}) as live:
        yield live


def test_the_example_has_the_guides_pool_file() -> None:
    written = (EXAMPLE / "poolconfig.yaml").read_text().splitlines()
    assert [line for line in written if not line.startswith("#")] == blocks(GUIDE, "yaml")[
        0
    ].splitlines()


def test_the_pods_of_the_example_run_where_the_guide_says(live: LiveNode) -> None:
    found = {
        container.name.removeprefix("default/").removesuffix("/main"): container.found
        for container in live.status().containers
        if container.name.count("/") == 2
    }

    shared = dict.fromkeys(("ls", "plain"), SHARED)
    assert found == {**OWNERS, **shared, "near": NEAR, "be": BEST_EFFORT}
    table = GUIDE.partition("The pods of the example")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([-,0-9]+) \|$", table, re.MULTILINE)
    assert dict(rows) == found


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
    eventually(lambda: "default/plain/main" in root.status.read_text(), "the agent's status")
    for name, *given in commands(GUIDE):
        if name == "demo":
            continue
        words = [folder if word == "this" else word for word in given]
        assert cli.main([name, *words, *options[name]]) == 0, name
        printed = capsys.readouterr().out
        if name == "explain":
            assert printed.startswith(blocks(GUIDE, "text")[-1])
    assert {name for name, *_ in commands(GUIDE)} == {*options, "demo"}


@test_demo.two_cpus
def test_the_demo_says_what_the_guide_shows(folder: Path) -> None:
    ((*options,),) = [given for name, *given in commands(GUIDE) if name == "demo"]
    printed, _ = test_demo.demo(folder, *options).communicate(timeout=DEADLINE_S)

    # The numbers are another machine's; three dots stand for what is left out.
    shown = blocks(GUIDE, "text")[0].replace("\n  ", " ").replace("\n...", "")
    lines = [re.escape(line).replace(r"\.\.\.", ".*") for line in without_numbers(shown)]
    assert re.search("(?s:\n|\n.*\n)".join(lines), "\n".join(without_numbers(printed)))
