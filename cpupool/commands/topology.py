"""`cpupool topology`: draws a machine, painted by pool if pools are given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

from cpupool.commands import (
    add_command,
    add_node_labels,
    add_resource_domain,
    add_shape,
    add_topology,
    input_file,
    open_machine,
    pool_files,
)
from cpupool.core.names import Names
from cpupool.core.topology import describe

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from cpupool.commands import Commands
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

_EXAMPLES = """\
examples:
  cpupool topology
  cpupool topology --topology recorded.tar.gz --json
  cpupool topology --pools poolconfig-dpdk.yaml --svg machine.svg

A machine is recorded with: tar czf recorded.tar.gz -C / sys/devices/system/cpu \\
    sys/devices/system/node (tar tells of files that shrank: that does no harm)

Exit code 0: it is drawn; 1: the picture was not written; 2: the command line is wrong, or a file
that it names cannot be used.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "topology",
        summary,
        "Draws a machine as its sockets, NUMA nodes, L3 caches, cores and threads. A column of"
        " tiles is a core, its threads below each other.",
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Draw the machine, or describe it as JSON.

    Raises:
        UsageError: the machine cannot be read, or has no pool file that can be used.
        HostFileError: the picture cannot be written.
    """
    topology = open_machine(arguments.topology)
    pools = None
    if arguments.pools:
        names = Names(arguments.resource_domain)
        _, file = pool_files.choose(arguments.pools, arguments.node_labels, names, topology)
        pools = file.pools
    if arguments.json:
        out.write(json.dumps(describe(topology), indent=2) + "\n")
    else:
        _draw(topology, pools, arguments.svg, out)
    return 0


def _draw(topology: CPUTopology, pools: NodePools | None, svg: Path | None, out: TextIO) -> None:
    # Only here, so that --json does without the drawing library.
    from cpupool.commands import drawing, painting  # noqa: PLC0415

    painted = painting.Painting() if pools is None else painting.paint_pools(pools, topology)
    picture = drawing.Picture(topology, painted)
    drawing.show(picture, out)
    if svg:
        drawing.export_svg(picture, svg, "cpupool topology")
