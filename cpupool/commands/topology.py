"""`cpupool topology`: draws a machine, painted by pool if pools are given."""

from __future__ import annotations

import json
import os
import platform
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import yaml

from cpupool.commands.shell import archive, pool_files
from cpupool.commands.shell.beside import excludes, needs
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, open_machine, read_file, writable
from cpupool.commands.shell.options import (
    NODE_NAME,
    add_command,
    add_node_labels,
    add_resource_domain,
    add_setting,
    add_shape,
    add_topology,
)
from cpupool.config import kubelet_config
from cpupool.config.settings import Publishing
from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.core.names import Names
from cpupool.core.pools import NodePools
from cpupool.core.topology import describe
from cpupool.host import node_memory
from cpupool.host.kubelet_file import KubeletConfigFile, KubeletFiles
from cpupool.host.recording import record_machine
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import THIS_MACHINE, FolderTree, RecordedTree, Sysfs, open_tree
from cpupool.manager.manager import Manager
from cpupool.manager.node_topology import Surroundings, node_topology
from cpupool.wire import node_topology as wire

if TYPE_CHECKING:
    import argparse

    from cpupool.commands.shell.options import Commands
    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.core.topology import CPUTopology
    from cpupool.host.recording import Recording

_FOR_ALL: Final = 0o666
_WIDE: Final = 1 << 20
"""Longer than any line: YAML breaks no text of an annotation."""

_EXAMPLES = """\
examples:
  cpupool topology
  cpupool topology --record recorded.tar.gz
  kubectl exec -n NAMESPACE POD -- cpupool topology --record - > recorded.tar.gz
  cpupool topology --topology recorded.tar.gz --json
  cpupool topology --pools poolconfig-dpdk.yaml --svg machine.svg
  cpupool topology --pools poolconfig-dpdk.yaml --nrt

--record needs no root. Every command that has --topology reads the record, on any machine.

Exit code 0: it is drawn, or recorded; 1: the picture or the record was not written; 2: the command
line is wrong, or a file that it names cannot be used.
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
    published = [each.value for each in Publishing if each is not Publishing.OFF]
    parser.add_argument(
        "--nrt",
        nargs="?",
        const=Publishing.ZONES.value,
        choices=published,
        metavar="FOR",
        help="print the NodeResourceTopology that an agent publishes while no pod runs, as YAML, or"
        f" as JSON with --json; FOR is the value of its --node-topology, {' or '.join(published)}"
        " (default: %(const)s)",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=_record_file,
        help="write what this command reads of the machine into a new .tar.gz, for --topology; -"
        " for standard output",
    )
    add_setting(parser, "node-name")
    add_setting(parser, "kubelet-config")
    add_setting(parser, "kubelet-config-dir")
    needs(parser, "--node-labels", "--pools")
    needs(parser, "--resource-domain", "--pools --nrt")
    needs(parser, "--node-name --kubelet-config --kubelet-config-dir", "--nrt")
    excludes(parser, "--record", "--nrt --svg --json --pools")
    excludes(parser, "--nrt", "--svg")
    excludes(parser, "--pools", "--json", unless="--nrt")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Draw the machine, or describe it as JSON.

    Raises:
        UsageError: the machine cannot be read, or it has no pool file that can be used.
        HostFileError: the picture cannot be written.
    """
    topology = open_machine(arguments.topology)
    if arguments.record:
        return _record(arguments, topology, out)
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


def _record(arguments: argparse.Namespace, topology: CPUTopology, out: TextIO) -> int:
    tree, path = open_tree(arguments.topology), arguments.record
    if not isinstance(tree, FolderTree):
        raise UsageError(f"{arguments.topology} is a record already; copy it")
    sysfs = Path(tree.name)
    if str(path) == archive.STDOUT:
        archive.write_stdout("--record", lambda: _recorded(path, sysfs, topology))
        return 0
    recorded = archive.write_file(
        path, "--record", _FOR_ALL, lambda: _recorded(path, sysfs, topology)
    )
    archive.tell(path, recorded, out)
    return 0


def _recorded(path: Path, sysfs: Path, topology: CPUTopology) -> Recording:
    """Return the record of a machine, which reads as the machine does.

    Raises:
        HostFileError: it does not: CPUs come and go meanwhile, and files can be left out.
    """
    kept, content = record_machine(sysfs), BytesIO()
    kept.write(content)
    content.seek(0)
    if Sysfs(RecordedTree.from_archive(path, content)).topology() != topology:
        why = f"it is not the machine that was read: {'; '.join(kept.left_out) or 'it has changed'}"
        raise HostFileError(str(path), why, "record the machine again")
    return kept


def _record_file(text: str) -> Path:
    """Read the name of the record from the command line; `-` is standard output."""
    return Path(text) if text == archive.STDOUT else writable(text)


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
            kubelet=_kubelet(arguments),
        )
    except CPUPoolError as error:
        raise UsageError(error) from error
    annotated = Publishing(arguments.nrt).annotated
    found = node_topology(manager.snapshot(), names, around, annotated=annotated)
    name = arguments.node_name or os.environ.get(NODE_NAME) or platform.node()
    body = wire.applied(name, None, wire.V1ALPHA2, wire.values(found, wire.V1ALPHA2))
    if arguments.json:
        out.write(json.dumps(body, indent=2) + "\n")
    else:
        out.write(yaml.safe_dump(body, sort_keys=False, width=_WIDE))


def _kubelet(arguments: argparse.Namespace) -> KubeletConfig | None:
    """Return the kubelet's configuration: on the node itself, as its agent reads it."""
    named, folder = arguments.kubelet_config, arguments.kubelet_config_dir
    path = input_file(named) if named else None
    if path and not path.is_file():
        return kubelet_config.parse(named, read_file(path))
    here = HostRoot() if arguments.topology in THIS_MACHINE else None
    return KubeletConfigFile(KubeletFiles(path, folder), host=here).read() if path or here else None


def _draw(topology: CPUTopology, pools: NodePools | None, svg: Path | None, out: TextIO) -> None:
    # Only here, so that --json does without the drawing library.
    from cpupool.commands.pictures import drawing, painting  # noqa: PLC0415

    painted = painting.Painting() if pools is None else painting.paint_pools(pools, topology)
    picture = drawing.Picture(topology, painted)
    drawing.show(picture, out)
    if svg:
        drawing.export_svg(picture, svg, "cpupool topology")
