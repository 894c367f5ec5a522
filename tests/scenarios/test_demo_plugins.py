"""The plugins of `cpupool demo --qrm` on the machine of the proposal, and what the guide shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.setup import Setup
from cpupool.commands.demo import samples
from cpupool.commands.demo.live import LiveNode
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.plugins.demo import OFFLINE, ONLINE, RESOURCES, DemoPlugins, by_role
from cpupool.policies.qrm.policy import QRM
from cpupool.qrm.resource_manager import PluginSettings
from tests.guides import blocks, commands
from tests.machines import Machine
from tests.scenarios import test_demo
from tests.scenarios.test_cpu_manager_guide import without_numbers
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDE = (Path(__file__).parents[2] / "docs/user/qrm.md").read_text()
PROPOSED = Machine(sockets=2, cores=20, threads=2, adjacent=True)


@pytest.fixture
def live(folder: Path) -> Iterator[tuple[LiveNode, DemoPlugins]]:
    written, config = PROPOSED.write(folder), folder / "config"
    for node in (0, 1):
        meminfo = folder / f"sys/devices/system/node/node{node}/meminfo"
        meminfo.write_text(f"Node {node} MemTotal:  1048576 kB\n")
    config.mkdir()
    text = samples.cpu_manager_file(written.topology(), QRM)
    (config / "poolconfig-node.yaml").write_text(text)
    with (
        EmulatedCgroups(folder, written.topology().online, "a test") as place,
        DemoPlugins(folder / "p", 80, written.sys) as plugins,
        LiveNode(
            folder,
            place,
            Setup(config, plugins=PluginSettings((plugins.sockets,), reconcile_s=0.1)),
            {},
            written.sys,
            nri=True,
        ) as live,
    ):
        live.await_plugin()
        live.await_resources(RESOURCES)
        yield live, plugins


def test_the_border_of_the_proposals_pools_moves(live: tuple[LiveNode, DemoPlugins]) -> None:
    node, plugins = live
    bodies = samples.of_plugins(by_role({"pod1": ONLINE, "pod2": OFFLINE}))
    pods = {pod.name: pod for pod in map(node.run_pod, bodies)}
    assert str(node.await_answer(pods["pod1"])) == "0-37,40-77"
    assert str(node.await_answer(pods["pod2"])) == "38-39,78-79"

    assert plugins.becomes_night()
    assert str(node.await_answer(pods["pod1"], plugins.online)) == "0-13,40-53"
    assert str(node.await_answer(pods["pod2"], plugins.offline)) == "14-39,54-79"
    status = node.status()
    found = {container.name: container.found for container in status.containers}
    assert found["demo/pod1/main"] == "0-13,40-53"
    assert found["demo/pod2/main"] == "14-39,54-79"
    assert {plugin.resource for plugin in status.plugins} == set(RESOURCES)


@test_demo.two_cpus
def test_the_demo_says_what_the_guide_shows(folder: Path) -> None:
    ((*options,),) = [given for command, *given in commands(GUIDE) if command == "demo"]
    process = test_demo.demo(folder, *options)
    printed, complaints = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, complaints) == (0, "")

    # The numbers are another machine's; three dots stand for what is left out.
    shown = blocks(GUIDE, "text")[0].replace("\n...", "")
    lines = [re.escape(line) for line in without_numbers(shown)]
    assert re.search("(?s:\n|\n.*\n)".join(lines), "\n".join(without_numbers(printed)))
    assert not list(folder.iterdir())


@test_demo.two_cpus
def test_a_verbose_demo_shows_the_log_of_the_plugins(folder: Path) -> None:
    process = test_demo.demo(folder, "--qrm", "--verbose")
    _, log = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "INFO cpupool.commands.resource_plugin: plugins start" in log
