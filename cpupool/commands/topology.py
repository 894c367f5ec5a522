"""`cpupool topology`: draws a machine, painted by pool if pools are given."""

from __future__ import annotations

import json
import os
import platform
from typing import TYPE_CHECKING, Final, TextIO

import yaml

from cpupool.commands import (
    NODE_NAME,
    UsageError,
    add_command,
    add_node_labels,
    add_resource_domain,
    add_setting,
    add_shape,
    add_topology,
    input_file,
    open_machine,
    pool_files,
    read_file,
)
from cpupool.config import kubelet_config
from cpupool.core.errors import CPUPoolError
from cpupool.core.names import Names
from cpupool.core.node_topology import Publishing
from cpupool.core.pools import NodePools
from cpupool.core.topology import describe
from cpupool.host import node_memory
from cpupool.host.sysfs import open_tree
from cpupool.manager.manager import Manager
from cpupool.manager.node_topology import Surroundings, node_topology
from cpupool.wire import node_topology as wire

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from cpupool.commands import Commands
    from cpupool.config.kubelet_config import KubeletConfig
    from cpupool.core.topology import CPUTopology

_WIDE: Final = 1 << 20
"""Longer than any line: YAML breaks no text of an annotation."""

_EXAMPLES = """\
examples:
  cpupool topology
  cpupool topology --topology recorded.tar.gz --json
  cpupool topology --pools poolconfig-dpdk.yaml --svg machine.svg
  cpupool topology --pools poolconfig-dpdk.yaml --nrt

Record a machine with: tar czf recorded.tar.gz -C / sys/devices/system/cpu \\
    sys/devices/system/node (tar reports that files shrank; this does no harm)

Exit code 0: it is drawn; 1: the picture was not written; 2: the command line is wrong, or a file
that it names cannot be used.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "topology",
        summary,
        "Draws the sockets, NUMA nodes, L3 caches, cores and threads of a machine. Each column is"
        " a core, with its threads below each other.",
        _EXAMPLES,
    )
    add_topology(parser, "the machine", "this")
    parser.add_argument(
        "--pools",
        metavar="FILE",
        type=input_file,
        help="paint the CPUs by the pools of this pool file or ConfigMap manifest",
    )
    add_node_labels(parser)
    add_resource_domain(parser)
    add_shape(parser)
    parser.add_argument(
        "--nrt",
        nargs="?",
        const=Publishing.ZONES.value,
        choices=[each.value for each in Publishing if each is not Publishing.OFF],
        metavar="FOR",
        help="print the NodeResourceTopology that an agent publishes while no pod runs, as YAML, or"
        " as JSON with --json; FOR is the value of its --node-topology: zones (the default), or"
        " koordinator",
    )
    add_setting(parser, "node-name")
    add_setting(parser, "kubelet-config")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Draw the machine, or describe it as JSON.

    Raises:
        UsageError: the options exclude each other, the machine cannot be read, or it has no pool
            file that can be used.
        HostFileError: the picture cannot be written.
    """
    if arguments.nrt and arguments.svg:
        raise UsageError("--nrt draws no picture; leave out --svg or --nrt")
    topology = open_machine(arguments.topology)
    pools = None
    if arguments.pools:
        names = Names(arguments.resource_domain)
        _, file = pool_files.choose(arguments.pools, arguments.node_labels, names, topology)
        pools = file.pools
    if arguments.nrt:
        _print_nrt(arguments, topology, pools or NodePools(), out)
    elif arguments.json:
        out.write(json.dumps(describe(topology), indent=2) + "\n")
    else:
        _draw(topology, pools, arguments.svg, out)
    return 0


def _print_nrt(
    arguments: argparse.Namespace, topology: CPUTopology, pools: NodePools, out: TextIO
) -> None:
    names = Names(arguments.resource_domain)
    manager = Manager(names)
    manager.reconfigure(pools, topology)
    manager.observe(pods=())
    try:
        around = Surroundings(
            memory=node_memory.read(open_tree(arguments.topology)),
            kubelet=_kubelet(arguments.kubelet_config),
        )
    except CPUPoolError as error:
        raise UsageError(error) from error
    found = node_topology(manager.snapshot(), names, around, Publishing(arguments.nrt))
    name = arguments.node_name or os.environ.get(NODE_NAME) or platform.node()
    body = wire.applied(name, None, wire.V1ALPHA2, wire.values(found, wire.V1ALPHA2))
    if arguments.json:
        out.write(json.dumps(body, indent=2) + "\n")
    else:
        out.write(yaml.safe_dump(body, sort_keys=False, width=_WIDE))


def _kubelet(path: str) -> KubeletConfig | None:
    return kubelet_config.parse(path, read_file(input_file(path))) if path else None


def _draw(topology: CPUTopology, pools: NodePools | None, svg: Path | None, out: TextIO) -> None:
    # Only here, so that --json does without the drawing library.
    from cpupool.commands import drawing, painting  # noqa: PLC0415

    painted = painting.Painting() if pools is None else painting.paint_pools(pools, topology)
    picture = drawing.Picture(topology, painted)
    drawing.show(picture, out)
    if svg:
        drawing.export_svg(picture, svg, "cpupool topology")
