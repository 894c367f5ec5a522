"""`cpuManager.compaction`: how much the agent may move containers that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.core.cpu_manager import Compaction
from tests.unit.config.poolconfig.files import parse, refused

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
cpuManager:
  policy: dynamic
  reserved: 1
  compaction: %s
"""


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("null", None),
        ("{}", None),
        ("{movesPerHour: 0}", None),
        ("{movesPerHour: 2}", Compaction(2, 600)),
        ("{minimumAgeSeconds: 0}", Compaction(6, 0)),
        ("{movesPerHour: 1000, minimumAgeSeconds: 604800}", Compaction(1000, 604_800)),
    ],
)
def test_a_file_bounds_how_much_is_moved(written: str, taken: Compaction | None) -> None:
    assert parse(FILE % written).pools.cpu_manager.compaction == taken
    assert parse("cpuManager: {policy: dynamic, reserved: 1}").pools.cpu_manager.compaction is None


@pytest.mark.parametrize("number", ["-1", "1001", "1.5", "many", "010", "9" * 5000])
def test_what_is_no_number_of_moves_is_refused(number: str) -> None:
    (problem,) = refused(FILE % f"{{movesPerHour: {number}}}")
    assert problem == (
        f"a.yaml:4:30: cpuManager.compaction.movesPerHour: '{number[:63]}' is not a whole number"
        " from 0 to 1000; write one, as 6"
    )


def test_an_age_of_more_than_a_week_is_refused() -> None:
    (problem,) = refused(FILE % "{minimumAgeSeconds: 604801}")
    assert problem == (
        "a.yaml:4:35: cpuManager.compaction.minimumAgeSeconds: '604801' is not a whole number from"
        " 0 to 604800; write one, as 600"
    )


@pytest.mark.parametrize("option", ["distribute-cpus-across-numa", "distribute-cpus-across-cores"])
def test_an_option_that_lays_cpus_apart_contradicts_it(option: str) -> None:
    text = FILE % "{movesPerHour: 2}" + f"  options: {{{option}: true}}\n"
    (problem,) = refused(text)
    assert problem == (
        f"a.yaml:4:15: cpuManager.compaction: moves bring CPUs closer together, and {option} lays"
        f" them apart; remove compaction, or turn {option} off"
    )


@pytest.mark.parametrize("misfit", ["fail", "hold", "share"])
def test_that_nobody_moves_for_pods_that_fail_is_a_warning(
    misfit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(FILE % f"{{movesPerHour: 2}}\n  onMisfit: {misfit}")
    assert cli.main(["validate", str(file)]) == 0
    warning = (
        f"{file}:4:3: warning: cpuManager.compaction: with onMisfit: fail no pod waits, so nobody"
        " moves to make room; write onMisfit: hold, or remove compaction\n"
    )
    assert (warning in capsys.readouterr().out) is (misfit == "fail")


def test_a_key_that_is_misspelt_is_named() -> None:
    (problem,) = refused(FILE % "{movesPerHours: 2}")
    assert problem.startswith("a.yaml:4:16: ")
    assert "movesPerHour" in problem


def test_the_policy_static_moves_nobody() -> None:
    (problem,) = refused((FILE % "{movesPerHour: 2}").replace("dynamic", "static"))
    assert problem == (
        "a.yaml:4:3: cpuManager.compaction: the policy static has no such setting; remove it, or"
        " write policy: dynamic"
    )
