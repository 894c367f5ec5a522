"""`cpupool agent`: the node agent."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cpupool.app import SWEEP_INTERVAL_S, Agent, PodFile, Settings
from cpupool.commands import add_command, add_node_labels, add_resource_domain, seconds
from cpupool.core.names import Names
from cpupool.host.files import DirectoryWatch
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.telemetry import log

if TYPE_CHECKING:
    import argparse

    from cpupool.commands import Commands

_EXAMPLES = """\
examples:
  cpupool agent --node-labels nodeType=dpdk
  kubectl get pods -A -o json --field-selector spec.nodeName=$NODE > pods.new
  mv pods.new pods.json
  cpupool agent --node-labels nodeType=dpdk --pods pods.json
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "agent",
        summary,
        "Advertises the pools of this node to the kubelet and, where it knows the pods, keeps every"
        " container on its CPUs.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--config",
        metavar="DIR",
        type=Path,
        default=Path("/etc/cpu-pooler"),
        help="folder with poolconfig-<name>.yaml files (default: %(default)s)",
    )
    add_node_labels(parser)
    add_resource_domain(parser)
    parser.add_argument(
        "--pods",
        metavar="FILE",
        type=Path,
        help="this node's pods as `kubectl get pods -o json` prints them; read again when it"
        " changes. Without it the pools are advertised and no container is placed",
    )
    parser.add_argument(
        "--cgroup-root",
        metavar="PATH",
        default="",
        help="the kubelet's --cgroup-root (default: look in the usual places)",
    )
    parser.add_argument(
        "--sweep-interval",
        metavar="SECONDS",
        type=seconds,
        default=SWEEP_INTERVAL_S,
        help="look at every container at least this often (default: %(default)s)",
    )
    parser.add_argument(
        "--host-root",
        metavar="DIR",
        type=Path,
        default=Path("/"),
        help="where the node's file system is mounted (default: %(default)s)",
    )
    parser.add_argument("--verbose", action="store_true", help="log the reasons too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, _out: TextIO) -> int:
    """Run the agent until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    log.set_up(logging.DEBUG if arguments.verbose else logging.INFO)
    settings = Settings(
        config=arguments.config,
        node_labels=arguments.node_labels or {},
        names=Names(arguments.resource_domain),
        cgroup_root=arguments.cgroup_root,
        interval_s=arguments.sweep_interval,
    )
    root = HostRoot.under(arguments.host_root)
    pods = PodFile(arguments.pods, settings.names) if arguments.pods else None
    agent = Agent(settings, root, Sysfs.at(root.sysfs), pods)
    agent.configure()
    with ExitStack() as watching:
        if arguments.pods:
            watch = DirectoryWatch(arguments.pods.absolute().parent, lambda _path: agent.wake())
            watch.ensure()
            watching.callback(watch.stop)
        agent.run(stop)
    return 0
