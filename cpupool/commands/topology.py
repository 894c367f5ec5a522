"""`cpupool topology`: draws a machine, painted by pool if pools are given."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cpupool.commands import node_labels, open_machine, pool_files
from cpupool.core import pools as rules
from cpupool.core.errors import refuse_errors
from cpupool.core.names import DEFAULT_DOMAIN, Names
from cpupool.core.topology import describe

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

_EXAMPLES = """\
examples:
  cpupool topology
  cpupool topology --topology recorded.tar.gz --json
  cpupool topology --pools poolconfig-dpdk.yaml --svg machine.svg

A machine is recorded with: tar czf recorded.tar.gz -C / sys/devices/system/cpu \\
    sys/devices/system/node (tar tells of files that shrank: that does no harm)
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "topology",
        help=summary,
        description="Draws a machine as its sockets, NUMA nodes, L3 caches, cores and threads. A"
        " column of tiles is a core, its threads below each other.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--topology",
        metavar="MACHINE",
        default="this",
        help="the machine: this, a folder with a copy of /sys, or a recorded.tar.gz of one"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--pools",
        metavar="FILE",
        type=Path,
        help="paint the CPUs by the pools of this pool file or ConfigMap manifest",
    )
    parser.add_argument(
        "--node-labels",
        metavar="K=V,...",
        type=node_labels,
        help="the node's labels, which choose the pool file in a manifest",
    )
    parser.add_argument(
        "--resource-domain",
        metavar="DOMAIN",
        default=DEFAULT_DOMAIN,
        help="the agent's --resource-domain (default: %(default)s)",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object instead")
    shape.add_argument("--svg", metavar="FILE", type=Path, help="write the picture as SVG, too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Draw the machine, or describe it as JSON.

    Raises:
        UsageError: a file or the machine cannot be read, or no pool file is for the node.
        ConfigError: the pools do not fit the machine.
    """
    topology = open_machine(arguments.topology)
    pools = None
    if arguments.pools:
        names = Names(arguments.resource_domain)
        _, file = pool_files.choose(arguments.pools, arguments.node_labels, names)
        refuse_errors(file.located(rules.validate(file.pools, topology)))
        pools = file.pools
    if arguments.json:
        out.write(json.dumps(describe(topology), indent=2) + "\n")
    else:
        _draw(topology, pools, arguments.svg, out)
    return 0


def _draw(topology: CPUTopology, pools: NodePools | None, svg: Path | None, out: TextIO) -> None:
    # Only here, so that --json does without the drawing library.
    from cpupool.commands import drawing, painting  # noqa: PLC0415

    painted = painting.paint_pools(pools, topology) if pools else painting.Painting()
    picture = drawing.Picture(topology, painted)
    drawing.show(picture, out)
    if svg:
        drawing.export_svg(picture, svg, "cpupool topology")
