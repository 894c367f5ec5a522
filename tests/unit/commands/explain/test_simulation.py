from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests.unit.commands.explain.node import Node, explain

if TYPE_CHECKING:
    from pathlib import Path


class TestSimulation:
    """The same from what `cpupool simulate --json` has written."""

    @staticmethod
    def write(file: Path, **changes: object) -> list[str]:
        """Write a simulation of two policies, and give the arguments that name it."""
        step = {"rule": "numaPolicy", "why": "NUMA node 1 of 2", "left": "8-9"}
        chosen = {
            "name": "default/web/main",
            "pool": "exclusive_a",
            "requested": 2,
            "cpus": "8-9",
            "steps": [{"rule": "free", "why": "4 can be chosen", "left": "2-3,8-9"}, step],
            "refused": "",
        }
        late = {**chosen, "name": "default/late/main", "cpus": "", "steps": []}
        late |= {"refused": "Insufficient shared_b", "pool": "shared_b"}
        spread = {**chosen, "cpus": "2,8"}
        document = {
            "schema": "cpupool-simulation/1",
            "policies": {
                "packed": {"containers": [chosen, late]},
                "spread": {"containers": [spread]},
            },
            **changes,
        }
        file.write_text(json.dumps(document))
        os.utime(file, (0, 0))
        return ["--file", str(file)]

    def test_a_container_of_the_first_policy(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["explain", "web", *self.write(file)]) == 0
        assert capsys.readouterr().out == (
            "default/web/main: 8-9\n"
            "  1. request: it requests 2 of exclusive_a => 2-3,8-9\n"
            "  2. free: 4 can be chosen => 2-3,8-9\n"
            "  3. numaPolicy: NUMA node 1 of 2 => 8-9\n"
            "  4. given: these CPUs => 8-9\n"
        )

    def test_another_policy_drawn_on_a_machine(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        drawn = ["--policy", "spread", "--topology", str(file.parent)]
        assert cli.main(["explain", "web", *drawn, *self.write(file)]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("default/web/main: 2,8\n")
        assert "8 CPUs online, 4 cores" in printed

    def test_a_container_that_was_refused(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["explain", "default/late", *self.write(file)]) == 1
        printed = capsys.readouterr().out
        assert printed.startswith("default/late/main: no CPUs\n")
        assert "request: it requests 2 milli-CPUs of shared_b => none" in printed
        assert "refused: Insufficient shared_b => none" in printed

    def test_a_container_that_waits_for_cpus_of_the_cpu_manager_policy(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        held = {"name": "default/web/main", "pool": "policy/cpu", "requested": 3, "cpus": ""}
        held |= {"steps": [], "refused": "", "waited_s": 2.5, "held": "no CPUs on one node"}
        arguments = self.write(file, policies={"static": {"containers": [held]}})
        assert cli.main(["explain", "web", *arguments]) == 1
        assert capsys.readouterr().out == (
            "default/web/main: no CPUs\n"
            "  1. request: it requests 3 whole CPUs => none\n"
            "  2. held: no CPUs on one node => none\n"
        )

    @pytest.mark.parametrize(
        ("changes", "options", "said"),
        [
            ({"policies": {"a": {"containers": []}}}, [], "'web' here; simulate it, too"),
            ({}, ["--policy", "odd"], "has no policy 'odd'; it has packed, spread"),
            ({"policies": {}}, [], "has no policy ''; it has none"),
            ({"schema": "cpupool-simulation/2"}, [], "is no simulation of this version"),
            ({"policies": []}, ["--policy", "packed"], "policies is a list, and not an object"),
            ({"policies": {"a": {}}}, [], "is no simulation of this version"),
            ({"policies": {"a": {"containers": [{}]}}}, [], "is no simulation of this version"),
            ({"policies": {"a": {"containers": "x"}}}, [], "is no simulation of this version"),
            ({"policies": None}, [], "is no simulation of this version"),
        ],
    )
    def test_a_document_or_a_policy_that_is_none(
        self,
        changes: dict[str, object],
        options: list[str],
        said: str,
        file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert cli.main(["explain", "web", *options, *self.write(file, **changes)]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "name the file of `cpupool agent` or `cpupool simulate --json` with --file"),
        (b"[]", "is no status file of this version"),
        (b'{"schema": 3}', "is no status file of this version"),
        (b'{"schema": "cpupool-status/1", "containers": []}', "restart the agent"),
    ],
)
def test_a_file_that_is_none_of_ours(
    content: bytes, said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(content)

    assert cli.main(["explain", "web", "--file", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "web", "--file", str(file)]) == 2
    assert "is not there: start `cpupool agent`" in capsys.readouterr().err


def test_a_picture_of_no_machine(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulation = TestSimulation.write(file)
    svg = ["--svg", str(file.with_name("picture.svg"))]
    assert cli.main(["explain", "web", *simulation, *svg]) == 2
    assert "--svg draws a machine; name the simulated one" in capsys.readouterr().err


def test_policies_are_a_simulations(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(file, Node().status(), "web", "--policy", "packed") == 2
    assert "--policy is for simulations" in capsys.readouterr().err
