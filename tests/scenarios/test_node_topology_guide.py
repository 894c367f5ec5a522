"""The guide to the node's topology: its command prints what the guide shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from cpupool import cli
from cpupool.config.settings import OPTIONS
from tests.guides import blocks, commands

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/user/node-topology.md").read_text()


def test_the_object_is_printed_as_the_guide_shows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (words,) = commands(GUIDE)
    monkeypatch.chdir(ROOT)

    assert cli.main(words) == 0

    shown, _, _ = blocks(GUIDE, "yaml")[0].partition("...")
    assert shown.count("name: node-0") == 2
    assert capsys.readouterr().out.startswith(shown)


def test_the_schedulers_configuration_is_one() -> None:
    scheduler = yaml.safe_load(blocks(GUIDE, "yaml")[1])

    (profile,) = scheduler["profiles"]
    (plugin,) = profile["plugins"]["multiPoint"]["enabled"]
    (arguments,) = profile["pluginConfig"]
    assert scheduler["kind"] == "KubeSchedulerConfiguration"
    assert plugin["name"] == arguments["name"] == "NodeResourceTopologyMatch"
    assert arguments["args"]["kind"] == f"{plugin['name']}Args"


def test_the_guide_names_every_value_of_the_setting() -> None:
    for value in OPTIONS["node-topology"].choices:
        assert f"`{value}`" in GUIDE or f"--node-topology={value}" in GUIDE
