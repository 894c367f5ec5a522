"""The pods and the ConfigMap of CPU-Pooler's users go through every command unedited.

`tests/scenarios/test_cpu_pooler.py` runs the same pods on the embedded node.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpupool import cli
from tests import testdata

SRIOV = Path(__file__).parents[2] / "examples/sriov.yaml"
EXCLUSIVE = ("exclusive-pool", "4-5")
SHARED = ("shared-pool", "1")
PLACED = {
    "cpu-test.yaml": {EXCLUSIVE, SHARED},
    "cpu-test-exclusive.yaml": {EXCLUSIVE},
    "cpu-test-shared-exclusive.yaml": {EXCLUSIVE, SHARED},
    SRIOV: {EXCLUSIVE},
}
"""Manifest → the pools that its pod runs in, and their CPUs."""


@pytest.fixture
def config_map() -> str:
    return str(testdata.folder() / "cpu-pooler/cpu-pooler-config.yaml")


@pytest.fixture
def node() -> list[str]:
    """Return the options of a node with eight cores of one thread."""
    machine = testdata.folder() / "topologies/arm-phone-3clusters.tar.gz"
    return ["--topology", str(machine), "--node-labels", "nodeType=controller"]


def test_the_config_map_is_valid(
    config_map: str, node: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", config_map, *node]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "this node takes poolconfig-controller.yaml"
    assert not [line for line in said if "warning" in line]


@pytest.mark.parametrize("manifest", PLACED, ids=lambda at: Path(at).name)
def test_a_pod_is_admitted_without_a_warning(
    manifest: str | Path, config_map: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(testdata.folder() / "cpu-pooler" / manifest)
    assert cli.main(["admit", path, "--pool-files", config_map, "--json"]) == 0
    (pod,) = json.loads(capsys.readouterr().out)["pods"]
    assert pod["admitted"]
    assert pod["warnings"] == []


@pytest.mark.parametrize("manifest", PLACED, ids=lambda at: Path(at).name)
def test_a_pod_is_placed_in_its_pools(
    manifest: str | Path, config_map: str, node: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(testdata.folder() / "cpu-pooler" / manifest)
    code = cli.main(["simulate", "--pools", config_map, *node, "--pods", path, "--json"])
    result = json.loads(capsys.readouterr().out)["policies"]["pool"]
    assert (code, result["refusals"]) == (0, [])
    assert {(one["pool"], one["cpus"]) for one in result["containers"]} == PLACED[manifest]
