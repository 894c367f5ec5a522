from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests.builders import container, pod
from tests.unit.commands.explain.node import Node, explain, steps

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.manager.report import NodeStatus


class TestFinding:
    """Which container is meant."""

    @pytest.fixture
    def status(self) -> NodeStatus:
        node = Node()
        node.run("web", container(), container("side"))
        node.run("db", container())
        other = replace(pod("db", container("db")), namespace="prod")
        (found,) = node.status(db="0").containers
        web = tuple(replace(found, name=f"default/web{name}") for name in ("", "/main", "/side"))
        names = ("default/db", "default/lone", f"{other.namespace}/db/db", "4f1c/8ad0")
        return replace(
            node.status(),
            containers=(*web, *(replace(found, name=name) for name in names)),
        )

    @pytest.mark.parametrize(
        ("asked", "meant"),
        [
            ("default/web/side", ["default/web/side"]),
            ("default/web", ["default/web/main", "default/web/side"]),
            ("web", ["default/web/main", "default/web/side"]),
            ("prod/db", ["prod/db/db"]),
            ("lone", ["default/lone"]),
            ("4f1c/8ad0", ["4f1c/8ad0"]),
        ],
    )
    def test_by_name(
        self,
        asked: str,
        meant: list[str],
        status: NodeStatus,
        file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert explain(file, status, asked, "--json") == 0
        containers = json.loads(capsys.readouterr().out)["containers"]
        assert [one["name"] for one in containers] == meant

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ("db", "'db' is the name of several pods; say which: default/db, prod/db"),
            ("wep", "no container or pod 'wep' here; did you mean web? Else look at"),
            ("default/wep", "did you mean default/web or"),
            ("prod/dbb", "did you mean prod/db? Else look"),
            ("default/web/maim", "did you mean default/web/main"),
            ("zzzzzz", "here; look at `cpupool status`"),
            ("", "here; look at `cpupool status`"),
            ("a/b/c/d/e/f", "here; look at `cpupool status`"),
        ],
    )
    def test_a_name_of_no_container_or_of_several(
        self,
        asked: str,
        said: str,
        status: NodeStatus,
        file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert explain(file, status, asked) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1

    def test_a_sandbox_is_named_for_what_it_is(
        self, status: NodeStatus, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert explain(file, status, "default/lone") == 0
        assert "request: a pod's sandbox, or a container that its pod" in capsys.readouterr().out


def test_an_agent_that_waits_has_looked_at_no_container(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(file, Node().status("the list of pods"), "web") == 2
    assert "the agent waits for the list of pods" in capsys.readouterr().err


def test_a_silent_agent(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container())
    explain(file, node.status(web="0"), "web")
    capsys.readouterr()
    os.utime(file, (0, 0))

    asked = ["explain", "web", "--file", str(file), "--topology", str(file.parent)]
    assert cli.main(asked) == 1
    assert "the agent does not run" in capsys.readouterr().out


def test_json_has_the_same_steps(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")
    assert explain(file, node.status(web="2"), "web") == 0
    printed = steps(capsys.readouterr().out)

    assert explain(file, node.status(web="2"), "web", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "cpupool-explanation/1"
    (web,) = document["containers"]
    assert (web["name"], web["cpus"], web["right"]) == ("default/web/main", "2", True)
    assert [f"{one['rule']}: {one['why']} => {one['left']}" for one in web["steps"]] == printed


def test_the_machine_is_drawn_with_its_cpus(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")
    picture = file.with_name("picture.svg")

    assert explain(file, node.status(web="2"), "web", "--svg", str(picture)) == 0
    legend = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["A", "default/web/main", "2"] in legend
    assert ["B", "others", "of", "the", "same", "pools", "4"] in legend
    assert "default/web/main" in picture.read_text()
