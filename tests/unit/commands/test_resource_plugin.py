"""`cpupool resource-plugin`; tests/scenarios/seeds/ runs it as a process."""

from __future__ import annotations

import argparse
import io
from typing import TYPE_CHECKING

import pytest

from cpupool.commands import resource_plugin
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.core.errors import HostFileError
from cpupool.core.names import Names
from cpupool.host.root import HostRoot
from cpupool.plugins.state import PluginState
from cpupool.telemetry import log
from tests.machines import MACHINES

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    resource_plugin.add_parser(parser.add_subparsers(), "")
    parsed = parser.parse_args(["resource-plugin", *map(str, arguments)])
    code: int = parsed.run(parsed, io.StringIO())
    return code


@pytest.fixture
def config(tmp_path: Path) -> Path:
    MACHINES["laptop_4c8t"].write(tmp_path)
    return tmp_path / "config.yaml"


@pytest.mark.parametrize(
    ("text", "what"), [("pools: [", "config.yaml:1"), ("reserved: 8", "CPUs 8 are not online")]
)
@pytest.mark.usefixtures("asked_to_end")
def test_a_file_that_cannot_be_used_is_bad_usage(config: Path, text: str, what: str) -> None:
    config.write_text(text)
    with pytest.raises(UsageError, match=what):
        run("cpu", "--config", config, "--host-root", config.parent)


@pytest.mark.usefixtures("asked_to_end")
def test_a_missing_file_is_bad_usage(config: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.yaml: No such file"):
        run("cpu", "--config", config, "--host-root", config.parent)


def test_plugins_know_their_machine(config: Path) -> None:
    config.write_text("reserved: 0-1\nreservedMemory: 1Mi\n")
    node = config.parent / "sys/devices/system/node/node0"
    (node / "meminfo").write_text("Node 0 MemTotal:  4096 kB\n")
    pages = node / "hugepages/hugepages-1024kB/nr_hugepages"
    pages.parent.mkdir(parents=True)
    pages.write_text("2\n")
    root = HostRoot.under(config.parent)
    plugins = resource_plugin.Plugins(frozenset({"cpu", "memory"}), config, root, Names())
    stocks = {
        name: plugin.stock(PluginState(), name)[name].by_node
        for name, plugin in plugins.made().items()
    }
    assert stocks == {"cpu": {0: (8, 6)}, "memory": {0: (2 * 2**20, 2**20)}}


def test_nics_are_those_of_the_file_or_of_the_machine(config: Path) -> None:
    root = HostRoot.under(config.parent)
    plugins = resource_plugin.Plugins(frozenset({"nic"}), config, root, Names())

    def healthy() -> float:
        return plugins.made()["nic"].stock(PluginState(), "NIC")["NIC"].by_node[0].allocatable

    config.write_text("")
    assert healthy() == 0
    config.write_text("nics: {eth0: {ipv4: 10.0.0.2, netns: /config.yaml}}")
    assert healthy() == 1


def test_a_machine_without_known_memory_has_no_memory_plugin(config: Path) -> None:
    config.write_text("")
    root = HostRoot.under(config.parent)
    plugins = resource_plugin.Plugins(frozenset({"memory"}), config, root, Names())
    with pytest.raises(HostFileError, match="memory of no NUMA node"):
        plugins.made()


@pytest.fixture
def asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the signals of the tests' process, and its log, as they are."""
    monkeypatch.setattr(resource_plugin, "asked_to_end", lambda: None)
    monkeypatch.setattr(log, "set_up", lambda *_level, **_json: None)
