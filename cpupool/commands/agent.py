"""`cpupool agent`: the node agent."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.app import Agent
from cpupool.commands import (
    NODE_NAME,
    UsageError,
    add_command,
    add_setting,
    flags_given,
    input_file,
    read_file,
)
from cpupool.commands.services import api_server, asked_to_end, config_map, own_pod
from cpupool.config import settings as settings_file
from cpupool.config.settings import OPTIONS, AgentSettings
from cpupool.core.errors import ConfigError
from cpupool.core.names import Names
from cpupool.core.node_topology import Publishing
from cpupool.host import kernel
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.kube.client import SERVICE_ACCOUNT
from cpupool.kube.cluster_view import ClusterView
from cpupool.manager.ports import Writer
from cpupool.policies.built_in import BUILT_IN
from cpupool.roles.nri_answers import MissingFacts
from cpupool.roles.nri_wait import WaitRules
from cpupool.runtime.nri_connection import inherited
from cpupool.setup import Setup
from cpupool.telemetry import log
from cpupool.version import VERSION

if TYPE_CHECKING:
    import argparse

    from cpupool.commands import Commands
    from cpupool.policies.base import CPUManagerPolicies
    from cpupool.signals import Signals
    from cpupool.telemetry.metrics import Metrics

# A runtime waits for the thread that answers it, and a sweep leaves the interpreter to that thread
# after this time; Python's own 5 ms would be most of an answer.
_THREAD_SWITCH_S: Final = 0.0005
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


def run(
    arguments: argparse.Namespace, _out: TextIO, cpu_managers: CPUManagerPolicies = BUILT_IN
) -> int:
    """Run the agent until SIGTERM or SIGINT.

    Args:
        arguments: what the command line says.
        cpu_managers: the CPU manager policies that a pool file can name.

    Raises:
        UsageError: the settings file cannot be used, the node or the API server is not named, or a
            runtime's plugin shall not be one.
        CPUPoolError: a part of it failed.
    """
    given = _settings(arguments)
    if not given.node_name:
        raise UsageError(f"the node has no name; give --node-name, or set {NODE_NAME}")
    if given.write_node_resources and not given.resource_plugins:
        raise UsageError("--write-node-resources writes what plugins say; add --resource-plugins")
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
    settings = Setup(
        config=Path(given.config),
        names=Names(given.resource_domain),
        cgroup_root=given.cgroup_root,
        interval_s=given.sweep_interval_s,
        moves_pinned=given.move_pinned == "always" or kernel.remembers_affinity(os.uname().release),
        telemetry=("", given.metrics_port) if given.metrics_port else None,
        starter=Path(given.starter),
        enforcement=writer,
        missing_facts=MissingFacts(given.nri_missing_facts),
        nri_waits=WaitRules(given.nri_wait_s, own_pod(SERVICE_ACCOUNT)),
        cri_socket=Path(given.cri_socket) if given.cri_socket else None,
        launch=launch,
        cpu_managers=cpu_managers,
        fail_misfit_after_s=given.fail_misfit_after_s,
        node_name=given.node_name,
        publishing=Publishing(given.node_topology),
        plugin_folders=_plugin_folders(given),
        plugin_names=settings_file.served_as(given.resource_plugin_names),
        reconcile_s=given.resource_plugin_reconcile_s,
        kubelet_config=Path(given.kubelet_config) if given.kubelet_config else None,
    )
    followed = config_map(given.configmap)
    root = HostRoot.under(Path(given.host_root))
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
        node, names = given.node_name, settings.names
        return ClusterView(
            server,
            node,
            names,
            metrics,
            signals.cluster,
            pods_changed=signals.pods,
            config_map=followed,
            publishes=settings.publishing is not Publishing.OFF,
            annotates=given.write_resource_status,
            describes=given.resource_plugins,
            declares=given.write_node_resources,
        )

    # The program itself is no garbage. Going through it takes a full collection 13 ms, in which a
    # runtime would wait for its answer.
    gc.freeze()
    sys.setswitchinterval(_THREAD_SWITCH_S)
    Agent(settings, root, Sysfs.at(root.sysfs), join).run(stop)
    return 0


def _plugin_folders(given: AgentSettings) -> tuple[Path, ...]:
    """Return where plugins for resources make their sockets; none where no plugin is asked."""
    if not given.resource_plugins:
        return ()
    named = given.resource_plugin_folders.split(",")
    return tuple(Path(given.host_root) / name.strip().lstrip("/") for name in named)


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
