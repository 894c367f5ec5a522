"""`cpupool agent`: the node agent."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.agent.app import Agent
from cpupool.agent.changes import Change
from cpupool.agent.setup import Setup
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, read_file
from cpupool.commands.shell.options import NODE_NAME, add_command, add_setting, flags_given
from cpupool.commands.shell.services import api_server, asked_to_end, config_map, own_pod
from cpupool.config import settings as settings_file
from cpupool.config.settings import OPTIONS, AgentSettings, Publishing
from cpupool.core.cgroups import Writer
from cpupool.core.errors import ConfigError
from cpupool.core.names import Names
from cpupool.host import kernel
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.kube.client import SERVICE_ACCOUNT
from cpupool.kube.cluster_view import ClusterView, Writes
from cpupool.manager.manager import Manager
from cpupool.runtime.nri.connection import inherited
from cpupool.telemetry import log
from cpupool.version import VERSION

if TYPE_CHECKING:
    import argparse

    from cpupool.agent.changes import Signals
    from cpupool.commands.shell.options import Commands
    from cpupool.telemetry.metrics import Metrics

# A runtime waits for the thread that answers it, and a sweep leaves the interpreter to that thread
# after this time; Python's own 5 ms would be most of an answer.
_THREAD_SWITCH_S: Final = 0.0005
_YOUNG_OBJECTS: Final = 700
_YOUNG_TURNS: Final = 10
_FULL_TURNS: Final = 100
"""Python's own is 10: every 40 pods a full collection took 20 ms."""
_API_SERVERS: Final = {"api_server", "kubeconfig", "context"}
_EXAMPLES = """\
examples:
  cpupool agent                          in a pod of the DaemonSet
  kubectl proxy & cpupool agent --api-server http://127.0.0.1:8001 --node-name $NODE

Exit code 0: it was asked to end; 1: a part of it failed; 2: the command line, or
a file that it names, is wrong.
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
        "--settings",
        metavar="FILE",
        type=input_file,
        help="a YAML file with any of the settings below, as `sweep-interval: 10`; a flag wins over"
        " it (default: none)",
    )
    for name in OPTIONS:
        add_setting(parser, name)
    parser.set_defaults(node_name=os.environ.get(NODE_NAME, ""))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, _out: TextIO) -> int:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        UsageError: the settings file cannot be used, the node or the API server is not named, or a
            runtime's plugin shall not be one.
        CPUPoolError: a part of it failed.
    """
    given = _settings(arguments)
    if not given.node_name:
        raise UsageError(f"the node has no name; give --node-name, or set {NODE_NAME}")
    if why := given.lacking():
        raise UsageError(why)
    server = api_server(given.api_server, given.kubeconfig, given.context)
    writer = None if given.enforcement == "auto" else Writer(given.enforcement)
    launch = inherited(os.environ)
    if launch and writer in {Writer.CRI, Writer.CGROUP}:
        raise UsageError(
            "the container runtime has started this agent as its NRI plugin; leave out"
            f" --enforcement={given.enforcement}"
        )
    stop = asked_to_end()
    level = logging.DEBUG if given.verbose else logging.INFO
    log.set_up(level, json=given.log_format == "json")
    manager = Manager(
        Names(given.resource_domain),
        moves_pinned=given.move_pinned == "always" or kernel.remembers_affinity(os.uname().release),
    )
    settings = Setup.of(given, writer=writer, launch=launch, own_pod=own_pod(SERVICE_ACCOUNT))
    followed = config_map(given.configmap)
    root = HostRoot.under(Path(given.host_root), given.cgroup_root)
    log.get(__name__).info(
        "agent starts",
        version=VERSION,
        node=given.node_name,
        settings=arguments.settings or "no file",
        pools=settings.config,
        configmap=followed or "not followed",
        api_server=server,
    )

    def join(metrics: Metrics, signals: Signals) -> ClusterView:
        return ClusterView(
            server,
            given.node_name,
            manager.names,
            metrics,
            signals.of(Change.CLUSTER),
            pods_changed=signals.of(Change.PODS),
            config_map=followed,
            describes=bool(settings.plugins.folders),
            writes=_writes(given),
        )

    # The program itself is no garbage. Going through it takes a full collection 13 ms, in which a
    # runtime would wait for its answer.
    gc.freeze()
    # A pod's life leaves four objects that only a collection finds, and nearly all of them young.
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_TURNS, _FULL_TURNS)
    sys.setswitchinterval(_THREAD_SWITCH_S)
    Agent(manager, settings, root, Sysfs.at(root.sysfs), join).run(stop)
    return 0


def _writes(given: AgentSettings) -> Writes:
    """Return the objects that the agent writes for others."""
    writes = Writes.NOTHING
    if Publishing(given.node_topology) is not Publishing.OFF:
        writes |= Writes.TOPOLOGY
    if given.write_resource_status:
        writes |= Writes.CHOSEN_CPUS
    if given.write_node_resources:
        writes |= Writes.NODE_RESOURCES
    return writes


def _settings(arguments: argparse.Namespace) -> AgentSettings:
    """Return the defaults, overwritten by the settings file, overwritten by the flags.

    Raises:
        UsageError: the file cannot be read, or something in it is refused.
    """
    path = arguments.settings
    try:
        written = settings_file.parse(str(path), read_file(path)) if path else {}
    except ConfigError as error:
        raise UsageError(error) from error
    variables = {"node_name": os.environ.get(NODE_NAME, "")}
    flags = flags_given(arguments)
    if flags.keys() & _API_SERVERS:
        # They name the API server in two ways: a flag wins over either of the file.
        written = {name: value for name, value in written.items() if name not in _API_SERVERS}
    return AgentSettings.layered(variables, written, flags)
