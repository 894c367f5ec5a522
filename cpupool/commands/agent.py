"""`cpupool agent`: the node agent."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.app import SWEEP_INTERVAL_S, Agent, Settings
from cpupool.commands import (
    POOL_FOLDER,
    UsageError,
    add_command,
    add_resource_domain,
    add_trees,
    seconds,
)
from cpupool.commands.services import (
    add_api_server,
    add_config_map,
    add_log_format,
    add_metrics_port,
    api_server,
    asked_to_end,
    config_map,
)
from cpupool.core.names import STARTER, Names
from cpupool.host import kernel
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.kube.cluster_view import ClusterView
from cpupool.manager.ports import Way
from cpupool.policies.none import BUILT_IN
from cpupool.roles.nri_plugin import MissingFacts
from cpupool.runtime.nri_connection import inherited
from cpupool.telemetry import log
from cpupool.version import VERSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from cpupool.commands import Commands
    from cpupool.policies.base import CPUManagerPolicies
    from cpupool.telemetry.metrics import Metrics

_NODE_NAME: Final = "NODE_NAME"
_EXAMPLES = """\
examples:
  cpupool agent                          in a pod of the DaemonSet
  kubectl proxy & cpupool agent --api-server http://127.0.0.1:8001 --node-name $NODE

Exit code 0: it was asked to end; 1: a part of it failed; 2: the command line is wrong.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "agent",
        summary,
        "Advertises the pools of this node to the kubelet and keeps every container on its CPUs.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--config",
        metavar="DIR",
        type=Path,
        default=POOL_FOLDER,
        help="folder with poolconfig-<name>.yaml files; edits are followed (default: %(default)s)",
    )
    add_config_map(parser)
    parser.add_argument(
        "--node-name",
        metavar="NAME",
        default=os.environ.get(_NODE_NAME),
        help=f"this node's name in the cluster (default: the variable {_NODE_NAME})",
    )
    add_api_server(parser)
    add_resource_domain(parser)
    add_trees(parser)
    parser.add_argument(
        "--starter",
        metavar="FILE",
        type=Path,
        default=Path(STARTER),
        help="the process starter, which containers of pools get mounted (default: %(default)s)",
    )
    parser.add_argument(
        "--sweep-interval",
        metavar="SECONDS",
        type=seconds,
        default=SWEEP_INTERVAL_S,
        help="look at every container at least this often (default: %(default)s)",
    )
    parser.add_argument(
        "--move-pinned",
        choices=("auto", "always"),
        default="auto",
        help="when the shared pool of a container changes that has CPUs of its own, too: always"
        " move it; or (auto) before Linux 6.2, where its pinned threads would roam, leave it until"
        " it restarts (default: %(default)s)",
    )
    parser.add_argument(
        "--enforcement",
        choices=("auto", *(way.value for way in Way)),
        default="auto",
        help="who writes a new container's CPUs: the container runtime before it starts it (nri),"
        " the runtime once it is seen (cri), or cpupool itself (cgroup); auto: nri where there is"
        " one, else cgroup (default: %(default)s)",
    )
    parser.add_argument(
        "--nri-missing-facts",
        choices=[choice.value for choice in MissingFacts],
        default=MissingFacts.HOLD.value,
        help="a container that requests pools, while its devices are not known or another pod still"
        " has its CPUs: hold, so that the kubelet tries again; or release it into the default pool"
        " until it can have its CPUs (default: %(default)s)",
    )
    parser.add_argument(
        "--cri-socket",
        metavar="FILE",
        type=Path,
        help="where the container runtime listens (default: containerd's or CRI-O's usual place)",
    )
    add_metrics_port(parser)
    add_log_format(parser)
    parser.add_argument("--verbose", action="store_true", help="log the reasons too")
    parser.set_defaults(run=run)


def run(
    arguments: argparse.Namespace, _out: TextIO, cpu_managers: CPUManagerPolicies = BUILT_IN
) -> int:
    """Run the agent until SIGTERM or SIGINT.

    Args:
        arguments: what the command line says.
        cpu_managers: the CPU manager policies that a pool file can name.

    Raises:
        UsageError: the node or the API server is not named, or a runtime's plugin shall not be one.
        CPUPoolError: a part of it failed.
    """
    if not arguments.node_name:
        raise UsageError(f"the node has no name; give --node-name, or set {_NODE_NAME}")
    server = api_server(arguments.api_server)
    way = None if arguments.enforcement == "auto" else Way(arguments.enforcement)
    launch = inherited(os.environ)
    if launch and way in {Way.CRI, Way.CGROUP}:
        raise UsageError(
            "the container runtime has started this agent as its NRI plugin; leave out"
            f" --enforcement={arguments.enforcement}"
        )
    stop = asked_to_end()
    level = logging.DEBUG if arguments.verbose else logging.INFO
    log.set_up(level, json=arguments.log_format == "json")
    settings = Settings(
        config=arguments.config,
        names=Names(arguments.resource_domain),
        cgroup_root=arguments.cgroup_root,
        interval_s=arguments.sweep_interval,
        moves_pinned=arguments.move_pinned == "always"
        or kernel.remembers_affinity(os.uname().release),
        telemetry=("", arguments.metrics_port) if arguments.metrics_port else None,
        starter=arguments.starter,
        enforcement=way,
        missing_facts=MissingFacts(arguments.nri_missing_facts),
        cri_socket=arguments.cri_socket,
        launch=launch,
        cpu_managers=cpu_managers,
    )
    followed = config_map(arguments.configmap)
    root = HostRoot.under(arguments.host_root)
    log.get(__name__).info(
        "agent starts",
        version=VERSION,
        node=arguments.node_name,
        pools=arguments.config,
        configmap=followed or "not followed",
        api_server=server,
    )

    def join(metrics: Metrics, changed: Callable[[], None]) -> ClusterView:
        node, names = arguments.node_name, settings.names
        return ClusterView(server, node, names, metrics, changed, config_map=followed)

    # The program itself is no garbage. Going through it takes a full collection 13 ms, in which a
    # runtime would wait for its answer.
    gc.freeze()
    Agent(settings, root, Sysfs.at(root.sysfs), join).run(stop)
    return 0
