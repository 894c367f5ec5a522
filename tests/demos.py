"""`cpupool demo` on a synthesised machine, in this process: nothing of it is this machine's.

The emulated cgroups stand for the kernel: a process runs on the CPUs in the file of its cgroup.
"""

from __future__ import annotations

import json
from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

from cpupool import cli
from cpupool.commands.demo import command, live
from cpupool.commands.demo.live import LiveNode
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError
from cpupool.local import cgroups
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.pods import ContainerProcess
from cpupool.plugins.demo import DemoPlugins

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from cpupool.agent.setup import Setup
    from cpupool.local.cgroups import Cgroups
    from tests.machines import Machine


class Demos:
    """Runs demos on one machine."""

    def __init__(self, machine: Machine, folder: Path, patch: pytest.MonkeyPatch) -> None:
        written = machine.write(folder)
        for node in written.topology().nodes:
            meminfo = written.sys / f"devices/system/node/node{node}/meminfo"
            meminfo.write_text(f"Node {node} MemTotal:  1048576 kB\n")
        places: list[EmulatedCgroups] = []

        def opened(where: Path, _name: str, cpus: CPUSet) -> EmulatedCgroups:
            places.append(EmulatedCgroups(where, cpus, "a test"))
            return places[-1]

        def runs_on(process: ContainerProcess) -> CPUSet:
            below = f"cpuset/{process.instance.cgroup}/cpuset.cpus"
            # A plain file shows a half of what is being written.
            with suppress(CPUSetParseError):
                return CPUSet.parse((places[-1].root / below).read_text())
            return CPUSet()

        class Plugins(DemoPlugins):
            def __init__(self, where: Path, cpus: int, **others: Any) -> None:
                super().__init__(where, cpus, written.sys, **others)

        class Node(LiveNode):
            def __init__(
                self,
                where: Path,
                place: Cgroups,
                settings: Setup,
                labels: Mapping[str, str],
                **others: Any,
            ) -> None:
                super().__init__(where, place, settings, labels, written.sys, **others)

        patch.setattr(command, "open_machine", lambda _: written.topology())
        patch.setattr(live, "LiveNode", Node)
        patch.setattr(command, "DemoPlugins", Plugins)
        patch.setattr(cgroups, "opened", opened)
        patch.setattr(ContainerProcess, "cpus_allowed", runs_on)

    def printed(self, *options: str) -> str:
        """Run a demo that ends well; return what it prints."""
        with redirect_stdout(StringIO()) as out:
            assert cli.main(["demo", *options]) == 0
        return out.getvalue()

    def run(self, *options: str) -> dict[str, Any]:
        """Run a demo that verifies what it shows; return its JSON object."""
        shown: dict[str, Any] = json.loads(self.printed("--json", *options))
        assert shown["verified"]
        return shown
