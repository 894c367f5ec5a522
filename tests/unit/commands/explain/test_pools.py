"""Why the pools of our plugin for CPUs have their CPUs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from cpupool import cli

if TYPE_CHECKING:
    from pathlib import Path

POOLS = {
    "schema": "cpupool-pools/1",
    "pools": [
        {"pool": "online", "cpus": "0-3,8", "why": "3.1 in use: needs 5: from 4 to 5 CPUs"},
        {"pool": "offline", "cpus": "4", "why": "the part 1 of what the other pools leave"},
    ],
}


@pytest.fixture
def pools(tmp_path: Path) -> Path:
    path = tmp_path / "pools.json"
    path.write_text(json.dumps(POOLS))
    return path


def test_each_pool_in_a_line(pools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--pools", str(pools)]) == 0
    assert capsys.readouterr().out == (
        "online: 0-3,8 (5 CPUs): 3.1 in use: needs 5: from 4 to 5 CPUs\n"
        "offline: 4 (1 CPUs): the part 1 of what the other pools leave\n"
    )
    assert cli.main(["explain", "--json", "--pools", str(pools)]) == 0
    assert json.loads(capsys.readouterr().out) == POOLS


def test_headroom_in_a_line(pools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pools.write_text(json.dumps({**POOLS, "pools": [], "headroom": {"why": "is enough"}}))
    assert cli.main(["explain", "--pools", str(pools)]) == 0
    assert capsys.readouterr().out == "headroom: is enough\n"


def test_an_old_file_is_known_by_its_age(pools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(pools, (0, 0))
    assert cli.main(["explain", "--pools", str(pools)]) == 1
    assert "s old: the plugin does not run" in capsys.readouterr().out
    assert cli.main(["explain", "--json", "--pools", str(pools)]) == 1
    assert json.loads(capsys.readouterr().out) == POOLS


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"schema": "cpupool-pools/2", "pools": []}',
        '{"schema": "cpupool-pools/1", "pools": [5]}',
        '{"schema": "cpupool-pools/1", "pools": [], "headroom": {"cpus": 5}}',
        '{"schema": "cpupool-pools/1", "pools": [{"pool": "a"}]}',
        '{"schema": "cpupool-pools/1", "pools": [{"pool": "a", "cpus": "x", "why": ""}]}',
    ],
)
def test_a_file_that_is_another(
    pools: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    pools.write_text(content)
    assert cli.main(["explain", "--pools", str(pools)]) == 2
    assert "is not of this version's `cpupool resource-plugin cpu`" in capsys.readouterr().err


def test_what_does_not_go_together(pools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["web", "--pools", str(pools)], "and no container; leave one out"),
        ([], "name a container or its pod, or add --pools"),
        (["--pools", str(pools), "--policy", "a"], "of the other options it has --json"),
        (["--pools", str(pools.parent / "none")], "start `cpupool resource-plugin cpu`"),
    ):
        assert cli.main(["explain", *arguments]) == 2
        assert said in capsys.readouterr().err
