from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cpupool.core.cgroups import FoundContainer, Writer
from cpupool.core.pools import NodePools, Pool
from cpupool.host.status_file import StatusFile
from cpupool.manager.manager import Manager
from cpupool.manager.report import PluginReport, PluginStatus
from tests.builders import container, given, pod
from tests.machines import MACHINES

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = MACHINES["laptop_4c8t"]


def test_an_edit_that_moves_no_container_is_shown(tmp_path: Path) -> None:
    manager, file = Manager(), StatusFile(tmp_path / "status.json")
    for multi_threaded in (False, True):
        pool = Pool.named("exclusive_a", "2", multi_threaded=multi_threaded)
        pools = NodePools.of(pool, Pool.named("default", "0-1"))
        manager.reconfigure(pools, MACHINE.topology())
        file.publish(*manager.snapshot(), (), "", Writer.CGROUP)

    shown = json.loads((tmp_path / "status.json").read_text())["pools"]["exclusive_a"]
    assert shown["hyperThreadingPolicy"] == "multiThreaded"


def test_another_way_is_shown_though_nothing_moves(tmp_path: Path) -> None:
    manager, file = Manager(), StatusFile(tmp_path / "status.json")
    for writer in (Writer.CGROUP, Writer.NRI):
        file.publish(*manager.snapshot(), (), "", writer)

    assert json.loads((tmp_path / "status.json").read_text())["enforcement"] == "nri"


def test_a_choice_is_shown_that_is_known_later_than_its_pod(tmp_path: Path) -> None:
    manager, file = Manager(), StatusFile(tmp_path / "status.json")
    manager.reconfigure(NodePools.of(Pool.named("exclusive_a", "2")), MACHINE.topology())
    web = pod("web", container(exclusive_a=1))
    manager.observe(pods=[web])
    manager.accept(given(web, exclusive_a="2"))
    found = (FoundContainer("web-uid", "main-id", "path", "2"),)
    file.publish(*manager.snapshot(), found, "", Writer.CGROUP)
    manager.preferred("exclusive_a", ["2"], [], 1)
    file.publish(*manager.snapshot(), found, "", Writer.CGROUP, choices=manager.choices())

    (shown,) = json.loads((tmp_path / "status.json").read_text())["containers"]
    assert shown["shares"][0]["choice"]["cpus"] == "2"


def test_a_plugin_that_fails_is_shown_though_nothing_moves(tmp_path: Path) -> None:
    manager, file = Manager(), StatusFile(tmp_path / "status.json")
    for why in ("", "is away"):
        plugins = PluginReport(("/plugins",), (PluginStatus("/plugins/cpu.sock", "cpu", why),))
        file.publish(*manager.snapshot(), (), "", Writer.CGROUP, plugins=plugins)

    (shown,) = json.loads((tmp_path / "status.json").read_text())["plugins"]
    assert shown["why"] == "is away"
