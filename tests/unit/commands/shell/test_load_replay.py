"""`cpupool simulate --load-trace` from its command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POOLS = """\
pools:
  default: {cpus: "0-31"}
cpuManager: {policy: qrm, reserved: "0,16"}
"""
LOAD = "at_s,online,offline\n0,4,2\n1800,12,2\n3600,4,2\n"


@pytest.fixture
def replayed(tmp_path: Path) -> Callable[..., int]:
    MACHINES["telco_2s_2n_16c32t"].write(tmp_path)
    (tmp_path / "pools.yaml").write_text(POOLS)

    def run(load: str, *more: str) -> int:
        (tmp_path / "load.csv").write_text(load)
        given = ["--topology", tmp_path, "--pools", tmp_path / "pools.yaml"]
        return cli.main(
            ["simulate", *map(str, given), "--load-trace", str(tmp_path / "load.csv"), *more]
        )

    return run


def test_sizes_follow_the_load_and_are_drawn(
    replayed: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(LOAD) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "2 pools on 30 CPUs, for 1.5 h"
    assert out[2].startswith("online   load  ▃")
    assert out[2].endswith("  4 to 12 CPUs")
    assert out[3].split()[:2] == ["size", "▃" * 20 + out[3].split()[1][20:]]
    assert "█" in out[3]
    assert out[-1] == "Simulated, not measured: M/M/c queues, 10 ms of CPU for a request."


def test_json_has_what_is_drawn(
    replayed: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(LOAD, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "cpupool-load-replay/1"
    online = found["pools"]["online"]
    assert len(online["cpus"]) == 1080
    assert min(online["cpus"]) < 12 < online["fixed_cpus"]
    assert found["batch_cpu_hours"] > found["batch_cpu_hours_of_fixed_sizes"]


def test_a_load_that_never_fits_needs_more_cpus_than_there_are(
    replayed: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed("at_s,online\n0,31\n600,31\n") == 0
    assert "99 % of the requests wait at most" in (out := capsys.readouterr().out)
    assert "with pools of these fixed sizes" in out
    assert " s for a CPU" in out


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("x\n", "load.csv:1:1: the first row does not name the pools"),
        (
            "at_s,a,b,c,d,e,f,g,h\n0" + ",1" * 8,
            "8 pools have 4 CPUs each at least, and there are 30; leave pools out of the trace",
        ),
    ],
)
def test_a_trace_that_cannot_be_used_is_told_in_a_line(
    load: str, said: str, replayed: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(load) != 0
    assert said in capsys.readouterr().err
