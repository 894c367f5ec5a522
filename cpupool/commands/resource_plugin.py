"""`cpupool resource-plugin`: our plugins for the QoS Resource Manager, as a process."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import read_file
from cpupool.commands.shell.options import add_command, add_resource_domain, add_setting
from cpupool.commands.shell.services import asked_to_end
from cpupool.core.errors import ConfigError, HostFileError
from cpupool.core.names import Names
from cpupool.core.pod_resources import CPU, MEMORY
from cpupool.host import node_memory
from cpupool.host.cpu_time import CPUTimes
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import FolderTree, Sysfs
from cpupool.host.usable_cpus import usable
from cpupool.loops.supervisor import supervise
from cpupool.plugins import config_file, nic_files
from cpupool.plugins.cpu import CPUPlugin
from cpupool.plugins.memory import MemoryPlugin
from cpupool.plugins.nic import NICPlugin
from cpupool.plugins.pool_loop import PoolLoop
from cpupool.plugins.server import PluginServer
from cpupool.policies.layout import Layout
from cpupool.telemetry import log
from cpupool.version import VERSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from cpupool.commands.shell.options import Commands
    from cpupool.core.cpu_time import CPUTime
    from cpupool.plugins.base import Plugin
    from cpupool.plugins.config import PluginConfig
    from cpupool.plugins.nics import NIC

_NIC: Final = "nic"
NAMES: Final = (CPU, MEMORY, _NIC)
_NODE: Final = frozenset({0})
"""The NUMA nodes of a machine that has none."""
_EXAMPLES = """\
examples:
  cpupool resource-plugin cpu memory nic --config /etc/cpupool/resource-plugins.yaml

Exit code 0: it was asked to end; 1: a part of it failed; 2: the command line, or a file that it
names, is wrong.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "resource-plugin",
        summary,
        "Decides which CPUs, memory and NIC containers get, for the QoS Resource Manager of the"
        " agent, of Katalyst or of a patched kubelet.",
        _EXAMPLES,
    )
    parser.add_argument("plugin", nargs="+", choices=NAMES, help="the plugins of this process")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, required=True, help="pools and roles, as YAML"
    )
    parser.add_argument(
        "--socket-folder",
        metavar="FOLDER",
        default="/var/lib/cpupool/resource-plugins",
        help="where the manager looks for plugins (default: %(default)s)",
    )
    add_resource_domain(parser)
    add_setting(parser, "cgroup-root")
    add_setting(parser, "host-root")
    add_setting(parser, "log-format")
    add_setting(parser, "verbose")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, _out: TextIO) -> int:
    """Run the plugins until SIGTERM or SIGINT.

    Raises:
        UsageError: the configuration cannot be used.
        CPUPoolError: a part of it failed.
    """
    stop = asked_to_end()
    level = logging.DEBUG if arguments.verbose else logging.INFO
    log.set_up(level, json=arguments.log_format == "json")
    root = HostRoot.under(Path(arguments.host_root))
    plugins = Plugins(
        frozenset(arguments.plugin),
        arguments.config,
        root,
        Names(arguments.resource_domain),
        arguments.cgroup_root,
    )
    try:
        made = plugins.made()
    except ConfigError as error:
        raise UsageError(error) from error
    sockets = Path(arguments.host_root) / arguments.socket_folder.lstrip("/")
    server = PluginServer(
        sorted(made),
        plugins.made,
        PoolLoop(plugins.cpu_time, root.plugin_pools),
        watched=arguments.config.parent,
        sockets=sockets,
        states=root.state / "plugins",
    )
    log.get(__name__).info(
        "plugins start", version=VERSION, plugins=",".join(made), sockets=sockets
    )
    supervise({"plugins": server.run}, stop, server.wake, server.hung)
    return 0


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of a process.

    Attributes:
        names: which plugins.
        config: their file.
        root: the machine's folders.
        domain: the names that only cpupool uses.
        cgroup_root: the kubelet's `--cgroup-root`; empty for the usual places.
    """

    names: frozenset[str]
    config: Path
    root: HostRoot
    domain: Names
    cgroup_root: str = ""

    def made(self) -> Mapping[str, Plugin]:
        """Return name → plugin, by the machine and the configuration of now.

        Raises:
            CPUPoolError: one of them cannot be read, or they do not fit together.
        """
        config = config_file.parse(str(self.config), read_file(self.config))
        topology = usable(Sysfs.at(self.root.sysfs), self.root.cgroup, self.cgroup_root)
        layout = Layout.of_topology(topology)
        found: dict[str, Plugin] = {}
        if CPU in self.names:
            config_file.refuse_unfit(config, topology.online)
            found[CPU] = CPUPlugin(layout, config, self.domain.exclusive)
        if MEMORY in self.names:
            found[MEMORY] = MemoryPlugin(layout, config, self._memory())
        if _NIC in self.names:
            found[_NIC] = NICPlugin(self._nics(config), frozenset(topology.nodes) or _NODE)
        return found

    def cpu_time(self) -> CPUTime:
        """Read the CPU time of pods.

        Raises:
            CPUPoolError: it cannot be read.
        """
        return CPUTimes(self.root.proc, self.root.cgroup, self.cgroup_root).read(waited=True)

    def _nics(self, config: PluginConfig) -> tuple[NIC, ...]:
        """Return the NICs that the file lists, or those of the machine.

        Raises:
            HostFileError: the kernel's files about them cannot be read.
        """
        tree = FolderTree(self.root.sysfs)
        if config.nics:
            return nic_files.completed(config.nics, tree, self.root.base)
        return nic_files.found(tree, self.root.proc)

    def _memory(self) -> Mapping[int, int]:
        """Return NUMA node → its memory in bytes, without the pages that are set aside as huge.

        Raises:
            HostFileError: the kernel does not say.
        """
        found = node_memory.read(FolderTree(self.root.sysfs))
        if not found:
            where = str(self.root.sysfs / "devices/system/node")
            raise HostFileError(
                where, "names the memory of no NUMA node", "mount the machine's /sys"
            )
        return {
            node: memory.total_bytes
            - sum(size * count for size, count in memory.huge_pages.items())
            for node, memory in sorted(found.items())
        }
